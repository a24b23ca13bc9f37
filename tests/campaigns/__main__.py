"""``python -m campaigns fuzz|faults|again``: see docs/campaigns.md."""

import os
import subprocess
import sys
import time
from pathlib import Path

import click

from campaigns import engine, table
from campaigns.engine import CASES, FAULTS, FUZZ, Campaign, Tally
from remat_cli.version import __version__

_ROOT = Path(__file__).parents[2]
_SAY_EVERY_S = 30.0


@click.group()
def main() -> None:
    """Run campaigns against remat."""


def _runner(name: str, campaigns: tuple[Campaign, ...], text: str) -> click.Command:
    known = [campaign.name for campaign in campaigns]

    @click.option("--seed", default=1, show_default=True, help="The same seed gives the same cases.")
    @click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Time for all.  [default: 10]")
    @click.option(
        "--part", type=click.FloatRange(0, min_open=True), help="Part of the long run, instead of a time: 1 is all."
    )
    @click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
    @click.option("--only", default=",".join(known), show_default=True, help="Campaigns to run.")
    @click.option("--keep", type=click.Path(path_type=Path), default=Path("build/campaigns"), show_default=True,
                  help="Folder for inputs that fail; kinds of failures that are there are only counted.")  # fmt: skip
    @click.option(
        "--results", type=click.Path(path_type=Path), help="JSON to add to.  [default: results.json in --keep]"
    )
    def command(
        seed: int, minutes: float | None, part: float | None, jobs: int, only: str, keep: Path, results: Path | None
    ) -> None:
        chosen = [campaign for campaign in campaigns if campaign.name in only.split(",")]
        if unknown := set(only.split(",")) - set(known):
            raise click.UsageError(f"there is no campaign {', '.join(sorted(unknown))}")
        if minutes is not None and part is not None:
            raise click.UsageError("--minutes and --part exclude each other")
        failed = False
        for campaign in chosen:
            time_s = None if part is not None else 60 * (minutes or 10) * campaign.share / sum(c.share for c in chosen)
            count = None if part is None else max(1, round(part * campaign.goal))
            tally = _run(campaign, seed, keep.absolute(), jobs, time_s, count, results or keep / "results.json")
            failed = failed or bool(tally.failures)
        sys.exit(1 if failed else 0)

    return click.command(name, help=text)(command)


def _run(
    campaign: Campaign, seed: int, keep: Path, jobs: int, time_s: float | None, count: int | None, results: Path
) -> Tally:
    began_s = said_s = time.monotonic()

    def listen(tally: Tally) -> None:
        nonlocal said_s
        if time.monotonic() - said_s > _SAY_EVERY_S:
            said_s = time.monotonic()
            click.echo(f"{campaign.name}: {_words(tally)}", err=True)

    tally = engine.run_campaign(campaign, seed, keep=keep, jobs=jobs, seconds=time_s, count=count, listener=listen)
    table.record(results, campaign.name, seed, (time.monotonic() - began_s) / 60, tally, _version())
    click.echo(f"{campaign.name}: {_words(tally)}")
    for name, number in sorted(tally.counts.items()):
        click.echo(f"    {name}: {number}")
    for kind, number in sorted(tally.failures.items()):
        click.echo(f"  FAILED {number} times: {kind}; run again: python -m campaigns again "
                   f"{engine.kept(keep, campaign.name, kind)}")  # fmt: skip
    return tally


def _words(tally: Tally) -> str:
    return f"{tally.counts[CASES]} cases, {tally.failures.total()} failures of {len(tally.failures)} kinds"


def _version() -> str:
    """Version and commit of what is tested."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=_ROOT, capture_output=True, text=True)
    return f"{__version__} {done.stdout.strip()}".strip()


@main.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path, dir_okay=False))
def again(file: Path) -> None:
    """Run a kept case again; exits with 1 if it still fails."""
    failure = engine.again(file)
    click.echo("passes" if failure is None else f"fails: {failure.kind}\n{failure.detail}")
    sys.exit(0 if failure is None else 1)


main.add_command(_runner("fuzz", FUZZ, "Solves, documents, models and plans for remat run."))
main.add_command(_runner("faults", FAULTS, "Signals, full disks, solvers that misbehave, killed comparisons."))

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process per job is enough
    main()
