"""Sizes that PyTorch writes as expressions of symbols: ``4*s77``, ``Mul(Integer(4), Symbol('s77'))``.

Expressions are parsed to Python's syntax tree and evaluated with exact fractions. No code of the file is run.
"""

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from remat_cli.errors import InputError, Problem, Worded
from remat_cli.frontends.aten.program import LARGEST_TENSOR
from remat_cli.graph.quoting import quote
from remat_cli.registry import suggestion

_MOST_BITS = 128
"""Larger numbers are not raised to a power, or a short text could stand for a number that fills all memory. Sizes and
products of two have fewer bits."""


def symbols(text: str) -> set[str]:
    """Names of the symbols in an expression.

    Raises:
        ValueError: If ``text`` is not an expression.
    """
    functions = set(_FUNCTIONS) | {"Integer", "Rational", "Symbol"}
    tree = _parse(text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - functions
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Symbol":
            names.add(_symbol(node))
    return names - {"True", "False"}


def evaluate(text: str, sizes: Mapping[str, int]) -> int:
    """The value of an expression; ``sizes`` are the values of its symbols.

    Raises:
        KeyError: If a symbol has no value.
        ValueError: If the expression cannot be evaluated, or its value is negative or not a whole number.
    """
    try:
        value = _value(_parse(text).body, sizes)
    except (RecursionError, TypeError) as error:  # TypeError: a function has too few or too many arguments
        raise ValueError(f"{quote(text)} cannot be computed") from error
    if value.denominator != 1 or not 0 <= value <= LARGEST_TENSOR:
        shown = value if _bits(value) < _MOST_BITS else "much"
        raise ValueError(f"{quote(text)} is {shown}, which is not a size")
    return int(value)


def _parse(text: str) -> ast.Expression:
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{quote(text)} is not an expression") from error


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.Name):
        return Fraction(sizes[node.id])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, sizes)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "Symbol":
            return Fraction(sizes[_symbol(node)])
        if node.func.id in _FUNCTIONS:
            return _FUNCTIONS[node.func.id](*(_value(argument, sizes) for argument in node.args))
    raise ValueError(f"{ast.unparse(node)[:80]} cannot be computed")


def _symbol(node: ast.Call) -> str:
    if not node.args or not isinstance(node.args[0], ast.Constant):
        raise ValueError(f"{ast.unparse(node)[:80]} names no symbol")
    return str(node.args[0].value)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > 16 or _bits(base) > _MOST_BITS:
        raise ValueError("such a power is not a size")
    return Fraction((base if exponent >= 0 else _not_zero(base)) ** int(exponent))


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _floor_divide(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(a // _not_zero(b))


def _modulo(a: Fraction, b: Fraction) -> Fraction:
    return a % _not_zero(b)


def _divide(a: Fraction, b: Fraction) -> Fraction:
    return a / _not_zero(b)


def _not_zero(value: Fraction) -> Fraction:
    if not value:
        raise ValueError("a division by zero")
    return value


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: _divide,
    ast.FloorDiv: _floor_divide,
    ast.Mod: _modulo,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "Add": lambda *terms: sum(terms, Fraction(0)),
    "Mul": lambda *factors: math.prod(factors, start=Fraction(1)),
    "Pow": _power,
    "Max": lambda *values: max(values),
    "Min": lambda *values: min(values),
    "Mod": _modulo,
    "PythonMod": _modulo,
    "FloorDiv": _floor_divide,
    "CleanDiv": _floor_divide,
    "CeilDiv": lambda a, b: Fraction(math.ceil(_divide(a, b))),
    "IntTrueDiv": _divide,
    "Integer": lambda a: a,
    "Rational": _divide,
    "floor": lambda a: Fraction(math.floor(a)),
    "FloorToInt": lambda a: Fraction(math.floor(a)),
    "ceiling": lambda a: Fraction(math.ceil(a)),
    "CeilToInt": lambda a: Fraction(math.ceil(a)),
    "TruncToInt": lambda a: Fraction(math.trunc(a)),
}


@dataclass(slots=True)
class Sizes:
    """Values of symbols.

    Attributes:
        given: Values from the user, by symbol or by ``INPUT:AXIS``.
        ranges: Least and largest value of the symbols that have limits.
        hints: Values of symbols when the graph was made.
        used: Values of the symbols that occur; None for those without a value.
        unread: Expressions that could not be evaluated, with the reason.
    """

    given: dict[str, int]
    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    used: dict[str, int | None] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def name_axis(self, tensor: str, axis: int, text: str) -> None:
        """Record that the size of an input's axis is ``text``, so that users may call it ``INPUT:AXIS``."""
        name = f"{tensor}:{axis}"
        try:
            found = symbols(text)
        except ValueError:
            return  # :meth:`value` reports it
        if name in self.given and found == {text_of_symbol(text)}:
            self.given.setdefault(next(iter(found)), self.given[name])
            self.used[name] = self.given[name]

    def value(self, text: str, hint: int | None = None) -> int:
        """The value of an expression; 1 if a symbol in it has no value, which :meth:`check` reports later."""
        try:
            found = symbols(text)
            for name in found:
                self.used[name] = self.given.get(name)
            if hint is not None and found == {text_of_symbol(text)}:
                self.hints.setdefault(next(iter(found)), hint)
            return evaluate(text, self.given)
        except KeyError:
            return 1
        except ValueError as error:
            self.unread[text] = str(error)
            return 1

    def check(self, source: str) -> dict[str, int]:
        """The values of the symbols that occur.

        Raises:
            InputError: If a symbol has no value or one out of its range, or if a name given by the user does not occur.
        """
        problems = [Problem(f"a size cannot be computed: {words}") for words in self.unread.values()]
        for name, value in self.used.items():
            low, high = self.ranges.get(name, (None, None))
            bounds = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
            if value is None:
                words = [f"{self.hints[name]} in the example"] if name in self.hints else []
                told = f" ({', '.join(words + bounds)})" if words or bounds else ""
                problems.append(
                    Problem(
                        f"{quote(name)} is a symbolic dimension{told}",
                        hint=Worded(f'say sizes={{"{name}": SIZE}}', f"say --dim {name}=SIZE"),
                    )
                )
            elif (low is not None and value < low) or (high is not None and value > high):
                problems.append(
                    Problem(f"the size {value} of {name} is no good: the model takes {' and '.join(bounds)}")
                )
        known = sorted(self.used)
        for name in self.given.keys() - self.used.keys():
            hint = suggestion(name, known) or f"known: {', '.join(known) or 'none'}"
            problems.append(Problem(f"there is no symbolic dimension {quote(name)}", hint=hint))
        if problems:
            raise InputError(source, problems)
        return {name: value for name, value in self.used.items() if value is not None}


def text_of_symbol(text: str) -> str:
    """The name of the symbol if an expression is a single symbol; otherwise the text itself."""
    found = symbols(text)
    alone = len(found) == 1 and (text.strip() in found or text.strip().startswith("Symbol("))
    return next(iter(found)) if alone else text
