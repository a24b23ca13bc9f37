"""The calls of a module's compiled graphs while it is captured."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from remat_cli.frontends.torch.capturing.draws import Ways
from remat_cli.frontends.torch.private import compiled_node, kept_by, parameter_of
from remat_cli.frontends.torch.tensors import leaves, storage, storage_bytes


@dataclass(frozen=True, slots=True)
class Tried:
    """The backward pass of an autograd function written in Python, which was tried out.

    Attributes:
        takes_bytes: Most bytes that it takes at a time, the gradients that it reads included.
        parameters: The parameters to whose gradients it adds by itself.
    """

    takes_bytes: int
    parameters: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Results(Sequence[Any]):
    """What a call of a compiled graph returned.

    Attributes:
        tensors: The results.
        nodes: For each result, the node of autograd of the graph behind it when the graph returned, its position there
            and whether it is that result itself; None if there is none. Code that writes into a result later puts
            another node in its place.
    """

    tensors: tuple[Any, ...] = ()
    nodes: tuple[tuple[Any, int, bool] | None, ...] = ()

    @classmethod
    def of(cls, tensors: Sequence[Any]) -> Results:
        """Results that a graph has just returned."""
        return cls(tuple(tensors), tuple(map(compiled_node, tensors)))

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, at: Any) -> Any:
        return self.tensors[at]


@dataclass(slots=True)
class Calls:
    """What a module did when it was captured.

    Attributes:
        made: For each call of a compiled graph in order, its number (None without a backward pass) and its results.
        given: The inputs of these calls.
        output: What the module returned; None if it did not come to its end.
        ways: The ways that it takes at random; it is called until the largest of them is there.
        tried: For nodes of autograd functions written in Python, what their backward passes need.
    """

    made: list[tuple[int | None, Results]] = field(default_factory=list)
    given: list[Sequence[Any]] = field(default_factory=list)
    output: Any = None
    ways: Ways = field(default_factory=Ways)
    tried: dict[Any, Tried] = field(default_factory=dict)

    def watched(self, number: int | None, compiled: Any) -> Any:
        """``compiled``, a compiled graph, with its calls recorded."""

        def run(*args: Any) -> Any:
            if number is not None:
                self.ways.enter()
            results = compiled(*args)
            if number is not None:
                self.ways.leave(results)
            self.made.append((number, Results.of(results)))
            self.given.append(args)
            return results

        return run

    def again(self) -> bool:
        """Whether the module is to be called once more, in another of its ways. Then this pass is forgotten."""
        if not self.ways.following(0 if self.output is None else self.held_bytes()):
            return False
        self.made, self.given, self.output = [], [], None
        self.ways.begin()
        return True

    def held_bytes(self) -> int:
        """Bytes that wait for the backward pass when the forward pass has ended."""
        kept = (tensor for node in self.nodes() for tensor in kept_by(node))
        return sum({storage(tensor): storage_bytes(tensor) for tensor in kept}.values())

    def nodes(self) -> Iterator[Any]:
        """All nodes of autograd behind what the module and its graphs returned, but those of parameters."""
        import torch

        tensors = [tensor for _, tensor in leaves(self.output)]
        tensors += [t for _, results in self.made for t in results if isinstance(t, torch.Tensor)]
        stack = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        stack += [at[0] for _, results in self.made for at in results.nodes if at is not None]
        seen = set()
        while stack:
            node = stack.pop()
            if node not in seen and parameter_of(node) is None:
                seen.add(node)
                yield node
                stack += [other for other, _ in node.next_functions if other is not None]

    def only_called(self, count: int) -> list[int]:
        """The numbers of the graphs that were called, of ``count``; from now on they are numbered in that order."""
        called = sorted({number for number, _ in self.made if number is not None})
        self.made = self.without(set(range(count)) - set(called)).made
        return called

    def without(self, left_out: Collection[int]) -> Calls:
        """The same, if the graphs with these numbers had no backward pass; the others are numbered anew."""

        def renumbered(number: int | None) -> int | None:
            if number is None or number in left_out:
                return None
            return number - sum(other < number for other in left_out)

        made = [(renumbered(number), results) for number, results in self.made]
        return Calls(made, self.given, self.output, self.ways, self.tried)
