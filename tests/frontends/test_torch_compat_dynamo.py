"""TorchDynamo, as ``compat/dynamo.py`` says they are."""

import copy
import logging
import pickle
from pathlib import Path

import pytest
import torch

from remat_cli.frontends.torch.compat import (
    dynamo,
)


def logging_graphs(logger, messages):
    """The number of graphs of a function that logs in its middle, and the messages."""
    graphs = []

    def step(x):
        y = x.sin()
        logger.warning("the shape is %s", y.shape)
        return y * 2

    def backend(graph_module, inputs):
        graphs.append(dynamo.break_of(graph_module))
        return graph_module.forward

    torch.compiler.reset()
    assert torch.equal(torch.compile(step, backend=backend)(torch.ones(3)), torch.ones(3).sin() * 2)
    torch.compiler.reset()
    return graphs, len(messages)


def test_logging_is_left_out_of_graphs(monkeypatch):
    """And a graph that ends early says why, with the place."""
    logger, messages = logging.Logger("x"), []
    monkeypatch.setattr(logger, "handle", messages.append)
    with torch._dynamo.config.patch(ignore_logging_functions=set()):
        [first, last], said = logging_graphs(logger, messages)
        assert said == 1
        assert last is None
        text, frames = first
        assert text.startswith("logging.Logger method not supported")
        assert "\n" in text
        assert [Path(file).name for file, _, _ in frames] == [Path(__file__).name]
        assert frames[0][2] == "step"
        with dynamo.without_logging():
            assert logging_graphs(logger, messages) == ([None], 1)
        assert torch._dynamo.config.ignore_logging_functions == set()
        end = dynamo.leave_out_logging()
        assert logging_graphs(logger, messages) == ([None], 1)
        left_out = torch._dynamo.config.ignore_logging_functions
        assert logging.Logger.warning in left_out
        assert not {logging.Logger.isEnabledFor, logging.Logger.getEffectiveLevel, logging.Logger.getChild} & left_out
        end()
        assert torch._dynamo.config.ignore_logging_functions == set()


def test_metrics_that_cannot_hold_functions_are_not_told_of():
    """As PyTorch 2.11 does for its log; other errors of its metrics are told."""
    log, told = logging.getLogger("torch._dynamo.metrics_context"), []
    filters = list(log.filters)  # those of modules that other tests have fitted
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.exc_info[0])
    log.addHandler(handler)
    try:
        with dynamo.without_logging():
            for kind in (TypeError, ValueError):
                try:
                    raise kind
                except kind:
                    log.exception("not logged")
    finally:
        log.removeHandler(handler)
    assert told == [ValueError]
    assert log.filters == filters


def test_a_module_may_have_another_call():
    module = torch.nn.Linear(2, 2)
    assert dynamo.call_of(module) is None
    dynamo.set_call(module, lambda x, bias=0: (dynamo.plain_call(module)(x), bias))
    x = torch.ones(1, 2)
    out, bias = module(x, bias=3)
    assert torch.equal(out, torch.nn.functional.linear(x, module.weight, module.bias))
    assert bias == 3
    assert dynamo.call_of(copy.deepcopy(module)) is None
    assert dynamo.call_of(pickle.loads(pickle.dumps(module))) is None
    dynamo.set_call(module, None)
    assert dynamo.call_of(module) is None
    assert torch.equal(module(x), out)
    module.compile(backend="eager")
    assert dynamo.call_of(module) is not None
    assert not dynamo.is_compiled(module)
    assert dynamo.is_compiled(torch.compile(module, backend="eager"))


def _twice(x):
    return 2 * x


def test_compilations_are_counted_by_code_object(fresh_compiler):
    """One that has a code object of its own may still be compiled when the other may not."""
    seen = []

    def backend(graph_module, inputs):
        seen.append(inputs)
        return graph_module.forward

    assert dynamo.recompile_limit() == 8
    one, other = (
        torch.compile(dynamo.own_code(_twice), backend=backend, dynamic=False, fullgraph=True) for _ in range(2)
    )
    for length in range(1, 9):
        one(torch.ones(length))
    with pytest.raises(Exception, match="fullgraph=True"):
        one(torch.ones(9))
    assert len(seen) == 8
    other(torch.ones(1))
    with dynamo.undistributed(12):
        assert dynamo.recompile_limit() == 12
        assert torch._dynamo.config.optimize_ddp is False
        for length in range(2, 13):
            other(torch.ones(length))
    assert len(seen) == 8 + 12


def test_a_function_that_is_not_traced_still_compiles(fresh_compiler):
    seen = []

    def named(name):
        return lambda graph_module, inputs: seen.append(name) or graph_module.forward

    compiled = torch.compile(dynamo.own_code(_twice), backend=named("inner"))
    inner = dynamo.not_traced(lambda x: compiled(x))
    around = torch.compile(lambda x: inner(x + 1) - 1, backend=named("outer"))
    assert torch.equal(around(torch.ones(2)), torch.full((2,), 3.0))
    assert sorted(seen) == ["inner", "outer", "outer"]
