import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from cli_process import PATIENCE_S, environment

from remat_cli.graph.io import dump_document, graph_to_document
from remat_cli.zoo.registry import build_graph


@pytest.fixture
def chain(tmp_path, remat):
    assert remat("export", "zoo:unit-chain{n=9}", "-o", "chain.json").code == 0
    return "chain.json"


def test_a_table_and_its_progress(remat, chain):
    done = remat("compare", chain, "--budgets", "4B,6B", "--strategies", "keep-all,optimal", "--jobs", "1")
    assert done.code == 0
    assert "4/4" in done.err
    assert "proven lower bound" in done.out
    row = next(line for line in done.out.splitlines() if line.startswith("keep-all"))
    assert row.split() == ["keep-all", "no", "fit", "0%✓"]


def test_files_and_their_formats(remat, chain, tmp_path):
    asked = ("compare", chain, "--budgets", "4B:6B:1B", "--strategies", "keep-all", "--results", "rows.jsonl")
    for form in ("json", "csv", "html", "svg", "png", "txt"):
        done = remat(*asked, "-o", f"out.{form}")
        assert (done.code, done.out) == (0, "")
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
    told = remat(*asked, "--seed", "1")
    assert "not reused, because they are for another --seed and --time-limit: 2" in told.err
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 4
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"key": "x", "row": line["row"]}) + "\n" for line in lines))
    assert "because they are for another graph, other options or another version of remat: 4" in remat(*asked).err


def test_no_plan_at_all_is_a_no(remat, chain):
    done = remat("compare", chain, "--budgets", "4B", "--strategies", "keep-all", "-q")
    assert (done.code, done.err) == (1, "")


def test_refusals(remat, chain):
    for arguments, words in (
        (("--budgets", "4B", "--format", "png", "-o", "x.svg"), "x.svg: --format png contradicts the suffix .svg"),
        (("--budgets", "4B", "--dask", "tcp://127.0.0.1:1", "--jobs", "2"), "--jobs is for this machine"),
        (("--budgets", "4B", "--strategies", "autoo"), 'did you mean "auto"?'),
        (("--budgets", "4B", "--strategies", "auto,,keep-all"), "empty entry"),
        (("--budgets", "4B", "-o", "/dev/null/folder.json"), "cannot be written"),
    ):
        done = remat("compare", chain, *arguments)
        assert done.code == 2
        assert words in done.err
        assert "Traceback" not in done.err


def test_ctrl_c_keeps_what_is_done(tmp_path):
    (tmp_path / "graph.json").write_text(dump_document(graph_to_document(build_graph("linear{n=40}"))))
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from remat_cli.cli.main import main; main()", "compare", "graph.json"),
            *("--budgets", "9B,90B", "--strategies", "keep-all,checkmate-ilp", "--jobs", "1"),
            *("--time-limit", "300s", "--results", "rows.jsonl"),
        ],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + PATIENCE_S
        while not (tmp_path / "rows.jsonl").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "not run" in out
    assert "Traceback" not in err


STEP = """\
schema: remat-graph/1
name: step
cost_unit: s
nodes:
  - {id: a, inputs: [], cost: 1, memory: 8}
  - {id: b, inputs: [a], cost: 9, memory: 4, recompute: false}
  - {id: c, inputs: [b], cost: 9, memory: 4, recompute: false}
  - {id: d, inputs: [c], cost: 9, memory: 2, recompute: false}
  - {id: e, inputs: [a, d], cost: 1, memory: 1}
"""


def test_a_comparison_for_each_of_several_links(remat, tmp_path):
    path = tmp_path / "step.yaml"
    path.write_text(STEP)
    modes = "offload,offload{copy=false}"
    rest = (
        "--strategies",
        modes,
        "--time-limit",
        "20s",
        "--jobs",
        "1",
        "--results",
        str(tmp_path / "rows.jsonl"),
        "-q",
    )
    asked = ("compare", str(path), "--budgets", "14B,16B", "--links", "0.1B/s,4B/s:1B/s", *rest)
    done = remat(*asked, "--format", "json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    schemas = Path(__file__).parents[2] / "schemas"
    jsonschema.validate(document, json.loads((schemas / "comparisons-v1.json").read_text()))
    found = {}
    for link in document["links"]:
        jsonschema.validate(link["comparison"], json.loads((schemas / "comparison-v1.json").read_text()))
        for row in link["comparison"]["rows"]:
            found[link["link"], row["strategy"], row["budget"]] = row["cost"]
    assert found["0.1B/s", "offload", "14B"] == found["4B/s:1B/s", "offload{copy=false}", "14B"] == 30
    assert found["4B/s:1B/s", "offload", "14B"] == 29
    for format in ("text", "csv", "svg", "html"):  # from the saved rows
        target = tmp_path / f"links.{format}"
        done = remat(*asked, "--format", format, "-o", str(target))
        assert done.code == 0, done.err
        text = target.read_text()
        assert "0.1B/s" in text
        assert "4B/s:1B/s" in text
        if format == "csv":
            assert len(text.splitlines()) == 1 + 2 * 2 * 2
            assert text.startswith("link,bandwidth_out,bandwidth_in,latency_s,memory,strategy,")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--links", "pcie6"], '"pcie6" is not a bandwidth'),
        (["--links", "pcie4,pcie4"], "links need names of their own"),
        (["--links", "pcie4", "--host-bandwidth", "25GB/s"], "--links has bandwidths of its own"),
        (["--links", "pcie4", "--strategies", "chen-sqrt"], ""),
    ],
)
def test_links_that_make_no_sense(remat, tmp_path, options, message):
    path = tmp_path / "step.yaml"
    path.write_text(STEP)
    done = remat("compare", str(path), "--budgets", "14B", "--time-limit", "5s", "--jobs", "1", *options)
    assert done.code == (2 if message else 1), done.err
    assert message in done.err
