"""One operation of a graph on its own, with random inputs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from remat_cli.errors import ExecutionFailed
from remat_cli.frontends.torch.capturing.lower import TANGENTS
from remat_cli.frontends.torch.capturing.placeholders import SHARES
from remat_cli.frontends.torch.codec import decode_data
from remat_cli.frontends.torch.executing.inputs import new_tensor, place_tensor, seeded
from remat_cli.frontends.torch.executing.out_of_memory import no_memory, out_of_memory
from remat_cli.frontends.torch.executing.program import call_function, words
from remat_cli.graph.model import Graph


@dataclass(slots=True)
class Operations:
    """The operations of a graph, to be run one by one.

    Attributes:
        graph: A graph that this frontend made.
        device: Where to run.
        seed: For the random inputs.
    """

    graph: Graph
    device: str
    seed: int = 0
    _generator: Any = field(init=False)

    def __post_init__(self) -> None:
        """Seed the generator."""
        self._generator = seeded(self.device, self.seed)

    def kind(self, index: int) -> str:
        """Text that is the same for nodes that do the same with tensors of the same form."""
        node = self.graph.nodes[index]
        reads = [[_without(tensor, "item") for tensor in self._tensors(value)] for value in node.inputs]
        payload = self._without_numbers({key: node.payload[key] for key in ("call", "args", "kwargs", "values")})
        return json.dumps([payload, reads], sort_keys=True)

    def prepared(self, index: int) -> Callable[[], Any]:
        """The operation with its inputs, ready to be called again and again. The inputs live as long as it does.

        Raises:
            ExecutionFailed: If the inputs cannot be made.
        """
        return self._bound(index, {})

    def _bound(self, index: int, made: dict[int, list[Any]]) -> Callable[[], Any]:
        node = self.graph.nodes[index]
        places = self.graph.metadata["places"]
        given = {p: place_tensor(places[p], self.device, self._generator) for p in _numbers(node.payload, "place")}
        constants = {
            c: decode_data(self.graph.metadata["constants"][c], self.device) for c in _numbers(node.payload, "constant")
        }
        shares = self._shares(node.payload)
        given |= {p: new_tensor(places[p] | {"below": 1}, self.device, self._generator) for p in shares["place"]}
        for k in shares["input"]:
            value = node.inputs[k]
            described = [tensor | {"below": 1} for tensor in self._tensors(value)]
            made[value] = [new_tensor(tensor, self.device, self._generator) for tensor in described]
        values = {v: self._value(v, made) for v in node.inputs}
        return call_function(self.graph, index, self.device, given, constants, values)

    @staticmethod
    def _shares(payload: Any) -> dict[str, list[int]]:
        """Places and inputs that have to be from 0 to 1 in a call."""
        arguments = [payload["args"][k] for k in SHARES.get(payload["call"], ())]
        return {key: _numbers(arguments, key) for key in ("place", "input")}

    def _value(self, value: int, made: dict[int, list[Any]]) -> list[Any]:
        """Tensors that may be in ``value``. Integers come from the operation that makes them."""
        if value not in made:
            tensors = self._tensors(value)
            producer = self.graph.producer[value]
            computed = any(t["dtype"].startswith(("int", "uint")) for t in tensors)
            if computed and self.graph.nodes[producer].payload["call"] != TANGENTS:
                result = self._run(producer, made)
                made[value] = [result if t["item"] is None else result[t["item"]] for t in tensors]
            else:
                made[value] = [new_tensor(t, self.device, self._generator) for t in tensors]
        return made[value]

    def _run(self, index: int, made: dict[int, list[Any]]) -> Any:
        function = self._bound(index, made)
        with self.attempt(index):
            return function()

    @contextlib.contextmanager
    def attempt(self, index: int) -> Iterator[None]:
        """Without autograd; whatever goes wrong is said of the node.

        Raises:
            OutOfMemory: If there is no memory left.
            ExecutionFailed: If something else goes wrong.
        """
        import torch

        node = self.graph.nodes[index]
        try:
            with torch.no_grad():
                yield
        except Exception as error:  # operators raise whatever they like
            if out_of_memory(error):
                raise no_memory(error, self.device, f"node {node.id} ({node.payload['call']})") from error
            raise ExecutionFailed(
                f"node {node.id} ({node.payload['call']}) failed on {self.device}: {words(error)}",
                hint="a graph is for the device it was exported for: was it another one?",
            ) from error

    def _tensors(self, value: int) -> list[dict[str, Any]]:
        producer = self.graph.producer[value]
        found: list[dict[str, Any]] = self.graph.nodes[producer].payload["values"][
            value - self.graph.first_value[producer]
        ]
        return found

    def _without_numbers(self, payload: Any) -> Any:
        """A payload with descriptions of places and constants where their numbers were."""
        if isinstance(payload, list):
            return [self._without_numbers(item) for item in payload]
        if not isinstance(payload, dict):
            return payload
        if isinstance(payload.get("place"), int):
            place = self.graph.metadata["places"][payload["place"]]
            return {"place": _without(place, "name", "bytes")}
        if isinstance(payload.get("constant"), int):
            return {"constant": self.graph.metadata["constants"][payload["constant"]]}
        return {key: self._without_numbers(item) for key, item in payload.items()}


def _numbers(payload: Any, key: str) -> list[int]:
    """All numbers that stand under ``key`` anywhere in a payload's arguments, each once, in order."""
    found: dict[int, None] = {}
    stack = [payload]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            if isinstance(item.get(key), int):
                found[item[key]] = None
            stack.extend(reversed([v for k, v in item.items() if k != "values"]))
        elif isinstance(item, list):
            stack.extend(reversed(item))
    return list(found)


def _without(description: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: item for key, item in description.items() if key not in keys}
