"""The frameworks whose training steps remat exports, profiles and runs, and the models of the zoo that they capture.

:class:`Framework` is a template. A framework says what is its own (is it here, how are its documents read, how does one
operation run, how does one step run); what is done with that, and in which order it is checked, is written here once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from remat_cli.errors import CaptureFailed, UsageError, Worded
from remat_cli.frontends.captured.installed import require_known
from remat_cli.frontends.captured.origin import Frontend
from remat_cli.frontends.captured.profiling import OperationBench, measure_operations, require_counts
from remat_cli.frontends.captured.running import PlanBench, compare_runs, replay_of_valid
from remat_cli.frontends.messages import Tell, tell_stderr
from remat_cli.frontends.ran import Ran
from remat_cli.frontends.source import load_function
from remat_cli.graph.model import Graph
from remat_cli.plan.model import Plan
from remat_cli.registry import Registry
from remat_cli.spec import build, format_spec, split_spec
from remat_cli.zoo.base import LARGEST_COUNT, Architecture, option


class CapturedStep(Protocol):
    """A graph with the contents of its payloads, in a form of the framework's own."""

    @property
    def graph(self) -> Graph:
        """The graph."""
        ...


Step = TypeVar("Step", bound=CapturedStep)


OFF_ON = ("off", "on")
"""The words of an option that is a switch."""


class Framework(ABC, Generic[Step]):
    """A framework. Creating one imports nothing of it; its methods do.

    Attributes:
        frontend: Its name, and what the metadata of its graphs says.
        devices: The devices that it knows, the default first.
        default_cost: The cost model of an export that names none.
        options: Options of exports that are the framework's own, with the words that each may be, the default first;
            without words it may be any text that the framework accepts.
        option_help: What each of these options does, for the command line.
        option_metavar: What stands for the value of an option on the command line, where that is not ``NAME``.
        architectures: Its models in the zoo.
    """

    frontend: ClassVar[Frontend]
    devices: ClassVar[tuple[str, ...]]
    default_cost: ClassVar[str] = "device"
    options: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    option_help: ClassVar[Mapping[str, str]] = MappingProxyType({})
    option_metavar: ClassVar[Mapping[str, str]] = MappingProxyType({})
    architectures: ClassVar[Registry[Any]]

    # What a framework brings.

    @abstractmethod
    def require_present(self, device: str) -> None:
        """Check that the framework and a device to run on are here.

        Raises:
            FrameworkUnavailable: If one is missing.
        """

    def require_exportable(self, device: str, cost: str) -> None:
        """Check what can be checked before a step is built: that what its export needs is here.

        Raises:
            UsageError: If there is no such cost model.
            FrameworkUnavailable: If something is missing.
        """
        self.require_present(device)

    @abstractmethod
    def capture(
        self, build: Callable[[], Any], name: str, source: str, *, device: str, cost: str, tell: Tell, **options: str
    ) -> Sequence[Graph]:
        """The graphs of the step that ``build()`` returns: one, or one for each part that can be captured.

        Args:
            build: The user's function, or that of a model of the zoo.
            name: The name of the graph.
            source: Its origin, for the metadata.
            device: The device that the step is for.
            cost: The cost model: ``flops``, ``roofline:NAME``, or ``device`` where the framework has it.
            tell: Told what takes time or memory.
            options: Some of :attr:`options`, as :meth:`require_options` accepts them.

        Raises:
            UsageError: If there is no such cost model.
            CaptureFailed: If the step cannot be captured.
        """

    @abstractmethod
    def read(self, graph: Graph) -> Step:
        """The contents of the payloads of a graph that this framework made.

        Raises:
            UsageError: If they are damaged, with the place.
        """

    @abstractmethod
    def difference(self, ours: Step, theirs: Step) -> str | None:
        """Why a plan of ``theirs`` is not a plan of ``ours``, in a few words; None if it is. Costs do not matter."""

    def require_harmless(self, step: Step, device: str, libraries: Sequence[str], *, force: bool) -> None:
        """Check that a step that comes from a document does nothing but compute.

        Args:
            step: The step.
            device: The device that it will run on.
            libraries: Python modules to import, whose operators are accepted too.
            force: Whether it may have been exported for another version or device.

        Raises:
            UsageError: If a library cannot be imported, or libraries make no sense here.
            ExecutionFailed: If an operation is none that graphs hold.
        """
        if libraries:
            hint = Worded("leave libraries out", "leave --library out")
            raise UsageError(f"{self.title} has no libraries of operators", hint=hint)

    @abstractmethod
    def operation_bench(self, step: Step, device: str, seed: int) -> AbstractContextManager[OperationBench]:
        """What runs the operations of a step one by one."""

    @abstractmethod
    def plan_bench(self, step: Step, device: str, seed: int, peak_bytes: int) -> AbstractContextManager[PlanBench]:
        """What runs plans of a step; ``peak_bytes`` is the predicted peak, for messages."""

    # What is the same for all.

    @property
    def name(self) -> str:
        """Begins sources (``torch:train.py:build``, ``zoo:torch/...``)."""
        return self.frontend.name

    @property
    def title(self) -> str:
        """Its name as people write it."""
        return self.frontend.title

    def export(self, source: str, *, device: str, cost: str, tell: Tell, **options: str) -> Sequence[Graph]:
        """The graphs of the step that a user's function builds; see :meth:`capture`.

        Args:
            source: ``FILE.py:NAME`` of the function.
            device: The device that the step is for.
            cost: The cost model.
            tell: Told what takes time or memory.
            options: Options of this framework.

        Raises:
            UsageError: If there is no such function, device, cost model or option.
            FrameworkUnavailable: If the framework or the device is missing.
            CaptureFailed: If the step cannot be captured.
        """
        self.require_device(device)
        self.require_options(options)
        self.require_exportable(device, cost)
        function, name = load_function(source, self.name), source.rpartition(":")[2]
        return self.capture(function, name, f"{self.name}:{source}", device=device, cost=cost, tell=tell, **options)

    def export_architecture(self, spec: str, *, tell: Tell = tell_stderr) -> Graph:
        """The graph of a model of the zoo, such as ``torch/resnet50{batch=32}``.

        Raises:
            UsageError, FrameworkUnavailable, CaptureFailed: As for :meth:`export`, and for options out of range.
        """
        name, options = split_spec(spec)
        architecture: CapturedArchitecture = build(self.architectures.load(name), name, options)
        return architecture.build(tell)

    def profile(
        self,
        graph: Graph,
        *,
        device: str = "cpu",
        repeats: int = 10,
        warmup: int = 2,
        seed: int = 0,
        force: bool = False,
        libraries: Sequence[str] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Graph:
        """``graph`` with measured costs, sizes and workspaces; see :func:`remat_cli.profile`, also for errors."""
        require_counts(repeats, warmup)
        self.frontend.require(graph)
        self.require_device(device)
        self.require_present(device)
        step = self.read(graph)
        if graph.splits:
            raise UsageError(
                "costs of regions in parts are not measured, and those of the graph would be in another unit",
                hint=Worded("export the graph without split", "export the graph without --split"),
            )
        self._require_runnable(step, device, libraries, force=force)
        with self.operation_bench(step, device, seed) as bench:
            return measure_operations(bench, repeats, warmup, progress)

    def run(
        self,
        plan: Plan,
        *,
        device: str = "cpu",
        steps: int = 3,
        seed: int = 0,
        graph: Graph | None = None,
        force: bool = False,
        libraries: Sequence[str] = (),
    ) -> Ran:
        """Run ``plan``, and compare it with its graph; see :func:`remat_cli.run_plan` for arguments and errors."""
        self.frontend.require(plan.graph)
        if steps < 1:
            raise UsageError("at least one step has to be run")
        seen = replay_of_valid(plan)
        if graph is not None:
            self.frontend.require(graph)
        self.require_device(device)
        self.require_present(device)
        step = self.read(plan.graph)
        if graph is not None:
            self._require_same(step, graph)
        self._require_runnable(step, device, libraries, force=force)
        with self.plan_bench(step, device, seed, seen.peak_bytes) as bench:
            return compare_runs(plan, seen, bench, self.frontend, device, steps)

    def _require_runnable(self, step: Step, device: str, libraries: Sequence[str], *, force: bool) -> None:
        """Check that a step is for this version of the framework and this device, and does nothing but compute."""
        if not force:
            self.frontend.require_environment(step.graph, device)
        self.require_harmless(step, device, libraries, force=force)

    def _require_same(self, planned: Step, wanted: Graph) -> None:
        """Check that a plan of ``planned`` computes the same as ``wanted``. Costs and names do not matter."""
        reason = self.difference(self.read(wanted), planned)
        if reason is not None:
            raise UsageError(
                f"the plan of {planned.graph.name} is for another graph than {wanted.name}: {reason}",
                hint="solve the graph that is to be run",
            )

    def require_options(self, options: Mapping[str, str]) -> None:
        """Refuse options of an export that this framework does not have.

        Raises:
            UsageError: If there is one.
        """
        for name, word in options.items():
            words = self.options.get(name)
            if words is None:
                message = f"{name} is not for {self.title}"
                raise UsageError(Worded(message, f"--{message}"), hint="leave it out")
            if words and word not in words:
                message = Worded(f'"{word}" is no {name}', f'"{word}" is no --{name}')
                raise UsageError(message, hint=f"choose {' or '.join(words)}")

    def require_device(self, device: str) -> None:
        """Refuse a device that this framework does not know.

        Raises:
            UsageError: If it does not.
        """
        require_known(device, self.title, self.devices)


FRAMEWORKS: Registry[Framework[Any]] = Registry(
    kind="framework",
    table={
        "jax": "remat_cli.frontends.jax.framework:Jax",
        "tf": "remat_cli.frontends.tensorflow.framework:TensorFlow",
        "torch": "remat_cli.frontends.torch.framework:Torch",
    },
    group="remat.frameworks",
)


def framework_of(graph: Graph) -> Framework[Any]:
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
    def make(self) -> tuple[Any, ...]:
        """What a user's function would return: such as a model and a batch, or a loss function and its arguments."""

    def build(self, tell: Tell = tell_stderr) -> Graph:
        """The captured graph; ``tell`` is told what takes time or memory.

        Raises:
            UsageError, FrameworkUnavailable, CaptureFailed: As for :meth:`Framework.export`.
        """
        family, _, name = self.name.partition("/")
        framework, source = FRAMEWORKS.load(family)(), f"zoo:{format_spec(self.name, self)}"
        framework.require_device(self.device)
        framework.require_exportable(self.device, self.cost)
        graphs = framework.capture(self.make, name, source, device=self.device, cost=self.cost, tell=tell)
        if len(graphs) > 1:
            raise CaptureFailed(f"{framework.title} divides {self.name} into {len(graphs)} parts, and needs one graph")
        return graphs[0]

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
