"""Attention of a CUDA device draws random numbers if it drops some; its operators say so in any case."""

import pytest
import torch

from remat_cli.frontends.torch.tensors import is_random


@pytest.mark.parametrize(
    ("arguments", "keywords", "random"),
    [
        ((None, True, 0.1), {}, True),
        ((None, True, 0.0), {}, False),
        ((None, True), {}, False),
        ((None, True), {"dropout_p": 0.1}, True),
    ],
)
def test_attention_is_random_where_it_drops_numbers(arguments, keywords, random):
    graph = torch.fx.Graph()
    tensor = graph.placeholder("q")
    operator = torch.ops.aten._scaled_dot_product_efficient_attention.default
    assert torch.Tag.nondeterministic_seeded in operator.tags
    assert is_random(graph.call_function(operator, (tensor, tensor, tensor, *arguments), keywords)) is random
