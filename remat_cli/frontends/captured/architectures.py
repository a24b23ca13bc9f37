"""Models of the zoo that are written in a framework and captured: ``zoo:torch/resnet50{batch=32}``."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any

from remat_cli.errors import UsageError
from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.graph.model import Graph
from remat_cli.registry import Registry
from remat_cli.spec import build, format_spec, split_spec
from remat_cli.zoo.base import LARGEST_COUNT, Architecture, option


@dataclass(frozen=True)
class CapturedArchitecture(Architecture):
    """A model written in a framework. Options whose metadata has ``least``, and perhaps ``most``, are in that range.

    Attributes:
        batch: Items per batch.
        device: The device that the graph is for.
        cost: The cost model.
    """

    batch: int = option(8, "items per batch", least=1)
    device: str = option("cpu", "cpu or cuda: where it is meant to run")
    cost: str = option("device", "times on the device at hand: device; or flops, or roofline:NAME")

    @abstractmethod
    def make(self) -> tuple[Any, Any]:
        """What the framework trains: a model and a batch, or a loss function and its arguments."""

    @abstractmethod
    def captured(self, name: str, source: str, tell: Tell) -> Graph:
        """The graph of what :meth:`make` returns, under this name.

        Raises:
            UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
        """

    def build(self, tell: Tell = tell_stderr) -> Graph:
        """The captured graph.

        Args:
            tell: Told that the device is measured, if it is.

        Raises:
            UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
        """
        return self.captured(self.name.partition("/")[2], f"zoo:{format_spec(self.name, self)}", tell)

    def check(self) -> None:
        """Refuse options out of range."""
        for own in fields(self):
            if "least" in own.metadata:
                self.require(own.name, own.metadata["least"], own.metadata.get("most", LARGEST_COUNT))

    def require_multiple(self, name: str, of: int, what: str = "") -> None:
        """Refuse an option that is not a multiple of a number; ``what`` follows the number in messages.

        Raises:
            UsageError: With the next number that is one.
        """
        value = getattr(self, name)
        if value % of:
            raise UsageError(
                f"{self.name}{{{name}}}: {value} is not a multiple of {of}{what}",
                hint=f"choose a {name} such as {-(-value // of) * of}",
            )


def table(module: str, family: str, classes: dict[str, type[CapturedArchitecture]]) -> dict[str, str]:
    """The table of a registry: the architectures of a framework by name, which begins with its family."""
    return {f"{family}/{name}": f"{module}:{cls.__name__}" for name, cls in classes.items()}


def build_captured(registry: Registry[Any], spec_text: str, tell: Tell) -> Graph:
    """The graph of a specification such as ``torch/resnet50{batch=32}``.

    Args:
        registry: The architectures of a framework.
        spec_text: The specification.
        tell: Told that the device is measured, if it is.

    Raises:
        UsageError: If there is no such architecture, or an option is unknown or out of range.
        FrameworkUnavailable, CaptureFailed: As their names say.
    """
    name, options = split_spec(spec_text)
    architecture: CapturedArchitecture = build(registry.load(name), name, options)
    return architecture.build(tell)
