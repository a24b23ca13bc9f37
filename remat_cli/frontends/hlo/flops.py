"""FLOPs of HLO instructions, by the conventions of the other importers.

Two for every multiply-accumulate of products and convolutions, one per element of a reduction's operand, one per
element of the result of everything else that computes; moving numbers costs nothing. Transforms, factorisations and
sorts cost by :mod:`.library`. A fusion costs what is in it, a loop its body as often as it runs, a condition its most
expensive branch.
"""

import math
import re
from dataclasses import dataclass, field

from remat_cli.errors import Worded
from remat_cli.frontends.hlo.library import library_flops
from remat_cli.frontends.hlo.read import Computation, Instruction, Module
from remat_cli.frontends.hlo.shapes import Array, leaves
from remat_cli.frontends.imported import DefaultCosts

MOVES = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape", "copy", "broadcast", "iota"),
        *("transpose", "slice", "concatenate", "pad", "reverse", "dynamic-slice", "dynamic-update-slice", "gather"),
        *("convert", "bitcast-convert", "after-all", "add-dependency", "optimization-barrier", "copy-start"),
        *("copy-done", "reduce-precision", "get-dimension-size", "set-dimension-size", "partition-id", "replica-id"),
        *("dynamic-reshape", "real", "imag", "domain"),
    }
)
"""Operations that move numbers, or write them in another type."""
_RANDOM = 50
"""FLOPs of a random number: Threefry takes 20 rounds of a few operations for two."""
_TRIPS = re.compile(r'known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"(\d{1,15})"')
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions"\s*:\s*\[([^\]]*)\]')
_WINDOW = re.compile(r"\bsize=([0-9x]+)")
_DILATED = re.compile(r"\blhs_dilate=([0-9x]+)")
_DEEPEST = 200


@dataclass(slots=True)
class Costs:
    """Costs the instructions of a module.

    Attributes:
        module: The module.
        defaults: The costs of calls of libraries without a formula.
        guessed: The loops whose number of turns the file does not tell, counted once.
    """

    module: Module
    defaults: DefaultCosts
    guessed: list[str] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)

    def of(self, computation: Computation, instruction: Instruction) -> int:
        """FLOPs of an instruction; 0 if it only moves numbers.

        Raises:
            InputError: If it calls a library function without a formula, or itself, or its attributes are damaged.
        """
        try:
            return self._of(computation, instruction)
        except (ValueError, IndexError, KeyError) as error:
            message = f"{instruction.name} ({instruction.opcode}) cannot be costed: {error}"
            raise self.module.error(instruction.line, message) from None

    def all_of(self, computation: Computation) -> int:
        """FLOPs of a computation.

        Raises:
            InputError: If one of its instructions cannot be costed.
        """
        if computation.name not in self._known:
            if computation.name in self._open or len(self._open) > _DEEPEST:
                raise self.module.error(computation.line, f"the computation {computation.name} calls itself")
            self._open.append(computation.name)
            total = sum(self.of(computation, instruction) for instruction in computation.instructions.values())
            self._open.pop()
            self._known[computation.name] = total
        return self._known[computation.name]

    def _of(self, computation: Computation, instruction: Instruction) -> int:
        opcode = instruction.opcode
        made = sum(leaf.elements for leaf in leaves(instruction.shape))
        operands = computation.operands(instruction)
        match opcode:
            case _ if opcode in MOVES or opcode.endswith("-done"):
                return 0
            case "dot":
                return _product(instruction, operands, made)
            case "convolution":
                return _convolution(instruction, operands)
            case "reduce" | "all-reduce" | "reduce-scatter" | "scatter":
                return max(1, sum(leaf.elements for operand in operands for leaf in leaves(operand.shape)))
            case "reduce-window" | "select-and-scatter":
                return made * _window(instruction)
            case "rng" | "rng-bit-generator":
                return _RANDOM * made
            case "while":
                once = self._called(instruction, "body") + self._called(instruction, "condition")
                return max(1, once * self.turns(computation, instruction))
            case "conditional":
                return max(1, self._branches(instruction))
            case "fusion" | "call" | "async-start" | "map":
                return max(1, self._called(instruction, "calls", "to_apply"))
            case "custom-call":
                return self._library(instruction, operands, made)
            case _:
                by_rule = library_flops(instruction, operands)
                return max(1, made if by_rule is None else by_rule)

    def _called(self, instruction: Instruction, *keys: str) -> int:
        names = instruction.called(*keys)
        if not names:
            raise ValueError(f"it has no {' or '.join(keys)}")
        return sum(self.all_of(self.module.called(instruction, name)) for name in names)

    def _branches(self, instruction: Instruction) -> int:
        names = instruction.called("branch_computations", "true_computation", "false_computation")
        if not names:
            raise ValueError("it has no branches")
        return max(self.all_of(self.module.called(instruction, name)) for name in names)

    def turns(self, computation: Computation, instruction: Instruction) -> int:
        """How often a loop runs: as XLA says, else as its condition tells, else once."""
        said = _TRIPS.search(instruction.attributes.get("backend_config", ""))
        if said is not None:
            return int(said[1])
        found = self._bound(computation, instruction)
        if found is not None:
            return found
        if instruction.name not in self.guessed:
            self.guessed.append(instruction.name)
        return 1

    def _bound(self, computation: Computation, instruction: Instruction) -> int | None:
        """The turns of a loop that counts from a constant up to a constant in steps of 1; None for any other."""
        condition = self.module.called(instruction, instruction.called("condition")[0])
        test = condition.result
        if test.opcode != "compare" or test.attributes.get("direction") != "LT":
            return None
        counter, limit = condition.operands(test)
        if counter.opcode != "get-tuple-element" or limit.opcode != "constant":
            return None
        [state] = computation.operands(instruction)
        index = int(counter.attributes["index"])
        start = computation.operands(state)[index] if state.opcode == "tuple" else None
        if start is not None and start.opcode == "copy":
            start = computation.operands(start)[0]
        if start is None or start.opcode != "constant":
            return None
        return max(0, int(limit.inside) - int(start.inside))

    def _library(self, instruction: Instruction, operands: list[Instruction], made: int) -> int:
        target = instruction.attributes.get("custom_call_target", "").strip('"')
        if "dim_labels" in instruction.attributes:
            return _convolution(instruction, operands)
        contracted = _CONTRACTED.search(instruction.attributes.get("backend_config", ""))
        first = operands[0].shape if operands else ()
        if contracted is not None and isinstance(first, Array):
            axes = [int(axis.strip(' "')) for axis in contracted[1].split(",") if axis.strip()]
            result = next(leaves(instruction.shape)).elements
            return 2 * result * math.prod(first.sizes[axis] for axis in axes)
        if target in HARMLESS:
            return 0
        by_rule = library_flops(instruction, operands)
        if by_rule is not None:
            return max(1, by_rule)
        if self.defaults.per_element is None:
            hint = Worded(
                "say default_cost=1 for one FLOP per element of what it makes",
                "say --default-cost 1 for one FLOP per element of what it makes",
            )
            message = f"{instruction.name} calls {target or 'a library'}, without a rule for its cost"
            raise self.module.error(instruction.line, message, hint)
        return self.defaults.of(target, made)


HARMLESS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.FuncResultSharding"})
"""Calls that return what they are given: they tell the compiler where arrays lie."""


def _product(instruction: Instruction, operands: list[Instruction], made: int) -> int:
    """Every element of the result is a sum over the contracted axes."""
    left = operands[0].shape
    if not isinstance(left, Array):
        raise ValueError("it multiplies a tuple")
    axes = [int(axis) for axis in re.findall(r"\d+", instruction.attributes.get("lhs_contracting_dims", ""))]
    return max(1, 2 * made * math.prod(left.sizes[axis] for axis in axes))


def _convolution(instruction: Instruction, operands: list[Instruction]) -> int:
    """Every element of the result is a sum over a window of the kernel; zeros put between elements do not count."""
    kernel = operands[1].shape
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", instruction.attributes.get("dim_labels", ""))
    if not isinstance(kernel, Array) or labels is None or len(labels[2]) != len(kernel.sizes):
        raise ValueError("its dim_labels do not fit its kernel")
    features = kernel.sizes[labels[2].index("i")]
    result = next(leaves(instruction.shape)).elements
    spread = _DILATED.search(instruction.attributes.get("window", ""))
    zeros = 1 if spread is None else math.prod(map(int, spread[1].split("x")))
    return max(1, 2 * result * features * _window(instruction) // zeros)


def _window(instruction: Instruction) -> int:
    """Elements of the window."""
    found = _WINDOW.search(instruction.attributes.get("window", ""))
    return 1 if found is None else math.prod(int(size) for size in found[1].split("x") if size)
