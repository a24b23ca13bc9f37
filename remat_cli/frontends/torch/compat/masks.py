"""Masks of attention in Transformers: compiled code makes the ones that eager mode makes.

Eager mode looks at the numbers in the positions of tokens, and needs no mask where they are one sequence after another
(``masking_utils.find_packed_sequence_indices``). Compiled code cannot look, and makes a mask as large as length times
length, though a model that makes the positions by itself always has the same. Positions and masks that are inputs are
left alone: what eager mode does then depends on the batch.

Without a mask for padding, eager mode needs none either; compiled code makes one (``masking_utils.is_tracing``), with
which PyTorch has no flash attention, and for attention in both directions no fused one at all.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from remat_cli.frontends.torch.compat.fake_tensors import is_fake, real_tensors
from remat_cli.frontends.torch.types import FxNode, Tensor

_MODULE, _FUNCTION, _ASKED = "transformers.masking_utils", "find_packed_sequence_indices", "is_tracing"
_SIMPLE = frozenset({"arange", "add", "unsqueeze", "expand", "view", "to", "long"})
"""What positions are made with: the same numbers every time, from those in the code."""
_END = "remat_end"
_consecutive = False
"""Whether positions without numbers are taken to be one sequence after another."""


def eager_masks() -> Callable[[], None]:
    """From now on, compiled code of Transformers makes no mask where eager mode never makes one.

    Returns:
        What ends it. Nothing changes if Transformers has not been imported, or works in another way.
    """
    module = sys.modules.get(_MODULE)
    originals: dict[str, Any] = {name: getattr(module, name, None) for name in (_FUNCTION, _ASKED)}
    if originals[_FUNCTION] is None or hasattr(originals[_FUNCTION], _END):
        return lambda: None

    def end() -> None:
        for name, original in originals.items():
            if original is not None:
                setattr(module, name, original)

    replacement = none_by_numbers(originals[_FUNCTION])
    setattr(replacement, _END, end)
    setattr(module, _FUNCTION, replacement)
    if originals[_ASKED] is not None:
        # Asked about the numbers in a tensor; where there is none, sizes decide.
        setattr(module, _ASKED, lambda tensor=None: tensor is not None and originals[_ASKED](tensor))
    return end


@contextlib.contextmanager
def with_eager_masks() -> Iterator[None]:
    """A context in which :func:`eager_masks` holds."""
    end = eager_masks()
    try:
        yield
    finally:
        end()


@contextlib.contextmanager
def consecutive_positions() -> Iterator[None]:
    """A context in which code that is not compiled takes positions without numbers for one sequence after another.

    A model that makes the positions by itself has such. Within :func:`eager_masks`.
    """
    global _consecutive
    before, _consecutive = _consecutive, True
    try:
        yield
    finally:
        _consecutive = before


def none_by_numbers(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """``function``, which returns None for some numbers in its tensor, and as it is where code is not compiled.

    Compiled code has None in its place if the numbers are in the code, and the function returns None for them: while
    TorchDynamo captures the call, ``comptime`` runs ``decide``, which sets the variable ``tensor`` of the code to None.
    """
    import torch
    from torch._dynamo.comptime import comptime
    from torch._dynamo.variables import ConstantVariable

    def decide(context: Any) -> None:
        numbers = numbers_of(context.get_local("tensor").as_proxy().node)
        if numbers is None:
            return
        with real_tensors(), not_compiling():
            answer = function(numbers)
        if answer is None:
            compiler = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
            compiler.symbolic_locals["tensor"] = ConstantVariable.create(None)

    def decided(tensor: Tensor) -> Any:
        if not torch.compiler.is_compiling() and _consecutive and is_fake(tensor):
            return None
        comptime(decide)
        return None if tensor is None else function(tensor)

    return decided


@contextlib.contextmanager
def not_compiling() -> Iterator[None]:
    """A context in which libraries that ask are told that they run as they are.

    They ask ``torch.compiler.is_compiling``, which returns ``_is_compiling_flag``.
    """
    import torch

    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = False
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def numbers_of(node: FxNode) -> Tensor | None:
    """The tensor on the CPU that a node of a graph of TorchDynamo makes, if only numbers in the code say what is in it.

    None if it depends on inputs, or is made with other functions than those of ``_SIMPLE``. A size of an input that is
    a symbol counts as the number that it stands for: what these functions make of it is alike at all sizes.
    """
    import torch

    known: dict[FxNode, Any] = {}
    needed, waiting = {node}, [node]
    while waiting:
        one = waiting.pop()
        if isinstance(size := one.meta.get("example_value"), torch.SymInt):
            known[one] = int(size.node.hint)
            continue
        new = [other for other in one.all_input_nodes if other not in needed]
        needed.update(new)
        waiting += new

    def number(argument: Any) -> Any:
        return torch.device("cpu") if isinstance(argument, torch.device) else argument

    with real_tensors(), torch.no_grad():
        for one in (one for one in node.graph.nodes if one in needed and one not in known):
            name = getattr(one.target, "__name__", one.target)
            if one.op not in {"call_function", "call_method"} or name not in _SIMPLE:
                return None
            args, kwargs = torch.fx.node.map_aggregate((one.args, dict(one.kwargs)), number)
            args, kwargs = torch.fx.map_arg((args, kwargs), known.__getitem__)
            call = one.target if one.op == "call_function" else getattr(torch.Tensor, name)
            known[one] = call(*args, **kwargs)
    return known[node]
