"""Masks of Transformers, as ``compat/masks.py`` says they are."""

import sys
import types

import pytest
import torch
import torch._dynamo.testing

from remat_cli.frontends.torch.compat import (
    fake_tensors,
    masks,
)


def test_positions_without_numbers_are_consecutive_where_that_is_said():
    decided = masks.none_by_numbers(lambda tensor: tensor)
    with fake_tensors.new_fake_mode():
        positions = torch.arange(4)
    assert decided(positions) is positions
    with masks.consecutive_positions():
        assert decided(positions) is None
        assert decided(torch.arange(4)).tolist() == [0, 1, 2, 3]
    assert decided(positions) is positions


def packed(positions):
    """As Transformers finds sequences behind another: a mask, or None where numbers can be read and there is one."""
    mask = (torch.diff(positions, dim=-1) != 1).cumsum(-1)
    return None if not torch.compiler.is_compiling() and (mask == 0).all() else mask


def made(tokens):
    return (torch.arange(tokens.shape[1]) + 3).unsqueeze(0).expand(2, -1)


def apart(_):
    return torch.arange(0, 8, 2).unsqueeze(0)


def in_two(tokens):
    return torch.arange(tokens.shape[1]).view(2, -1).to(torch.int64)


@pytest.mark.parametrize(
    ("positions", "masked"),
    [(made, False), (in_two, False), (apart, True), (lambda t: made(t) * 1, True), (lambda t: t + made(t), True)],
    ids=["one", "two", "apart", "other_functions", "of_an_input"],
)
def test_masks_are_those_of_eager_mode_unless_they_depend_on_the_input(positions, masked, monkeypatch):
    library = types.ModuleType("transformers.masking_utils")
    library.find_packed_sequence_indices = packed
    monkeypatch.setitem(sys.modules, library.__name__, library)

    def step(tokens):
        found = library.find_packed_sequence_indices(positions(tokens))
        return tokens if found is None else tokens + 0 * found.sum()

    def operations():
        torch.compiler.reset()
        recorder = torch._dynamo.testing.EagerAndRecordGraphs()
        tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]])
        result = torch.compile(step, backend=recorder, fullgraph=True)(tokens)
        assert torch.equal(result, step(tokens))
        return {getattr(node.target, "__name__", node.target) for node in recorder.graphs[0].graph.nodes}

    assert "cumsum" in operations()
    with masks.with_eager_masks():
        assert ("cumsum" in operations()) is masked
        assert torch.equal(library.find_packed_sequence_indices(torch.tensor([[0, 1, 0]])), torch.tensor([[0, 1]]))
        with masks.with_eager_masks():  # inside of another, as when a fitted model is exported
            pass
        assert library.find_packed_sequence_indices is not packed
    assert library.find_packed_sequence_indices is packed
    end = masks.eager_masks()
    end()
    assert library.find_packed_sequence_indices is packed


def test_without_padding_compiled_code_makes_the_mask_of_eager_mode(monkeypatch):
    """As older versions of Transformers decide, which make another mask whenever code is compiled."""

    def is_tracing(tensor=None):
        return torch.compiler.is_compiling()

    library = types.SimpleNamespace(find_packed_sequence_indices=packed, is_tracing=is_tracing)
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", library)

    def step(x, padding=None):
        return x + (1 if library.is_tracing(padding) else 2)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    with masks.with_eager_masks():
        assert int(compiled(torch.tensor(0))) == 2
        assert int(compiled(torch.tensor(0), torch.tensor(1))) == 1
    torch.compiler.reset()
    assert int(compiled(torch.tensor(0))) == 1
    assert library.is_tracing is is_tracing


def test_numbers_in_the_code_are_known():
    def step(tokens):
        return tokens + made(tokens)

    recorder = torch._dynamo.testing.EagerAndRecordGraphs()
    torch.compile(step, backend=recorder)(torch.zeros(2, 4))
    *_, sum_of_both, _ = recorder.graphs[0].graph.nodes
    assert masks.numbers_of(sum_of_both.all_input_nodes[1]).tolist() == [[3, 4, 5, 6]] * 2
    assert masks.numbers_of(sum_of_both) is None
    assert masks.none_by_numbers(packed)(torch.tensor([[0, 1]])) is None
    with torch.compiler.set_stance("default"), masks.not_compiling():
        assert not torch.compiler.is_compiling()
