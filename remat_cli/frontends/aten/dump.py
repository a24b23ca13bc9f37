"""Reads the output of ``print_readable()`` of a torch.fx graph: Python with the type of every tensor as annotation.

``TORCH_LOGS=aot_graphs``, ``tlparse`` and ``print(exported_program)`` write the same. The text is parsed and never run.
Each line names a tensor, its type, and the operator that makes it::

    relu: "f32[4, 8, 32, 32][8192, 1024, 32, 1]cpu" = torch.ops.aten.relu.default(getitem);  getitem = None
"""

import ast
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from remat_cli.errors import InputError
from remat_cli.frontends.aten.program import Call, Input, Program, Ref, TensorType
from remat_cli.frontends.aten.symbols import Sizes
from remat_cli.graph.quoting import quote

_CLASS = re.compile(r"^([ \t]*)class (\w+)\(torch\.nn\.Module\):.*$", re.MULTILINE)
_TYPE = re.compile(r"(\w+)\[([^\[\]]*)\](?:\[([^\[\]]*)\])?\w*(?::\d+)?")
_NUMBERS = re.compile(r"(?:Sym|PySym\w*)\(.*\)")
_SIZED = {"b8": 1, "c32": 4, "c64": 8, "c128": 16, "f8e4m3fn": 1, "f8e5m2": 1, "f8e4m3fnuz": 1, "f8e5m2fnuz": 1}
_SIZED |= {f"{kind}{bits}": bits // 8 for kind in "fiu" for bits in (8, 16, 32, 64)} | {"bf16": 2, "f8e8m0fnu": 1}
"""Bytes of an element by the short name of its type."""
_MOST_RESULTS = 1 << 16
"""Most results of a call. Untuned: a split makes one for every piece."""


def read_dump(text: str, source: str, given: Mapping[str, int]) -> Program:
    """The graph in a dump; ``given`` are sizes of symbolic dimensions, and ``source`` names the file in messages.

    Raises:
        InputError: If the text is not such a dump, or calls something other than an operator, or sizes are missing.
    """
    found = list(_CLASS.finditer(text))
    if len(found) != 1:
        words = "there is no" if not found else f"there are {len(found)} graphs, expected one"
        raise InputError.of(source, f"{words} class ...(torch.nn.Module) in it", "put one graph into one file")
    start = found[0]
    first_line = text.count("\n", 0, start.start())
    body = _indented(text[start.start() :], len(start[1].expandtabs()))
    try:
        tree = ast.parse(textwrap.dedent(body))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise InputError.of(source, f"not Python: {error}", line=None if line is None else first_line + line) from None
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "forward"]
    if len(functions) != 1:
        hint = "graphs inside graphs (control flow) are not supported" if functions else ""
        raise InputError.of(source, f"there are {len(functions)} methods forward in it, expected one", hint)
    try:
        return _Reader(source, first_line, dict(given)).program(functions[0])
    except RecursionError:
        raise InputError.of(source, "an expression in it has too many parts inside each other") from None


def _indented(text: str, margin: int) -> str:
    """The lines of the class that ``text`` begins with: those before the next line indented by ``margin`` or less."""
    lines = text.splitlines()
    for k, line in enumerate(lines[1:], start=1):
        if line.strip() and len(line.expandtabs()) - len(line.expandtabs().lstrip()) <= margin:
            return "\n".join(lines[:k])
    return "\n".join(lines)


class _Reader:
    """Makes a program of the syntax tree of ``forward``."""

    def __init__(self, source: str, first_line: int, given: dict[str, int]) -> None:
        self._source = source
        self._first_line = first_line
        self._sizes = Sizes(given)
        self._types: dict[str, TensorType] = {}
        self._numbers: dict[str, int | None] = {}
        self._tuples: dict[str, dict[int, tuple[str, TensorType]]] = {}
        self._aliases: dict[str, str] = {}
        self._inputs: list[Input] = []
        self._calls: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = []
        self._made: dict[str, tuple[str, TensorType]] = {}
        self._outputs: list[str] = []

    def program(self, function: ast.FunctionDef) -> Program:
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        for argument in arguments:
            if argument.annotation is not None:
                self._input(argument.arg, argument.annotation, argument)
        for statement in function.body:
            self._statement(statement)
        dimensions = self._sizes.check(self._source)
        calls = tuple(
            Call(name, target, positional, named, self._results(name))
            for name, target, positional, named in self._calls
        )
        calls = tuple(call for call in calls if any(call.outputs))
        outputs = tuple((name, "output") for name in dict.fromkeys(self._outputs))
        return Program(tuple(self._inputs), calls, outputs, {"format": "fx", "dimensions": dimensions})

    def _results(self, name: str) -> tuple[tuple[str, TensorType] | None, ...]:
        if name in self._made:
            return (self._made[name],)
        items = self._tuples.get(name, {})
        return tuple(items.get(k) for k in range(max(items, default=-1) + 1))

    def _statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if statement.value is None:
                self._input(statement.target.id, statement.annotation, statement)
            else:
                self._assigned(
                    statement.target.id, self._type(statement.annotation, statement.target.id), statement.value
                )
        elif isinstance(statement, ast.Assign):
            self._plain(statement)
        elif isinstance(statement, ast.Return) and statement.value is not None:
            names = (node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name))
            self._outputs += [name for name in names if name in self._types]
        elif not isinstance(statement, ast.Pass | ast.Delete | ast.Assert):
            self._expression(statement)

    def _plain(self, statement: ast.Assign) -> None:
        """An assignment without a type: of a tuple, of a number, or of None to variables that are no longer read."""
        value = statement.value
        if isinstance(value, ast.Constant) and value.value is None:
            return
        (target,) = statement.targets if len(statement.targets) == 1 else (None,)
        if isinstance(target, ast.Name):
            self._assigned(target.id, None, value)
        elif not (isinstance(target, ast.Tuple) and "tree_flatten_spec" in ast.unparse(value)):
            raise self._wrong(statement, f"{ast.unparse(statement)[:80]} is not understood")

    def _assigned(self, name: str, kind: TensorType | None, value: ast.expr) -> None:
        if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and value.value.id in self._tuples:
            item = value.slice.value if isinstance(value.slice, ast.Constant) else None
            if type(item) is not int or not 0 <= item < _MOST_RESULTS:
                raise self._wrong(value, f"{ast.unparse(value)[:80]} is not a result of {quote(value.value.id)}")
            if kind is not None:
                self._types[name] = kind
                self._tuples[value.value.id][item] = (name, kind)
        elif isinstance(value, ast.Attribute) and ast.unparse(value).startswith("self."):
            if kind is None:
                raise self._wrong(value, f"{quote(name)} has no type")
            self._types[name] = kind
            self._inputs.append(Input(name, "constant", kind))
        elif isinstance(value, ast.Call) and ast.unparse(value.func).startswith("torch.ops."):
            self._call(name, kind, value)
        elif kind is not None:
            hint = "dump the graph of ATen operators: TORCH_LOGS=aot_graphs, or torch.export"
            raise self._wrong(value, f"{ast.unparse(value)[:80]} calls no ATen operator", hint)
        else:
            self._numbers[name] = None

    def _call(self, name: str, kind: TensorType | None, value: ast.Call) -> None:
        target = ast.unparse(value.func).removeprefix("torch.ops.")
        if target.startswith("higher_order."):
            raise self._wrong(value, f"{target} holds a graph of its own, and how often that runs is not known")
        positional = tuple(self._argument(argument) for argument in value.args)
        named = {word.arg: self._argument(word.value) for word in value.keywords if word.arg is not None}
        self._calls.append((name, target, positional, named))
        if kind is not None:
            self._types[name] = kind
            self._made[name] = (name, kind)
        else:
            self._tuples[name] = {}

    def _argument(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return Ref(node.id) if node.id in self._types else None
        if isinstance(node, ast.List | ast.Tuple):
            return [self._argument(item) for item in node.elts]
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            return None  # a type, a device, arithmetic on sizes: no rule needs it

    def _expression(self, statement: ast.stmt) -> None:
        """A call whose result is not assigned: a check, or a write into memory."""
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant):  # a docstring
            return
        if not isinstance(value, ast.Call) or not ast.unparse(value.func).startswith("torch.ops."):
            raise self._wrong(statement, f"{ast.unparse(statement)[:80]} is not understood")

    def _input(self, name: str, annotation: ast.expr, node: ast.AST) -> None:
        text = annotation.value if isinstance(annotation, ast.Constant) else None
        match = _TYPE.fullmatch(text) if isinstance(text, str) else None
        if match is not None:
            for axis, size in enumerate(_split(match[2])):
                if not size.isdigit():
                    self._sizes.name_axis(name, axis, size)
        kind = self._type(annotation, name)
        if kind is None:
            return
        self._types[name] = kind
        self._inputs.append(Input(name, _kind_of(name), kind))

    def _type(self, annotation: ast.expr, name: str) -> TensorType | None:
        """The type that an annotation states; None if it is not the type of a tensor."""
        text = annotation.value if isinstance(annotation, ast.Constant) else ast.unparse(annotation)
        match = _TYPE.fullmatch(str(text))
        if match is None:
            if _NUMBERS.fullmatch(str(text)):
                return None
            raise self._wrong(annotation, f"the type of {quote(name)} is {quote(text)}, which is not understood")
        if match[1] not in _SIZED:
            raise self._wrong(annotation, f"the type of {quote(name)} has elements of an unknown size: {match[1]}")
        shape = tuple(self._sizes.value(size) for size in _split(match[2]))
        stride = None if match[3] is None else tuple(self._sizes.value(size) for size in _split(match[3]))
        try:
            return TensorType(_SIZED[match[1]], match[1][0] in "fbc" and match[1] != "b8", shape, stride)
        except ValueError as error:
            raise self._wrong(annotation, f"the type of {quote(name)} is {quote(text)}: {error}") from None

    def _wrong(self, node: ast.AST, message: str, hint: str = "") -> InputError:
        return InputError.of(self._source, message, hint, line=self._first_line + getattr(node, "lineno", 1))


def _split(sizes: str) -> list[str]:
    """Sizes between commas; those inside parentheses belong to one size."""
    parts, depth = [""], 0
    for c in sizes:
        depth += {"(": 1, ")": -1}.get(c, 0)
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def _kind_of(name: str) -> str:
    """The kind of a placeholder, by the prefix that PyTorch gives its name."""
    for prefix, kind in (("tangents_", "tangent"), ("p_", "parameter"), ("b_", "buffer"), ("c_", "constant")):
        if name.startswith(prefix):
            return kind
    return "input"
