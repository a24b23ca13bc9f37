"""Which frontend made a graph: what its metadata says, and the errors for graphs that it did not make."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remat_cli.errors import UsageError, Worded
from remat_cli.graph.model import Graph
from remat_cli.graph.quoting import quote
from remat_cli.graph.splitting import parts_words
from remat_cli.printable import printable


@dataclass(frozen=True, slots=True)
class Frontend:
    """A frontend that captures training steps.

    Attributes:
        name: ``torch``: begins sources, and is ``frontend`` in the metadata of the graphs that it makes.
        title: The name of the framework as people write it: ``PyTorch``.
        distribution: As the framework calls itself with a version: ``torch``, ``TensorFlow``. In lower case it is its
            Python package, and the key of the version in metadata.
        version: Version of the format of payloads and metadata.
        forced: What may happen if a graph runs that was exported for another version or device.
        divides: Whether it runs regions in parts.
    """

    name: str
    title: str
    distribution: str
    version: int
    forced: str
    divides: bool = False

    def framework_version(self) -> str:
        """Version of the framework, which is here."""
        return str(importlib.import_module(self.distribution.lower()).__version__)

    def metadata(self, source: str, device: str, costs: Mapping[str, Any]) -> dict[str, Any]:
        """What the metadata of a graph that is made here says of its origin.

        Args:
            source: What was exported.
            device: Kind of device that the graph is for.
            costs: What its costs are.
        """
        return {
            "frontend": self.name,
            "version": self.version,
            "source": source,
            self.distribution.lower(): self.framework_version(),
            "device": device,
            "costs": dict(costs),
        }

    def require(self, graph: Graph) -> None:
        """Check that this frontend made a graph.

        Raises:
            UsageError: If it did not, or another version of remat made it, or regions are in parts and it runs none so.
        """
        metadata: Any = graph.metadata
        if not isinstance(metadata, dict) or metadata.get("frontend") != self.name:
            raise UsageError(
                f"the graph {graph.name} was not made by the {self.title} frontend, so there is nothing to run",
                hint=f"make it with remat export {self.name}:FILE.py:NAME",
            )
        if metadata.get("version") != self.version:
            raise UsageError(f"the graph {graph.name} was made for another version of remat", hint="export it again")
        if graph.origin is not None and not self.divides:
            raise UsageError(
                f"{self.title} runs operations whole, and the plan has {parts_words(graph)}",
                hint=Worded("solve with SolveOptions(split=False)", "solve the graph with --no-split"),
            )

    def made_with(self, graph: Graph) -> tuple[str | None, str | None]:
        """Version of the framework that a graph was exported with, and the device; None where it does not say.

        Raises:
            UsageError: If the metadata states anything but text.
        """
        metadata: Any = graph.metadata
        facts: list[str | None] = []
        for key in (self.distribution.lower(), "device"):
            value = metadata.get(key) if isinstance(metadata, dict) else None
            if value is not None and not isinstance(value, str):
                raise damaged(graph, f"metadata.{key}", f"{quote(value)} is not text")
            facts.append(value)
        return facts[0], facts[1]

    def foreign(self, graph: Graph, version: str, device: str) -> str | None:
        """Why a graph is not for this version of the framework and this device; None if it is, or does not say.

        Operators may change between minor versions, so a graph is only for the one that it was exported with.

        Args:
            graph: A graph that this frontend made.
            version: Version of the framework that will run it.
            device: Kind of device that it will run on.

        Raises:
            UsageError: If its metadata states either by something else than text.
        """
        theirs, planned = self.made_with(graph)
        if theirs is not None and _minor(theirs) != _minor(version):
            name = self.distribution
            return f"it was exported with {name} {printable(theirs)}, but this is {name} {version}"
        if planned is not None and planned != device:
            return f"it was exported for {printable(planned)}, and this runs on {device}"
        return None

    def require_environment(self, graph: Graph, device: str) -> None:
        """Check that a graph was exported for the version of the framework that is here, and for ``device``.

        Raises:
            UsageError: If it was not, with the difference.
        """
        reason = self.foreign(graph, self.framework_version(), device)
        if reason is not None:
            raise UsageError(
                f"the graph {graph.name} is not for here: {reason}",
                hint=Worded(
                    f'export it again here, with device="{device}"; or force=True, and {self.forced}',
                    f"export it again here, with --device {device}; or --force, and {self.forced}",
                ),
            )


def damaged(graph: Graph, at: str, message: str) -> UsageError:
    """The error for a payload or metadata that no frontend writes; ``at`` is the place."""
    return UsageError(
        f"the graph {graph.name} holds a payload that remat did not write: {at}: {message}",
        hint="export it again",
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
