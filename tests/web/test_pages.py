"""Pages: whole and self-contained by their structure, and drawn without complaint by a real browser."""

import base64
import dataclasses
import gzip
import hashlib
import json
import random
from html.parser import HTMLParser

import pytest
from browser import opened
from families import random_graph

from remat_cli.graph.model import Graph, Node, Phase
from remat_cli.graph.summary import summarize
from remat_cli.plan.check import check
from remat_cli.plan.comparison import Comparison, Ended, Row
from remat_cli.plan.derive import derive
from remat_cli.plan.model import Claim, ClaimStatus, Plan, Scope
from remat_cli.reports.comparison import comparison_text
from remat_cli.reports.figures import graph_figure, plan_figure
from remat_cli.reports.style import Style
from remat_cli.reports.web.comparison import comparison_page, plans_table
from remat_cli.reports.web.graph import graph_page
from remat_cli.reports.web.page import INK, PAPER, render_page
from remat_cli.reports.web.plan import plan_page
from remat_cli.zoo.registry import build_graph

NASTY = "</script><script>alert(1)</script><b>&"

PLAIN = Style(width=80, color=False, unicode=True)


class Document(HTMLParser):
    """Ids, addresses and words of a page, and the data of its charts."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.heads: list[dict] = []
        self.integrity = ""
        self.policy = ""
        self.charts: list[dict] = []
        self.content: dict = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        said = dict(attributes)
        self.tags.append(tag)
        self.ids += [said["id"]] if "id" in said else []
        self.addresses += [said[key] for key in ("src", "href") if key in said]
        self.integrity = said.get("integrity", self.integrity)
        self.heads += [said] if tag == "th" else []
        if said.get("http-equiv") == "Content-Security-Policy":
            self.policy = said["content"]

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script" and self.ids[-1] == "content" and not self.charts:
            packed = json.loads(gzip.decompress(base64.b64decode(data)))
            self.charts, self.content = packed["charts"], packed["content"]
        elif self.tags and self.tags[-1] not in {"script", "style"}:
            self.words.append(data)

    def traces(self, chart: str) -> dict[str, dict]:
        [found] = [c for c in self.charts if c["id"] == chart]
        return {trace.get("name", ""): trace for trace in found["data"]}


def plan_of(graph: Graph, computes: list[int], budget: int | None = None) -> Plan:
    cost = sum(graph.nodes[i].cost for i in computes)
    claim = Claim(ClaimStatus.FEASIBLE, cost, 0.9 * cost, Scope.FRONTIER)
    told = {"remat": "1.0", "budget": "60%", "strategy": "chen-sqrt", "solver": "highs", "seed": 3}
    return Plan(graph, derive(graph, computes), budget, claim, "chen-sqrt", provenance=told)


def recomputing(graph: Graph) -> list[int]:
    """Every third node of the forward pass once more in the middle."""
    middle = len(graph.nodes) // 2
    return [*range(middle), *range(0, middle, 3), *range(middle, len(graph.nodes))]


def page_of(graph: Graph, computes: list[int] | None = None, budget: int | None = None) -> str:
    plan = plan_of(graph, recomputing(graph) if computes is None else computes, budget)
    return render_page(plan_page(check(plan), plan), "remat show x.plan.json --format html")


def nasty_graph() -> Graph:
    nodes = (Node(NASTY, 1, (), (5,), op=NASTY), Node("theme", 2, (0,), (7,), workspace=2), Node("c", 0, (0, 1), ()))
    return Graph(NASTY, nodes, (1,), cost_unit=NASTY, fixed_memory=3)


def test_a_plan_s_page_says_everything():
    graph = build_graph("vgg16")
    plan = plan_of(graph, recomputing(graph), 20 * 10**9)
    report = check(plan)
    page = Document(render_page(plan_page(report, plan), "remat show 'my plan.json' --format html"))
    said = " ".join(" ".join(page.words).split())
    assert [name for name in page.ids if name in {"timeline", "bands", "matrix-r", "matrix-s"}] == [
        "timeline", "bands", "matrix-r", "matrix-s",
    ]  # fmt: skip
    assert said.index("At the peak") < said.index("Recomputed") < said.index("The matrices R and S")
    for words in ("Memory over time in numbers", "The largest lifetimes in numbers"):
        assert words in said
    for words in ("At the peak", "Recomputed", "Why the peak is here", "OVER BUDGET", "gap 10.000%", "conv1_1"):
        assert words in said
    assert "remat solve vgg16.json --budget 60% --strategy chen-sqrt --seed 3 (remat 1.0)" in said
    assert "Made by remat" in said
    assert "remat show 'my plan.json' --format html" in said
    for node in report.recomputed:
        assert node.node in said
    lines = page.traces("timeline")
    assert {"fixed memory", "forward", "loss", "backward", "recomputed", "in use"} <= set(lines)
    assert any(name.startswith("budget 20 GB") for name in lines)
    assert any(name.startswith("no-remat peak 30.75 GB") for name in lines)
    assert any(f"<b>{'26.'}" in text or "at statement" in text for text in lines["pointed at"]["text"])
    assert len(lines["pointed at"]["text"]) == len(plan.statements)


@pytest.mark.parametrize("make", [lambda: page_of(build_graph("vgg16")), lambda: _graph_page(build_graph("vgg16"))])
def test_pages_need_nothing_else_and_are_the_same_every_time(make):
    text = make()
    page = Document(text)
    assert page.addresses == ["data:,"]
    assert not {"img", "iframe"} & set(page.tags)
    assert page.policy.startswith("default-src 'none'; ")
    assert "http" not in page.policy
    assert len(page.ids) == len(set(page.ids))
    assert "sendDataToCloud" not in text
    assert all(head.get("scope") in {"col", "row"} for head in page.heads)
    assert {"col", "row"} == {head["scope"] for head in page.heads}
    assert make() == text


def test_pages_of_the_network_are_small_and_take_exactly_this_plotly():
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    resnet, large = build_graph("resnet50"), random_graph(random.Random(3), 5000, phases=True)
    plan = plan_of(resnet, recomputing(resnet))
    whole = page_of(resnet)
    for text in (
        render_page(plan_page(check(plan), plan), "c", cdn=True),
        render_page(graph_page(resnet, summarize(resnet)), "c", cdn=True),
        render_page(graph_page(large, summarize(large)), "c", cdn=True),
        render_page(comparison_page(compared()), "c", cdn=True),
    ):
        page = Document(text)
        assert len(text) < 300_000
        assert page.addresses == ["data:,", f"https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js"]
        digest = hashlib.sha384(get_plotlyjs().encode()).digest()
        assert page.integrity == f"sha384-{base64.b64encode(digest).decode()}"
        assert page.policy.endswith(" https://cdn.plot.ly")
        assert "plotly-js" not in page.ids
    assert "plotly-js" in Document(whole).ids


def _graph_page(graph: Graph) -> str:
    return render_page(graph_page(graph, summarize(graph)), "remat show x.json --format html")


def test_names_are_never_markup():
    graph = nasty_graph()
    for text in (page_of(graph, [0, 1, 0, 2]), _graph_page(graph)):
        page = Document(text)
        assert page.tags.count("script") == 3
        assert page.tags.count("b") == 0
        assert "alert(1)" in " ".join(page.words)
        assert "<script" not in json.dumps(page.charts)
    assert "&lt;script" in json.dumps(Document(page_of(graph, [0, 1, 0, 2])).charts)


def test_long_plans_are_thinned_out_and_say_so():
    graph = build_graph("unit-chain{n=3001}")
    text = page_of(graph, list(range(3001)))
    page = Document(text)
    lines = page.traces("timeline")
    assert len(lines["in use"]["x"]) <= 2001
    said = " ".join(" ".join(page.words).split())
    assert "neighbouring statements, the drawing shows the one with the most memory in use" in said
    assert "Each cell stands for 8 nodes in 8 stages" in said
    assert len(text) < 3_000_000


def test_broken_and_empty_plans_have_pages_too():
    graph = build_graph("vgg16")
    plan = plan_of(graph, list(range(len(graph.nodes))))
    broken = Plan(graph, plan.statements[5:], None, plan.claim, "x")
    page = Document(render_page(plan_page(check(broken), broken), "c"))
    assert "INVALID PLAN" in "".join(page.words)
    assert "never computed" in "".join(page.words)
    nothing = Graph("none", (), ())
    empty = Plan(nothing, (), None, Claim(ClaimStatus.FEASIBLE, 0, 0, Scope.ANY_ORDER), "x")
    assert "The plan is empty" in render_page(plan_page(check(empty), empty), "c")
    assert Document(_graph_page(nothing)).ids


def test_a_graph_s_page_has_every_node_in_one_place():
    graph = build_graph("resnet152")
    page = Document(_graph_page(graph))
    items, nodes = page.content["items"], page.content["nodes"]
    assert [item["id"] for item in items[:nodes]] == [node.id for node in graph.nodes]
    for node, item in zip(graph.nodes, items, strict=False):
        assert item["reads"] == list(dict.fromkeys(graph.producer[v] for v in node.inputs))
    whole = len(items) - 1
    places = [(item["parent"], item["x"], item["y"]) for item in items[:whole]]
    assert len(set(places)) == whole
    for at, item in enumerate(items):
        for part in item.get("parts", []):
            assert items[part]["parent"] == at
            assert 0 < items[part]["height"] < 1
    assert sum(item["parent"] == whole for item in items) < 130
    assert sorted(n for n in _leaves(items, whole)) == list(range(nodes))
    assert "least budget" in page.words


def _leaves(items: list[dict], at: int) -> list[int]:
    return [leaf for part in items[at]["parts"] for leaf in _leaves(items, part)] if "parts" in items[at] else [at]


def compared() -> Comparison:
    """Three strategies on a chain: one with plans and bounds, one with a hole, one with nothing."""
    graph = build_graph("unit-chain{n=9}")
    rows = []
    for budget, over in ((4, 3.0), (5, 1.0), (6, 0.0)):
        made = {"peak_bytes": budget, "cost": 9 + over, "overhead": over / 9, "computes": 9}
        rows.append(Row("optimal", str(budget), budget, Ended.PLAN, **made, lower_bound=9 + over, scope="any-order"))
        ended = {} if budget == 4 else {**made, "cost": 13.0, "overhead": 4 / 9}
        rows.append(Row("chen-sqrt", str(budget), budget, Ended.NONE if budget == 4 else Ended.PLAN, **ended))
        rows.append(Row("rotor", str(budget), budget, Ended.REFUSED, message="no"))
    names = ("optimal", "chen-sqrt", "rotor")
    rows.sort(key=lambda row: names.index(row.strategy))
    budgets = tuple((str(b), b) for b in (4, 5, 6))
    return Comparison(graph, 6, names, budgets, {"solver": "highs", "threads": None}, tuple(rows))


def test_optimal_is_said_of_what_is_proven_and_no_more():
    comparison = compared()
    [row] = [row for row in comparison.rows if row.strategy == "optimal" and row.budget == "4"]
    near = dataclasses.replace(row, optimal=True, lower_bound=row.cost * (1 - 1e-5))
    for one, words in ((row, "a plan"), (near, "within the gap"), (dataclasses.replace(row, optimal=True), "optimal")):
        table = plans_table(dataclasses.replace(comparison, rows=(one,)))
        assert table.cells()[0][table.titles.index("result")] == words
        text = comparison_text(
            dataclasses.replace(comparison, rows=(one,), strategies=("optimal",), budgets=(("4", 4),)), PLAIN
        )
        line = next(line for line in text.splitlines() if line.startswith("optimal"))
        assert {"✓": "optimal", "≈": "within the gap"}.get(line.rstrip()[-1], "a plan") == words
        assert ("✓ claimed optimal" in text, "≈ claimed within" in text) == ("✓" in line, "≈" in line)


def crosses(page: Document) -> list[dict]:
    """The traces of budgets without a plan."""
    return [t for c in page.charts if c["id"] == "overhead" for t in c["data"] if t.get("mode") == "markers"]


def test_a_strategy_without_any_plan_is_in_the_legend_by_its_crosses():
    comparison = compared()
    rows = [
        dataclasses.replace(row, ended=Ended.NONE, peak_bytes=None, cost=None, overhead=None, computes=None)
        if row.strategy == "chen-sqrt"
        else row
        for row in comparison.rows
    ]
    page = Document(render_page(comparison_page(dataclasses.replace(comparison, rows=tuple(rows))), "c"))
    [marks] = crosses(page)
    assert (marks["name"], marks["showlegend"], marks["x"]) == ("chen-sqrt", True, [4, 5, 6])
    [marks] = crosses(Document(render_page(comparison_page(comparison), "c")))
    assert not marks["showlegend"]


def test_a_comparison_s_page_has_every_strategy_and_the_bound():
    comparison = compared()
    page = Document(render_page(comparison_page(comparison), "remat compare c.json"))
    lines = page.traces("overhead")
    assert lines["optimal"]["y"] == pytest.approx([100 / 3, 100 / 9, 0])
    assert lines["no plan (proven)"]["y"] == pytest.approx([100 / 3, 100 / 9, 0])
    [chart] = [c for c in page.charts if c["id"] == "overhead"]
    assert [(t["name"], t["x"]) for t in crosses(page)] == [("chen-sqrt", [4])]
    assert [t["name"] for t in chart["data"]][:-1] == ["no plan (proven)", "rotor", "chen-sqrt", "optimal"]
    assert page.traces("peak")["chen-sqrt"]["y"] == [5, 6]
    for words in ("no plan fits", "does not take this graph", "remat compare c.json", "11.1%"):
        assert words in " ".join(page.words)


@pytest.mark.parametrize("format", ["svg", "png"])
def test_figures_for_papers(format):
    graph = build_graph("vgg16")
    plan = plan_of(graph, recomputing(graph), 20 * 10**9)
    starts = {"svg": b"<?xml", "png": b"\x89PNG"}[format]
    for make in (lambda: plan_figure(check(plan), plan, format), lambda: graph_figure(graph, format)):
        data = make()
        assert data.startswith(starts)
        assert make() == data
    nasty = nasty_graph()
    assert graph_figure(nasty, format)
    odd = plan_of(nasty, [0, 1, 2])
    assert plan_figure(check(odd), odd, format)


def test_names_in_wide_boxes_leave_room_for_the_drawing():
    """matplotlib warned that nothing was left of the axes, and drew them small."""
    sizes = [(2**26,), (2**26, 256, 256), (2**26,), (4,), (100,), (50, 0)]
    inputs = [(), (0,), (1,), (4,), (5, 2), (0,)]
    phases = [Phase.FORWARD, Phase.FORWARD, Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.BACKWARD]
    ids = ["conv1", "bn1", "relu1", "loss", "g/relu1", "g/conv1"]
    fields = zip(ids, inputs, sizes, phases, strict=True)
    nodes = [Node(id, 9.0, read, made, phase=phase) for id, read, made, phase in fields]
    assert graph_figure(Graph("toy", tuple(nodes), (5,)), "svg")


@pytest.mark.system
@pytest.mark.parametrize("case", ["plan", "graph", "nasty", "large graph", "comparison"])
def test_a_browser_draws_it_without_complaint(case, tmp_path):
    text = {
        "plan": lambda: page_of(build_graph("vgg16"), budget=20 * 10**9),
        "graph": lambda: _graph_page(build_graph("resnet50")),
        "nasty": lambda: page_of(nasty_graph(), [0, 1, 0, 2]),
        "comparison": lambda: render_page(comparison_page(compared()), "remat compare c.json"),
        "large graph": lambda: _graph_page(build_graph("unit-chain{n=5000}")),
    }[case]()
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    dom, console = opened(path, tmp_path)
    assert console == []
    assert f'data-drawn="{len(Document(text).charts)}"' in dom
    assert "main-svg" in dom
    drawn = dom[dom.index("<body") : dom.index("<script", dom.index("<body"))]
    assert INK.lower() not in drawn.lower()
    assert PAPER.lower() not in drawn.lower()
    if case == "plan":
        for words in ("memory in use", "recomputed", "no-remat peak 30.75 GB"):
            assert words in drawn
    if case == "large graph":
        assert "n1 to n65" in drawn
