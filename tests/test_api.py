"""The names that a notebook uses are what they say, take what people have, and load only what they need."""

import ast
import contextlib
import inspect
import io
import json
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import remat_cli
import remat_cli.api as remat
from remat_cli.graph.io import graph_to_document
from remat_cli.plan.io import plan_to_document

CHAIN = remat.build_graph("unit-chain{n=17}")  # its no-remat peak is 10 bytes
PLAN = remat.solve(CHAIN, "6B").plan
FUNCTIONS = [name for name in remat.__all__ if inspect.isfunction(getattr(remat, name))]


def test_load_solve_check(tmp_path: Path) -> None:
    graph = remat.build_graph("unit-chain{n=17}")
    solved = remat.solve(graph, "60%", remat.SolveOptions(strategy="optimal"))
    assert isinstance(solved, remat.Solved)
    assert remat.check(solved.plan).ok
    assert isinstance(remat.check(solved.plan), remat.Report)
    assert callable(remat.load_graph)
    assert callable(remat.load_plan)


def test_every_name_is_there_and_nothing_else() -> None:
    for name in remat.__all__:
        assert getattr(remat, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        remat.nonsense  # noqa: B018 - reading it is the test


def test_the_import_is_light() -> None:
    code = "import sys, remat_cli.api; print([m for m in ('numpy', 'pyomo', 'click', 'rich') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_a_check_loads_no_search(tmp_path: Path) -> None:
    remat.save_plan(PLAN, tmp_path / "plan.json")
    code = "import sys, remat_cli; remat_cli.check(sys.argv[1]); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code, tmp_path / "plan.json"], capture_output=True, text=True)
    loaded = {name for name in shown.stdout.split() if name.startswith(("remat_cli.", "pyomo", "numpy", "rich"))}
    assert "remat_cli.plan.check" in loaded
    rooms = {"api", "files", "graph", "plan", "registry", "tracebacks", "units", "version"}
    leaves = {"errors", "printable", "short_repr", "standard_output", "tolerances"}
    assert {name.split(".")[1] for name in loaded if "." in name} <= rooms | leaves


def test_type_checkers_see_what_there_is() -> None:
    """The imports for type checkers and the table that fetches at run time name the same things in the same places."""
    tree = ast.parse(Path(str(remat.__file__)).read_text(encoding="utf-8"))
    [branch] = [part for part in tree.body if isinstance(part, ast.If)]
    seen = {}
    for part in branch.body:
        assert isinstance(part, ast.ImportFrom)
        for name in part.names:
            assert name.asname == name.name  # so that it is there for others too
            seen[name.name] = part.module
    assert seen == remat._HOME


def test_saved_documents_have_the_format_of_their_suffix(tmp_path):
    graph = remat.build_graph("unit-chain{n=5}")
    plan = remat.solve(graph, "90%").plan
    for suffix, begin in (("yaml", "schema: remat-"), ("json", "{"), ("old", "{")):
        remat.save_graph(graph, tmp_path / f"g.{suffix}")
        remat.save_plan(plan, tmp_path / "new" / f"p.{suffix}")
        for path in (tmp_path / f"g.{suffix}", tmp_path / "new" / f"p.{suffix}"):
            assert path.read_text(encoding="utf-8").startswith(begin)
        assert remat.load_graph(tmp_path / f"g.{suffix}") == graph
        assert remat.load_plan(tmp_path / "new" / f"p.{suffix}").statements == plan.statements


def test_what_docstrings_raise_and_signatures_name_can_be_imported_from_the_top() -> None:
    raised, named = set(), set()
    for name in FUNCTIONS:
        function = getattr(remat, name)
        _, _, told = (function.__doc__ or "").partition("Raises:\n")
        lines = re.findall(r"^\s+((?:[A-Z]\w+(?:, )?)+): ", told, re.MULTILINE)
        assert lines, f"{name} does not say what it raises"
        raised |= {error for line in lines for error in line.split(", ")}
        named |= set(re.findall(r"\b[A-Z]\w+", str(inspect.signature(function))))
    assert len(raised) > 8
    assert raised <= set(remat_cli.__all__)
    # Aliases and types of the standard library have no home in remat.
    words = {"Any", "Callable", "False", "IO", "Iterable", "Mapping", "None", "Sequence", "Union"}
    others = {"Executor", "Path", "PathLike", "Described", "Drawn", "Paged", "Source", "Unknown", "Unplanned"}
    assert named - words - others <= set(remat_cli.__all__)


def test_budgets_in_every_form() -> None:
    forms = ["6B", "60%", 6, 6.0, 6.9, np.int64(6), np.float32(6), Fraction(13, 2), PLAN_BUDGET]
    for form in forms:
        assert remat.solve(CHAIN, form).plan.budget_bytes == 6, form
        assert remat.check(PLAN, form).budget_bytes == 6, form
        assert [point.budget_bytes for point in remat.solve_curve(CHAIN, [form, "10B"]).points] == [6, 10], form
        assert [point.budget_bytes for point in remat.solve_curve(CHAIN, form).points] == [6], form
    assert remat.solve(CHAIN, 16e9).plan.budget_bytes == 16_000_000_000
    assert [point.budget_bytes for point in remat.solve_curve(CHAIN, "60%:80%:10%").points] == [6, 7, 8]


PLAN_BUDGET = remat.Budget(Fraction(60), relative=True, text="60%")


@pytest.mark.parametrize(
    ("budget", "message", "hint"),
    [
        (0.6, "budget is 0.6, less than one byte", '"60%"'),
        (0.125, "budget is 0.125", '"12.5%"'),
        (-1, "negative", "16GB"),
        (float("nan"), "budget is float nan, expected a budget", ""),
        (float("inf"), "budget is float inf, expected", ""),
        (True, "budget is bool True, expected", ""),
        ([6], r"budget is list \[6\], expected", ""),
        (b"6B", "budget is bytes b'6B', expected", ""),
        (1e300, "more than 9223372036854775807 bytes", "unit"),
        (10**400, '"inf" is more than 9223372036854775807 bytes', "unit"),
        pytest.param(-(10**5000), "budget is -inf, which is negative", "16GB", id="too long to write"),
        ("16G", "ambiguous", "16GB"),
        ("6", '"6" has no unit', "write 6GB or 6GiB or 6% or 6B"),
        (" 0.5", '"0.5" has no unit', "50%"),
    ],
)
def test_a_budget_that_cannot_be_meant(budget, message, hint) -> None:
    for call in (lambda: remat.solve(CHAIN, budget), lambda: remat.check(PLAN, budget)):
        with pytest.raises(remat.UsageError, match=message) as refused:
            call()
        assert hint in refused.value.hint


def test_numbers_in_texts_need_a_unit_in_every_function() -> None:
    """As on the command line; a number that is no text is bytes."""
    for call in (
        lambda: remat.solve_curve(CHAIN, "6:8:1"),
        lambda: remat.solve_curve(CHAIN, ["6B", "8"]),
        lambda: remat.compare(CHAIN, "6", "keep-all"),
        lambda: remat.policy(CHAIN, "6", "torch-checkpoint"),
        lambda: remat.max_batch(CHAIN, "80", graph_batch=1),
        lambda: remat.fit(None, None, "8"),
        lambda: remat.fit(None, None, "8GB", reserve="1"),
        lambda: remat.RematPartitioner("8"),
        lambda: remat.Host.of("25GB/s", memory="64"),
    ):
        with pytest.raises(remat.UsageError, match="has no unit") as refused:
            call()
        assert re.search(r"write \d+GB", refused.value.hint)


@pytest.mark.parametrize(
    ("budget", "hint"),
    [(8, 'write "8GB", or "8%"'), (23.5, '"23.5GB"'), (512, 'write "512GB"'), (0, '"8GB"'), (np.int64(40), '"40%"')],
)
def test_no_training_step_fits_into_a_few_bytes(budget, hint) -> None:
    """At once, and not after a capture: the module and the batch are not even looked at."""
    for call in (lambda: remat.fit(None, None, budget), lambda: remat.RematPartitioner(budget)):
        with pytest.raises(remat.UsageError, match=f"is {budget}, and a number is bytes") as refused:
            call()
        assert hint in refused.value.hint


def test_a_budget_in_the_place_of_the_batch_and_none_at_all() -> None:
    for batch in ("8GB", 8e9, 8, PLAN_BUDGET):
        for more in ((), ("80%",)):
            with pytest.raises(remat.UsageError, match="in the place of the batch") as refused:
                remat.fit(None, batch, *more)
            assert "fit(module, None, " in refused.value.hint
    with pytest.raises(remat.UsageError, match="needs a budget") as refused:
        remat.fit(None, None)
    assert 'fit(module, batch, "8GB")' in refused.value.hint


@pytest.mark.parametrize("number", [10**400, -(10**400)])
@pytest.mark.parametrize("name", ["gap", "time_limit_s"])
def test_numbers_beyond_all_floats_are_refused(name: str, number: int) -> None:
    with pytest.raises(remat.UsageError, match="inf"):
        remat.SolveOptions(**{name: number})


def test_graphs_and_plans_in_every_form(tmp_path: Path) -> None:
    remat.save_graph(CHAIN, tmp_path / "graph.json")
    remat.save_plan(PLAN, str(tmp_path / "plan.json"))
    forms = {"graph": graph_to_document(CHAIN), "plan": plan_to_document(PLAN)}
    for kind, there in (("graph", CHAIN), ("plan", PLAN)):
        path = tmp_path / f"{kind}.json"
        load = remat.load_graph if kind == "graph" else remat.load_plan
        with path.open() as text, path.open("rb") as data:
            taken = [path, str(path), forms[kind], text, data, io.StringIO(path.read_text())]
            assert [load(form) for form in taken] == [there] * len(taken)
    assert remat.solve(forms["graph"], 6).plan.statements == remat.solve(tmp_path / "graph.json", 6).plan.statements
    solved = remat.solve(CHAIN, 6)
    for form in (solved, forms["plan"], tmp_path / "plan.json"):
        assert remat.check(form).ok
        assert remat.diff(form, PLAN).cost_increase == 0
    assert remat.load_graph(forms["graph"]) is not CHAIN
    nodes = [{"id": 1, "weight": 2, "size": 5}, {"id": 2, "weight": 2, "size": 5}]
    networkx = {"nodes": nodes, "links": [{"source": 1, "target": 2}]}
    for keys in ("cost=weight,memory=size", {"cost": "weight", "memory": "size"}):
        assert remat.load_graph(networkx, keys=keys).total_cost == 4


def test_a_document_of_objects_is_refused_where_it_is_wrong() -> None:
    document = graph_to_document(CHAIN)
    for change, message in (
        ({"cost": float("nan")}, "<source>: not a document: .*float"),
        ({"cost": object()}, "not JSON serializable"),
        ({"cost": "a lot"}, r"<source>: /nodes/3/cost: is the string"),
        ({"inputs": ["nowhere"]}, "<source>: /nodes/3/inputs/0: there is no node"),
    ):
        nodes = [dict(node) for node in document["nodes"]]
        nodes[3] |= change
        with pytest.raises(remat.InputError, match=message):
            remat.load_graph(document | {"nodes": nodes})


def test_a_wrong_type_is_an_error_of_remat_that_names_the_argument(tmp_path: Path, monkeypatch) -> None:
    """Every function, every argument without a callback, a handful of wrong objects: no error from inside."""
    monkeypatch.chdir(tmp_path)
    good = {"graph": CHAIN, "plan": PLAN, "old": PLAN, "new": PLAN, "node": "n1", "budget": 6, "budgets": "6B"}
    good |= {"memory": 80, "shown": PLAN, "source": graph_to_document(CHAIN), "path": "out.svg", "text": "a.py:f"}
    good |= {
        "stages": [CHAIN],
        "microbatches": 1,
        "spec_text": "unit-chain{n=5}",
        "module": None,
        "batch": None,
        "to": "torch-checkpoint",
        "gpu": "80B",
    }
    if_given = {"import_model": {"path": "model.onnx"}, "max_batch": {"graph_batch": 1}}
    if_given |= {"compare": {"strategies": "keep-all"}}
    wrong = [object(), 3.5, ["x"], {"a": 1}, b"x", (), 10**30, "\x00{", Path]
    callbacks = {"listener", "tell", "progress", "executor", "module", "batch"}
    refused = 0
    for name in set(FUNCTIONS) - {"fit", "profile", "run_plan", "remat_backend", "export_torch", "export_torch_parts"}:
        function = getattr(remat, name)
        parameters = inspect.signature(function).parameters.values()
        needed = {p.name: good[p.name] for p in parameters if p.default is p.empty} | if_given.get(name, {})
        for parameter in (p for p in parameters if p.name not in callbacks):
            for value in wrong:
                with contextlib.suppress(remat.RematError):
                    function(**{**needed, parameter.name: value})
                    refused -= 1
                refused += 1
    assert refused > 150


def test_functions_of_frameworks_refuse_wrong_arguments_too() -> None:
    for call, message in (
        (lambda: remat.fit(None, None, 0.8), "budget is 0.8, less than one byte"),
        (lambda: remat.fit(None, None, "8GB", reserve=[1]), r"reserve is list \[1\]"),
        (lambda: remat.fit(None, None, "8GB", options="optimal"), "options is str 'optimal', expected SolveOptions"),
        (lambda: remat.fit(None, None, "8GB", cost=5), "cost is int 5"),
        (lambda: remat.fit(None, None, "8GB", buckets=3), "buckets is int 3, expected lengths"),
        (lambda: remat.fit(None, None, "8GB", host=3), "host is int 3, expected a Host such as Host.of"),
        (lambda: remat.profile(None), "graph is NoneType None"),
        (lambda: remat.profile(CHAIN, repeats="ten"), "repeats is str 'ten'"),
        (lambda: remat.run_plan(5), "plan is int 5"),
        (lambda: remat.run_plan(PLAN, steps=0), "steps is int 0"),
        (lambda: remat.remat_backend(5), "plan is int 5"),
        (lambda: remat.export_torch(5), "text is int 5"),
        (lambda: remat.export_torch_parts(5), "text is int 5"),
        (lambda: remat.export_jax("train.py:build", device="gpu"), "JAX knows no device gpu"),
        (lambda: remat.export_jax("train.py:build", scans="short"), '"short" is no scans'),
        (lambda: remat.export_tensorflow("train.py:build", device="cuda"), "TensorFlow knows no device cuda"),
    ):
        with pytest.raises(remat.UsageError, match=message):
            call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit_s": "5s"}, "time_limit_s is str '5s', expected a number of seconds such as 60, or None"),
        ({"time_limit_s": float("nan")}, "time limit of nan seconds"),
        ({"time_limit_s": 0}, "time limit of 0 seconds"),
        ({"time_limit_s": 1e10}, "time limit of 1e[+]10 seconds"),
        ({"gap": "1%"}, "gap is str '1%'"),
        ({"gap": None}, "gap is NoneType None"),
        ({"threads": 1.5}, "threads is float 1.5"),
        ({"seed": True}, "seed is bool True"),
        ({"strategy": None}, "strategy is NoneType None"),
        ({"reorder": "yes"}, "reorder is str 'yes'"),
        ({"write_model": 5}, "write_model is int 5"),
        ({"write_model": "model.txt"}, "a model file ends in"),
    ],
)
def test_options_are_checked_when_they_are_made(options, message) -> None:
    with pytest.raises(remat.UsageError, match=message):
        remat.SolveOptions(**options)


def test_paths_of_options_may_be_texts() -> None:
    assert remat.SolveOptions(write_model="model.lp").write_model == Path("model.lp")


def test_the_largest_batch_with_the_words_of_the_command() -> None:
    vgg = remat.build_graph("vgg16{batch=4}")
    options = remat.SolveOptions(strategy="dtr")
    asked = {"memory": "2GB", "options": options}
    one = remat.max_batch(vgg, **asked)
    assert (one.graph_batch, one.most_cost) == (4, remat.one_forward(vgg))
    tenth = remat.max_batch(vgg, max_overhead="10%", **asked)
    assert tenth.most_cost == pytest.approx(1.1 * vgg.total_cost)
    assert tenth.found == remat.max_batch(vgg, most_cost=tenth.most_cost, graph_batch=4, **asked).found
    for change, message in (
        ({"most_cost": "33%"}, "most_cost is str '33%', expected a number"),
        ({"max_overhead": "80B"}, "not a percentage"),
        ({"graph_batch": 0}, "graph_batch is int 0"),
        ({"memory": "60%"}, '"60%" has the unknown unit'),
    ):
        with pytest.raises(remat.UsageError, match=message):
            remat.max_batch(vgg, **{**asked, **change})


def test_a_plan_is_found_again_in_a_cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    folder = tmp_path / "plans"
    first = remat.solve(CHAIN, "60%", cache=folder)
    assert first.recalled_from is None
    again = remat.solve(CHAIN, 6, cache=str(folder))  # as many bytes, written differently
    assert again.recalled_from in folder.iterdir()
    assert (again.plan.statements, again.plan.claim) == (first.plan.statements, first.plan.claim)
    assert (again.report.ok, again.plan.provenance["budget"]) == (True, "6B")
    for ask in (  # whatever changes the answer is another question
        lambda cache: remat.solve(CHAIN, "80%", cache=cache),
        lambda cache: remat.solve(CHAIN, "60%", remat.SolveOptions(strategy="optimal"), cache=cache),
        lambda cache: remat.solve(CHAIN, "60%", remat.SolveOptions(seed=1), cache=cache),
        lambda cache: remat.solve(CHAIN, "60%", remat.SolveOptions(reorder=True), cache=cache),
        lambda cache: remat.solve(remat.build_graph("unit-chain{n=16}"), "60%", cache=cache),
        lambda cache: remat.solve_smallest(CHAIN, cache=cache),
        lambda cache: remat.solve(CHAIN, "60%", cache=cache and True),  # in the user's folder
    ):
        assert [ask(folder).recalled_from is not None for _ in range(2)] == [False, True]
        assert ask(None).recalled_from is None
    with pytest.raises(remat.UsageError, match="cannot be written"):
        remat.solve(CHAIN, "60%", cache="/dev/null/plans")


def test_limits_hold_for_every_strategy_of_a_comparison() -> None:
    assert remat.Limits().time_limit_s == 60
    with pytest.raises(remat.UsageError, match="strategy is an option of one search, and not of a comparison"):
        remat.Limits(strategy="optimal")
    with pytest.raises(remat.UsageError, match="gap 2 is not between"):
        remat.Limits(gap=2)


def test_comparisons_take_text_for_strategies() -> None:
    with pytest.raises(remat.UsageError, match=r"limits is SolveOptions .*, expected Limits"):
        remat.compare(CHAIN, "60%", "dtr", remat.SolveOptions())
    with pytest.raises(remat.UsageError, match='no strategy "nonsense"'):
        remat.compare(CHAIN, 6, "dtr,nonsense")


@pytest.mark.parametrize("arguments", [["script.py"], ["-"]])
def test_a_script_that_cannot_start_processes_is_told_what_to_do(arguments, tmp_path: Path) -> None:
    script = "import remat_cli as remat\nremat.compare(remat.build_graph('unit-chain{n=5}'), 6, 'keep-all')\n"
    (tmp_path / "script.py").write_text(script)
    line = [sys.executable, *arguments]
    done = subprocess.run(line, cwd=tmp_path, input=script, capture_output=True, text=True)
    assert done.returncode == 1
    *_, error, hint = done.stderr.splitlines()
    assert error == "remat_cli.errors.UsageError: the processes for the cells cannot start"
    assert hint == 'hint: in a script file, put the call under: if __name__ == "__main__":'


def test_large_objects_are_short_on_a_prompt_and_escaped_in_a_notebook() -> None:
    nodes = [{"id": f"n{i}", "inputs": [], "cost": 1, "memory": 1} for i in range(500)]
    graph = remat.load_graph({"schema": "remat-graph/1", "name": "<b>\n&", "nodes": nodes, "cost_unit": "<i>"})
    solved = remat.solve(graph, None, remat.SolveOptions(strategy="keep-all"))
    curve = remat.solve_curve(graph, "100%", remat.SolveOptions(strategy="keep-all"))
    compared = remat.Comparison(graph, 500, ("a",), (("500B", 500),), {}, ())
    for shown in (graph, solved, solved.plan, solved.report, curve, compared):
        line, table = repr(shown), shown._repr_html_()
        assert len(line) < 250
        assert line.startswith(f"<{type(shown).__name__} <b>\\n&: nodes 500, ")
        assert line.isprintable()
        assert "<b>" not in table
        assert "<i>" not in table
        assert "&lt;b&gt;\n&amp;" in table
        assert "500" in table
    assert "proof optimal (any-order)" in repr(solved)
    assert "<td>100%</td><td>1 B</td><td>500 &lt;i&gt;</td><td>optimal</td>" in curve._repr_html_()


def test_what_the_commands_show_can_be_had_from_python(tmp_path: Path) -> None:
    solved = remat.solve(CHAIN, 6)
    remat.save_plan(solved, tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    curve = remat.solve_curve(CHAIN, "20%,60%")
    batch = remat.max_batch(CHAIN, 80, graph_batch=1, most_cost=22)
    compared = remat.Comparison(CHAIN, 10, ("a",), (("6B", 6),), {}, (remat.Row("a", "6B", 6, remat.Ended.NONE),))
    for shown, told in (
        (CHAIN, "unit-chain: 17 nodes"),
        (solved, "made by"),
        (solved.plan, "claim"),
        (document, "claim"),
        (tmp_path / "plan.json", "claim"),
        (solved.report, "made by"),
        (curve, "a plan for 1 of 2 budgets"),
        (batch, "the largest batch within 80 B"),
        (compared, "no-remat peak 10 B"),
        (remat.diff(solved, solved), "peak, cost and recomputed nodes are the same"),
        (remat.explain(solved, "n1:0"), "n1"),
    ):
        text = remat.describe(shown, width=60)
        assert told in text, type(shown)
        assert max(map(len, text.splitlines())) <= 60
    for shown in (CHAIN, solved, compared):
        assert remat.page(shown).lower().startswith("<!doctype html>")
        assert remat.figure(shown).startswith(b"<?xml")
    remat.save_page(solved, tmp_path / "plan.html")
    assert (tmp_path / "plan.html").read_text(encoding="utf-8") == remat.page(document)
    remat.save_figure(document, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes() == remat.figure(solved.plan, "png")
    with pytest.raises(remat.UsageError, match="cannot tell the format"):
        remat.save_figure(solved, tmp_path / "plan.pdf")
    with pytest.raises(remat.UsageError, match="no figure format 'pdf'"):
        remat.figure(solved, "pdf")
    assert remat.page(curve).lower().startswith("<!doctype html>")
    with pytest.raises(remat.UsageError, match=r"shown is <Curve unit-.*>, expected a graph"):
        remat.figure(curve)
    with pytest.raises(
        remat.UsageError,
        match=r"shown is MaxBatch .*, expected a graph, a plan, a comparison, a curve, a worth or a recording",
    ):
        remat.page(batch)


def test_differences_and_explanations() -> None:
    less = remat.solve(CHAIN, 8)
    changed = remat.diff(PLAN, less)
    assert changed.cost_increase == pytest.approx(19 / 21 - 1)
    assert changed.removed
    node = changed.removed[0].node
    explained = remat.explain(PLAN, node)
    assert len(explained.computed) == changed.removed[0].old_times
    assert remat.explain(PLAN, f"{node}:0") == explained
    with pytest.raises(remat.UsageError, match="no node") as refused:
        remat.explain(PLAN, "n99")
    assert "did you mean" in refused.value.hint


def test_a_plan_for_another_graph_is_found_out() -> None:
    other = remat.build_graph("unit-chain{n=19}")
    assert remat.check(PLAN, graph=CHAIN).ok
    assert not remat.check(PLAN, graph=graph_to_document(other)).ok
