"""Plain data to YAML that YAML 1.2 reads as the same data.

PyYAML writes the text, but decides by YAML 1.1 which text needs no quotes: it would leave the string ``1.2e9``, a
number in YAML 1.2, bare. So only plain words of every version stay without quotes. Long documents stay readable, with
one line per field, node and statement, as in remat's JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from remat_cli.printable import escaped_json

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./%-]*", re.ASCII)
_WORDS = re.compile(r"null|true|false|yes|no|on|off|y|n", re.IGNORECASE)
_NEVER_FOLD = 2**30


class _Block(dict[str, Any]):
    """A mapping with a line for each field."""


class _Lines(list[Any]):
    """A list with a line for each entry."""


class _Writer(_Dumper):  # type: ignore[misc]  # the base is chosen when this is imported
    """Writes collections on one line, except ``_Block`` and ``_Lines``, and never an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(writer: Any, text: str) -> Any:
    bare = _PLAIN.fullmatch(text) is not None and _WORDS.fullmatch(text) is None
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


_Writer.add_representer(str, _text)
_Writer.add_representer(
    _Block, lambda writer, data: writer.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=False)
)
_Writer.add_representer(
    _Lines, lambda writer, data: writer.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=False)
)


def yaml_text(document: Mapping[str, Any]) -> str:
    """``document`` as YAML; the same data gives the same text. Fields keep their order."""
    text = yaml.dump(
        _laid_out(document),
        Dumper=_Writer,
        default_flow_style=True,
        allow_unicode=True,
        sort_keys=False,
        width=_NEVER_FOLD,
    )
    return escaped_json(str(text))  # what it escapes is nowhere but in double quotes


def _laid_out(document: Mapping[str, Any]) -> _Block:
    """The same data with marks for its layout: nodes and statements line by line, also of a graph inside a plan."""
    fields = _Block()
    for key, value in document.items():
        if isinstance(value, Mapping) and "schema" in value:
            fields[key] = _laid_out(value)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            fields[key] = _Lines(value)
        else:
            fields[key] = value
    return fields
