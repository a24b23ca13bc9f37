"""``remat solvers``: list the MIP solvers."""

from typing import Any

import click

from remat_cli.cli import params
from remat_cli.cli.output import Output
from remat_cli.cli.output_files import report_format
from remat_cli.errors import ExitCode
from remat_cli.reports.documents import document_json
from remat_cli.reports.style import Entry, listing_text
from remat_cli.spec import describe_options

_FORMATS = ("text", "json")
_EPILOG = """\b
Examples:
  remat solvers --check
  remat solve graph.json --budget 80% --solver cbc

More: docs/solvers.md"""


@click.command("solvers", epilog=_EPILOG)
@click.option("--check", is_flag=True, help="Solve a small MILP with each; exit with 3 if an installed one fails.")
@params.output_option
@params.format_option(*_FORMATS, by_suffix=True)
@params.quiet_option
@params.color_option
def command(check: bool, output: str, format: str, quiet: bool, color: str) -> int:
    """List the MIP solvers: version, path, licence, and whether each can be used here.

    A solver whose extra is not installed does not fail --check.
    """
    from remat_cli.solvers.registry import SOLVERS  # loads numpy

    format = report_format(output, _FORMATS, format)
    out = Output(color, quiet, file=output)
    rows = [_facts(name, SOLVERS.load(name), check=check) for name in SOLVERS.names()]
    if format == "json":
        out.report(document_json({"solvers": rows}))
    else:
        out.report(listing_text([Entry(r["name"], _summary(r), _notes(r), mark=_mark(r)) for r in rows], out.style()))
    return ExitCode.SOLVER if check and not all(r["solves"] or r["optional"] for r in rows) else ExitCode.OK


def _facts(name: str, solver_class: Any, *, check: bool) -> dict[str, Any]:
    solver = solver_class()
    availability = solver.availability()
    facts = {
        "name": name,
        "title": solver.title,
        "available": availability.available,
        "version": availability.version,
        "path": availability.path,
        "licence": availability.licence,
        "problem": availability.problem,
        "hint": availability.hint,
        "optional": availability.optional,
        "options": [list(o) for o in describe_options(solver_class)],
    }
    if check:
        from remat_cli.solvers.registry import check_solver

        result = check_solver(solver)
        facts |= {"solves": result.solved, "message": result.message, "licence": result.licence}
    return facts


def _mark(row: dict[str, Any]) -> str:
    return "missing" if not row["available"] else "fails" if row.get("solves") is False else ""


def _summary(row: dict[str, Any]) -> str:
    return f"{row['title']} {row['version'] or ''}".strip() if row["available"] else row["problem"]


def _notes(row: dict[str, Any]) -> list[str]:
    if row["available"]:
        notes = [row["path"], row["licence"], "solved a tiny MILP" if row.get("solves") else row.get("message", "")]
    else:
        notes = [row["hint"]]
    notes += [f"{name}={default or '...'}  {text}".rstrip() for name, default, text in row["options"]]
    return [note for note in notes if note]
