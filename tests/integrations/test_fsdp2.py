"""Hugging Face Trainer with FSDP2, which Accelerate sets up: the bits of training without remat, in two processes."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from accelerate import state
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from trainable import FAST, bert, llama, sentences

from remat_cli import fitted
from remat_cli.errors import UsageError
from remat_cli.frontends.torch.compat.distributed import local_tensor
from remat_cli.integrations.transformers import RematCallback

sys.path.insert(0, str(Path(__file__).parent.parent / "frontends"))
from torch_processes import together


def run_sharded(rank, folder, budget):
    """A Trainer with FSDP2 in one of two processes. On CPUs Accelerate takes DDP, so it is told that this is FSDP."""
    group = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
    os.environ.update(group | {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "FSDP_VERSION": "2"})
    begin = state.AcceleratorState.__init__

    def began(self, *args, fsdp_plugin=None, **options):
        begin(self, *args, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    state.AcceleratorState.__init__ = began
    model = llama()
    config = {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "cpu_ram_efficient_loading": False}
    config["transformer_layer_cls_to_wrap"] = ["LlamaDecoderLayer"]
    options = {"fsdp": True, "fsdp_config": config, "max_steps": 3, "save_strategy": "no", "use_cpu": True}
    torch.manual_seed(5)
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            folder, per_device_train_batch_size=4, logging_steps=1, report_to=[], disable_tqdm=True, **options
        ),
        train_dataset=[{"input_ids": s["input_ids"], "labels": s["input_ids"]} for s in sentences()],
        callbacks=[] if budget is None else [RematCallback(budget, cache="", options=FAST)],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    parameters = [local_tensor(parameter).detach().clone() for parameter in model.parameters()]
    return losses, parameters, None if budget is None else fitted(model)


def test_a_trainer_with_fsdp2_trains_by_the_plans_of_its_units(tmp_path):
    plain, planned = (together(run_sharded, str(tmp_path), budget) for budget in (None, "85%"))
    for (losses, parameters, _), (same_losses, same_parameters, report) in zip(plain, planned, strict=True):
        assert len(losses) == 3
        assert losses == same_losses
        assert all(torch.equal(one, other) for one, other in zip(parameters, same_parameters, strict=True))
        assert report.parts > 1
        assert report.extra_cost > 0
        assert report.plan_bytes <= report.budget_bytes < report.keep_all_bytes
        assert "model.norm and lm_head run as they are" in report.assumed


def test_what_does_not_go_with_fsdp_is_said():
    plain = {"torch_compile": False, "deepspeed": None, "n_gpu": 1, "fsdp": True, "gradient_accumulation_steps": 1}

    def said(message, model, **options):
        sharded = SimpleNamespace(**plain | {"fsdp_config": {"version": 2}} | options)
        with pytest.raises(UsageError, match=f"RematCallback does not work with {message}") as caught:
            RematCallback("1GB").on_train_begin(sharded, None, None, model=model)
        return caught.value.hint

    unit = object.__new__(type("Unit", (FSDPModule, torch.nn.Module), {}))
    assert "set version to 2" in said("FSDP1", bert())
    assert "the plan says" in said("activation_checkpointing", unit, fsdp_config={"activation_checkpointing": True})
    assert "larger batch" in said("accumulated gradients", unit, gradient_accumulation_steps=2)
