"""Hugging Face Trainer: the same losses, evaluations and checkpoints as without remat, bit for bit."""

from pathlib import Path

import pytest
import torch
import transformers
from trainable import FAST, bert, llama, same_state, sentences, step_bytes

from remat_cli import fit, fitted, plans_of
from remat_cli.errors import Infeasible, UsageError
from remat_cli.integrations.transformers import RematCallback


def arguments(folder, **options):
    return transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )


def trained(model, folder, prepare=None, callbacks=(), data=None, collate=None, **options):
    """What a Trainer with defaults logs; the newest checkpoint."""
    data = sentences() if data is None else data
    if prepare is not None:
        prepare(model)
    torch.manual_seed(5)
    trainer = transformers.Trainer(
        model=model,
        args=arguments(folder, **options),
        train_dataset=data,
        eval_dataset=data[:6],
        data_collator=collate,
        callbacks=list(callbacks),
    )
    trainer.train()
    numbers = ("loss", "grad_norm", "eval_loss")
    log = [{name: entry[name] for name in numbers if name in entry} for entry in trainer.state.log_history]
    return log, max(Path(folder).iterdir(), key=lambda path: int(path.name.split("-")[-1]))


def aot(model):
    model.compile(backend="aot_eager", dynamic=False)


OPTIONS = {
    "defaults": {},
    "accumulation": {"gradient_accumulation_steps": 3},
    "checkpointing": {"gradient_checkpointing": True},
    "sgd": {"optim": "sgd", "max_grad_norm": 0.1},
    "schedule": {"lr_scheduler_type": "cosine", "warmup_steps": 2, "weight_decay": 0.1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_callback_trains_as_eager_does(tmp_path, name):
    eager, planned = bert(), bert()
    wanted, _ = trained(eager, tmp_path / "eager", **OPTIONS[name])
    callback = RematCallback("90%", cache="", unknown="error", options=FAST)
    log, checkpoint = trained(planned, tmp_path / "planned", callbacks=[callback], **OPTIONS[name])
    assert log == wanted
    assert sum("eval_loss" in entry for entry in log) == 2
    same_state(planned, eager)
    same_state(transformers.BertForSequenceClassification.from_pretrained(checkpoint), eager)
    assert len(plans_of(planned)) <= 2  # one more if the first step shows that other results are let go


def test_a_fitted_model_trains_with_defaults(tmp_path):
    eager, planned = bert(), bert()
    batch = transformers.default_data_collator(sentences(4))
    wanted, _ = trained(eager, tmp_path / "eager")
    log, _ = trained(
        planned, tmp_path / "planned", lambda m: fit(m, batch, "90%", cache="", options=FAST, unknown="error")
    )
    assert log == wanted
    same_state(planned, eager)
    assert len(plans_of(planned)) <= 2  # one more if the first step shows that other results are let go


def test_mixed_precision_is_that_of_compiled_autocast(tmp_path):
    """Under autocast AOTAutograd rounds in other places than eager does, with or without a plan."""
    compiled, planned = bert(), bert()
    wanted, _ = trained(compiled, tmp_path / "compiled", aot, bf16=True)
    callback = RematCallback("90%", cache="", unknown="error", options=FAST)
    log, _ = trained(planned, tmp_path / "planned", callbacks=[callback], bf16=True)
    assert [e for e in log if "eval_loss" not in e] == [e for e in wanted if "eval_loss" not in e]
    same_state(planned, compiled)
    assert len(plans_of(planned)) <= 2  # one more if the first step shows that other results are let go


def test_language_models_and_their_methods(tmp_path):
    data = [{"input_ids": s["input_ids"], "labels": s["input_ids"]} for s in sentences()]
    eager, planned = llama(), llama()
    wanted, _ = trained(eager, tmp_path / "eager", data=data)
    callback = RematCallback("95%", cache="", unknown="error", options=FAST)
    log, _ = trained(planned, tmp_path / "planned", callbacks=[callback], data=data)
    assert log == wanted
    assert len(plans_of(planned)) <= 2  # one more if the first step shows that other results are let go
    prompt = torch.arange(5, 12)[None]
    generated = [m.eval().generate(prompt, max_new_tokens=40, do_sample=False) for m in (eager, planned)]
    assert torch.equal(*generated)
    planned.save_pretrained(tmp_path / "saved")
    same_state(transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved"), eager)


def test_a_loss_with_smoothed_labels_is_counted(tmp_path):
    """It is the trainer's own, of logits that are larger than all that the model makes before them."""
    data = [{"input_ids": s["input_ids"], "labels": s["input_ids"]} for s in sentences()]
    options = {"label_smoothing_factor": 0.1, "optim": "sgd"}
    eager, planned = llama(vocabulary=3000), llama(vocabulary=3000)
    wanted, _ = trained(eager, tmp_path / "eager", data=data, **options)
    ids = torch.stack([s["input_ids"] for s in data[:4]])
    smoother = transformers.trainer_pt_utils.LabelSmoother(0.1)

    def step(model):
        return lambda: smoother(model(input_ids=ids), ids, shift_labels=True).backward()

    needed = step_bytes(step(eager), eager.train(), [ids])
    callback = RematCallback(int(0.95 * needed), cache="", unknown="error", options=FAST, cost="measured")
    log, _ = trained(planned, tmp_path / "planned", callbacks=[callback], data=data, **options)
    assert log == wanted
    same_state(planned, eager)
    report = fitted(planned)
    assert "is not counted" not in report.assumed
    assert report.keep_all_bytes == pytest.approx(needed, rel=0.02)  # a mask that is an input is not read
    assert step_bytes(step(planned), planned.train(), [ids]) <= 1.01 * report.budget_bytes


def test_smoothed_labels_with_buckets_train_as_eager_does(tmp_path):
    """Plans for several lengths count a usual loss."""
    eager, planned = bert(), bert()
    wanted, _ = trained(eager, tmp_path / "eager", label_smoothing_factor=0.1)
    callback = RematCallback("95%", cache="", options=FAST, buckets=[32])
    log, _ = trained(planned, tmp_path / "planned", callbacks=[callback], label_smoothing_factor=0.1)
    assert log == wanted
    assert "assumes that the loss takes 96 B at most" in fitted(planned).assumed


def test_a_trainer_may_go_on_from_a_checkpoint(tmp_path):
    eager, planned = bert(), bert()
    wanted, _ = trained(eager, tmp_path / "eager")
    log, _ = trained(planned, tmp_path / "planned", callbacks=[RematCallback("90%", cache="", options=FAST)])
    assert log == wanted
    first = min((tmp_path / "planned").iterdir(), key=lambda path: int(path.name.split("-")[-1]))
    again = bert(seed=7)
    trainer = transformers.Trainer(
        model=again,
        args=arguments(tmp_path / "again"),
        train_dataset=sentences(),
        eval_dataset=sentences()[:6],
        callbacks=[RematCallback("90%", cache="", options=FAST)],
    )
    trainer.train(resume_from_checkpoint=str(first))
    same_state(again, eager)


def test_what_does_not_fit_or_work_is_said(tmp_path):
    with pytest.raises(Infeasible, match="no plan fits a budget of 100 kB"):
        trained(bert(), tmp_path / "small", callbacks=[RematCallback("100kB", cache="", options=FAST)])
    with pytest.raises(UsageError, match="RematCallback does not work with torch_compile=True"):
        trained(bert(), tmp_path / "compiled", callbacks=[RematCallback("1GB")], torch_compile=True)
