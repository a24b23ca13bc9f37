"""Settings of Transformers as remat policy prints them: the layers obey, also under a Trainer, and the peak is kept."""

import pytest
import torch
import transformers
from trainable import bert, llama, sentences, step_bytes

from remat_cli.api import SolveOptions, policy
from remat_cli.errors import Infeasible
from remat_cli.frontends.torch.export import export_model

FAST = SolveOptions(time_limit_s=10)


def deep(make):
    """A model of 6 layers, and a batch whose activations are larger than the parameters."""
    small = make()
    small.config.update({"num_hidden_layers": 6, "use_cache": False})
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        setattr(small.config, name, 0.0)
    torch.manual_seed(2)
    model = type(small)(small.config).train()
    batch = transformers.default_data_collator(sentences(32))
    return model, {**batch, "labels": batch["input_ids"]} if make is llama else batch


@pytest.mark.parametrize(("make", "budget"), [(bert, "80%"), (llama, "85%"), (llama, "65%")])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_the_snippet_keeps_the_budget(make, budget):
    (model, batch), (plain, _) = deep(make), deep(make)
    graph = export_model(lambda: deep(make), name="deep", source="torch:deep", cost="flops")
    found = policy(graph, budget, "hf-every-n", FAST)
    [n] = found.settings
    exec(found.snippet, {"model": model})
    chosen = [layer.gradient_checkpointing for layer in layers(model)]
    assert chosen == [number % int(n) == 0 for number in range(6)]

    def step(net):
        return lambda: net(**batch).loss.backward()

    predicted = found.solved.report.replay.peak_bytes
    measured = step_bytes(step(model), model, batch.values())
    assert measured <= predicted
    assert measured == pytest.approx(predicted, rel=0.08)  # a mask that is an input is not read when it is traced
    assert measured < step_bytes(step(plain), plain, batch.values())
    step(model)()
    step(plain)()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is other.grad is None or torch.equal(one.grad, other.grad)


def layers(model):
    return [part for part in model.modules() if type(part).__name__ in {"BertLayer", "LlamaDecoderLayer"}]


def test_a_trainer_leaves_the_layers_as_the_snippet_set_them(tmp_path):
    model, _ = deep(llama)
    graph = export_model(lambda: deep(llama), name="deep", source="torch:deep", cost="flops")
    found = policy(graph, "80%", "hf-every-n", FAST)
    exec(found.snippet, {"model": model})
    before = [layer.gradient_checkpointing for layer in layers(model)]
    data = [{"input_ids": s["input_ids"], "labels": s["input_ids"]} for s in sentences()]
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], max_steps=1)
    transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
    assert [layer.gradient_checkpointing for layer in layers(model)] == before
    assert True in before
    assert False in before


def test_a_budget_below_that_of_all_layers_is_refused():
    graph = export_model(lambda: deep(llama), name="deep", source="torch:deep", cost="flops")
    with pytest.raises(Infeasible, match="no schedule that recomputes every n-th layer as a whole fits"):
        policy(graph, "25%", "hf-every-n", FAST)
