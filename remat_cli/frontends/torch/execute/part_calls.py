"""The calls that compute a part of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat_cli.frontends.aten.division_rules import Rows, State
from remat_cli.frontends.torch.document import Constant, Place, Value, View


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a tensor that is divided; a view is one of whole tensors."""

    tensor: Value | Place | View
    rows: Rows


@dataclass(frozen=True, slots=True)
class PartCall:
    """A call for a part of the rows.

    Attributes:
        node: The node whose operation it is.
        call: The operator.
        args: Arguments by position, as in documents, but with :class:`Part`, :class:`RowCount`, and :class:`Value` for
            what earlier calls of the operation made.
        kwargs: Arguments by name, likewise.
        made: For each value of the node its number, the position of its tensor in what the operator returns, and how it
            is divided.
        over: The value, made by an earlier call, whose memory the last of these takes; None for memory of its own.
    """

    node: int
    call: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    made: tuple[tuple[int, int | None, State], ...]
    over: int | None = None


def tensors_of(arguments: Sequence[Any]) -> Iterator[Any]:
    """All tensors in the arguments of a call for a part, also those in views: parts, and whole tensors."""
    for argument in arguments:
        if isinstance(argument, View):
            yield from tensors_of((*argument.args, *argument.kwargs.values()))
        elif isinstance(argument, list | tuple):
            yield from tensors_of(argument)
        elif isinstance(argument, Part | Value | Place | Constant):
            yield argument
