"""Lines of a comparison: the recommended one on top, what coincides below it wider, one scale everywhere."""

from report_cases import training_chain

from remat_cli.plan.comparison import Comparison, Ended, Row
from remat_cli.reports.charts import chart_lines, logarithmic_scale, overhead_percent, recommended
from remat_cli.reports.figures import comparison_figure


def compared(**overheads: list[float | None]) -> Comparison:
    """A comparison with these overheads at budgets 1, 2, ...; None for no plan."""
    rows, graph = [], training_chain()
    for name, found in overheads.items():
        for budget, over in enumerate(found, start=1):
            made = {} if over is None else {"peak_bytes": budget, "cost": 9 * (1 + over), "overhead": over}
            rows.append(Row(name, str(budget), budget, Ended.NONE if over is None else Ended.PLAN, **made))
    budgets = tuple((str(b), b) for b in range(1, 1 + len(next(iter(overheads.values())))))
    return Comparison(graph, 9, tuple(overheads), budgets, {}, tuple(rows))


def test_the_recommended_strategy_is_drawn_last_and_what_it_covers_is_wider():
    lines = chart_lines(
        compared(auto=[0.2, 0.1, 0.0], dtr=[0.3, 0.1, 0.0], twremat=[0.3, 0.1, 0.0], chen=[None, 0.5, 0.0]),
        overhead_percent,
    )
    assert [(line.strategy, line.covered) for line in lines] == [("chen", 0), ("twremat", 2), ("dtr", 1), ("auto", 0)]
    assert [line.index for line in lines] == [3, 2, 1, 0]
    assert [len(line.rows) for line in lines] == [2, 3, 3, 3]


def test_auto_is_recommended_else_optimal_else_nothing():
    assert recommended(compared(optimal=[0.1], auto=[0.1])) == "auto"
    assert recommended(compared(dtr=[0.1], **{"optimal{gap=0.1}": [0.1]})) == "optimal{gap=0.1}"
    assert recommended(compared(dtr=[0.1])) is None


def test_page_and_figure_have_the_same_axis():
    wide = compared(auto=[1.0, 1e-3, 1e-5], dtr=[1.0, 2e-3, 1e-5])
    near = compared(auto=[1.0, 0.5, 0.2], dtr=[1.0, 0.6, 0.2])
    for comparison, logarithmic in ((wide, True), (near, False)):
        assert logarithmic_scale(comparison).first_shown is logarithmic
        drawn = comparison_figure(comparison, "svg").decode()
        texts = {part.partition(" -->")[0] for part in drawn.split("<!-- ")[1:]}
        ticks = {text for _, text in logarithmic_scale(comparison).ticks()}
        assert (ticks <= texts) is logarithmic
