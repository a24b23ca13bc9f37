import json
import os
import sys
from pathlib import Path

import pytest
from cli_process import GRAPHS, NODE_LINK, TOY, read, remat_process

from remat_cli.graph.io import load_graph
from remat_cli.zoo.registry import ARCHITECTURES, build_graph


def test_a_graph_is_shown(remat):
    shown = remat("show", TOY)
    assert shown.err == ""
    for words in (
        "toy: 9 nodes, 11 values, 13 edges",
        "peak 270.5 MB",
        "Largest working sets",
        "grad/bn1",
        "216,426,499",
    ):
        assert words in shown.out
    assert shown.out.isprintable() or "\x1b" not in shown.out


def test_a_graph_is_shown_as_json(remat):
    shown = remat("show", TOY, "--format", "json")
    facts = shown.json()
    assert 270_533_124 in facts.values() or "270533124" in shown.out
    assert shown.out.endswith("}\n")


def test_a_plan_is_shown(remat):
    remat("solve", TOY, "-b", "80%")
    shown = remat("show", "toy.plan.json")
    assert shown.err == ""
    for words in ("budget 216.4 MB", "recomputed", "Why: loss needs 67.11 MB", "conv1  2 times"):
        assert words in shown.out
    report = remat("show", "toy.plan.json", "--format", "json").json()
    assert report["peak_memory"] == 203_424_260


def test_an_invalid_plan_is_shown_too(remat):
    remat("solve", TOY, "-b", "80%")
    plan = read()
    del plan["statements"][5]
    Path("bad.json").write_text(json.dumps(plan), encoding="utf-8")
    assert "statement" in remat("show", "bad.json").out


def test_what_is_shown_goes_to_a_file(remat):
    on_screen = remat("show", TOY, "--format", "json").out
    assert remat("show", TOY, "--format", "json", "-o", "summary.json").out == ""
    assert Path("summary.json").read_text(encoding="utf-8") == on_screen


def test_node_link_graphs_are_shown_with_keys(remat):
    Path("nx.json").write_text(json.dumps(NODE_LINK), encoding="utf-8")
    assert "nx: 2 nodes" in remat("show", "nx.json", "--keys", "cost=weight,memory=size").out


def test_keys_for_what_is_no_node_link_graph_are_refused(remat):
    remat("solve", TOY, "-b", "none")
    for file in (TOY, "toy.plan.json"):
        assert "--keys is for node-link graphs" in remat("show", file, "--keys", "cost=weight", code=2).err


def test_other_formats_of_networkx_and_graphviz_are_named(remat):
    """They are no documents, so that a missing schema field is not what is wrong with them."""
    many = {"directed": True, "graph": {}, "nodes": [{"id": k, "weight": 1} for k in range(100)], "links": []}
    for text, words in (
        (json.dumps({"directed": True, "nodes": [{"id": "a"}], "adjacency": [[]]}), "this is adjacency JSON"),
        (json.dumps({"directed": True, "data": [], "elements": {"nodes": []}}), "this is Cytoscape JSON"),
        ('// mine\nstrict digraph "x" {\n a -> b [label="c: d"];\n}\n', "<stdin>:1: this is DOT"),
        ('Creator "igraph"\ngraph\n[\n  node [ id 0 ]\n]\n', "<stdin>:1: this is GML"),
    ):
        for keys in ((), ("--keys", "cost=weight")):
            refused = remat("show", "-", *keys, stdin=text, code=2)
            assert words in refused.err
            assert "node_link_data" in refused.err
    lines = remat("show", "-", stdin=json.dumps(many), code=2).err.splitlines()
    assert len(lines) == 2
    assert 'no node has the attribute "cost"' in lines[0]


def test_from_standard_input(remat):
    assert "toy: 9 nodes" in remat("show", "-", stdin=Path(TOY).read_text(encoding="utf-8")).out


@pytest.mark.parametrize("color", ["always", "never", "auto"])
def test_colour_follows_the_option(remat, monkeypatch, color):
    assert ("\x1b[" in remat("show", TOY, "--color", color).out) == (color == "always")
    monkeypatch.setenv("REMAT_COLOR", "always")  # for all commands; the option comes first
    assert ("\x1b[" in remat("show", TOY, "--color", color).out) == (color == "always")
    assert "\x1b[" in remat("show", TOY).out
    assert "\x1b[" in remat("check", "none.json", code=2).err
    monkeypatch.setenv("REMAT_SHOW_COLOR", "never")
    assert "\x1b[" not in remat("show", TOY).out
    monkeypatch.setenv("REMAT_COLOR", "blue")
    assert "'blue' is not one of" in remat("check", "none.json", code=2).err
    monkeypatch.delenv("REMAT_COLOR")
    monkeypatch.delenv("REMAT_SHOW_COLOR")
    monkeypatch.setenv("NO_COLOR", "1")
    assert ("\x1b[" in remat("show", TOY, "--color", color).out) == (color == "always")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ("\x1b[" in remat("show", TOY, "--color", color).out) == (color != "never")


def test_reports_survive_a_terminal_without_the_characters(remat, tmp_path):
    graph = {
        "schema": "remat-graph/1",
        "nodes": [
            {"id": "ü", "cost": 1, "memory": 5, "inputs": []},
            {"id": "漢", "cost": 1, "memory": 5, "inputs": ["ü"]},
        ],
    }
    Path("ü.json").write_text(json.dumps(graph), encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = remat_process("show", "ü.json", env=env)
    assert shown.err == ""
    assert "\\xfc" in shown.out
    assert shown.out.isascii()
    solved = remat_process("solve", "ü.json", "-b", "none", "-o", "-", "-q", env=env)
    assert solved.json()["graph"]["nodes"][1]["id"] == "漢"
    assert "there is no such file" in remat_process("show", "ö.json", env=env, code=2).err


@pytest.mark.parametrize("command", [("show", str(GRAPHS / "resnet50.json")), ("export", "zoo:resnet50"), ("--help",)])
def test_a_reader_that_has_seen_enough_ends_it_quietly(command):
    read_end, write_end = os.pipe()
    os.close(read_end)
    shown = remat_process(*command, stdout=write_end)
    os.close(write_end)
    assert (shown.code, shown.err) == (0, "")


def test_the_suffix_decides_the_format(remat, monkeypatch):
    remat("solve", TOY, "-b", "80%", "-o", "new/toy.plan.yaml")
    assert Path("new/toy.plan.yaml").read_text(encoding="utf-8").startswith("schema: remat-plan")
    remat("check", "new/toy.plan.yaml")
    remat("solve", TOY, "-b", "80%", "-o", "plans/")
    assert Path("plans/toy.plan.json").is_file()
    begins = {"html": "<!DOCTYPE html>", "svg": "<?xml", "json": "{", "txt": "toy: ", "old": "toy: "}
    for suffix, begin in begins.items():
        remat("show", TOY, "-o", f"x.{suffix}")
        assert Path(f"x.{suffix}").read_text(encoding="utf-8").startswith(begin)
    remat("show", TOY, "-o", "x.old", "--format", "json")
    assert read("x.old")
    monkeypatch.setenv("REMAT_SHOW_FORMAT", "json")  # gives way, unlike the command line
    remat("show", TOY, "-o", "y.svg")
    assert Path("y.svg").read_text(encoding="utf-8").startswith("<?xml")
    for arguments, words in (
        (("show", TOY, "--format", "html", "-o", "z.svg"), "contradicts the suffix .svg"),
        (("show", TOY, "-o", "z.yaml"), "writes no .yaml files"),
        (("solve", TOY, "-b", "80%", "-o", "z.html"), "writes no .html files"),
        (("export", "zoo:linear{n=2}", "-o", "z.svg"), "writes no .svg files"),
    ):
        assert words in remat(*arguments, code=2).err
        assert not list(Path().glob("z.*"))


def test_a_png_goes_through_a_pipe_but_not_to_a_terminal(remat, monkeypatch):
    with Path("x.png").open("wb") as pipe:
        remat_process("show", TOY, "--format", "png", stdout=pipe)
    assert Path("x.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "standard output is a terminal" in remat("show", TOY, "--format", "png", code=2).err


# Export


def test_an_architecture_is_exported(remat):
    exported = remat("export", "zoo:vgg16{batch=2,backward=operator}", "-o", "vgg.json")
    assert exported.out == ""
    assert exported.err.startswith("wrote vgg.json: vgg16, ")
    assert load_graph("vgg.json") == build_graph("vgg16{batch=2,backward=operator}")


def test_export_to_standard_output_is_the_same_and_says_nothing(remat):
    remat("export", "zoo:linear{n=4}", "-o", "a.json", "--quiet")
    exported = remat("export", "zoo:linear{n=4}")
    assert exported.err == ""
    assert exported.out == Path("a.json").read_text(encoding="utf-8")
    remat("show", "-", stdin=exported.out)


def test_the_architectures_are_listed(remat):
    listed = remat("export", "--list")
    for name in ARCHITECTURES.names():
        assert f"zoo:{name}" in listed.out
    assert "batch=256" in listed.out


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("zoo:resnet5O", 'did you mean "resnet50"?'),
        ("zoo:vgg16{btach=1}", 'did you mean "batch"?'),
        ("zoo:vgg16{batch=0}", "batch"),
        ("zoo:vgg16{batch=many}", "a whole number"),
        ("zoo:vgg16{backward=sideways}", "choose one of"),
        ("zoo:vgg16{batch=1", "is not a name with options"),
        ("zoo:", "is not a name with options"),
        ("vgg16", "write zoo:NAME"),
        ("train.py", "write torch:train.py:NAME"),
        ("train.py:step", "write torch:train.py:step"),
        ("torch:resnet50", "write it like torch:train.py:build"),
        ("torch:missing.py:build", "missing.py: there is no such file"),
        ("torch:no_such_module:build", "cannot be imported"),
        ("torch:json:build", "there is no function build in json"),
        ("zoo:torch/resnet5O", 'did you mean "torch/resnet50"?'),
        ("zoo:torch/gpt2{width=100}", "choose a width such as 108"),
    ],
)
def test_bad_sources_are_refused_with_a_remedy(remat, source, words):
    assert words in remat("export", source, "-o", "x.json", code=2).err
    assert not list(Path().iterdir())


def test_nothing_to_export_is_refused(remat):
    assert "remat export --list" in remat("export", code=2).err


@pytest.mark.parametrize("columns", [40, 60, 120])
def test_columns_says_how_wide_a_report_is_even_through_a_pipe(remat, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    widest = max(map(len, remat("show", TOY).out.splitlines()))
    assert columns - 12 <= widest <= columns


@pytest.mark.parametrize("file", [TOY, "toy.plan.json"])
def test_pages_and_figures(remat, file):
    remat("solve", TOY, "-b", "80%")
    for format, begins in (("html", b"<!DOCTYPE html>"), ("svg", b"<?xml"), ("png", b"\x89PNG")):
        shown = remat("show", file, "--format", format, "-o", "made")
        assert (shown.out, shown.err) == ("", "wrote made\n")
        assert Path("made").read_bytes().startswith(begins)


def test_pages_name_the_command_that_made_them(remat):
    remat("show", TOY, "--format=html", "-o", "my page.html")
    assert f"remat show {TOY} --format=html -o &#39;my page.html&#39;" in Path("my page.html").read_text("utf-8")


def test_a_plan_is_shown_as_a_trace_and_a_graph_is_not(remat):
    remat("solve", TOY, "-b", "80%")
    shown = remat("show", "toy.plan.json", "-o", "toy.trace.json", "--quiet")
    assert (shown.out, shown.err) == ("", "")
    contradicts = remat("show", "toy.plan.json", "--format", "json", "-o", "toy.trace.json", code=2)
    assert "--format json contradicts the suffix .trace.json" in contradicts.err
    trace = read("toy.trace.json")
    named = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"]
    assert named.count("conv1") == 2
    assert remat("show", "toy.plan.json", "--format", "trace").out == Path("toy.trace.json").read_text("utf-8")
    assert "a trace shows a plan, but this is a graph" in remat("show", TOY, "--format", "trace", code=2).err


def test_pages_of_the_network_are_asked_for(remat):
    remat("show", TOY, "--format", "html", "--cdn", "-o", "toy.html")
    page = Path("toy.html").read_text(encoding="utf-8")
    assert "https://cdn.plot.ly/plotly-" in page
    assert len(page) < 100_000
    remat("compare", TOY, "--budgets", "80%", "--strategies", "keep-all", "--format", "html",
          "--cdn", "-o", "compared.html", code=1)  # fmt: skip
    assert "https://cdn.plot.ly/plotly-" in Path("compared.html").read_text(encoding="utf-8")
    for command in (("show", TOY), ("compare", TOY, "--budgets", "80%")):
        assert "--cdn is for pages, not for --format text" in remat(*command, "--cdn", code=2).err
