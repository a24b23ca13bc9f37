"""``python -m benchmarks.torch [--device cuda] [--quick]``: compare, and keep ``results/DEVICE.json`` and the page."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.frame import Benchmark, Session, dump, perform
from benchmarks.page import section
from benchmarks.torch import peers

HERE = Path(__file__).resolve().parent


def benchmark(device: str) -> Benchmark:
    title, _, about = (peers.__doc__ or "").strip().partition("\n")

    def run(session: Session) -> list[dict[str, object]]:
        return peers.run(session, device)

    return Benchmark(f"torch-{device}", f"{title.rstrip('.')} ({device})", about.strip(), peers.TABLES, run)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="a tiny model, and nothing is kept")
    asked = parser.parse_args(arguments)
    from importlib.metadata import version

    from remat_cli.errors import RematError
    from remat_cli.frontends.torch.installed import require_present

    try:
        require_present(asked.device)
    except RematError as error:
        print(f"{error.message}: {error.hint}", file=sys.stderr)
        return 2
    measured = benchmark(asked.device)
    result = perform(measured, quick=asked.quick)
    result["versions"]["packages"] = result["versions"]["packages"] | {"torch": version("torch")}
    if asked.device == "cuda":
        import torch

        gpu = torch.cuda.get_device_properties(0)
        result["machine"] = result["machine"] | {
            "cpu": f"{gpu.name}, CUDA {torch.version.cuda}; {result['machine']['cpu']}"
        }
    text = section(replace(measured, name="torch"), result)
    print(text)
    if not asked.quick:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / f"{asked.device}.json").write_text(dump(result), encoding="utf-8")
        (HERE / "results" / f"{asked.device}.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
