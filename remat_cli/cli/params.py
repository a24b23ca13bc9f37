"""Parameter types and options that several commands share.

An option is passed on under the name of its flag, because Click names its environment variable after that:
``--format`` of ``remat check`` is ``REMAT_CHECK_FORMAT``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from remat_cli.cli.session import Session
from remat_cli.errors import UsageError
from remat_cli.plan.host import Host
from remat_cli.planning.options import SolveOptions
from remat_cli.units import (
    Budget,
    as_budget,
    as_budgets,
    as_size,
    parse_bandwidths,
    parse_duration,
    parse_lengths,
    parse_percentage,
    parse_share,
)

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:  # older releases of Click have no type argument
    _ParamType = click.ParamType


class _Parsed(_ParamType):
    """A value that ``parse`` reads from text; it raises UsageError."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except UsageError as error:
            self.fail(f"{error.message} ({error.hint})" if error.hint else error.message, param, ctx)


class _Spec(_ParamType):
    """A name with options. Completion loads the registry; nothing else does."""

    def __init__(self, name: str, names: Callable[[], list[str]]) -> None:
        self.name = name
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in self._names() if name.startswith(incomplete)]


def _names(module: str, table: str) -> Callable[[], list[str]]:
    """The names in a registry, which is imported when they are asked for."""
    return lambda: getattr(import_module(module), table).names()


def _budget_or_none(text: str) -> Budget | str:
    return "none" if text.strip().lower() == "none" else as_budget(text)


def _batches(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between them."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"0*[1-9]\d{0,8}", word) for word in words):
        raise UsageError(f'"{text}" is not a batch', hint="write a whole number such as 8, or one for each graph: 8,16")
    return tuple(map(int, words))


def _overhead(text: str) -> str:
    """``one-forward`` or a percentage, as text with its sign."""
    stripped = text.strip()
    if stripped == "one-forward":
        return stripped
    try:
        parse_percentage(stripped)
    except UsageError as error:
        raise UsageError(error.message, hint=f"{error.hint}, or one-forward") from None
    return f"{stripped.removesuffix('%')}%"


BATCHES = _Parsed("batches", _batches)
OVERHEAD = _Parsed("overhead", _overhead)
PERCENT = _Parsed("percentage", parse_percentage)
SHARE = _Parsed("share", parse_share)
BUDGET = _Parsed("budget", as_budget)
BUDGET_OR_NONE = _Parsed("budget", _budget_or_none)
SIZE = _Parsed("size", lambda text: as_size(text, "size"))
SIZES = _Parsed("sizes", lambda text: tuple(as_size(one.strip(), "size") for one in text.split(",")))
BANDWIDTHS = _Parsed("bandwidth", parse_bandwidths)
BUDGETS = _Parsed("budgets", lambda text: tuple(as_budgets(text)))
LENGTHS = _Parsed("lengths", lambda text: parse_lengths(text) if text else ())
DURATION = _Parsed("duration", parse_duration)
STRATEGY = _Spec("strategy", _names("remat_cli.strategies.registry", "STRATEGIES"))
SOLVER = _Spec("solver", _names("remat_cli.solvers.registry", "SOLVERS"))
DEVICE = click.Choice(["cpu", "cuda", "gpu"])
"""The devices of all frameworks; each refuses those that it does not know."""
DEVICE_HELP = "Device to run on: cuda for PyTorch and JAX, gpu for TensorFlow."
READABLE = click.Path(allow_dash=True)
"""A file to read. Its reader reports errors, not Click."""


def _remember_color(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Keep ``--color`` for errors, which are printed after the command has ended; REMAT_COLOR is for all commands."""
    everywhere = os.environ.get("REMAT_COLOR")
    if everywhere and ctx.get_parameter_source("color") is ParameterSource.DEFAULT:
        value = param.type.convert(everywhere, param, ctx)
    session = ctx.find_object(Session)
    if session is not None:
        session.color = value
    return value


color_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    is_eager=True,  # parsed first, so that errors in other options are coloured as asked
    callback=_remember_color,
    help="When to use colour; auto: on a terminal, unless NO_COLOR is set.",
)
quiet_option = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="Print only errors and the answer.",
)
library_option = click.option(
    "--library",
    multiple=True,
    metavar="MODULE",
    help="Import this Python module, and accept the operators of its package.",
)
cdn_option = click.option("--cdn", is_flag=True, help="Write smaller pages, which load plotly.js from cdn.plot.ly.")
output_option = click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    default="-",
    help="Output file.  [default: standard output]",
)
node_link_option = click.option(
    "--keys",
    metavar="KEY=NAME,...",
    help="Attributes of a node-link graph: cost=weight,memory=size.",
)
budgets_option = click.option(
    "--budgets",
    type=BUDGETS,
    required=True,
    help="Memory limits: 8GB,12GB, or start:stop:step, as in 50%:90%:10%.",
)
strategy_option = click.option(
    "--strategy", type=STRATEGY, default="auto", show_default=True, help="See remat strategies."
)
solver_option = click.option("--solver", type=SOLVER, default="highs", show_default=True, help="See remat solvers.")
threads_option = click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(1),
    help="Threads of each search.  [default: the solver's choice]",
)
gap_option = click.option(
    "--gap",
    type=SHARE,
    default="0.01%",
    show_default=True,
    help="Relative optimality gap at which a search stops: 1%, or 0.01.",
)
seed_option = click.option(
    "--seed", metavar="N", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed."
)
host_bandwidth_option = click.option(
    "--host-bandwidth",
    type=BANDWIDTHS,
    help="Also copy values to the host, at 25GB/s, 25GB/s:20GB/s (out:back) or pcie4. Costs must be times.",
)
host_memory_option = click.option(
    "--host-memory", type=SIZE, help="Limit on host memory for copies: 64GiB.  [default: none]"
)
host_latency_option = click.option("--host-latency", type=DURATION, help="Latency of each copy: 0.01ms.  [default: 0]")
results_option = click.option(
    "--results",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Save results in this file, and reuse saved ones.",
)
jobs_option = click.option(
    "--jobs", metavar="N", type=click.IntRange(1), help="Searches at a time.  [default: one per core]"
)
dask_option = click.option("--dask", metavar="ADDRESS", help="Search on a Dask cluster: tcp://host:8786.")
matching_graph_option = click.option(
    "--graph", metavar="GRAPH", type=READABLE, help="Also check that the plan is for this graph."
)


def host_options(command: F) -> F:
    """The three options of a host."""
    return host_bandwidth_option(host_memory_option(host_latency_option(command)))


def format_option(*formats: str, by_suffix: bool = False) -> Callable[[F], F]:
    """``--format`` with ``text`` as the default, unless the suffix of ``-o`` says another."""
    if not by_suffix:
        return click.option(
            "--format", type=click.Choice(formats), default="text", show_default=True, help="Output format."
        )
    words = "Output format.  [default: by the suffix of -o, else text]"
    return click.option("--format", type=click.Choice(formats), default="text", help=words)


def require_drawing(format: str, cdn: bool) -> None:
    """Refuse a page or a figure for which a package is missing, and ``--cdn`` for anything but a page.

    Raises:
        UsageError: If it is so.
    """
    from remat_cli.extras import require_drawing

    require_drawing(format)
    if cdn and format != "html":
        raise UsageError(f"--cdn is for pages, not for --format {format}", hint="add --format html, or leave it out")


Options = TypeVar("Options", bound=SolveOptions)

_FIELDS = {"time_limit": "time_limit_s"} | {
    name: name
    for name in ("strategy", "solver", "gap", "threads", "seed", "write_model", "solver_log", "reorder", "split")
}
"""The options of commands that are fields of ``SolveOptions``, with the names of the fields."""


def solve_options(options: dict[str, Any], kind: type[Options], **more: Any) -> Options:
    """How to solve, as the options of a command say; ``more`` are other fields.

    Raises:
        UsageError: If an option makes no sense.
    """
    return kind(**{field: options[name] for name, field in _FIELDS.items() if name in options}, **more)


def host_of(options: dict[str, Any]) -> Host | None:
    """The host that the options describe; None without a bandwidth.

    Raises:
        UsageError: If one of the others is given without a bandwidth.
    """
    if options["host_bandwidth"] is not None:
        out, back = options["host_bandwidth"]
        return Host(out, back, options["host_latency"] or 0.0, options["host_memory"])
    for name in ("host_memory", "host_latency"):
        if options[name] is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} says nothing without a bandwidth", hint="add --host-bandwidth 25GB/s"
            )
    return None
