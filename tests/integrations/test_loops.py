"""Accelerate, Lightning and PEFT: the same parameters after some steps as without remat, bit for bit."""

import copy

import accelerate
import lightning.pytorch as pl
import peft
import pytest
import torch
import transformers
from torch import nn
from trainable import FAST, bert, llama, same_state, sentences, step_bytes

from remat_cli import fit, fitted, plans_of
from remat_cli.errors import UsageError
from remat_cli.integrations.lightning import RematCallback
from remat_cli.integrations.trained import gradient_bytes, state_bytes

FITTED = {"budget": "90%", "cache": "", "options": FAST, "unknown": "error"}


def loader(size=4):
    return torch.utils.data.DataLoader(sentences(), batch_size=size, collate_fn=transformers.default_data_collator)


# Accelerate


def accelerated(model, prepare_first, fitted, precision="no"):
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision)
    if not prepare_first and fitted:
        fit(model, None, **FITTED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    model, optimizer, batches, scheduler = accelerator.prepare(model, optimizer, loader(), scheduler)
    if prepare_first and fitted:
        fit(model, None, **FITTED)
    torch.manual_seed(4)
    losses = []
    for _ in range(2):
        for batch in batches:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    losses.append(accelerator.clip_grad_norm_(model.parameters(), 0.5))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
    return losses, accelerator.unwrap_model(model)


@pytest.mark.parametrize("prepare_first", [True, False])
def test_accelerate(prepare_first):
    wanted, eager = accelerated(bert(), prepare_first, fitted=False)
    losses, planned = accelerated(bert(), prepare_first, fitted=True)
    assert all(torch.equal(a, b) for a, b in zip(losses, wanted, strict=True))
    same_state(planned, eager)
    assert len(plans_of(planned)) <= 2  # one more if the first step shows that other results are let go


@pytest.mark.parametrize("prepare_first", [True, False])
def test_accelerate_with_mixed_precision(prepare_first):
    compiled = bert()
    compiled.compile(backend="aot_eager", dynamic=False)
    wanted, compiled = accelerated(compiled, prepare_first, fitted=False, precision="bf16")
    losses, planned = accelerated(bert(), prepare_first, fitted=True, precision="bf16")
    assert all(torch.equal(a, b) for a, b in zip(losses, wanted, strict=True))
    same_state(planned, compiled)
    assert len(plans_of(planned)) <= 2  # one more if the first step shows that other results are let go


# Lightning


class Classifier(pl.LightningModule):
    def __init__(self, called):
        super().__init__()
        self.net, self.called = bert(), called

    def forward(self, **batch):
        return self.net(**batch).loss

    def training_step(self, batch, number):
        loss = self(**batch) if self.called == "self" else self.net(**batch).loss
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        self.log("eval_loss", self(**batch), prog_bar=False)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def lit(module, folder, callbacks=(), **options):
    torch.manual_seed(4)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
        default_root_dir=folder,
        callbacks=list(callbacks),
        **options,
    )
    trainer.fit(module, loader(), loader())
    return trainer


@pytest.mark.parametrize("called", ["self", "net"])
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}], ids=["defaults", "accumulation"])
def test_the_callback_of_lightning(tmp_path, called, options):
    eager, planned = Classifier(called), Classifier(called)
    wanted = lit(eager, tmp_path / "eager", **options)
    name = "" if called == "self" else "net"
    callback = RematCallback("90%", module=name, cache="", options=FAST, unknown="error")
    found = lit(planned, tmp_path / "planned", [callback], **options)
    same_state(planned, eager)
    assert found.callback_metrics["eval_loss"] == wanted.callback_metrics["eval_loss"]
    assert len(plans_of(planned.get_submodule(name))) == 1
    found.save_checkpoint(tmp_path / "last.ckpt")
    same_state(Classifier.load_from_checkpoint(tmp_path / "last.ckpt", called=called), eager)


class LossOutside(Classifier):
    def __init__(self):
        super().__init__("net")
        self.net = llama(vocabulary=3000)

    def training_step(self, batch, number):
        return cross_entropies(self.net(input_ids=batch["input_ids"]), batch)

    def validation_step(self, batch, number):
        self.log("eval_loss", cross_entropies(self.net(input_ids=batch["input_ids"]), batch))


def cross_entropies(output, batch):
    return nn.functional.cross_entropy(output.logits.flatten(0, 1), batch["input_ids"].flatten())


def test_a_loss_in_the_step_of_lightning_is_counted(tmp_path):
    eager, planned = LossOutside(), LossOutside()
    lit(eager, tmp_path / "eager")
    batch = next(iter(loader()))

    def step(module):
        return lambda: module.training_step(batch, 0).backward()

    needed = step_bytes(step(eager), eager.train(), [batch["input_ids"]])
    kept = state_bytes(eager.configure_optimizers())
    callback = RematCallback(
        int(0.95 * needed) + kept, module="net", cache="", options=FAST, cost="measured", loss=cross_entropies
    )
    lit(planned, tmp_path / "planned", [callback])
    same_state(planned, eager)
    report = fitted(planned.net)
    assert "is not counted" not in report.assumed
    assert report.keep_all_bytes - kept == pytest.approx(needed, rel=0.01)
    assert step_bytes(step(planned), planned.train(), [batch["input_ids"]]) <= 1.01 * (report.budget_bytes - kept)


def test_a_loss_that_is_none_is_said(tmp_path):
    callback = RematCallback("90%", module="net", loss="cross_entropy")
    with pytest.raises(UsageError, match="a function of what the module returns and the batch, and not str"):
        lit(LossOutside(), tmp_path, [callback])


@pytest.mark.parametrize("whole", [True, False])
def test_fitted_before_lightning(tmp_path, whole):
    eager, planned = (Classifier("self" if whole else "net") for _ in range(2))
    lit(eager, tmp_path / "eager")
    batch = next(iter(loader()))
    fit(planned if whole else planned.net, batch, **FITTED)
    lit(planned, tmp_path / "planned")
    same_state(planned, eager)


def test_a_module_that_the_step_does_not_call_is_said(tmp_path):
    with pytest.raises(UsageError, match=r"training_step of Classifier does not call the module itself") as raised:
        lit(Classifier("net"), tmp_path, [RematCallback("90%", cache="", options=FAST)])
    assert 'module="net"' in raised.value.hint
    with pytest.raises(UsageError, match="there is no module backbone in Classifier"):
        lit(Classifier("net"), tmp_path, [RematCallback("90%", module="backbone")])


# PEFT


def test_low_rank_adapters(tmp_path):
    def adapted():
        torch.manual_seed(2)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
        return peft.get_peft_model(llama(), config)

    def run(model):
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        torch.manual_seed(4)
        for item in sentences(3):
            ids = item["input_ids"][None].expand(4, -1)
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    eager, planned = run(adapted()), run(fit(adapted(), None, **FITTED))
    same_state(planned, eager)
    assert len(plans_of(planned)) <= 2  # one more if the first step shows that other results are let go
    planned.save_pretrained(tmp_path)
    back = peft.PeftModel.from_pretrained(llama(), tmp_path)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.equal(back.eval()(ids).logits, eager.eval()(ids).logits)
    merged = copy.deepcopy(planned).merge_and_unload()
    assert isinstance(merged, transformers.LlamaForCausalLM)


# What trainers keep beside the step


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda p: torch.optim.AdamW(p), 2),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3),
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9), 2),
        (lambda p: accelerate.optimizer.AcceleratedOptimizer(torch.optim.Adam(p)), 2),
    ],
)
def test_the_state_of_optimizers_is_foretold(make, copies):
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 3).requires_grad_(False), nn.Linear(128, 1))
    optimizer = make([*model.parameters()])
    assert state_bytes(optimizer) == copies * gradient_bytes(model.parameters())
    inner = getattr(optimizer, "optimizer", optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    inner.step()
    kept = sum(t.nbytes for state in inner.state.values() for t in state.values() if torch.is_tensor(t) and t.dim())
    assert kept == state_bytes(optimizer)
