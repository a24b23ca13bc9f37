"""Workspace of the calls of libraries in steps that Inductor compiles: convolutions, products, attention.

Inductor writes loops itself, which need none. On a CPU it lays out with channels last what a convolution reads. oneDNN
copies weights into a layout of its own meanwhile, and computes their gradient in one: once or twice their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat_cli.frontends.torch.compat.operators import last_call
from remat_cli.frontends.torch.document import Input, Named
from remat_cli.frontends.torch.measure.memory import counted
from remat_cli.frontends.torch.measure.operations import Operations
from remat_cli.frontends.torch.reading import read_step
from remat_cli.graph.model import Graph

_CONVOLUTIONS = frozenset({"convolution", "convolution_backward"})
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_ATTENTION = frozenset(
    {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"}
)
_CALLS = _CONVOLUTIONS | _PRODUCTS | _ATTENTION
"""Operations that Inductor leaves to libraries on a CPU."""
_CONTIGUOUS = Named("memory_format", "contiguous_format")


def with_library_workspaces(graph: Graph) -> Graph:
    """``graph`` with the workspace of calls of libraries on this machine's CPU.

    Args:
        graph: A graph that this process captured for Inductor, for a CPU.
    """
    indices = [index for index, node in enumerate(graph.nodes) if node.op in _CALLS]
    return counted(graph, _LaidOut(read_step(graph), "cpu"), indices) if indices else graph


class _LaidOut(Operations):
    """Operations as Inductor calls them: convolutions read images with channels last, products are written in place."""

    def prepared(self, index: int) -> Callable[[], Any]:
        """The operation bound to its inputs; it may be called repeatedly."""
        import torch

        function, op = super().prepared(index), self.step.graph.nodes[index].op
        if op not in _CONVOLUTIONS | _PRODUCTS:
            return function
        with self.attempt(index):
            operator, args = last_call(function)
            if op in _PRODUCTS:
                written, into = operator.overloadpacket.out, operator(*args)
                return lambda: written(*args, out=into)

        def laid_out(argument: Any) -> Any:
            image = isinstance(argument, torch.Tensor) and argument.dim() == 4
            return argument.contiguous(memory_format=torch.channels_last) if image else argument

        read = args if self._is_told(index) else [laid_out(argument) for argument in args]
        return lambda: operator(*read)

    def kind(self, index: int) -> str:
        """As for other operations; a gradient that reads contiguous copies is another kind."""
        return f"laid out {self._is_told(index)} {super().kind(index)}"

    def _is_told(self, index: int) -> bool:
        """Whether a gradient of a convolution reads contiguous copies, see :mod:`.image_layouts`."""
        node, operation = self.step.graph.nodes[index], self.step.operations[index]
        read = operation.args[:2] if node.op == "convolution_backward" else ()
        makers = [self.step.graph.producer[node.inputs[one.position]] for one in read if isinstance(one, Input)]
        copies = [self.step.operations[maker].kwargs.get("memory_format") == _CONTIGUOUS for maker in makers]
        return len(copies) == 2 and all(copies)
