"""Nothing in a document, a plan or a file name reaches the terminal, or breaks a line of output."""

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import TOY, read
from plotly.offline import get_plotlyjs

from remat_cli.graph.document import Document, parse_document
from remat_cli.graph.io import dump_document, graph_from_document, graph_sha256
from remat_cli.graph.yaml12 import yaml_text
from remat_cli.printable import printable_lines

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal obeys: C0 (but line ends and tabs), DEL, C1, separators of lines, and controls of direction."""
DIRECTIONS = "\u202e\u2066\u200f\u061c$^$"
"""What ids may contain; between dollars, what matplotlib takes for mathematics."""
NASTY = f"\x1b[2J\x1b]0;pwn\x07\x9b31m\x7f\r\u2028{DIRECTIONS}\n::error::pwned"
"""The last is a command to GitHub if it is a line of its own."""
OF_A_GRAPH = (
    *(("convert", "--to", form) for form in ("json", "yaml", "dot", "node-link")),
    ("show",),
    ("show", "--format", "json"),
    ("solve", "-b", "80%", "--strategy", "keep-all", "-o", "-", "-v"),
    ("solve", "--budgets", "90%,100%", "--strategy", "keep-all", "-o", "{budget}", "--format", "csv"),
)
OF_A_PLAN = (
    *(("convert", "--to", form) for form in ("json", "yaml")),
    *(("check", "--format", form) for form in ("text", "json", "github", "junit", "sarif")),
    *(("diff", "plan.json", "--format", form) for form in ("text", "json", "github", "markdown")),
    ("show",),
    ("explain", "conv1"),
    ("explain", "no\x1bne"),
)
DRAWN = (("show", "--format", "html"), ("show", "--format", "svg"))
"""Slow, so only for the fields that they draw."""
IDS = {"id", "inputs", "outputs", "compute", "value"}
"""Where control characters are refused, so that what ids may contain is tried as well."""
FIELDS = {"name", "cost_unit", "op", "strategy", "time_limit_s"}


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all texts and keys: of a list, those of the first entry of each form."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield (*path, key, "key")
            yield from leaves(value, (*path, key))
    elif isinstance(data, list):
        seen = set()
        for i, entry in enumerate(data):
            form = tuple(sorted(entry)) if isinstance(entry, dict) else type(entry)
            if form not in seen:
                seen.add(form)
                yield from leaves(entry, (*path, i))
    else:
        yield path


def poisoned(document: Any, path: tuple[Any, ...], text: str) -> Any:
    """``document`` with ``text`` in one place, appended if there is text already."""
    changed = copy.deepcopy(document)
    is_key = path[-1] == "key"
    *way, last = path[:-1] if is_key else path
    inner = changed
    for step in way:
        inner = inner[step]
    if is_key:
        inner[last + text] = inner.pop(last)
    else:
        inner[last] = f"{inner[last]}{text}" if isinstance(inner[last], str) else text
    return changed


def assert_harmless(said: Any, what: object) -> None:
    for stream in (said.out.replace(get_plotlyjs(), ""), said.err):  # pages carry a library with all characters
        found = OBEYED.search(stream)
        assert found is None, (what, stream[max(0, found.start() - 80) : found.end() + 40])
        assert not re.search(r"^::error::pwned", stream, re.MULTILINE), (what, stream)
    assert said.code in (0, 1, 2), (what, said)


@pytest.fixture
def plan(remat) -> dict[str, Any]:
    remat("solve", TOY, "-b", "80%", "-o", "plan.json", "-q")
    document = read("plan.json")
    document["graph"]["metadata"] = {"from": "here"}
    for node in document["graph"]["nodes"]:
        node |= {"payload": {"call": "aten.relu"}, "op": "relu"}
    return document


def signed(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` with the digest of its graph, if that can be read."""
    try:
        graph = graph_from_document(Document("", document["graph"]))
    except Exception:  # the graph is refused, so its digest does not matter
        return document
    return document | {"graph_sha256": graph_sha256(graph)}


def test_no_text_of_a_document_reaches_the_terminal(remat, plan):
    Path("plan.json").write_text(json.dumps(signed(plan)), encoding="utf-8")
    codes: Counter[int] = Counter()
    for whole, commands in ((plan["graph"], OF_A_GRAPH), (plan, OF_A_PLAN)):
        for path in leaves(whole):
            if "graph" in path:  # of the plan: the graph alone has had its turn
                continue
            for text in (NASTY, DIRECTIONS) if IDS & set(path) else (NASTY,):
                bad = poisoned(whole, path, text)
                Path("bad.json").write_text(json.dumps(signed(bad) if whole is plan else bad), encoding="utf-8")
                for name, *options in (*commands, *(DRAWN if path[-1] in FIELDS and text is NASTY else ())):
                    files = ["bad.json", options.pop(0)] if name in {"diff", "explain"} else ["bad.json"]
                    said = remat(name, *files, *options, code=None)
                    assert_harmless(said, (path, name, options))
                    codes[said.code] += 1
    assert min(codes[0], codes[2]) > 100, codes


def test_no_name_of_a_file_reaches_the_terminal(remat, plan):
    folder = Path("d\n::error::pwned\x1b[2J\x9b31m\u202e")
    folder.mkdir()
    there, graph, missing = folder / "there.json", folder / "graph.json", folder / "missing.json"
    there.write_text(json.dumps(signed(plan)), encoding="utf-8")
    graph.write_text(json.dumps(plan["graph"]), encoding="utf-8")
    (folder / "torn.json").write_text("{", encoding="utf-8")
    codes: Counter[int] = Counter()
    for form in ("text", "json", "github", "junit", "sarif"):
        for names in ([there], [missing], [there, missing, folder / "torn.json"]):
            said = remat("check", *names, "--format", form, code=None)
            assert_harmless(said, (form, names))
            codes[said.code] += 1
    for command in (
        *(("diff", there, there, "--format", form) for form in ("text", "json", "github", "markdown")),
        ("show", missing), ("explain", missing, "x"), ("convert", there, "-o", folder / "new.json"),
        ("convert", there, "-o", folder / "new.bad\x1b"), ("export", "zoo:linear", "-o", folder / "g.json"),
        ("solve", graph, "-b", "none", "-o", folder / "p.json", "--strategy", "keep-all"),
        ("solve", graph, "-b", "none", "-o", missing / "p.json", "--strategy", "keep-all"),
        ("solve", graph, "--budgets", "90%,100%", "-o", folder, "--strategy", "keep-all"),
        ("compare", graph, "--budgets", "100%", "--strategies", "keep-all", "--results", graph),
    ):  # fmt: skip
        said = remat(*command, code=None)
        assert_harmless(said, command)
        codes[said.code] += 1
    assert min(codes[0], codes[2]) > 5, codes


def test_rows_of_a_results_file_and_progress_are_escaped(remat, monkeypatch, plan):
    Path("graph.json").write_text(json.dumps({**plan["graph"], "name": NASTY}), encoding="utf-8")
    arguments = ("compare", "graph.json", "--budgets", "100%", "--strategies", "keep-all", "--results", "rows.jsonl")
    assert_harmless(remat(*arguments), "the first run")
    [line] = Path("rows.jsonl").read_text(encoding="utf-8").splitlines()
    entry = json.loads(line)
    entry["row"] |= {"ended": "refused", "message": NASTY, "peak_bytes": None, "cost": None, "overhead": None}
    entry["row"] |= {"computes": None, "lower_bound": None, "scope": None}
    Path("rows.jsonl").write_text(json.dumps(entry) + "\n", encoding="utf-8")
    for form in ("text", "json", "csv", "html", "svg"):
        said = remat(*arguments, "--format", form, code=None)
        assert_harmless(said, form)
        assert "pwned" in said.out or form == "svg"  # it was used


@pytest.mark.parametrize("colours", [False, True])
def test_only_our_own_colours_pass(colours):
    text = "\x1b[1;31mred\x1b[0m\tand\n\x1b[2Jnot\x9b31m"
    shown = printable_lines(text, colours=colours)
    assert shown.count("\x1b") == (2 if colours else 0)
    assert shown.endswith("\tand\n\\x1b[2Jnot\\x9b31m")


def test_documents_mean_the_same_after_the_escapes(plan):
    document = {**plan["graph"], "name": NASTY + "\u2066 \U0001f600"}
    assert json.loads(dump_document(document))["name"] == document["name"]
    assert parse_document(yaml_text(document), "y", "yaml").data["name"] == document["name"]
