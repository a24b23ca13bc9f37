"""``make models``, or ``python -m benchmarks.models``: take every model through every step; keep answers and a page.

Answers are kept as they come in ``results/models.json``, and a later run skips those that are there. ``--foreign``, or
``make foreign``, takes the models that are not in the suite through ``fit``, and keeps ``results/foreign.json``.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, versions
from benchmarks.models.forking import warm
from benchmarks.models.listing import FOREIGN, HERE, LIMIT_S, MODELS, Listed
from benchmarks.models.steps import FOREIGN_STEPS, STEPS, perform, wanted

RESULTS = HERE / "results"
LIBRARIES = ("diffusers", "peft", "timm", "torch", "torchvision", "transformers")
"""Whose versions the results name besides those of every benchmark."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="models, families or libraries")
    parser.add_argument("--steps", nargs="*", choices=(*STEPS, *FOREIGN_STEPS), default=(*STEPS, *FOREIGN_STEPS))
    parser.add_argument("--foreign", action="store_true", help="the models that are not in the suite")
    parser.add_argument("--again", action="store_true", help="also where there is an answer")
    parser.add_argument("--failed", action="store_true", help="also where the answer is a failure")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each search; more on a busy machine")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the answers and the page")
    asked = parser.parse_args(arguments)
    name, models, steps = ("foreign", FOREIGN, FOREIGN_STEPS) if asked.foreign else ("models", MODELS, STEPS)
    kept = Kept(asked.results / f"{name}.json", asked.limit, models)
    if not asked.page:
        warm()
        chosen = [m for m in models if not asked.only or {m.name, m.family, m.library} & set(asked.only)]
        chosen.sort(key=lambda m: asked.only.index(m.name) if m.name in asked.only else -1)  # as they were asked for
        for model in chosen:
            for step in steps:
                if step in asked.steps:
                    kept.ask(step, model, again=asked.again, failed=asked.failed)
    if asked.foreign:
        from benchmarks.models.foreign_page import page
    else:
        from benchmarks.models.page import page

    (asked.results / f"{name}.md").write_text(page(kept.document), encoding="utf-8")
    return 0


class Kept:
    """The answers so far, in a file."""

    def __init__(
        self, path: Path, limit_s: float, models: Sequence[Listed], libraries: Sequence[str] = LIBRARIES
    ) -> None:
        self.path, self.limit_s, self.libraries = path, limit_s, libraries
        self.order = {model.name: k for k, model in enumerate(models)}
        self.document: dict[str, Any] = {"rows": {}}
        if path.is_file():
            self.document = json.loads(path.read_text(encoding="utf-8"))

    def ask(self, step: str, model: Listed, *, again: bool, failed: bool) -> None:
        """Perform a step of a model unless there is an answer, and keep the answer."""
        row = self.document["rows"].setdefault(model.name, {})
        if not wanted(step, row):
            row.pop(step, None)
            return
        if step in row and not again and not (failed and not row[step]["ok"]):
            return
        answer = row[step] = perform(step, model, self.limit_s) | {"commit": versions()["commit"]}
        said = "" if answer["ok"] else f": {answer.get('problem', '')}"
        print(f"{model.name} {step} {'ok' if answer['ok'] else 'NO'} {answer['seconds']} s{said}", file=sys.stderr)
        self.write()

    def take(self, path: Path) -> None:
        """Take over the answers in another file, in place of those that are here."""
        for name, row in json.loads(path.read_text(encoding="utf-8"))["rows"].items():
            self.document["rows"].setdefault(name, {}).update(row)
        self.write()

    def write(self) -> None:
        packages = {name: version(name) for name in self.libraries}
        told = versions()
        self.document |= {
            "limit_s": self.limit_s,
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine(),
            "versions": told | {"packages": told["packages"] | packages},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = [row for row in self.document["rows"].items() if row[0] in self.order]
        rows.sort(key=lambda row: self.order[row[0]])
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in rows)
        rest = {key: value for key, value in self.document.items() if key != "rows"}
        head = "".join(f"{json.dumps(key)}: {json.dumps(rest[key], sort_keys=True)},\n" for key in sorted(rest))
        text = "{\n" + head + '"rows": {\n' + lines + "\n}\n}\n"
        temporary = self.path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.path)


if __name__ == "__main__":
    sys.exit(main())
