"""Sizes that are symbols: which dimensions of inputs vary, what a captured size is in them, and for which it holds."""

from typing import Any

from remat_cli.frontends.torch.types import GraphModule, Tensor


def let_vary(tensor: Tensor, dimension: int) -> None:
    """Make ``torch.compile`` capture a dimension of an input as a symbol; a size that it cannot keep open fails.

    One capture then gives the sizes of a step as functions of what varies.
    """
    import torch

    torch._dynamo.mark_dynamic(tensor, dimension)


def expression(number: Any) -> Any:
    """A size as an expression of sympy."""
    import sympy
    import torch

    return number.node.expr if isinstance(number, torch.SymInt) else sympy.sympify(number)


def conditions(joint: GraphModule) -> tuple[dict[Any, int], list[Any], dict[Any, tuple[int, int | None]]]:
    """What the symbols of a joint graph stand for, and the sizes for which PyTorch uses this graph.

    Returns:
        The number that each symbol stood for in the capture; expressions that have to be true; and the least and the
        largest number of each symbol, None for no limit.
    """
    import torch

    given = [node.meta["val"] for node in joint.graph.find_nodes(op="placeholder")]
    found = [number.node.shape_env for number in given if isinstance(number, torch.SymInt)]
    environments = {id(environment): environment for environment in found}
    numbers: dict[Any, int] = {}
    guards: list[Any] = []
    ranges: dict[Any, tuple[int, int | None]] = {}
    for environment in environments.values():
        numbers |= {symbol: int(number) for symbol, number in environment.backed_var_to_val.items()}
        guards += [guard.expr for guard in environment.guards]
        for symbol, limits in environment.var_to_range.items():
            ranges[symbol] = (int(limits.lower), int(limits.upper) if limits.upper.is_Integer else None)
    return numbers, guards, ranges
