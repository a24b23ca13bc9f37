"""JAX, as one of the frameworks of :mod:`remat_cli.frontends.frameworks`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from remat_cli.frontends.captured.origin import Frontend
from remat_cli.frontends.captured.profiling import OperationBench
from remat_cli.frontends.captured.running import PlanBench
from remat_cli.frontends.frameworks import Framework
from remat_cli.frontends.jax.architectures import JAX_ARCHITECTURES
from remat_cli.frontends.jax.document import AUTO, FRONTEND, SCANS, Step, difference, read_step
from remat_cli.frontends.jax.installed import DEVICES, require_jax, require_present
from remat_cli.frontends.messages import Tell
from remat_cli.frontends.source import called
from remat_cli.graph.model import Graph
from remat_cli.registry import Registry


class Jax(Framework[Step]):
    """JAX: steps are captured as jaxprs of ``jax.value_and_grad``, and run as functions of ``jax.export``."""

    frontend: ClassVar[Frontend] = FRONTEND
    devices: ClassVar[tuple[str, ...]] = DEVICES
    options: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({"scans": SCANS})
    option_help: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"scans": "how to capture jax.lax.scan: unrolled, blocks or whole"}
    )
    architectures: ClassVar[Registry[Any]] = JAX_ARCHITECTURES

    def require_exportable(self, device: str, cost: str) -> None:
        """See :meth:`Framework.require_exportable`. The device is not needed, unless it is measured."""
        require_jax()
        if cost == "device":
            require_present(device)

    def capture(
        self, build: Callable[[], Any], name: str, source: str, *, device: str, cost: str, tell: Tell, **options: str
    ) -> Sequence[Graph]:
        """See :meth:`Framework.capture`; ``build()`` returns (loss, arguments) or (loss, arguments, options)."""
        from remat_cli.frontends.jax.capture.capture import capture, loss_in
        from remat_cli.frontends.jax.capture.costs import cost_model
        from remat_cli.frontends.jax.capture.lower import lower

        scans, costs = options.get("scans", AUTO), cost_model(cost, device, tell)
        captured = capture(*loss_in(called(build, name, self.name), name), scans=scans)
        graph, _ = lower(captured, costs.cost, name, device)
        metadata = self.frontend.metadata(source, device, costs.description) | {"notes": list(captured.notes)}
        return [replace(graph, cost_unit=costs.unit, metadata=metadata | graph.metadata | {"scans": scans})]

    def require_present(self, device: str) -> None:
        """See :meth:`Framework.require_present`."""
        require_present(device)

    def read(self, graph: Graph) -> Step:
        """See :meth:`Framework.read`."""
        return read_step(graph)

    def difference(self, ours: Step, theirs: Step) -> str | None:
        """See :meth:`Framework.difference`."""
        return difference(ours, theirs)

    @contextmanager
    def operation_bench(self, step: Step, device: str, seed: int) -> Iterator[OperationBench]:
        """See :meth:`Framework.operation_bench`."""
        from remat_cli.frontends.jax.execute import load, wide_numbers
        from remat_cli.frontends.jax.measure import Operations

        with wide_numbers():
            yield Operations(load(step, device), seed)

    @contextmanager
    def plan_bench(self, step: Step, device: str, seed: int, peak_bytes: int) -> Iterator[PlanBench]:
        """See :meth:`Framework.plan_bench`."""
        from remat_cli.frontends.jax.execute import load, wide_numbers
        from remat_cli.frontends.jax.measure import Plans

        with wide_numbers():
            yield Plans(load(step, device), seed)
