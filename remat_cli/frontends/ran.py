"""What running a plan on a device gives, whatever the framework."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the peak, fixed memory included.

    Attributes:
        predicted: By the replay of the plan.
        predicted_without_workspace: The same, if no kernel had a workspace.
        measured: On a CPU, all live buffers after every operation; on a GPU, all bytes that the allocator handed out.
        predicted_blocks: On CUDA with PyTorch, the bytes in allocated blocks, by simulation of the allocator
            (:func:`remat_cli.frontends.torch.measure.allocator.footprint`); otherwise None.
        predicted_reserved: On CUDA with PyTorch, the bytes taken from the device, by the same simulation; otherwise
            None.
        reserved: On CUDA with PyTorch, the bytes taken from the device; otherwise None.
        libraries: On CUDA with PyTorch, the bytes that libraries took permanently before the step; in no other number.
            Otherwise None.
        allocator: With TensorFlow, the bytes that its allocator handed out, kernels' own needs and rounding included;
            otherwise None, or where it does not count.
        generator_states: Bytes of generator states saved to repeat random numbers, in host memory; in no other number.
    """

    predicted: int
    predicted_without_workspace: int
    measured: int
    predicted_blocks: int | None = None
    predicted_reserved: int | None = None
    reserved: int | None = None
    libraries: int | None = None
    allocator: int | None = None
    generator_states: int = 0


@dataclass(frozen=True, slots=True)
class Copied:
    """The copies of a plan between device and host.

    Attributes:
        to_host: Copies to the host per step.
        from_host: Copies back per step.
        predicted: Most bytes of host memory in use, by the replay of the plan.
        measured: On a CPU, live buffers that stand for host memory, after every operation; on CUDA, the pinned memory
            taken, which is that for every size of a slot.
        predicted_s: Seconds of a step by the replay of the three queues, with the costs of the graph.
    """

    to_host: int
    from_host: int
    predicted: int
    measured: int
    predicted_s: float


@dataclass(frozen=True, slots=True)
class RanInParts:
    """How far the results of a plan with regions in parts are from those of whole operations.

    Attributes:
        regions: The number of parts of each region.
        summed: Names of the results that are sums over the parts, such as the loss and gradients of weights.
        others: Number of further results that are computed from what regions make.
        largest: The largest difference in a tensor, relative to the largest number in that tensor; of the tensor in
            which it is largest.
        within: Whether that is what another order of sums explains: at most 4,096 units in the last place of the
            tensor's type (1e-12 in float64, 5e-4 in float32), or 4 of a type of 16 bits in which the step computes (3%
            in bfloat16, 0.4% in float16); and zero in every result that no region has a part in.
    """

    regions: Mapping[str, int]
    summed: tuple[str, ...]
    others: int
    largest: float
    within: bool


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of running a plan.

    Attributes:
        graph: Name of the graph.
        device: The device as its framework calls it: ``cpu``, ``cuda``.
        framework: The framework: ``torch``.
        version: Version of the framework.
        computations: Operations per step.
        recomputations: Operations per step beyond the first of each node.
        identical: Whether all results equal those of the same graph without recomputation bit for bit; None if that
            run did not fit the device.
        compared: Number of tensors compared.
        differing: Names of the tensors that differ.
        unsteady: Names of the tensors that differ even between two runs without recomputation.
        finite: Whether the results hold no infinity and no NaN.
        result: The first result, such as the loss; None if it is not a scalar.
        memory: Bytes at the peak.
        reference_peak: Measured peak without recomputation, fixed memory included; None if that run did not fit.
        step_s: Median seconds of a step.
        reference_step_s: The same without recomputation; None if that run did not fit.
        steps: Number of steps timed.
        copied: The copies; None for a plan without copies.
        in_parts: How results differ if regions ran in parts; None if none did, or if there is nothing to compare with.
    """

    graph: str
    device: str
    framework: str
    version: str
    computations: int
    recomputations: int
    identical: bool | None
    compared: int
    differing: tuple[str, ...]
    unsteady: tuple[str, ...]
    finite: bool
    result: float | None
    memory: Memory
    reference_peak: int | None
    step_s: float
    reference_step_s: float | None
    steps: int
    copied: Copied | None = None
    in_parts: RanInParts | None = None

    @property
    def as_expected(self) -> bool:
        """Whether no result differs, or, with regions in parts, by no more than another order of sums explains."""
        if self.in_parts is not None:
            return self.in_parts.within
        return self.identical is not False

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)
