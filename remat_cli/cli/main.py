"""The ``remat`` command: the group of all commands, and the one place where errors become exit codes."""

import contextlib
import errno
import functools
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from remat_cli.cli.output import Output, complain
from remat_cli.cli.session import COMPLETION, Session
from remat_cli.errors import ExitCode, OutOfResources, RematError, UsageError, on_command_line
from remat_cli.printable import printable
from remat_cli.registry import suggestion
from remat_cli.running import exit_now, interrupt, shortage
from remat_cli.standard_output import claim, redirected
from remat_cli.version import __version__

_STARTED_S = time.monotonic()
"""``time.monotonic()`` at the start of the process, as nearly as it is known."""
_GARBAGE = (100_000, 50, 50)
"""Objects and rounds between collections of garbage. With Python's own 700, 10 and 10, reading a graph of a million
nodes takes twice as long. Garbage in cycles may grow to some tens of megabytes. Untuned."""
_STORAGE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})

_GROUP_OPTIONS = frozenset({"--config", "--no-config"})

_COMMANDS = {
    "solve": "Find the cheapest plan of a graph within a memory budget.",
    "check": "Replay plans: are they valid, and do they fit?",
    "diff": "Show what changed from one plan to another.",
    "compare": "Compare strategies at several budgets.",
    "fits": "Say whether training fits into the memory of a card.",
    "max-batch": "Find the largest batch that fits into a memory.",
    "pipeline": "Choose what each stage of a pipeline recomputes.",
    "worth": "Say what more memory and a faster link to the host are worth.",
    "policy": "Find the best plan that another tool can carry out.",
    "show": "Describe a graph or a plan.",
    "explain": "Explain what a plan does with one node.",
    "export": "Write the graph of a model.",
    "convert": "Convert a graph or a plan to another format.",
    "profile": "Measure the operations of a graph on a device.",
    "run": "Run a plan on a device and check its results and peak.",
    "strategies": "List the strategies and their options.",
    "solvers": "List the MIP solvers and whether they can be used here.",
    "warm-up": "Compile what solving needs, once, after an installation.",
    "schema": "Print the JSON Schema of a document.",
    "completion": "Print the shell's completion script.",
}
"""Name and help of every command. The code is ``command`` in ``cli/commands/NAME.py``, and loads when it is used."""

_EPILOG = """\b
Example:
  remat export 'zoo:vgg16{batch=256}' -o vgg16.json
  remat solve vgg16.json --budget 16GB
  remat check vgg16.plan.json --budget 16GB

\b
Exit codes:
  0    yes: a plan within budget
  1    no: nothing fits, or the plan is invalid or over budget
  2    wrong usage or bad input
  3    a solver is missing or failed, or the system ran out of memory
  4    a limit was reached before any plan was found
  70   a defect of remat itself (REMAT_DEBUG=1 shows where)
  130  interrupted before any plan was found, or twice

The answer of solve and pipeline is their plans, and that of check, diff, run and warm-up the exit code: with -q they
print no text report.

Every option can be set in the environment (REMAT_SOLVE_BUDGET=16GB; REMAT_COLOR for all commands), or in a file (budget
= "16GB" in [solve] of remat.toml). The command line comes first, then the environment, then the file.

More: docs/quickstart.md, docs/exit-codes.md, docs/configuration.md"""


@functools.cache
def _command(name: str) -> click.Command:
    """A command, which keeps standard output for itself while it runs."""
    command: click.Command = import_module(f"remat_cli.cli.commands.{name.replace('-', '_')}").command
    assert command.callback is not None
    command.callback = _alone(command.callback)
    return command


def _alone(callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def run_alone(**options: Any) -> Any:
        with redirected(quiet=bool(options.get("quiet"))):
            return callback(**options)

    return run_alone


class _Commands(click.Group):
    """A group whose commands are imported when they are asked for, so that ``--help`` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None  # resolve_command words the error
        return _command(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not ctx.resilient_parsing:
            known = list(_COMMANDS)
            hint = suggestion(args[0], known) or f"commands: {', '.join(known)}"
            raise UsageError(f'there is no command "{args[0]}"', hint=hint)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=text) for name, text in _COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "REMAT"},
)
@click.version_option(__version__, "-V", "--version", message="remat %(version)s")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration file.  [default: remat.toml or pyproject.toml, here or in a folder above]",
)
@click.option("--no-config", is_flag=True, help="Read no configuration file.")
@click.pass_context
def cli(ctx: click.Context, config: Path | None, no_config: bool) -> None:
    """Fit the training of neural networks into memory by recomputing values instead of keeping them.

    remat takes a dataflow graph, with costs and sizes, and a memory budget. It finds the cheapest plan that fits: which
    values to keep, and which to drop and recompute.
    """
    from remat_cli.cli.config import command_defaults, find_config  # a parser that --help does not need

    if config is not None and no_config:
        raise UsageError("--config and --no-config exclude each other", hint="leave one of them out")
    name = str(ctx.invoked_subcommand)
    path = None if no_config else config or find_config(Path.cwd())
    if path is not None:
        ctx.ensure_object(Session).config = path
        command = cli.get_command(ctx, name)
        assert command is not None
        ctx.default_map = {name: command_defaults(path, command, _COMMANDS)}


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code. Every error of remat ends here, in one message."""
    try:
        if signal.getsignal(signal.SIGINT) in {signal.SIG_DFL, signal.default_int_handler}:  # and not ignored
            signal.signal(signal.SIGINT, interrupt)
        gc.set_threshold(*_GARBAGE)
        claim()
        code = run(arguments, started_s=_STARTED_S)
        code = _flush(code)
    except KeyboardInterrupt:  # while streams are prepared or flushed
        code = ExitCode.INTERRUPTED
    except Exception as error:  # anything that ``run`` does not turn into a message is a defect
        code = _defect(error)
    exit_now(code)


def _flush(code: int) -> int:
    """Write out what is left; the exit code after that."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # a reader that closed the pipe (head, grep -q) does not want the rest
            continue
        except OSError as error:
            known = _lack(error)
            if known is None:
                raise
            if code == ExitCode.OK:  # else there has been an error, most likely this one
                _show(known, Session())
                code = known.exit_code
    return code


def _defect(error: Exception) -> int:
    """Report a defect of remat, with the place in the code."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(last.filename).name}:{last.lineno}"
    with contextlib.suppress(OSError):
        complain(f"remat: internal error: {type(error).__name__} at {place}: {printable(str(error))}")
        complain("  hint: this is a defect of remat; please report it with the command and its input")
        if os.environ.get("REMAT_DEBUG"):
            complain("".join(traceback.format_exception(error)))
    return ExitCode.DEFECT


def run(arguments: list[str] | None, *, started_s: float | None = None) -> int:
    """Run the command line and return its exit code.

    Time limits count from ``started_s``, by ``time.monotonic()``.
    """
    session = Session() if started_s is None else Session(started_s)
    session.arguments = tuple(sys.argv[1:] if arguments is None else arguments)
    if COMPLETION in os.environ:
        import_module("remat_cli.cli.commands.completion")  # Click knows our completion for bash from then on
    try:
        code: Any = cli.main(args=arguments, prog_name="remat", standalone_mode=False, obj=session)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # the whole help
        return ExitCode.USAGE
    except click.ClickException as error:
        _show(_usage_error(error, session), session)
        return ExitCode.USAGE
    except RematError as error:
        _show(error, session)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        complain("remat: interrupted")
        return ExitCode.INTERRUPTED
    except SystemExit as end:
        # Click raises this in two cases: completion is done, or the reader of our output is gone.
        return int(end.code or 0) if COMPLETION in os.environ else ExitCode.OK
    except RecursionError:
        _show(UsageError("the input is nested too deeply"), session)
        return ExitCode.USAGE
    except Exception as error:  # anything but a lack is a defect, for which ``main`` has the words
        known = _lack(error)
        if known is None:
            raise
        _show(known, session)
        return known.exit_code
    return code if isinstance(code, int) else ExitCode.OK


def _lack(error: Exception) -> RematError | None:
    """The error to show if the disk, the memory or the process table is full, or a package is missing."""
    if isinstance(error, OSError) and error.errno in _STORAGE_ERRORS:
        hint = "make room, or send the output elsewhere with -o"
        return UsageError(f"writing failed: {error.strerror}", hint=hint)
    what = shortage(error)
    if what == "memory":
        return OutOfResources("out of memory", hint="take a machine with more, a smaller graph, or another strategy")
    if what:
        return OutOfResources(f"the system gives no more {what}", hint="raise its limit (ulimit -u, pids.max)")
    if isinstance(error, ImportError):
        from remat_cli.extras import not_imported

        return not_imported(error)
    return None


def _usage_error(error: click.ClickException, session: Session) -> UsageError:
    """Click's error in the form of all others, with the place of the value or the command's help as its hint."""
    message = " ".join(error.format_message().split()).rstrip(".")  # Click lists choices line by line
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = "" if context is None else f"see {context.command_path} --help"
    parameter = error.param if isinstance(error, click.BadParameter) else None
    if isinstance(error, click.MissingParameter) and parameter is not None and isinstance(parameter.type, click.Choice):
        message, hint = "missing argument", f"give one of {', '.join(map(str, parameter.type.choices))}"
    elif isinstance(error, click.NoSuchOption) and error.option_name in _GROUP_OPTIONS and context is not None:
        hint = f"put it before the command: remat {error.option_name} ... {context.info_name}"
    elif context is not None and parameter is not None and parameter.name is not None:
        source = context.get_parameter_source(parameter.name)
        if source is ParameterSource.DEFAULT_MAP:
            hint = f"it is set in {session.config}"
        elif source is ParameterSource.ENVIRONMENT:
            hint = f"it is set in the environment variable {context.auto_envvar_prefix}_{parameter.name.upper()}"
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def _show(error: RematError, session: Session) -> None:
    color = Output(session.color).colourful(sys.stderr)
    label = click.style("error", fg="red", bold=True) if color else "error"
    with contextlib.suppress(OSError):  # if stderr is closed, the exit code must do
        complain(f"remat: {label}: {on_command_line(error.message)}", color=color)
        if error.hint:
            complain(f"  hint: {on_command_line(error.hint)}")
