"""Makes operations of the instructions of an HLO module.

Every instruction that computes is an operation, and every array that it makes a value: a fusion is one operation.
Tuples, their items and bitcasts are views. Calls are put in place of themselves. Loops and conditions are single
operations; what their bodies keep while they run is workspace.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_cli.frontends.hlo.flops import HARMLESS, Costs
from remat_cli.frontends.hlo.read import Computation, Instruction, Module
from remat_cli.frontends.hlo.shapes import Array, first_leaf, leaves
from remat_cli.frontends.imported import Made, Names, Operation
from remat_cli.graph.model import Phase

_VIEWS = frozenset({"bitcast", "reshape", "optimization-barrier", "domain", "add-dependency"})
_ONCE = frozenset({"rng", "infeed", "outfeed", "send", "recv", "send-done", "recv-done", "rng-get-and-update-state"})
_BACKWARD = "transpose("
_DEEPEST = 200
_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Given:
    """An array that is always there: a parameter or a constant."""


Leaf = Made | Given
"""What an array is: a result of an operation, or given."""


@dataclass(slots=True)
class Lowered:
    """Operations of a module.

    Attributes:
        operations: In order of execution.
        workspaces: Bytes that each needs only while it runs.
        outputs: What the module returns.
        given_bytes: Bytes of parameters and constants.
        views: Number of instructions that are no operations.
        loops: The loops and conditions among the operations.
    """

    operations: list[Operation] = field(default_factory=list)
    workspaces: list[int] = field(default_factory=list)
    outputs: list[Leaf] = field(default_factory=list)
    given_bytes: int = 0
    views: int = 0
    loops: list[str] = field(default_factory=list)


def lower(module: Module, costs: Costs) -> Lowered:
    """The operations of the computation that runs.

    Raises:
        InputError: If an instruction is damaged, or cannot be costed, with its line.
    """
    lowering = _Lowering(module, costs)
    lowering.lowered.outputs = lowering.run(module.computations[module.entry], None)
    return lowering.lowered


@dataclass(slots=True)
class _Lowering:
    module: Module
    costs: Costs
    lowered: Lowered = field(default_factory=Lowered)
    names: Names = field(default_factory=Names)
    depth: int = 0
    inner: dict[str, int] = field(default_factory=dict)

    def run(self, computation: Computation, given: Sequence[Sequence[Leaf]] | None) -> list[Leaf]:
        """Write the operations of a computation; returns the arrays that it returns.

        Args:
            computation: The computation.
            given: The arrays of each parameter; None for the one that runs, whose parameters are given.
        """
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.module.error(computation.line, f"the computation {computation.name} calls itself")
        env: dict[str, list[Leaf]] = {}
        for instruction in computation.instructions.values():
            try:
                env[instruction.name] = self.instruction(computation, instruction, env, given)
            except (ValueError, IndexError, KeyError) as error:
                message = f"{instruction.name} ({instruction.opcode}) is damaged: {error}"
                raise self.module.error(instruction.line, message) from None
        self.depth -= 1
        return env[computation.root]

    def instruction(
        self,
        computation: Computation,
        instruction: Instruction,
        env: dict[str, list[Leaf]],
        given: Sequence[Sequence[Leaf]] | None,
    ) -> list[Leaf]:
        """The arrays of an instruction."""
        opcode = instruction.opcode
        operands = [env[name] for name in instruction.operands]
        if opcode == "parameter" and given is not None:
            return list(given[int(instruction.inside)])
        if opcode in {"parameter", "constant"}:
            self.lowered.given_bytes += sum(leaf.bytes for leaf in leaves(instruction.shape))
            return [Given() for _ in leaves(instruction.shape)]
        if opcode == "call":
            return self.run(self.module.called(instruction, instruction.called("to_apply")[0]), operands)
        seen = self.view(computation, instruction, operands)
        if seen is not None:
            self.lowered.views += 1
            if len(seen) != sum(1 for _ in leaves(instruction.shape)):
                raise ValueError("it has another shape than what it is a view of")
            return seen
        return self.operation(computation, instruction, operands)

    def view(
        self, computation: Computation, instruction: Instruction, operands: Sequence[list[Leaf]]
    ) -> list[Leaf] | None:
        """The arrays of an instruction that computes nothing; None if it does."""
        opcode = instruction.opcode
        if opcode == "tuple":
            return [leaf for operand in operands for leaf in operand]
        if opcode == "get-tuple-element":
            whole = computation.operands(instruction)[0].shape
            if not isinstance(whole, tuple):
                raise ValueError("what it takes an item of is no tuple")
            begin = first_leaf(whole, int(instruction.attributes["index"]))
            return operands[0][begin : begin + sum(1 for _ in leaves(instruction.shape))]
        if opcode in _VIEWS or instruction.attributes.get("custom_call_target", "").strip('"') in HARMLESS:
            return operands[0]
        if opcode == "after-all":
            return [Given()]
        if opcode.endswith("-done") and opcode not in _ONCE:
            return self.finished(computation, instruction, operands[0])
        return None

    def finished(self, computation: Computation, instruction: Instruction, started: list[Leaf]) -> list[Leaf]:
        """The arrays of an operation that runs beside others, at the end: the last of its shape that it began with."""
        shapes = list(leaves(computation.operands(instruction)[0].shape))
        wanted = list(leaves(instruction.shape))
        found = [k for k, shape in enumerate(shapes) if shape == wanted[0]]
        if not found:
            raise ValueError("it makes nothing of what it waits for")
        return started[found[-1] : found[-1] + len(wanted)]

    def operation(
        self, computation: Computation, instruction: Instruction, operands: Sequence[list[Leaf]]
    ) -> list[Leaf]:
        """Write an operation."""
        if len(self.lowered.operations) >= _MOST:
            raise self.module.error(instruction.line, f"the module has more than {_MOST:,} operations")
        kept = self.carried(computation, instruction, operands)
        shapes = list(leaves(instruction.shape))
        own = [k for k in range(len(shapes)) if k not in kept]
        reads = dict.fromkeys(leaf for operand in operands for leaf in operand if not isinstance(leaf, Given))
        number = len(self.lowered.operations)
        self.lowered.operations.append(
            Operation(
                id=self.names.unique(instruction.name),
                op=instruction.opcode,
                reads=tuple(reads),
                outputs=tuple(shapes[k].bytes for k in own),
                flops=max(1, self.costs.of(computation, instruction)),
                phase=Phase.BACKWARD if _BACKWARD in instruction.attributes.get("metadata", "") else Phase.FORWARD,
                recompute=instruction.opcode not in _ONCE and "has_side_effect" not in str(instruction.attributes),
            )
        )
        self.lowered.workspaces.append(self.workspace(instruction))
        place = {k: slot for slot, k in enumerate(own)}
        return [kept[k] if k in kept else (number, place[k]) for k in range(len(shapes))]

    def carried(
        self, computation: Computation, instruction: Instruction, operands: Sequence[list[Leaf]]
    ) -> dict[int, Leaf]:
        """The arrays that a loop returns as it got them, by their positions."""
        if instruction.opcode != "while":
            return {}
        body = self.module.called(instruction, instruction.called("body")[0])
        result, state = body.result, instruction.shape
        if result.opcode != "tuple" or not isinstance(state, tuple):
            return {}
        found = {}
        for k, item in enumerate(body.operands(result)):
            same = item.opcode == "get-tuple-element" and int(item.attributes["index"]) == k
            if same and body.operands(item)[0].opcode == "parameter" and isinstance(state[k], Array):
                found[first_leaf(state, k)] = operands[0][first_leaf(state, k)]
        return found

    def workspace(self, instruction: Instruction) -> int:
        """Bytes that a loop or a condition keeps while it runs, without what it gets and returns."""
        keys = {"while": ("body",), "conditional": ("branch_computations", "true_computation", "false_computation")}
        if instruction.opcode not in keys:
            return 0
        self.lowered.loops.append(instruction.name)
        names = instruction.called(*keys[instruction.opcode])
        return max(self.inside(self.module.called(instruction, name)) for name in names)

    def inside(self, computation: Computation) -> int:
        """The most bytes of the values of a computation that live at once, without its results."""
        if computation.name not in self.inner:
            self.inner[computation.name] = 0  # while it is looked at, for one that calls itself
            own = _Lowering(self.module, self.costs, depth=self.depth, inner=self.inner)
            outputs = own.run(computation, None)
            self.inner[computation.name] = _highest(own.lowered, outputs)
        return self.inner[computation.name]


def _highest(lowered: Lowered, outputs: Sequence[Leaf]) -> int:
    """The most bytes that live at once, when everything is freed after its last reader; results do not count."""
    last: dict[Made, int] = {}
    for number, operation in enumerate(lowered.operations):
        for slot in range(len(operation.outputs)):
            last[number, slot] = number
        for read in operation.reads:
            last[read] = number
    results = {leaf for leaf in outputs if not isinstance(leaf, Given)}
    ends: dict[int, list[Made]] = {}
    for made, end in last.items():
        ends.setdefault(end, []).append(made)
    highest = live = 0
    size = {made: lowered.operations[made[0]].outputs[made[1]] for made in last if made not in results}
    for number, operation in enumerate(lowered.operations):
        live += sum(size.get((number, slot), 0) for slot in range(len(operation.outputs)))
        highest = max(highest, live + lowered.workspaces[number])
        live -= sum(size.get(made, 0) for made in ends.get(number, ()))
    return highest
