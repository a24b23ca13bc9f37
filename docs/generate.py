"""Makes what is generated in this folder: the command reference, the tables, the figures. Run it with ``make docs``.

Everything is the same from run to run, and ``tests/docs`` compares it with what is committed.
"""

from __future__ import annotations

import ast
import copy
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent))

from notebooks import NOTEBOOKS, executed

DOCS = Path(__file__).parent
_CONTRACTS = DOCS.parent / "pyproject.toml"
_WIDTH = 100
_SHARED = {"quiet", "color"}
"""Options of all commands, which the reference has once."""
_MARGIN = 1 << 29
"""Bytes that the page on budgets leaves free beside the context of the device."""
_KEEP_ALL, _PLANNED, _LIMIT, _KEPT = "#999999", "#0072B2", "#D55E00", "#CFE3F1"


def command_reference() -> str:
    """``commands.md``: the help of every command, as the commands print it."""
    from remat_cli.cli.main import _COMMANDS, cli

    top = click.Context(cli, info_name="remat", terminal_width=_WIDTH, **cli.context_settings)
    parts = [
        "# Commands",
        "What every command prints with `--help`. This page is generated from the commands by `make docs`.",
        f"Every command takes these, too, and they are left out below:\n\n{_text(_shared_options())}",
        "\n".join(["- [remat](#remat)", *(f"- [remat {name}](#remat-{name})" for name in _COMMANDS)]),
        "## remat",
        _text(cli.get_help(top)),
    ]
    for name in _COMMANDS:
        command = cli.get_command(top, name)
        assert command is not None
        parts += [f"## remat {name}"]
        short = copy.copy(command)
        short.params = [option for option in command.params if option.name not in _SHARED]
        short.add_help_option = False
        parts += [_text(short.get_help(click.Context(short, info_name=name, parent=top, terminal_width=_WIDTH)))]
    return "\n\n".join(parts) + "\n"


def _shared_options() -> str:
    from remat_cli.cli.main import cli

    shown = click.Command("any", params=[_shared(name, cli) for name in sorted(_SHARED)], add_help_option=False)
    told = shown.get_help(click.Context(shown, info_name="remat", terminal_width=_WIDTH))
    return told.partition("Options:\n")[2]


def _shared(name: str, cli: click.Group) -> click.Parameter:
    """The option of this name, which has to be the same in all commands that have it."""
    context = click.Context(cli)
    commands = [cli.get_command(context, command) for command in cli.list_commands(context)]
    found = [option for command in commands if command for option in command.params if option.name == name]
    assert len({option.get_help_record(context) for option in found}) == 1, name
    return found[0]


def _text(help_text: str) -> str:
    lines = "\n".join(line.rstrip() for line in help_text.splitlines())
    return f"```text\n{lines}\n```"


def strategies_table() -> str:
    """All strategies of the registry: what each does, takes and ignores, its options and its reference."""
    from remat_cli.spec import describe_options
    from remat_cli.strategies.base import IGNORABLE
    from remat_cli.strategies.registry import STRATEGIES

    rows = [
        "| strategy | what it does | takes | ignores | options | reference |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in STRATEGIES.names():
        cls = STRATEGIES.load(name)
        options = "<br>".join(f"`{option}={default}`: {text}" for option, default, text in describe_options(cls))
        ignored = ", ".join(fact for fact in IGNORABLE if fact in cls.ignores)
        cells = [f"`{name}`", cls.summary, cls.needs.value, ignored, options, cls.reference]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def solvers_table() -> str:
    """The options of all solvers in the registry."""
    from remat_cli.solvers.registry import SOLVERS
    from remat_cli.spec import describe_options

    rows = ["| solver | starts from a known plan | options |", "| --- | --- | --- |"]
    for name in SOLVERS.names():
        cls = SOLVERS.load(name)
        options = "<br>".join(f"`{option}={default}`: {text}" for option, default, text in describe_options(cls))
        rows.append(f"| `{name}` | {'yes' if cls.warm_start else 'no'} | {options} |")
    return "\n".join(rows)


def cards_table() -> str:
    """What to type for each card: what PyTorch can see of it, without its context and a margin, down to half a GiB."""
    from remat_cli.api.memory import CONTEXT
    from remat_cli.frontends.gpus import CARDS, gpu
    from remat_cli.units import as_size

    rows = ["| card | PyTorch sees about | type |", "| --- | ---: | --- |"]
    for name in CARDS:
        seen = gpu(name).memory_bytes
        halves = (seen - as_size(CONTEXT, "context") - _MARGIN) // _MARGIN
        rows.append(f'| `{name}` | {seen / 2**30:.2f} GiB | `"{halves / 2:g}GiB"` |')
    return "\n".join(rows)


def modules_map() -> str:
    """The layers of the code with what each module does, and the other rules on imports, from ``pyproject.toml``."""
    contracts = tomllib.loads(_CONTRACTS.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layered = [contract for contract in contracts if contract["type"] == "layers"]
    whole = next(contract for contract in layered if "containers" not in contract)
    rows = ["| layer | module | what it does |", "| ---: | --- | --- |"]
    for height, modules in zip(range(len(whole["layers"]), 0, -1), whole["layers"], strict=True):
        for k, module in enumerate(modules.split(" | ")):
            name = module.removeprefix("remat_cli.")
            rows.append(f"| {'' if k else height} | `{name}` | {_first_line(module)} |")
    parts = ["\n".join(rows), "Within these modules there are layers, too, from the top down:"]
    inner = []
    for contract in layered:
        for container in contract.get("containers", []):
            layers = "; ".join(", ".join(f"`{name}`" for name in layer.split(" | ")) for layer in contract["layers"])
            inner.append(f"- `{container.removeprefix('remat_cli.')}`: {layers}")
    rules = [f"- {contract['name']}" for contract in contracts if contract["type"] != "layers"]
    return "\n\n".join([*parts, "\n".join(inner), "The other rules on imports:", "\n".join(rules)])


def _first_line(module: str) -> str:
    """The first line of the docstring of a module or package."""
    path = DOCS.parent / module.replace(".", "/")
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").splitlines()[0].replace("``", "`").replace("|", "\\|")


def with_table(page: str, name: str, table: str) -> str:
    """``page`` with what stands between the marks ``<!-- NAME -->`` and ``<!-- /NAME -->`` replaced by ``table``."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    assert found, f"{begin} is missing"
    assert closed, f"{end} is missing"
    return f"{head}{begin}\n{table}\n{end}{tail}"


def memory_figure() -> bytes:
    """Memory over time of a small training chain, without recomputation and with a plan."""
    import remat_cli as remat
    from remat_cli.plan.derive import derive
    from remat_cli.reports.figures import figure_bytes, matplotlib_settings

    graph = remat.build_graph("linear{n=16}")
    plan = remat.solve(graph, "8B").plan
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.5, 3.0), layout="constrained")
        axes = figure.subplots()
        kept = _residency(graph, derive(graph, range(len(graph.nodes))))
        axes.plot(kept, drawstyle="steps-post", color=_KEEP_ALL, label=f"everything kept: cost {graph.total_cost:g}")
        planned = _residency(graph, plan.statements)
        label = f"a plan for 8 bytes: cost {plan.claim.cost:g}"
        axes.plot(planned, drawstyle="steps-post", color=_PLANNED, label=label)
        axes.axhline(8, color=_LIMIT, linestyle="--", linewidth=1, label="budget")
        axes.set_xlabel("computations so far")
        axes.set_ylabel("bytes in memory")
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
        return figure_bytes(figure, "svg")


def _residency(graph, statements) -> list[int]:
    """Bytes in memory while each compute runs, fixed memory included."""
    from remat_cli.plan.model import Allocate, Compute

    live, size, seen = graph.fixed_memory, {}, []
    for statement in statements:
        if isinstance(statement, Allocate):
            size[statement.register] = graph.size[statement.value]
            live += size[statement.register]
        elif isinstance(statement, Compute):
            seen.append(live + graph.nodes[statement.node].workspace)
        else:
            live -= size[statement.register]
    return seen


def stages_figure() -> bytes:
    """R and S of a plan: which nodes each stage computes, and which values are kept into it."""
    import remat_cli as remat
    from remat_cli.plan.matrices import matrices_of
    from remat_cli.plan.model import Compute
    from remat_cli.reports.figures import figure_bytes, matplotlib_settings

    graph = remat.build_graph("linear{n=8}")
    plan = remat.solve(graph, "5B").plan
    found = matrices_of(graph, [s.node for s in plan.statements if isinstance(s, Compute)])
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        n = len(graph.nodes)
        for value, intervals in enumerate(found.kept):
            node = graph.producer[value]
            for start, end in intervals:
                stages = range(start + 1, min(end + 1, n))
                axes.barh(stages, 1, left=node - 0.5, height=1, color=_KEPT, linewidth=0)
        again = sorted((t, i) for t, i in found.computed if t != i)
        axes.plot(range(n), range(n), "o", color=_PLANNED, markersize=6, label="computed for the first time")
        axes.plot([i for _, i in again], [t for t, _ in again], "s", color=_LIMIT, markersize=6, label="recomputed")
        axes.plot([], [], "s", color=_KEPT, markersize=9, label="kept into the stage")
        axes.set_xlabel("node, in document order")
        axes.set_ylabel("stage")
        axes.set_xlim(-0.7, n - 0.3)
        axes.set_ylim(n - 0.3, -0.7)
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
        return figure_bytes(figure, "svg")


def tradeoff_figure() -> bytes:
    """The least cost of a small training chain at every budget, beside what two published methods reach."""
    import remat_cli as remat
    from remat_cli.reports.figures import figure_bytes, line_style, matplotlib_settings

    graph = remat.build_graph("linear{n=16}")
    with matplotlib_settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.5, 3.4), layout="constrained")
        axes = figure.subplots()
        for k, strategy in enumerate(("optimal", "rotor", "chen-greedy", "chen-sqrt")):
            found = []
            for budget in range(5, 19):
                try:
                    solved = remat.solve(graph, budget, remat.SolveOptions(strategy=strategy))
                except remat.Infeasible:
                    continue
                found.append((budget, 100 * solved.report.overhead))
            axes.plot(*zip(*found, strict=True), label=strategy, drawstyle="steps-post", **line_style(k))
        axes.set_xlabel("budget, bytes")
        axes.set_ylabel("cost over no-remat, %")
        axes.set_ylim(bottom=-5)
        figure.legend(loc="outside right upper", frameon=False, fontsize="small")
        return figure_bytes(figure, "svg")


GENERATED: dict[str, Callable[[], bytes]] = {
    "commands.md": lambda: command_reference().encode(),
    "strategies.md": lambda: _page("strategies.md", "strategies", strategies_table()),
    "which-number.md": lambda: _page("which-number.md", "cards", cards_table()),
    "solvers.md": lambda: _page("solvers.md", "solvers", solvers_table()),
    "../CONTRIBUTING.md": lambda: _page("../CONTRIBUTING.md", "modules", modules_map()),
    **{f"notebooks/{path.name}": partial(executed, path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))},
    "figures/memory.svg": memory_figure,
    "figures/stages.svg": stages_figure,
    "figures/tradeoff.svg": tradeoff_figure,
}
"""Every file that is generated as a whole or in part, seen from this folder, and what makes its bytes."""


def _page(name: str, mark: str, table: str) -> bytes:
    return with_table((DOCS / name).read_text(encoding="utf-8"), mark, table).encode()


if __name__ == "__main__":
    for path, make in GENERATED.items():
        data = make()
        if not (DOCS / path).exists() or (DOCS / path).read_bytes() != data:
            (DOCS / path).write_bytes(data)
            sys.stdout.write(f"docs/{path}\n")
