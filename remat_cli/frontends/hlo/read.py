"""Reads the text of an HLO module: computations and their instructions, as XLA prints them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from remat_cli.errors import InputError
from remat_cli.frontends.hlo.shapes import Shape, closing, parts, read_shape, space, unquoted

HEAD = re.compile(r"\A(?:\s|//[^\n]*\n)*HloModule\s+([^\s,]+)")
_HEADER = re.compile(r"^\s*(ENTRY\s+)?%?([\w.$~-]+)\s*(?:\(.*\)\s*->\s*.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.$~-]+)\s*=\s*")
_OPCODE = re.compile(r"([a-z][a-z0-9-]*)\(")
_NAME = re.compile(r"%?([\w.$~-]+)")
_HINT = "is the file complete? XLA writes it with XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text'"
_WITHOUT_OPERANDS = frozenset({"constant", "parameter", "iota"})


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction.

    Attributes:
        name: Its name, without the percent sign.
        shape: What it makes.
        opcode: ``dot``.
        operands: Names of instructions of the same computation.
        inside: The text in its brackets, if it holds no operands: of a constant, or the number of a parameter.
        attributes: What follows, by name: ``{"calls": "%fused"}``.
        line: Its line in the file, from 1.
    """

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    inside: str
    attributes: Mapping[str, str]
    line: int

    def called(self, *keys: str) -> list[str]:
        """Names of the computations that an attribute names."""
        texts = [self.attributes[key] for key in keys if key in self.attributes]
        return [name for text in texts for name in _NAME.findall(text.strip("{}"))]


@dataclass(slots=True)
class Computation:
    """A computation.

    Attributes:
        name: Its name.
        line: Its first line in the file.
        instructions: In order, by name.
        root: Name of the instruction that makes its result.
    """

    name: str
    line: int
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""

    @property
    def result(self) -> Instruction:
        """The instruction that makes its result."""
        return self.instructions[self.root]

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """What an instruction reads."""
        return [self.instructions[name] for name in instruction.operands]


@dataclass(slots=True)
class Module:
    """A module.

    Attributes:
        name: Its name.
        source: Name of the file, for messages.
        attributes: Of the module: ``{"is_scheduled": "true"}``.
        computations: By name.
        entry: Name of the computation that runs.
    """

    name: str
    source: str
    attributes: Mapping[str, str]
    computations: dict[str, Computation] = field(default_factory=dict)
    entry: str = ""

    def error(self, line: int, message: str, hint: str = _HINT) -> InputError:
        """The error for something at a line."""
        return InputError.of(self.source, message, hint, line=line)

    def called(self, instruction: Instruction, name: str) -> Computation:
        """A computation that an instruction calls.

        Raises:
            InputError: If there is none.
        """
        if name not in self.computations:
            raise self.error(instruction.line, f"{instruction.name} calls {name}, which is not in the file")
        return self.computations[name]


def read_module(text: str, source: str) -> Module:
    """The module in ``text``; ``source`` names the file in messages.

    Raises:
        InputError: If it is not HLO text, or is damaged, with the line.
    """
    head = HEAD.match(text)
    if head is None:
        raise InputError.of(source, "is no HLO text: it does not begin with HloModule", _HINT, line=1)
    first = text.count("\n", 0, head.start(1))
    lines = text.split("\n")
    rest = lines[first].partition(",")[2]
    module = Module(head[1], source, {})
    try:
        module.attributes = _attributes(rest)
    except ValueError as error:
        raise module.error(first + 1, f"the line of the module is damaged: {error}") from None
    _read_computations(module, lines, first + 1)
    if not module.entry:
        raise module.error(len(lines), "the file has no ENTRY computation")
    return module


def _read_computations(module: Module, lines: list[str], at: int) -> None:
    current: Computation | None = None
    is_entry = False
    for number, line in _joined(module, lines, at):
        stripped = line.strip()
        if not stripped or stripped.startswith("//"):
            continue
        if current is None:
            header = _HEADER.match(line)
            if header is None:
                continue  # the tables of source lines that newer versions print
            name, is_entry = header[2], header[1] is not None
            if name in module.computations:
                raise module.error(number, f"there are two computations named {name}")
            current = Computation(name, number)
        elif stripped.startswith("}"):
            _close(module, current, number, is_entry=is_entry)
            current = None
        else:
            _add(module, current, line, number)
    if current is not None:
        raise module.error(len(lines), f"the computation {current.name} does not end")


def _joined(module: Module, lines: list[str], at: int) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; an instruction over several lines, such as a matrix, as one."""
    k = at
    while k < len(lines):
        line, begin = lines[k], k
        if _INSTRUCTION.match(line) is not None:
            while _open(line):
                k += 1
                if k >= len(lines) or k - begin > 10_000 or _INSTRUCTION.match(lines[k]) is not None:
                    raise module.error(begin + 1, "the instruction does not end: a bracket is not closed")
                line += "\n" + lines[k]
        yield begin + 1, line
        k += 1


def _open(line: str) -> bool:
    """Whether a bracket is not closed in a line."""
    return sum((letter in "([{") - (letter in ")]}") for _, letter in unquoted(line)) > 0


def _close(module: Module, computation: Computation, line: int, *, is_entry: bool) -> None:
    if not computation.instructions:
        raise module.error(line, f"the computation {computation.name} is empty")
    if not computation.root:
        computation.root = next(reversed(computation.instructions))
    module.computations[computation.name] = computation
    if is_entry:
        if module.entry:
            raise module.error(computation.line, "there are two ENTRY computations")
        module.entry = computation.name


def _add(module: Module, computation: Computation, line: str, number: int) -> None:
    """Read one instruction."""
    begin = _INSTRUCTION.match(line)
    if begin is None:
        raise module.error(number, f"this is no instruction: {line.strip()[:60]}")
    name = begin[2]
    if name in computation.instructions:
        raise module.error(number, f"{name} is made twice")
    try:
        shape, at = read_shape(line, begin.end())
        at = space(line, at)
        opcode = _OPCODE.match(line, at)
        if opcode is None:
            raise ValueError(f"there is no operation where one should be: {line[at : at + 20]!r}")
        end = closing(line, opcode.end() - 1)
        inside = line[opcode.end() : end]
        operands = () if opcode[1] in _WITHOUT_OPERANDS else tuple(map(_operand, parts(inside)))
        attributes = _attributes(line[end + 1 :].lstrip().removeprefix(","))
    except ValueError as error:
        raise module.error(number, f"{name}: {error}") from None
    for operand in operands:
        if operand not in computation.instructions:
            raise module.error(number, f"{name} reads {operand}, which no earlier line of its computation makes")
    computation.instructions[name] = Instruction(
        name, shape, opcode[1], operands, "" if operands else inside.strip(), attributes, number
    )
    if begin[1] is not None:
        computation.root = name


def _operand(text: str) -> str:
    """The name in an operand; older versions print its shape before it."""
    text = re.sub(r"/\*[^*]*\*/", "", text).strip()
    found = _NAME.fullmatch(text.rpartition(" ")[2])
    if found is None:
        raise ValueError(f"{text[:40]!r} is no operand")
    return found[1]


def _attributes(text: str) -> dict[str, str]:
    """``{"calls": "%fused", "kind": "kLoop"}`` of ``calls=%fused, kind=kLoop``."""
    found: dict[str, str] = {}
    for part in parts(text):
        key, _, value = part.partition("=")
        found[key.strip()] = value.strip()
    return found
