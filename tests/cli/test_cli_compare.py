import json
import signal

import pytest
from cli_process import Running, wait_until

from remat_cli.graph.io import dump_document, graph_to_document
from remat_cli.zoo.registry import build_graph


@pytest.fixture
def chain(tmp_path, remat):
    remat("export", "zoo:unit-chain{n=9}", "-o", "chain.json")
    return "chain.json"


def test_a_table_and_its_progress(remat, chain):
    done = remat("compare", chain, "--budgets", "4B,6B", "--strategies", "keep-all,optimal", "--jobs", "1")
    assert "4/4" in done.err
    assert "proven lower bound" in done.out
    row = next(line for line in done.out.splitlines() if line.startswith("keep-all"))
    assert row.split() == ["keep-all", "no", "fit", "0%✓"]


def test_files_and_their_formats(remat, chain, tmp_path):
    asked = ("compare", chain, "--budgets", "4B:6B:1B", "--strategies", "keep-all", "--results", "rows.jsonl")
    for form in ("json", "csv", "html", "svg", "png", "txt"):
        done = remat(*asked, "-o", f"out.{form}")
        assert done.out == ""
        assert f"wrote out.{form}" in done.err
    assert (tmp_path / "out.svg").read_bytes().lstrip().startswith(b"<?xml")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "out.json").read_text())["strategies"] == ["keep-all"]
    assert (tmp_path / "out.csv").read_text().count("\n") == 4
    assert b"\x1b" not in (tmp_path / "out.txt").read_bytes()
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "remat compare chain.json --budgets 4B:6B:1B --strategies keep-all" in page


def test_rows_that_are_not_reused_are_told(remat, chain, tmp_path):
    asked = ("compare", chain, "--budgets", "6B:7B:1B", "--strategies", "keep-all", "--results", "rows.jsonl")
    assert "not reused" not in remat(*asked, "--time-limit", "20s").err
    assert "not reused, because they are for another --seed and --time-limit: 2" in remat(*asked, "--seed", "1").err
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 4
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"key": "x", "row": line["row"]}) + "\n" for line in lines))
    assert "because they are for another graph, other options or another version of remat: 4" in remat(*asked).err


def test_no_plan_at_all_is_a_no(remat, chain):
    assert remat("compare", chain, "--budgets", "4B", "--strategies", "keep-all", "-q", code=1).err == ""


def test_refusals(remat, chain):
    for arguments, words in (
        (("--budgets", "4B", "--format", "png", "-o", "x.svg"), "x.svg: --format png contradicts the suffix .svg"),
        (("--budgets", "4B", "--dask", "tcp://127.0.0.1:1", "--jobs", "2"), "--jobs is for this machine"),
        (("--budgets", "4B", "--strategies", "autoo"), 'did you mean "auto"?'),
        (("--budgets", "4B", "--strategies", "auto,,keep-all"), "empty entry"),
        (("--budgets", "4B", "-o", "/dev/null/folder.json"), "cannot be written"),
    ):
        done = remat("compare", chain, *arguments, code=2)
        assert words in done.err
        assert "Traceback" not in done.err


def test_ctrl_c_keeps_what_is_done(tmp_path):
    (tmp_path / "graph.json").write_text(dump_document(graph_to_document(build_graph("linear{n=40}"))))
    with Running(
        *("compare", "graph.json", "--budgets", "9B,90B", "--strategies", "keep-all,checkmate-ilp", "--jobs", "1"),
        *("--time-limit", "300s", "--results", "rows.jsonl"),
        cwd=tmp_path,
    ) as running:
        wait_until((tmp_path / "rows.jsonl").exists, "the first row")
        running.signal(signal.SIGINT)
        done = running.finish().expected(130)
    assert "not run" in done.out
    assert "Traceback" not in done.err
