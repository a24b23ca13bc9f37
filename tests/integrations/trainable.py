"""Small models of transformers with random weights, and sentences for them."""

import os
from itertools import accumulate

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

from remat_cli.api import SolveOptions

FAST = SolveOptions(strategy="dtr", time_limit_s=10)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def bert(seed=0):
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    return transformers.BertForSequenceClassification(config)


def llama(seed=0, vocabulary=300):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=128,
    )
    return transformers.LlamaForCausalLM(config)


def sentences(count=12, length=32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(5, 300, (length,), generator=generator),
            "attention_mask": torch.ones(length, dtype=torch.long),
            "labels": k % 2,
        }
        for k in range(count)
    ]


def same_state(one, other):
    first, second = one.state_dict(), other.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def step_bytes(step, model, tensors):
    """Most bytes in use in a step of ``model``, by the events of the profiler, with its parameters and ``tensors``."""
    step()
    model.zero_grad(set_to_none=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as session:
        step()
    model.zero_grad(set_to_none=True)
    events = enumerate(session.profiler.kineto_results.events())
    changes = sorted((event.start_ns(), k, event.nbytes()) for k, event in events if event.name() == "[memory]")
    fixed = {t.untyped_storage().data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers(), *tensors]}
    return sum(fixed.values()) + max(accumulate((size for _, _, size in changes), initial=0))
