"""Findings on plans as SARIF 2.1.0 (OASIS, 27 March 2020), which code scanning of GitHub, GitLab and editors read.

Rules are the codes of findings, which never change. The document has no times and no absolute paths, so the same plans
give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from remat_cli.errors import Problem, on_command_line
from remat_cli.plan.checks import Checked
from remat_cli.plan.replay import Finding
from remat_cli.reports.jsonform import document_json
from remat_cli.version import __version__

UNREADABLE = "unreadable"
RULES = {
    "claimed-bound": "The claimed lower bound is above the cost of the plan itself.",
    "claimed-cost": "The claimed cost differs from the replayed cost.",
    "claimed-gap": "The claimed gap does not follow from the claimed cost and lower bound.",
    "claimed-optimal": "The plan claims to be optimal, but its own bound leaves a gap.",
    "claimed-peak": "The claimed bound on the peak is above the peak of the plan itself.",
    "double-free": "A register is freed that is not allocated.",
    "double-release": "A host slot is released that holds nothing.",
    "freed-unused": "A register is freed before anything was computed into it.",
    "left-over": "A register is never freed, although it holds no output of the graph.",
    "missing-input": "A node is computed while one of its inputs is not in memory.",
    "missing-output": "An output of the graph is not in memory at the end.",
    "missing-register": "A node writes into a register that is not allocated.",
    "missing-slot": "A host slot is read that holds nothing.",
    "never-computed": "A node of the graph is never computed.",
    "no-host": "The plan copies values to a host, and was made for none.",
    "offload-empty": "A register is copied to the host before anything was computed into it.",
    "offload-forbidden": "A value is copied to the host although the graph forbids it.",
    "other-graph": "The plan is for a different graph.",
    "out-of-order": "A node is computed for the first time after a later node of the document.",
    "over-budget": "The peak memory of the plan is above the budget.",
    "overwritten": "A node writes into a register that already holds its value.",
    "recomputed": "A node that may be computed only once is computed again.",
    "register-count": "The number of registers of a compute differs from the number of outputs of its node.",
    "register-reused": "A register name is allocated twice.",
    "slot-left-over": "A host slot is never released.",
    "slot-reused": "A host slot is used a second time.",
    UNREADABLE: "The file contains no readable plan.",
    "value-live-twice": "A value is allocated while another register still holds it.",
    "wrong-register": "A node writes a value into a register that was allocated for another value.",
    "wrong-size": "The size of an allocation differs from the size of its value in the graph.",
}
"""The meaning of every code of a finding."""

_CODES = list(RULES)
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def plans_sarif(plans: Sequence[Checked]) -> str:
    """One run with a result for every finding and every problem; plans without any are only listed as artifacts."""
    results = []
    for checked in plans:
        if checked.report is None:
            results += [_problem(checked, problem) for problem in checked.problems]
        else:
            results += [_finding(checked, finding) for finding in checked.report.findings]
    used = sorted({str(result["ruleId"]) for result in results})
    driver = {
        "name": "remat",
        "version": __version__,
        "rules": [{"id": code, "shortDescription": {"text": RULES.get(code, code)}} for code in _CODES]
        + [{"id": code, "shortDescription": {"text": code}} for code in used if code not in RULES],
    }
    run = {
        "tool": {"driver": driver},
        # Each file once, as the standard demands, even if it is named twice.
        "artifacts": [{"location": location} for location in {c.name: _artifact(c) for c in plans}.values()],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return document_json({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _finding(checked: Checked, finding: Finding) -> dict[str, Any]:
    place = None if finding.statement is None else checked.place_of(finding.statement)
    return _result(checked, finding.code, finding.severity.value, finding.message, place)


def _problem(checked: Checked, problem: Problem) -> dict[str, Any]:
    words = ": ".join(part for part in (problem.pointer, problem.message) if part)
    words += f" ({on_command_line(problem.hint)})" if problem.hint else ""
    place = None if problem.line is None else (problem.line, problem.column or 1)
    return _result(checked, UNREADABLE, "error", words, place)


def _result(checked: Checked, code: str, level: str, words: str, place: tuple[int, int] | None) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": _artifact(checked)}
    if place is not None:
        location["region"] = {"startLine": place[0], "startColumn": place[1]}
    rule = {"ruleIndex": _CODES.index(code)} if code in RULES else {}
    return {
        "ruleId": code,
        **rule,
        "level": level,
        "message": {"text": words},
        "locations": [{"physicalLocation": location}],
    }


def _artifact(checked: Checked) -> dict[str, str]:
    """The file's location: relative to the root of the sources, unless its path is absolute."""
    path = PurePath(checked.name)
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(path.as_posix()), "uriBaseId": "%SRCROOT%"}
