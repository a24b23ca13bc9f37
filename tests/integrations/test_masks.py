"""Models of Transformers train as in eager mode, whose attention has a mask only where the numbers in the batch ask."""

import copy

import pytest
import torch
import transformers
from trainable import step_bytes

import remat_cli as remat
from remat_cli.frontends.torch.export import export_model

TOKENS = torch.randint(0, 300, (8, 96), generator=torch.Generator().manual_seed(3))
PADDED = torch.ones(8, 96, dtype=torch.long)
PADDED[2, 70:] = 0
SMALL = {"vocab_size": 300, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
DECODER = SMALL | {"intermediate_size": 128, "num_key_value_heads": 2, "use_cache": False}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NO_DROP = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**DECODER, sliding_window=32)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**SMALL, use_cache=False, **NO_DROP)),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, **NO_DROPOUT)),
}
EXTRA = {
    "none": {},
    "padded": {"attention_mask": PADDED},
    "packed": {"position_ids": (torch.arange(96) % 40).expand(8, -1).contiguous()},
}


def gradients(model, batch):
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


CASES = [(name, extra) for name in ("llama", "mistral") for extra in EXTRA] + [("gpt2", "none"), ("bert", "none")]


@pytest.mark.parametrize(("name", "extra"), CASES)
def test_peak_and_bits_are_those_of_eager_mode(name, extra):
    torch.manual_seed(0)
    model = MODELS[name]().train()
    batch = {"input_ids": TOKENS, "labels": TOKENS.clone(), **EXTRA[extra]}
    measured = step_bytes(lambda: model(**batch).loss.backward(), model, batch.values())
    graph = export_model(lambda: (copy.deepcopy(model), {k: t.clone() for k, t in batch.items()}), name, name)
    assert measured == pytest.approx(remat.solve(graph, None).report.replay.peak_bytes, rel=0.005)
    expected = gradients(model, batch)
    fitted = remat.fit(model, batch, "80%", options=remat.SolveOptions(strategy="dtr", time_limit_s=10))
    assert all(map(torch.equal, gradients(fitted, batch), expected))


def test_a_batch_that_needs_a_mask_gets_a_plan_of_its_own():
    """What was captured without a mask is not used for it."""
    torch.manual_seed(0)
    model = MODELS["llama"]().train()
    batch = {"input_ids": TOKENS, "labels": TOKENS.clone()}
    packed = batch | EXTRA["packed"]
    expected = gradients(model, packed)
    fitted = remat.fit(model, batch, "80%", options=remat.SolveOptions(strategy="dtr", time_limit_s=10))
    gradients(fitted, batch)
    assert all(map(torch.equal, gradients(fitted, packed), expected))
    assert len(remat.plans_of(model)) == 2
