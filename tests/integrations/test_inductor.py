"""Plans inside Inductor in the loops that people use: the same parameters as with plain torch.compile, bit for bit."""

import accelerate
import lightning.pytorch as pl
import peft
import pytest
import torch
import transformers
from test_loops import lit
from trainable import FAST, bert, llama, same_state, sentences

from remat_cli import fit, plans_of
from remat_cli.integrations.lightning import RematCallback as LightningCallback
from remat_cli.integrations.transformers import RematCallback

FITTED = {"budget": "90%", "cache": "", "options": FAST, "unknown": "error", "compiler": "inductor"}


@pytest.fixture(autouse=True)
def _one_thread():
    """With more, Inductor adds up the gradient of an embedding in any order: two plain runs differ in the last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _divided_again():
    """Nothing compiled before is served; compiled kernels are kept."""
    with (
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._inductor.config.patch(fx_graph_cache=False),
    ):
        yield


def plain(model):
    model.compile(dynamic=False)
    return model


def losses_of_a_trainer(model, folder, callbacks=(), **options):
    torch.manual_seed(5)
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=4,
            num_train_epochs=1,
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            **options,
        ),
        train_dataset=sentences(),
        callbacks=list(callbacks),
    )
    trainer.train()
    return [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "loss" in entry]


def test_a_trainer_with_accumulation(tmp_path):
    compiled, planned = plain(bert()), bert()
    wanted = losses_of_a_trainer(compiled, tmp_path / "plain", gradient_accumulation_steps=2)
    callback = RematCallback("90%", cache="", unknown="error", options=FAST, compiler="inductor")
    found = losses_of_a_trainer(planned, tmp_path / "planned", [callback], gradient_accumulation_steps=2)
    assert found == wanted
    same_state(planned, compiled)
    assert len(plans_of(planned)) <= 2  # one more if the first step shows that other results are let go


def test_accelerate():
    def trained(model, fitted):
        accelerate.state.AcceleratorState._reset_state(True)
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batches = torch.utils.data.DataLoader(sentences(), batch_size=4, collate_fn=transformers.default_data_collator)
        model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
        if fitted:
            fit(model, None, **FITTED)
        torch.manual_seed(4)
        for batch in batches:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        return accelerator.unwrap_model(model)

    wanted = trained(plain(bert()), fitted=False)
    same_state(trained(bert(), fitted=True), wanted)


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = bert()

    def training_step(self, batch, number):
        return self.net(**batch).loss

    def validation_step(self, batch, number):
        self.log("eval_loss", self.net(**batch).loss)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def test_lightning(tmp_path):
    compiled, planned = Classifier(), Classifier()
    plain(compiled.net)
    lit(compiled, tmp_path / "plain")
    callback = LightningCallback("90%", module="net", cache="", options=FAST, unknown="error", compiler="inductor")
    lit(planned, tmp_path / "planned", [callback])
    same_state(planned, compiled)


def test_low_rank_adapters():
    """Their gradients differ by 1e-6 of their size: Inductor takes a cosine one by one here, and by vectors there."""

    def run(prepare):
        torch.manual_seed(2)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
        model = prepare(peft.get_peft_model(llama(), config))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        torch.manual_seed(4)
        losses = []
        for item in sentences(3):
            ids = item["input_ids"][None].expand(4, -1)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        return torch.stack(losses)

    torch.testing.assert_close(run(lambda model: fit(model, None, **FITTED)), run(plain), rtol=1e-6, atol=0.0)


def test_mixed_precision_is_near_that_of_plain_compilation(tmp_path):
    """Inductor rounds to bfloat16 what it stores, and a plan stores other values."""
    compiled, planned = plain(bert()), bert()
    wanted = losses_of_a_trainer(compiled, tmp_path / "plain", bf16=True)
    callback = RematCallback("90%", cache="", unknown="error", options=FAST, compiler="inductor")
    found = losses_of_a_trainer(planned, tmp_path / "planned", [callback], bf16=True)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=0.02, atol=0.02)
