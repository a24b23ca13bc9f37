"""The files in ``graphs/`` are what the zoo makes, and load."""

import importlib.util
from pathlib import Path

import pytest

from remat_cli.graph.analysis import no_remat_peak, working_sets
from remat_cli.graph.io import load_graph
from remat_cli.graph.model import Phase
from remat_cli.zoo.registry import ARCHITECTURES, build_graph

GRAPHS = Path(__file__).parents[2] / "graphs"


def _generator():
    path = GRAPHS.parent / "docs" / "generate_graphs.py"
    spec = importlib.util.spec_from_file_location("generate_graphs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()
FILES, HAND_WRITTEN, documents, main = (
    GENERATOR.FILES,
    GENERATOR.HAND_WRITTEN,
    GENERATOR.documents,
    GENERATOR.main,
)


@pytest.fixture(scope="module")
def made():
    return documents(GRAPHS)


@pytest.mark.parametrize("file", [*FILES, "README.md"])
def test_committed_files_are_what_the_zoo_makes(made, file):
    assert (GRAPHS / file).read_bytes() == made[file].encode(), "run make graphs"


def test_nothing_else_lies_there():
    assert {path.name for path in GRAPHS.iterdir()} == {*FILES, *HAND_WRITTEN, "README.md"}


def test_every_architecture_has_a_file():
    assert {spec.split("{")[0] for spec in FILES.values()} == set(ARCHITECTURES.names())


@pytest.mark.parametrize(("file", "spec"), FILES.items())
def test_files_load_as_the_same_graph(file, spec):
    assert load_graph(str(GRAPHS / file)) == build_graph(spec)


def test_the_readme_has_a_line_for_every_file(made):
    lines = made["README.md"].splitlines()
    for file in (*FILES, *HAND_WRITTEN):
        (line,) = [line for line in lines if line.startswith(f"| [{file}]({file})")]
        graph = load_graph(str(GRAPHS / file))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[2:4] == [str(len(graph.nodes)), str(graph.edges)]
        for cell, count in zip(
            cells[4:7], (no_remat_peak(graph), graph.fixed_memory, max(working_sets(graph))), strict=True
        ):
            assert cell.startswith(f"{count:,} B")


def test_eighty_percent_of_vgg16_is_not_below_its_largest_working_set():
    graph = build_graph("vgg16")
    assert max(working_sets(graph)) + graph.fixed_memory < 0.8 * no_remat_peak(graph)
    assert max(working_sets(graph)) + graph.fixed_memory < 16_000_000_000 < no_remat_peak(graph)


def test_the_toy_shows_the_format():
    graph = load_graph(str(GRAPHS / "toy.yaml"))
    assert {node.phase for node in graph.nodes} == {Phase.FORWARD, Phase.LOSS, Phase.BACKWARD}
    assert [graph.value_name(v) for v in graph.outputs] == ["loss:0"]
    assert any(len(node.outputs) > 1 for node in graph.nodes)
    assert any(node.workspace for node in graph.nodes)
    assert any(not node.recompute for node in graph.nodes)


def test_regenerating_writes_every_file(tmp_path, made):
    (tmp_path / "toy.yaml").write_bytes((GRAPHS / "toy.yaml").read_bytes())
    assert main([str(tmp_path)]) == 0
    assert {
        path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir() if path.suffix != ".yaml"
    } == made


def test_regenerating_without_the_hand_written_file_or_the_directory_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "toy.yaml" in capsys.readouterr().err
    assert main([str(tmp_path / "none")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
