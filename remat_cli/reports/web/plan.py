"""The page of a plan: memory over time, lifetimes, values at the peak, recomputed nodes, the matrices R and S."""

import math
import shlex
from dataclasses import replace
from operator import attrgetter
from typing import Any

from remat_cli.graph.model import Graph
from remat_cli.graph.splitting import parts_words
from remat_cli.plan.check import OVER_BUDGET, Report
from remat_cli.plan.host import Host
from remat_cli.plan.matrices import AGAIN, Raster, raster
from remat_cli.plan.model import Plan
from remat_cli.plan.occupancy import Kind, Moment, Occupancy, occupancy
from remat_cli.reports import words
from remat_cli.reports.charts import BUDGET, KINDS, PATTERNS
from remat_cli.reports.plan import peak_table, recomputed_table, recomputed_words
from remat_cli.reports.style import Style
from remat_cli.reports.table import Column, Table, each
from remat_cli.reports.timeline import why_peak
from remat_cli.reports.web.lifetimes import lifetimes_section
from remat_cli.reports.web.page import INK, PAPER, Chart, Page, Section, hatching, label, lines
from remat_cli.reports.web.queues import queues_section
from remat_cli.units import format_bytes

_MOST_ROWS = 30
_SHOWN_PROBLEMS = 10
_MOMENTS = 24
_WORDS = Style(width=10_000, color=False, unicode=True)


def plan_page(report: Report, plan: Plan) -> Page:
    """The page of ``plan``."""
    errors = [f.message for f in report.findings if f.code != OVER_BUDGET]
    problems = errors[:_SHOWN_PROBLEMS]
    if len(errors) > _SHOWN_PROBLEMS:
        problems.append(f"and {len(errors) - _SHOWN_PROBLEMS:,} more")
    lifetimes, nodes = lifetimes_section(report, plan)
    empty = not plan.statements
    return Page(
        title=report.graph.name or "plan",
        verdict=words.verdict(report),
        good=report.valid and report.within_budget,
        facts=_facts(report, plan),
        sections=[
            *_timeline(report, plan),
            *queues_section(report, plan),
            *([] if empty else [lifetimes]),
            *_peak(report),
            *_recomputed(report),
            matrices(plan),
        ],
        problems=problems,
        script="" if empty else "plan",
        data={"nodes": nodes},
    )


def _facts(report: Report, plan: Plan) -> list[tuple[str, str]]:
    graph = report.graph
    budget = "none" if report.budget_bytes is None else words.exact_bytes(report.budget_bytes)
    if report.budget_text and report.budget_bytes is not None:
        budget = f"{report.budget_text} = {budget}"
    share = words.share_words(report.replay.peak_bytes, report.no_remat_peak_bytes)
    facts = [
        ("graph", words.graph_words(graph)),
        ("budget", budget),
        ("peak", words.exact_bytes(report.replay.peak_bytes) + (f", {share} of no-remat" if share else "")),
        ("cost", f"{words.cost_words(report.replay.time, graph.cost_unit)}, {words.overhead_words(report)}"),
        *([] if graph.origin is None else [("in parts", parts_words(graph))]),
        ("claim", words.certainty(report)),
        ("bound", _bound(report)),
    ]
    if report.claim.peak is not None:
        facts.append(("least peak", words.least_peak_words(report)))
    if report.host is not None:
        facts.append(("host", report.host.words))
    return [*facts, ("made by", words.maker(report)), ("made with", _solve_command(plan))]


def _bound(report: Report) -> str:
    if report.claim.lower_bound <= 0:
        return "none claimed"
    bound = words.cost_words(report.claim.lower_bound, report.graph.cost_unit)
    return f"at least {bound}, as claimed for {report.claim.scope.value} schedules; gap {report.gap:.3%}"


def _solve_command(plan: Plan) -> str:
    """The command that makes such a plan from its graph, as far as the plan records it."""
    provenance = plan.provenance
    if "remat" not in provenance:
        return "not recorded in the plan"
    command = ["remat", "solve", f"{plan.graph.name or 'graph'}.json"]
    if provenance.get("minimize"):
        command += ["--minimize", str(provenance["minimize"])]
    else:
        command += ["--budget", str(provenance.get("budget") or "none")]
    for key, option, usual in (
        ("strategy", "--strategy", "auto"),
        ("solver", "--solver", "highs"),
        ("gap", "--gap", 1e-4),
        ("threads", "--threads", None),
        ("seed", "--seed", 0),
        ("time_limit_s", "--time-limit", None),
    ):
        if (value := provenance.get(key, usual)) != usual and value is not None:
            command += [option, f"{value:g}s" if key == "time_limit_s" and isinstance(value, float) else str(value)]
    if provenance.get("reorder"):
        command.append("--reorder")
    if plan.host is not None:
        command += _host_options(plan.host)
    return f"{shlex.join(command)}  (remat {provenance['remat']})"


def _host_options(host: Host) -> list[str]:
    """The options that describe a host, exactly."""
    rates = ["inf" if math.isinf(rate) else _rate(rate) for rate in (host.out_bytes_per_s, host.in_bytes_per_s)]
    options = ["--host-bandwidth", rates[0] if rates[0] == rates[1] else ":".join(rates)]
    if host.memory_bytes is not None:
        options += ["--host-memory", f"{host.memory_bytes}B"]
    if host.latency_s:
        options += ["--host-latency", f"{host.latency_s:.15g}s"]
    return options


def _rate(bytes_per_s: float) -> str:
    short = f"{bytes_per_s / 1e9:.6g}"
    return f"{short}GB/s" if float(short) * 1e9 == bytes_per_s else f"{round(bytes_per_s)}B/s"


def _timeline(report: Report, plan: Plan) -> list[Section]:
    if not report.replay.profile:
        return [Section("Memory over time", "The plan is empty.")]
    usage = occupancy(report.graph, plan.statements, report.replay.profile)
    note = (
        "Memory in use at every statement. Point at the drawing to see the largest values; drag to zoom in. The small "
        "drawing is a map of the whole plan: move its edges. The lifetimes below show the same statements."
    )
    if usage.each > 1:
        note += (
            f" Of every {usage.each} neighbouring statements, the drawing shows the one with the most memory in use: "
            f"{len(usage.moments):,} of {usage.statements:,}."
        )
    node = "" if report.peak_node is None else f" ({report.peak_node})"
    described = (
        f"Memory over {usage.statements:,} statements: {words.peak_words(report)} at statement "
        f"{report.replay.peak_statement or 0:,}{node}; no-remat peak {format_bytes(report.no_remat_peak_bytes)}, fixed "
        f"memory {format_bytes(report.graph.fixed_memory)}. The table below has more numbers."
    )
    chart = Chart(
        "timeline",
        _timeline_traces(report, usage),
        _timeline_layout(report),
        580,
        described,
        numbers=_timeline_table(report, usage),
        numbers_title="Memory over time in numbers",
        moves_with="statements",
    )
    why = why_peak(report, plan.statements, _WORDS).removeprefix("Why: ")
    return [Section("Memory over time", note, (chart,)), Section("Why the peak is here", why)]


def _timeline_traces(report: Report, usage: Occupancy) -> list[dict[str, Any]]:
    # A moment lasts until the next one begins, and the last one until the end.
    begins = [*(moment.first for moment in usage.moments), usage.statements]
    moments = [*usage.moments, usage.moments[-1]]
    traces: list[dict[str, Any]] = []
    for kind in usage.kinds():
        traces.append(
            lines(
                kind.value,
                begins,
                [moment.bytes.get(kind, 0) for moment in moments],
                stackgroup="memory",
                line={"width": 0, "shape": "hv", "color": KINDS[kind]},
                fillcolor=KINDS[kind],
                hoverinfo="skip",
                fillpattern=hatching(PATTERNS.get(kind, ""), KINDS[kind]),
            )
        )
    used, edge = [sum(moment.bytes.values()) for moment in moments], {"width": 1.2, "shape": "hv", "color": INK}
    traces.append(lines("in use", begins, used, line=edge, hoverinfo="skip"))
    traces.append(
        lines(
            "pointed at",
            # In the middle of each statement, so that the nearest one is the one pointed at; rounded it is its number.
            [moment.first + 0.49 for moment in usage.moments],
            used[:-1],
            mode="markers",
            marker={"opacity": 0},
            showlegend=False,
            xhoverformat=".0f",
            text=[_hover(report, moment) for moment in usage.moments],
            hovertemplate="%{text}<extra></extra>",
        )
    )
    return [*traces, *_levels(report, usage.statements), *_strip(usage)]


def _timeline_table(report: Report, usage: Occupancy) -> Table[Moment]:
    """Some moments in numbers, evenly apart, and the one at the peak."""
    indices = {round(k * (len(usage.moments) - 1) / _MOMENTS) for k in range(_MOMENTS + 1)}
    indices.add(max(range(len(usage.moments)), key=lambda k: sum(usage.moments[k].bytes.values())))
    moments = [usage.moments[k] for k in sorted(indices)]

    def of_kind(kind: Kind) -> Column[Moment]:
        return Column(kind.value, lambda moment: moment.bytes.get(kind, 0), words.size_column)

    nodes = report.graph.nodes
    columns: list[Column[Moment]] = [
        Column("statement", attrgetter("statement"), each("{:,}".format), numeric=False),
        Column("node", lambda moment: None if moment.node is None else nodes[moment.node].id, numeric=False),
        Column("in use", lambda moment: sum(moment.bytes.values()), words.size_column),
        *map(of_kind, usage.kinds()),
    ]
    return Table(columns, moments)


def _levels(report: Report, end: int) -> list[dict[str, Any]]:
    """Budget, peak without recomputation, and fixed memory as lines."""
    levels = [
        ("no-remat peak", report.no_remat_peak_bytes, INK, "dot"),
        ("budget", report.budget_bytes, BUDGET, "dash"),
        ("fixed memory", report.graph.fixed_memory, INK, "dashdot"),
    ]
    return [
        lines(
            f"{name} {format_bytes(amount)}",
            [0, end],
            [amount, amount],
            line={"width": 1.6, "dash": dash, "color": colour},
            hoverinfo="skip",
        )
        for name, amount, colour, dash in levels
        if amount
    ]


def _strip(usage: Occupancy) -> list[dict[str, Any]]:
    """The kind of each computation, as a strip above the drawing."""
    traces: list[dict[str, Any]] = []
    for kind in Kind:
        if runs := usage.runs(kind):
            traces.append(
                {
                    "type": "bar",
                    "name": f"computing: {kind.value}",
                    "orientation": "h",
                    "base": [first for first, _ in runs],
                    "x": [last - first for first, last in runs],
                    "y": [0] * len(runs),
                    "width": 1,
                    "xaxis": "x2",
                    "yaxis": "y2",
                    "marker": {"color": KINDS[kind], "line": {"width": 0}},
                    "hoverinfo": "skip",
                    "showlegend": False,
                }
            )
    return traces


def _hover(report: Report, moment: Moment) -> str:
    graph = report.graph
    node = "after the last computation" if moment.node is None else label(graph.nodes[moment.node].id)
    lines = [
        f"<b>{format_bytes(sum(moment.bytes.values()))}</b> at statement {moment.statement:,}",
        f"{node} ({moment.doing.value})",
    ]
    for value, size, again in moment.largest:
        lines.append(f"{format_bytes(size)}  {label(graph.value_name(value))}" + (" (recomputed)" if again else ""))
    if (rest := moment.values - len(moment.largest)) > 0:
        lines.append(f"and {words.count(rest, 'value')} more")
    return "<br>".join(lines)


def _timeline_layout(report: Report) -> dict[str, Any]:
    whole = [0, len(report.replay.profile)]
    return {
        "margin": {"l": 60, "r": 12, "t": 30, "b": 40},
        "hovermode": "x",
        "hoverdistance": -1,
        "barmode": "overlay",
        "legend": {"orientation": "h", "traceorder": "normal", "y": -0.27, "yanchor": "top", "x": 0},
        "xaxis": {
            "range": whole,
            "rangeslider": {"visible": True, "thickness": 0.07, "range": whole},  # a map of the whole plan
        },
        # The strip has an axis of its own, so that the map is of memory alone.
        "xaxis2": {"matches": "x", "anchor": "y2", "showticklabels": False, "showgrid": False, "range": whole},
        "yaxis": {
            "title": {"text": "memory in use"},
            "tickformat": "~s",
            "ticksuffix": "B",
            "rangemode": "tozero",
            "fixedrange": False,  # with the slider plotly would fix it
            "domain": [0, 0.93],
        },
        "yaxis2": {
            "domain": [0.955, 1],
            "range": [-0.5, 0.5],
            "tickvals": [0],
            "ticktext": ["computing"],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
        },
    }


def _peak(report: Report) -> list[Section]:
    replay = report.replay
    if replay.peak_statement is None:
        return []
    node = "" if report.peak_node is None else f", node {report.peak_node}"
    note = f"{words.peak_words(report)}: statement {replay.peak_statement:,} of {len(replay.profile):,}{node}."
    table = replace(peak_table(report, _MOST_ROWS), pin=lambda row: _node_of(report.graph, row[0]))
    return [Section("At the peak", note, table=table)]


def _node_of(graph: Graph, name: str) -> int | None:
    """The node of a value or of an id; None for a row that sums several up."""
    index = graph.derived(_indices)
    return index.get(name, index.get(name.rpartition(":")[0]))


def _indices(graph: Graph) -> dict[str, int]:
    return {node.id: i for i, node in enumerate(graph.nodes)}


def _recomputed(report: Report) -> list[Section]:
    if not report.recomputed:
        return [Section("Recomputed", "Nothing is recomputed.")]
    table = replace(recomputed_table(report, _MOST_ROWS), pin=lambda row: _node_of(report.graph, row[0]))
    return [Section("Recomputed", f"{recomputed_words(report)}.", table=table)]


def matrices(plan: Plan) -> Section:
    """R and S side by side; a sentence for a plan without stages."""
    title = "The matrices R and S"
    bitmap = raster(plan)
    if bitmap is None:
        return Section(title, "This plan has no stages: its first computations are not in the order of its graph.")
    note = (
        "The plan as the literature writes it, with a row for each stage, which ends with the first computation of one "
        "node: R shows the nodes that are computed in a stage, S those whose values are kept from the stage before."
    )
    if bitmap.each > 1:
        note += f" Each cell stands for {bitmap.each} nodes in {bitmap.each} stages, and is filled if any of them is."
    again, kept = int((bitmap.computed == AGAIN).sum()), int(bitmap.kept.sum())
    rows, columns = bitmap.computed.shape
    size = f"{rows} stages by {columns} columns of nodes"
    charts = tuple(
        Chart(
            f"matrix-{which.lower()}",
            [_heatmap(plan, bitmap, which)],
            _matrix_layout(name, bitmap),
            470,
            words,
            square=True,
        )
        for which, name, words in (
            ("R", "R: computed", f"Matrix R, {size}: {again:,} cells are computed again."),
            ("S", "S: kept", f"Matrix S, {size}: {kept:,} cells are kept."),
        )
    )
    return Section(title, note, charts)


def _heatmap(plan: Plan, bitmap: Raster, which: str) -> dict[str, Any]:
    cells = bitmap.computed if which == "R" else bitmap.kept
    first, again, kept = KINDS[Kind.FORWARD], KINDS[Kind.RECOMPUTED], KINDS[Kind.UPDATE]
    colours = [PAPER, first, again] if which == "R" else [PAPER, kept]
    words = ["not", "first time", "again"] if which == "R" else ["not", "kept"]
    number = len(colours)
    rows, columns = cells.shape
    return {
        "type": "heatmap",
        "z": cells,
        # Names instead of numbers, so that pointing at a cell shows them; the layout sets the ticks.
        "x": [_cell_name(plan, k, bitmap.each) for k in range(columns)],
        "y": [_cell_name(plan, k, bitmap.each, "stage ") for k in range(rows)],
        "zmin": -0.5,
        "zmax": number - 0.5,
        "colorscale": [[(k + end) / number, colours[k]] for k in range(number) for end in (0, 1)],
        "colorbar": {
            "tickvals": list(range(number)),
            "ticktext": words,
            "orientation": "h",
            "thickness": 10,
            "len": 0.6 if which == "R" else 0.4,
            "y": 1.01,
            "yanchor": "bottom",
            "outlinewidth": 0,
        },
        "hovertemplate": "%{x}<br>%{y}<extra></extra>",
    }


def _cell_name(plan: Plan, k: int, each: int, what: str = "") -> str:
    """The name of the k-th column or row of ``each`` nodes; begins with its number, so that names are unique."""
    nodes = plan.graph.nodes
    first, last = k * each, min((k + 1) * each, len(nodes)) - 1
    if first >= len(nodes):
        return f"{what}{first}: the end"
    if first == last:
        return f"{what}{first}: {label(nodes[first].id)}"
    return f"{what}{first} to {last}: {label(nodes[first].id, 30)} to {label(nodes[last].id, 30)}"


def _matrix_layout(title: str, bitmap: Raster) -> dict[str, Any]:
    rows = bitmap.computed.shape[0]
    step = next(k * 10**power for power in range(9) for k in (1, 2, 5) if rows <= 8 * k * 10**power)
    marks = list(range(0, rows, step))
    ticks = {
        "type": "category",
        "tickmode": "array",
        "tickvals": marks,
        "ticktext": [str(k * bitmap.each) for k in marks],
    }
    return {
        "margin": {"l": 50, "r": 8, "t": 60, "b": 40},
        "xaxis": {"title": {"text": f"{title} (node)"}, **ticks, "showgrid": False, "constrain": "domain"},
        "yaxis": {
            **ticks,
            "title": {"text": "stage"},
            "autorange": "reversed",
            "showgrid": False,
            "scaleanchor": "x",
            "constrain": "domain",
        },
    }
