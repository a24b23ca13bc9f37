"""``remat fits`` on one of several ranks: models of Transformers, whose own plan says which matrices ranks share."""

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import remat_cli as remat
from remat_cli.graph.memory_parts import Part
from remat_cli.graph.model import NodeQueue
from remat_cli.plan.derive import derive
from remat_cli.plan.replay import replay
from remat_cli.planning.fits import WITHOUT

sys.path.insert(0, str(Path(__file__).parent.parent / "frontends"))
from torch_processes import least_peak, together

WIDTH, VOCABULARY, LAYERS = 64, 1000, 3
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "intermediate_size": 172,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "dtype": "float32",
}
MIXTRAL = LLAMA | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 2}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4, "n_layer": 2}
NORMS = 4 * WIDTH * (2 * LAYERS + 1)


@pytest.fixture
def ranked(tmp_path):
    """``ranked(LLAMA, tp=2)`` asks whether a model fits that is divided over eight ranks."""

    def asked(configuration, **options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(configuration))
        given = {"batch": 2, "length": 64, "context": 0, "ranks": 8} | options
        return remat.fits(f"hf:{path}", "h100", options=remat.SolveOptions(time_limit_s=1, threads=1), **given)

    return asked


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{k: v for k, v in LLAMA.items() if k not in {"model_type", "architectures"}})
    config.use_cache = False
    return transformers.LlamaForCausalLM(config).train()


def test_ranks_that_share_matrices_have_their_part_of_them(ranked):
    whole = sum(parameter.nbytes for parameter in llama().parameters())
    assert ranked(LLAMA, shard="none").fits.need.fixed["parameters"] == whole
    assert ranked(LLAMA, shard="none", tp=2).fits.need.fixed["parameters"] == (whole - NORMS) // 2 + NORMS
    both = ranked(LLAMA, tp=2)
    heads = [(32, WIDTH), (16, WIDTH), (16, WIDTH), (WIDTH, 32)]
    inside = [(86, WIDTH), (86, WIDTH), (WIDTH, 86)]
    rest = [(VOCABULARY // 2, WIDTH)] * 2 + [(WIDTH, 1)] * (2 * LAYERS + 1)
    padded = sum(4 * -(-rows // 4) * columns for rows, columns in (heads + inside) * LAYERS + rest)
    assert both.fits.need.fixed["parameters"] == padded
    assert both.facts().ranks.words.endswith("2 share matrices) at 450 GB/s (fsdp), 450 GB/s (tp)")
    assert any("run one after another" in sentence for sentence in both.assumptions)
    assert both.fits.choice(WITHOUT).parts[Part.GATHERED.value] > 0


def run_shared(rank):
    """Most bytes of a step of a model that two processes share, by the plan as its configuration states it."""
    module, mesh = llama(), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    layer = {
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        **{f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")},
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    for block in module.model.layers:
        parallelize_module(block, mesh, layer)
    outside = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(module, mesh, outside)
    tokens = torch.randint(0, VOCABULARY, (2, 64))

    def step():
        module(input_ids=tokens, labels=tokens).loss.backward()

    step(), step()
    return least_peak(step, module.zero_grad)


def test_processes_that_share_matrices_take_what_is_predicted(ranked):
    graph = ranked(LLAMA, ranks=2, tp=2, shard="none").fits.need.graph
    assert {node.op for node in graph.nodes if node.queue is NodeQueue.COMMUNICATION} >= {"all_reduce"}
    predicted = replay(graph, derive(graph, range(len(graph.nodes)))).peak_bytes - graph.fixed_memory
    for measured in together(run_shared):
        assert measured == pytest.approx(predicted, rel=0.01)


def test_layers_are_captured_once(ranked):
    deep = LLAMA | {"num_hidden_layers": 20}
    answer = ranked(deep)
    assert any(sentence.startswith("the graph of 20 blocks follows from") for sentence in answer.assumptions)
    gathers = [node for node in answer.fits.need.graph.nodes if node.op == "all_gather_into_tensor"]
    assert len(gathers) == 20 * 9 + 3


@pytest.mark.parametrize(
    ("configuration", "options", "message"),
    [
        (LLAMA, {"tp": 4}, r"4 ranks cannot share 2 heads \(num_key_value_heads\)"),
        (GPT2, {"tp": 2}, "GPT2LMHeadModel has no plan for ranks that share matrices"),
        (MIXTRAL, {"tp": 2}, "experts.*which is not planned: a router decides which expert takes which tokens"),
    ],
)
def test_what_ranks_cannot_share_is_refused(ranked, configuration, options, message):
    with pytest.raises(remat.UsageError, match=message) as caught:
        ranked(configuration, **options)
    assert caught.value.hint
