"""Sizes that vary, as ``compat/symbols.py`` says they are."""

import torch

from remat_cli.frontends.torch.compat import (
    aot_autograd,
    symbols,
)


def test_dimensions_that_vary_are_symbols_with_conditions():
    seen = {}

    def backend(module, inputs):
        def partition(joint, joint_inputs, *, num_fwd_outputs, **options):
            seen["joint"] = joint
            return aot_autograd.default_split(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)

        return aot_autograd.aot(module, inputs, compiler=aot_autograd.as_given, partition=partition)

    x = torch.ones(5, 7, requires_grad=True)
    symbols.let_vary(x, 0)
    torch.compile(lambda x: (x * (1 if x.shape[0] > 3 else 2)).sum(), backend=backend, fullgraph=True)(x)
    numbers, guards, limits = symbols.conditions(seen["joint"])
    [(symbol, number)] = [(symbol, number) for symbol, number in numbers.items() if number == 5]
    assert number == 5
    assert limits[symbol][0] >= 2 or any(guard.subs({symbol: 3}) == False for guard in guards)  # noqa: E712 - sympy's
    assert all(guard.subs({symbol: 9}) == True for guard in guards)  # noqa: E712 - as above
    sizes = {
        symbols.expression(t.meta["val"].numel())
        for t in seen["joint"].graph.nodes
        if hasattr(t.meta.get("val"), "numel")
    }
    assert 7 * symbol in sizes
    assert symbols.expression(3) == 3
