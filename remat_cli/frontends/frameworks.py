"""The frameworks whose training steps remat exports, profiles and runs: one class each, loaded when it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from remat_cli.errors import UsageError, Worded
from remat_cli.frontends.ran import Ran
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.registry import Registry
from remat_cli.zoo.base import Architecture

Tell = Callable[[str], None]
"""Takes what the user should know now, a sentence at a time."""


class Profile(Protocol):
    """``graph`` with measured costs, sizes and workspaces; see :func:`remat_cli.profile` for arguments and errors."""

    def __call__(
        self,
        graph: Graph,
        *,
        device: str,
        repeats: int,
        warmup: int,
        seed: int,
        force: bool,
        libraries: Sequence[str],
        progress: Callable[[int, int], None] | None,
    ) -> Graph:
        """See the class."""
        ...


class Run(Protocol):
    """Runs a plan; see :func:`remat_cli.run_plan` for arguments and errors."""

    def __call__(
        self,
        plan: Plan,
        *,
        device: str,
        steps: int,
        seed: int,
        graph: Graph | None,
        force: bool,
        libraries: Sequence[str],
    ) -> Ran:
        """See the class."""
        ...


class Framework(ABC):
    """A framework. Creating one imports nothing of it; its methods do.

    Attributes:
        name: Begins sources (``torch:train.py:build``, ``zoo:torch/...``), and names the framework in the metadata of
            the graphs that it makes, as ``frontend``.
        title: Its name as people write it.
        devices: The devices that it knows, the default first.
        default_cost: The cost model of an export that names none.
        options: Options of exports that are the framework's own, with the words that each may be.
        architectures: Its models in the zoo.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    devices: ClassVar[tuple[str, ...]]
    default_cost: ClassVar[str] = "device"
    options: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    architectures: ClassVar[Registry[Architecture]]

    @abstractmethod
    def export(self, source: str, *, device: str, cost: str, tell: Tell, **options: str) -> Sequence[Graph]:
        """The graphs of the step that a user's function builds: one, or one for each part that can be captured.

        Args:
            source: ``FILE.py:NAME`` of the function.
            device: The device that the step is for.
            cost: The cost model: ``flops``, ``roofline:NAME``, or ``device`` where the framework has it.
            tell: Told what takes time or memory.
            options: Some of :attr:`options`, as :meth:`require_options` accepts them.

        Raises:
            UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
        """

    @abstractmethod
    def export_architecture(self, spec: str, *, tell: Tell) -> Graph:
        """The graph of a model of the zoo, such as ``torch/resnet50{batch=32}``.

        Raises:
            UsageError, FrameworkUnavailable, CaptureFailed: As their names say.
        """

    @property
    @abstractmethod
    def profile(self) -> Profile:
        """What measures the graphs that this framework made."""

    @property
    @abstractmethod
    def run(self) -> Run:
        """What runs plans for them."""

    def require_options(self, options: Mapping[str, str]) -> None:
        """Refuse options of an export that this framework does not have.

        Raises:
            UsageError: If there is one.
        """
        for name, word in options.items():
            known = self.options.get(name)
            if known is None:
                said = f"{name} is not for {self.title}"
                raise UsageError(Worded(said, f"--{said}"), hint="leave it out")
            if word not in known:
                said = Worded(f'"{word}" is no {name}', f'"{word}" is no --{name}')
                raise UsageError(said, hint=f"choose {' or '.join(known)}")

    def require_device(self, device: str) -> None:
        """Refuse a device that this framework does not know.

        Raises:
            UsageError: If it does not.
        """
        if device not in self.devices:
            raise UsageError(f"{self.title} knows no device {device}", hint=f"choose {' or '.join(self.devices)}")


FRAMEWORKS: Registry[Framework] = Registry(
    kind="framework",
    table={
        "jax": "remat_cli.frontends.jax.framework:Jax",
        "tf": "remat_cli.frontends.tensorflow.framework:TensorFlow",
        "torch": "remat_cli.frontends.torch.framework:Torch",
    },
    group="remat.frameworks",
)


def framework_of(graph: Graph) -> Framework:
    """The framework that made ``graph``.

    Raises:
        UsageError: If none did.
    """
    metadata: Any = graph.metadata
    name = metadata.get("frontend") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or name not in FRAMEWORKS.entries:
        raise UsageError(
            f"the graph {graph.name} was not made by remat export, so there is nothing to run",
            hint=f"make it with {' or '.join(f'remat export {known}:FILE.py:NAME' for known in FRAMEWORKS.names())}",
        )
    return FRAMEWORKS.load(name)()
