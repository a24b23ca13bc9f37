"""The exporter in another language that docs/graph-format.md shows."""

import json
import subprocess
from pathlib import Path

import pytest
from docs_pages import DOCS, blocks

import remat_cli as remat

pytestmark = pytest.mark.system  # node
EXPORTER = DOCS / "examples" / "export.mjs"


def exported(tmp_path) -> Path:
    target = tmp_path / "mlp.json"
    done = subprocess.run(["node", str(EXPORTER)], capture_output=True, text=True, check=True)
    target.write_text(done.stdout, encoding="utf-8")
    return target


def test_what_it_writes_is_solved_and_checked(tmp_path):
    graph = remat.load_graph(exported(tmp_path))
    without = remat.solve(graph, None)
    solved = remat.solve(graph, "75%")
    assert solved.report.ok
    assert solved.report.replay.peak_bytes < without.report.replay.peak_bytes
    assert solved.report.recomputed


def test_it_writes_the_graph_that_it_means(tmp_path):
    document = json.loads(exported(tmp_path).read_text(encoding="utf-8"))
    nodes = {node["id"]: node for node in document["nodes"]}
    assert document["fixed_memory"] == 4 * (4096 * 784 + 2 * (784 * 512 + 512 * 512 + 512 * 512 + 512 * 10))
    assert nodes["linear1"]["cost"] == 2 * 4096 * 784 * 512
    assert nodes["grad/linear2"]["inputs"] == ["grad/relu2", "relu1"]
    assert [node["phase"] for node in document["nodes"]].count("backward") == 7


def test_the_page_shows_the_file_and_it_is_short():
    text = EXPORTER.read_text(encoding="utf-8")
    shown = [block.text for block in blocks(DOCS / "graph-format.md") if block.language == "javascript"]
    assert shown == [text]
    assert len(text.splitlines()) <= 40
