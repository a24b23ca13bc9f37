"""The pages of a curve and of what memory is worth."""

from dataclasses import replace

import pytest
from test_pages import Document

import remat_cli as remat
from remat_cli.graph.model import Graph, Node
from remat_cli.plan.comparison import Offer, Worth
from remat_cli.plan.host import Host
from remat_cli.plan.model import Copies
from remat_cli.reports.accumulation import PartedFacts, parted_document
from remat_cli.reports.buckets import BucketFacts, CoveredFacts, buckets_document
from remat_cli.reports.curve import CurveRow
from remat_cli.reports.fits import Largest, fits_markdown
from remat_cli.reports.web.comparison import curve_page
from remat_cli.reports.web.page import render_page
from remat_cli.zoo.registry import build_graph


def curve_text() -> str:
    return remat.page(remat.solve_curve(build_graph("unit-chain{n=17}"), "2B,5B,8B,18B"))


def worth() -> Worth:
    """Two links and two budgets; no plan that only copies in the small one."""
    slow, fast = Host(1e9, 1e9), Host(5e9, 5e9)
    budgets = (("1GB", 10**9), ("3GB", 3 * 10**9))
    offers = (
        Offer("slow", slow, "1GB", 10**9, 16.0, None, 15.0, 12.0),
        Offer("slow", slow, "3GB", 3 * 10**9, 12.0, 11.0, 11.0, 10.5),
        Offer("fast", fast, "1GB", 10**9, 16.0, None, 12.0, 12.0),
        Offer("fast", fast, "3GB", 3 * 10**9, 12.0, 10.0, 10.0, 10.0),
    )
    graph = Graph("net", (Node("a", 10.0, (), (5 * 10**9,)),), (0,), cost_unit="s")
    return Worth(graph, (("slow", slow), ("fast", fast)), budgets, offers)


def test_a_curve_s_page_has_lines_bounds_crosses_and_a_row_for_each_budget():
    text = curve_text()
    page = Document(text)
    [chart] = [c for c in page.charts if c["id"] == "overhead"]
    bound, line, crosses = chart["data"]
    assert (bound["name"], line["name"], crosses["mode"]) == ("no plan (proven)", "cheapest plan found", "markers")
    assert (line["x"], crosses["x"]) == ([5, 8, 18], [2])
    overheads = line["y"]
    assert sorted(overheads, reverse=True) == overheads
    assert overheads[-1] == 0
    assert bound["y"][1:] == pytest.approx(overheads)
    assert page.traces("peak")["cheapest plan found"]["y"][-1] == 10
    said = " ".join(" ".join(page.words).split())
    for words in ("a plan for 3 of 4 budgets", "no plan fits a budget of 2 bytes", "optimal", "all schedules"):
        assert words in said
    assert text == curve_text()


def test_a_bound_that_holds_without_copies_alone_is_none_for_plans_with_copies():
    [point] = remat.solve_curve(build_graph("unit-chain{n=17}"), "5B").points
    report = point.solved.report
    for copies, proven in ((Copies.NONE, False), (Copies.ANY, True)):
        told = replace(report, host=Host(1e9, 1e9), claim=replace(report.claim, copies=copies))
        page = Document(render_page(curve_page(report.graph, [CurveRow("5B", 5, "feasible", told)]), "c"))
        assert (page.traces("overhead")["no plan (proven)"]["y"] == [0]) == (not proven)


def test_a_page_says_what_memory_and_links_are_worth():
    page = Document(remat.page(worth()))
    slopes = page.traces("slopes")
    assert slopes["slow"]["y"] == [2.0]
    assert slopes["slow"]["error_y"]["array"] == [pytest.approx((15 - 10.5) / 2 - 2)]
    assert slopes["slow"]["error_y"]["arrayminus"] == [pytest.approx(2 - (12 - 11) / 2)]
    assert slopes["fast"]["y"] == [1.0]
    lines = page.traces("link0")
    assert lines["both"]["y"] == pytest.approx([50, 10])
    assert lines["recompute"]["y"] == pytest.approx([60, 20])
    assert lines["no plan (proven)"]["y"] == pytest.approx([20, 5])
    assert page.traces("link1")["both"]["y"] == pytest.approx([20, 0])
    said = " ".join(" ".join(page.words).split())
    for words in ("What memory is worth for net", "Link slow", "Link fast", "A faster link", "750 ms"):
        assert words in said


def test_the_text_and_the_page_say_the_same_of_worth():
    text, page = remat.describe(worth()), Document(remat.page(worth()))
    said = " ".join(" ".join(page.words).split())
    for words in ("60.0%", "750 ms", "1 GB/s out", "next GB"):
        assert words in text
        assert words in said


def test_one_link_and_one_budget_have_a_page_too():
    whole = worth()
    one = Worth(whole.graph, whole.links[:1], whole.budgets[:1], whole.offers[:1], interrupted=True)
    page = Document(remat.page(one))
    assert [chart["id"] for chart in page.charts] == ["link0"]
    assert "interrupted" in " ".join(page.words)


def test_the_page_of_fits_has_a_bar_for_each_choice_and_the_line_of_the_card():
    facts = remat.fits("zoo:resnet18{batch=8}", "900MB", options=remat.SolveOptions(time_limit_s=4)).facts()
    page = Document(remat.page(facts))
    [chart] = page.charts
    names = [choice.name for choice in reversed(facts.choices)]
    assert all(trace["y"] == names for trace in chart["data"])
    assert chart["layout"]["shapes"][0]["x0"] == 0.9
    totals = [sum(trace["x"][at] for trace in chart["data"]) for at in range(len(names))]
    assert totals == pytest.approx([choice.total_bytes / 1e9 for choice in reversed(facts.choices)])
    said = " ".join(" ".join(page.words).split())
    for words in (
        "Will resnet18 fit?",
        "with recomputation (best plan)",
        "taken from the device",
        "proven for every plan",
    ):
        assert words in said


def with_buckets():
    """Facts of an answer with two buckets, as for a model by name."""
    facts = remat.fits("zoo:resnet18{batch=8}", "900MB", options=remat.SolveOptions(time_limit_s=4)).facts()
    covered = CoveredFacts((2, 9), (2, 64), 7 * 10**8, "expressions")
    rows = [
        BucketFacts(64, 6, 6e5, 9, 12e5, 10e5, 12, covered, facts.choices),
        BucketFacts(128, 3, 6e5, 4, 11e5, 10e5, 6, None, facts.choices),
    ]
    return replace(facts, buckets=tuple(rows), cost_unit="us")


def test_the_page_of_fits_has_bars_over_batch_and_length():
    facts = with_buckets()
    page = Document(remat.page(facts))
    [_, chart] = page.charts
    assert chart["id"] == "lengths"
    groups, names = chart["data"][0]["y"]
    assert set(groups) == {"9 × 64", "4 × 128"}
    assert groups[-1] == "9 × 64"  # the first is at the top
    assert names == [choice.name for choice in reversed(facts.choices)] * 2
    totals = [sum(trace["x"][at] for trace in chart["data"]) for at in range(len(names))]
    assert totals == pytest.approx([choice.total_bytes / 1e9 for choice in reversed(facts.choices)] * 2)
    assert chart["layout"]["shapes"][0]["x0"] == 0.9
    said = " ".join(" ".join(page.words).split())
    for words in ("Batches by length", "batch without recomputation", "+20.0%", "480", "not proven", "700 MB"):
        assert words in said


def test_text_and_markdown_say_the_same_of_buckets():
    facts = with_buckets()
    text, markdown = remat.describe(facts), fits_markdown(facts)
    for words in ("640", "480", "+20.0%", "700 MB", "all batches from 2 to the one in the table", "not proven"):
        assert words in " ".join(text.split())
        assert words in markdown
    assert "| sequences up to | batch without recomputation | tokens/s |" in markdown
    assert "| 64 | 6 | 640 | 9 | 12 | +20.0% | 480 | 700 MB |" in markdown
    assert "the time limit ended" not in text


def test_it_is_said_where_the_time_limit_decided():
    facts = with_buckets()
    first, second = facts.buckets
    found = replace(facts, buckets=(replace(first, cut_short=True), second), largest={"batch": Largest(9, 6, None, 12)})
    said = " ".join(remat.describe(found).split())
    assert "for sequences up to 64, the time limit ended the search for larger batches" in said
    assert [row["cut_short"] for row in buckets_document(found.buckets, "us")["rows"]] == [True, False]
    largest = "no plan fits 12; the time limit ended the search, and more time may find a larger one"
    assert largest not in said
    late = replace(found, largest={"batch": Largest(9, 6, None, 12, exact=True, cut_short=True)})
    assert largest in " ".join(remat.describe(late).split())


def test_lists_for_loaders_leave_out_what_does_not_fit():
    facts = with_buckets()
    none = replace(facts.buckets[1], length=256, without=0, without_cost=None)
    document = buckets_document((*facts.buckets, none), "us")
    assert document["with_plan"] == {"lengths": [64, 128, 256], "boundaries": [65, 129, 257], "batch_sizes": [9, 4, 4]}
    assert document["without_remat"] == {"lengths": [64, 128], "boundaries": [65, 129], "batch_sizes": [6, 3]}
    assert document["rows"][0]["with_plan"]["tokens_per_s"] == 9 * 64 / 1.2
    assert document["rows"][2]["without_remat"] == {"batch": 0, "cost": None, "tokens_per_s": None}


def test_parts_of_a_batch_have_bars_a_table_and_a_best():
    facts = with_buckets()
    rows = (
        PartedFacts(8, 1, 64, "", None, None, None, True, ()),
        PartedFacts(4, 2, 64, "best plan", 8 * 10**8, 12e5, 0.2, False, facts.choices),
        PartedFacts(2, 4, 64, "no recomputation", 7 * 10**8, 11e5, 0.0, False, facts.choices),
    )
    facts = replace(facts, parted=rows)
    page, text = Document(remat.page(facts)), " ".join(remat.describe(facts).split())
    [chart] = [chart for chart in page.charts if chart["id"] == "parts"]
    assert set(chart["data"][0]["y"][0]) == {"2 × 4", "4 × 2"}
    said = " ".join(" ".join(page.words).split())
    for words in ("A batch in parts", "no plan fits", "+20.0%", "427", "in 4 parts of 2, no recomputation"):
        assert words in said
        assert words in text
    document = parted_document(rows, "us")
    assert (document["global_batch"], document["best"]) == (8, 2)
    assert document["rows"][1]["rate"] == 8 * 64 / 1.2
    assert "| 4 | 2 | best plan | +20.0% | 800 MB | 1.2 s | 427 |" in fits_markdown(facts)
