"""Bytes that operations need while they run one after another, besides what they read.

Of the update, writing variables counts too. An assignment gives the variable the memory of the tensor that it is
assigned; what the variable had before is free as soon as no tensor aliases it. Any other write changes the memory in
place, but if a tensor still aliases it, the variable gets memory of its own first. So the same write may free memory,
take some, or neither. A variable that is used by rows is never aliased, as each reading copies it, and so does each
assignment.
"""

from collections.abc import Iterable, Sequence

from remat_cli.frontends.tensorflow.capture.program import Program
from remat_cli.frontends.tensorflow.document import Call, Constant, Input, Made, Place, Read, Ref
from remat_cli.frontends.tensorflow.operators import ASSIGNS

_ASSIGN = "AssignVariableOp"
Buffer = tuple[Ref, int]
"""Memory: what it was made as, and the operation that made it, or -1 if it was there before."""


def highest(steps: Sequence[tuple[Sequence[int], Sequence[tuple[int, int]]]], held: frozenset[int]) -> int:
    """Most bytes at once of what a sequence of operations makes, while each of them runs.

    Args:
        steps: For each operation the memory that it reads, by name, and the name and bytes of each that it makes.
        held: Names that live to the end.
    """
    last: dict[int, int] = {}
    for k, (reads, makes) in enumerate(steps):
        for name in reads:
            last[name] = k
        for name, _ in makes:
            last[name] = k
    live: dict[int, int] = {}
    most = 0
    for k, (_, makes) in enumerate(steps):
        live |= dict(makes)
        most = max(most, sum(live.values()))
        live = {name: size for name, size in live.items() if name in held or last[name] > k}
    return most


def update_workspace(
    program: Program,
    calls: Sequence[tuple[Call, Sequence[int | None]]],
    inputs: Sequence[int],
    results: Iterable[Ref],
) -> int:
    """Most bytes at once besides inputs and fixed memory, where each variable counts once. At least 0.

    Args:
        program: The step, for the sizes of its variables.
        calls: The operations in order, each with the input whose memory each of its outputs is, or None.
        inputs: Bytes of the values that the update reads; all of them stay to the end.
        results: Tensors of the update, and variables as they were read, that the step returns.
    """
    memory = _Memory(program, inputs)
    last: dict[Ref, int] = {}
    for k, (call, _) in enumerate(calls):
        last |= dict.fromkeys((Made(k, output) for output in range(len(call.outputs))), k)
        last |= dict.fromkeys(call.inputs, k)
    last |= dict.fromkeys(results, len(calls))
    for ref in last:
        if isinstance(ref, Read):
            memory.tensors[ref] = (Place(ref.place), -1)
    most = 0
    for k, (call, alias_of) in enumerate(calls):
        memory.run(k, call, alias_of)
        most = max(most, memory.bytes())
        for ref in [ref for ref in memory.tensors if last[ref] <= k]:
            del memory.tensors[ref]
    return most


class _Memory:
    """The memory of tensors and variables while the operations of the update run.

    Attributes:
        tensors: The memory of each live tensor that the update made, or that was read of a variable before.
        variables: The memory of each variable that the update has written.
    """

    def __init__(self, program: Program, inputs: Sequence[int]) -> None:
        self.program = program
        self.inputs = inputs
        self.tensors: dict[Ref, Buffer] = {}
        self.variables: dict[int, Buffer] = {}
        self.sizes: dict[Buffer, int] = {}

    def run(self, k: int, call: Call, alias_of: Sequence[int | None]) -> None:
        """Make the outputs of an operation, and write the variables that it writes."""
        for output, spec in enumerate(call.outputs):
            source = alias_of[output] if alias_of else None
            made: Buffer = (Made(k, output), k)
            self.tensors[Made(k, output)] = made if source is None else self.of(call.inputs[source])
            self.sizes[made] = spec.bytes
        if call.op == _ASSIGN:
            handle, value = call.inputs
            if isinstance(handle, Place) and handle.number not in self.program.by_rows:
                self.variables[handle.number] = self.of(value)
        elif call.op in ASSIGNS:
            for ref in call.inputs:
                if isinstance(ref, Place) and self.is_variable(ref) and self.is_shared(self.of(ref)):
                    self.variables[ref.number] = (ref, k)

    def is_variable(self, ref: Ref) -> bool:
        return isinstance(ref, Place) and self.program.places[ref.number].kind == "variable"

    def of(self, ref: Ref) -> Buffer:
        """The memory of a tensor, or of a variable as it is now."""
        if isinstance(ref, Place) and ref.number in self.variables:
            return self.variables[ref.number]
        return self.tensors.get(ref, (ref, -1))

    def is_shared(self, buffer: Buffer) -> bool:
        """Whether something besides a variable holds this memory."""
        is_given = isinstance(buffer[0], Input | Constant) or (buffer[1] < 0 and not self.is_variable(buffer[0]))
        return is_given or buffer in self.tensors.values()

    def bytes(self) -> int:
        """Bytes besides inputs and fixed memory."""
        held = set(self.variables.values())
        total = sum(self.size(buffer) for buffer in set(self.tensors.values()) - held)
        return total - sum(self.inputs[b[0].position] for b in held if isinstance(b[0], Input))

    def size(self, buffer: Buffer) -> int:
        """Bytes of memory that is neither an input nor fixed, for what it counts besides these."""
        ref, _ = buffer
        if isinstance(ref, Place):
            return self.program.places[ref.number].spec.bytes if ref.number in self.variables else 0
        return self.sizes.get(buffer, 0)
