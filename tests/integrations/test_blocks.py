"""Steps of Transformers whose blocks are captured once: the graph is that of the whole model, in everything."""

import json

import peft
import pytest
import torch
import transformers

from remat_cli.frontends.torch import blocks
from remat_cli.frontends.torch.export import export_model

SMALL = {"vocab_size": 300, "num_attention_heads": 4, "hidden_size": 64}
DECODER = SMALL | {"intermediate_size": 128, "num_key_value_heads": 2, "use_cache": False}
KINDS = ["sliding_attention", "full_attention"]


def llama(count):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER, num_hidden_layers=count))


def gpt2(count):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SMALL, num_hidden_layers=count, use_cache=False))


def bert(count):
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, num_hidden_layers=count))


def gemma(count):
    kinds = [KINDS[k % 2] for k in range(count)]
    return transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(
            **DECODER, num_hidden_layers=count, head_dim=16, sliding_window=8, layer_types=kinds
        )
    )


def gemma_otherwise(count):
    """Its layers have one class, and one of them is of another kind, which is decided where they are called."""
    model = gemma(count)
    model.config.layer_types[-2] = model.config.layer_types[-1]
    return model


def adapted(count):
    return peft.get_peft_model(llama(count), peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"]))


def step(make, count):
    def build():
        tokens = torch.randint(0, 300, (2, 24))
        return make(count).train(), {"input_ids": tokens, "labels": tokens.clone()}

    return build


def everything(graph):
    nodes = [
        [n.id, n.cost, n.inputs, n.outputs, n.workspace, n.recompute, n.offload, n.op, n.phase, n.payload, n.queue]
        for n in graph.nodes
    ]
    return json.dumps([nodes, graph.outputs, graph.fixed_memory, graph.cost_unit, graph.metadata])


@pytest.mark.parametrize("make", [llama, gpt2, bert, gemma, adapted])
def test_the_graph_of_few_blocks_is_that_of_the_whole_model(make, monkeypatch):
    monkeypatch.setattr(blocks, "LARGEST_SHARE", 2.0)
    exported = blocks.export_by_blocks(step(make, 10), "model", "x")
    graph, said = exported.graph, exported.few
    few = "4, 6 and 8" if make is gemma else "3, 4 and 5"
    assert said == f"the graph of 10 blocks follows from those of {few} of them"
    assert everything(graph) == everything(export_model(step(make, 10), "model", "x"))


def test_blocks_that_are_called_in_another_way_are_captured(monkeypatch):
    monkeypatch.setattr(blocks, "LARGEST_SHARE", 2.0)
    exported = blocks.export_by_blocks(step(gemma_otherwise, 10), "model", "x")
    graph, said = exported.graph, exported.few
    assert said == ""
    assert everything(graph) == everything(export_model(step(gemma_otherwise, 10), "model", "x"))
