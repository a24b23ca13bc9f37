"""Options from a configuration file, a table per command: ``remat.toml``, or ``[tool.remat]`` in ``pyproject.toml``.

The file is looked for from the current folder upwards; the first folder that has one ends the search. The command line
comes before the environment, and the environment before the file.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from remat_cli.errors import InputError, Problem, UsageError
from remat_cli.files import read_text
from remat_cli.graph.quoting import quote
from remat_cli.registry import suggestion

NAME, PROJECT = "remat.toml", "pyproject.toml"
_PLACE = re.compile(r"(.*) \(at line (\d+), column (\d+)\)")
_HEADER = re.compile(r"\s*\[([^\[\]]+)\]")


def find_config(start: Path) -> Path | None:
    """The configuration file for the folder ``start``: the nearest one, in it or above it; None if there is none.

    Returns:
        Its path, relative to ``start``.

    Raises:
        InputError: If a ``pyproject.toml`` on the way is not valid TOML.
    """
    for folder in (start, *start.parents):
        own, project = (Path(os.path.relpath(folder / name, start)) for name in (NAME, PROJECT))
        if (folder / NAME).is_file():
            return own
        if (folder / PROJECT).is_file() and _tables(project) is not None:
            return project
    return None


def command_defaults(path: Path, command: click.Command, commands: Iterable[str]) -> dict[str, Any]:
    """The options of ``command`` that the file sets, for Click: values by the name of the parameter.

    Raises:
        InputError: If the file cannot be read, has a table for a command that does not exist, or sets an option that
            ``command`` does not have; with all these problems.
        UsageError: If it is a ``pyproject.toml`` without a table for remat.
    """
    tables = _tables(path)
    if tables is None:
        raise UsageError(f"{path} has no table [tool.remat]", hint="add one, or name another file with --config")
    names = list(commands)
    prefix = "tool.remat." if path.name == PROJECT else ""
    problems = []
    for name, table in tables.items():
        if name not in names:
            hint = suggestion(name, names) or "tables are named after commands"
            problems.append(_problem(path, prefix, name, None, f"there is no command {quote(name)}", hint))
        elif not isinstance(table, dict):
            hint = f"write [{prefix}{name}], and options below it"
            problems.append(_problem(path, prefix, name, None, f"is {quote(table)}, expected a table", hint))
    name = str(command.name)
    chosen, defaults = tables.get(name), {}
    options = {
        opt.removeprefix("--"): option
        for option in command.params
        if isinstance(option, click.Option)
        for opt in option.opts
        if opt.startswith("--")
    }
    for key, value in (chosen if isinstance(chosen, dict) else {}).items():
        option = options.get(key)
        if option is None:
            hint = suggestion(key, list(options)) or f"options of {name}: {', '.join(options)}"
            problems.append(_problem(path, prefix, name, key, f"remat {name} has no option {quote(key)}", hint))
            continue
        try:
            defaults[str(option.name)] = _converted(option, value)
        except ValueError as error:
            problems.append(_problem(path, prefix, name, key, f"{key} is {quote(value)}, expected {error}", ""))
    if problems:
        raise InputError(str(path), problems)
    return defaults


def _tables(path: Path) -> Mapping[str, Any] | None:
    """The tables of remat in a file; None if it is a ``pyproject.toml`` without any."""
    text, source = read_text(str(path))
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.fullmatch(str(error))
        message = f"not valid TOML: {place[1] if place else error}"
        line, column = (int(place[2]), int(place[3])) if place else (None, None)
        raise InputError(source, [Problem(message, line=line, column=column)]) from None
    if path.name != PROJECT:
        return data
    tool = data.get("tool")
    tables = tool.get("remat") if isinstance(tool, dict) else None
    return tables if isinstance(tables, dict) else None


def _converted(option: click.Option, value: Any) -> Any:
    """A value as Click takes it: text, or true or false; a list of texts if the option may be given several times.

    Raises:
        ValueError: If it is something else; the message says what was expected.
    """
    if isinstance(value, bool):
        if not option.is_flag:
            raise ValueError("text")
        return value
    if option.is_flag:
        raise ValueError("true or false")
    if option.multiple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError("a list of texts")
        return value
    if not isinstance(value, (str, int, float)):
        raise ValueError("text")
    return str(value)


def _problem(path: Path, prefix: str, table: str, key: str | None, message: str, hint: str) -> Problem:
    """A problem at the line of a table or of a key in it, where a plain search finds it: tomllib keeps no places."""
    here, line = "", None
    for number, text in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        header = _HEADER.match(text)
        if header is not None:
            here = ".".join(part.strip(" \"'") for part in header[1].split("."))
            at = key is None and here == prefix + table
        elif key is None:
            at = bool(re.match(rf"\s*[\"']?{re.escape(table)}[\"']?\s*[=.]", text)) and here + "." in {".", prefix}
        else:
            at = here == prefix + table and bool(re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", text))
        if at:
            line = number
            break
    return Problem(message, line=line, hint=hint)
