"""``make truth``, or ``python -m benchmarks.fits``: what ``remat fits`` and other tools predict, and what is measured.

Answers are kept as they come in ``results/fits.json``, and a later run skips the models that are there. ``--cuda``
compares with what PyTorch's allocator takes from a CUDA device, and keeps ``results/cuda.json``: ``make hollow-truth``
does so without a device.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.fits.page import cuda_page, page
from benchmarks.models.__main__ import LIBRARIES, Kept
from benchmarks.models.forking import warm
from benchmarks.models.listing import LIMIT_S, MODELS

RESULTS = Path(__file__).resolve().parent / "results"
TOOLS = ("accelerate", "torch-kitsune")
"""Whose versions the results name besides those of the libraries of models."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fits", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="models, families or libraries")
    parser.add_argument("--again", action="store_true", help="also where there is an answer")
    parser.add_argument("--failed", action="store_true", help="also where the answer is a failure")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each search")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the answers and the page")
    parser.add_argument("--take", type=Path, help="only take over the answers in another folder")
    parser.add_argument("--cuda", action="store_true", help="on a CUDA device, which may be hollow")
    asked = parser.parse_args(arguments)
    step, make_page, others = ("cuda", cuda_page, ()) if asked.cuda else ("fits", page, TOOLS)
    kept = Kept(asked.results / f"{step}.json", asked.limit, MODELS, (*LIBRARIES, *others))
    if asked.take:
        kept.take(asked.take / f"{step}.json")
    elif not asked.page:
        warm()
        for model in MODELS:
            if not asked.only or {model.name, model.family, model.library} & set(asked.only):
                kept.ask(step, model, again=asked.again, failed=asked.failed)
    (asked.results / f"{step}.md").write_text(make_page(kept.document), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
