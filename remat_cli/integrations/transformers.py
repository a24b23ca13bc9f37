"""Hugging Face transformers: ``Trainer(..., callbacks=[RematCallback("8GB")])`` trains within a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerCallback
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_pt_utils import LabelSmoother

from remat_cli.api import fit
from remat_cli.errors import UsageError
from remat_cli.integrations.trained import gradient_bytes, state_bytes

if TYPE_CHECKING:
    from remat_cli.units import Budget


class RematCallback(TrainerCallback):
    """Fits the model of a ``Trainer`` on its first batch.

    The budget is for the model, its gradients, the optimizer's state, and all that a step computes.

    Args:
        budget: ``"8GB"``, ``"80%"`` of what the first batch needs without recomputation, or bytes.
        reserve: Memory outside the step; None for what the optimizer keeps, accumulated gradients and buckets of
            ``DistributedDataParallel``.
        options: Other arguments of :func:`remat_cli.fit`. A loss that the trainer computes from the model's outputs by
            ``label_smoothing_factor`` is counted without ``loss``, unless ``returns`` or ``buckets`` are given. For one
            of ``compute_loss_func`` or ``compute_loss``, ``loss`` is a function of the outputs alone.
    """

    def __init__(self, budget: Budget | str | float, *, reserve: str | float | None = None, **options: Any) -> None:
        self.budget, self.reserve, self.options = budget, reserve, options

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Fit the model when it is first called; with FSDP2, its units.

        Raises:
            UsageError: If the model would be split over devices or compiled in another way.
        """
        model = given["model"]
        _require_plain(args, model)
        reserve = self.reserve
        if reserve is None:
            copies = int(args.gradient_accumulation_steps > 1) + int(args.world_size > 1 and not args.fsdp)
            reserve = state_bytes(given["optimizer"]) + copies * gradient_bytes(model.parameters())
        options = {"holds": ()} | self.options  # a trainer keeps the loss alone for its backward pass
        if args.label_smoothing_factor and not {"loss", "returns", "buckets"} & set(options):
            options["loss"] = _smoothed(args.label_smoothing_factor, model)
        fit(model, None, self.budget, reserve=reserve, **options)


def _smoothed(factor: float, model: Any) -> Callable[[Any], Any]:
    """The loss of a trainer with smoothed labels, which it keeps from the model.

    The class of each result is taken to be the first one, which makes no difference to memory.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT wraps it
    shifts = type(inner).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()

    def loss(output: Any) -> Any:
        named = isinstance(output, Mapping)
        if named and output.get("loss") is not None:  # the model has its labels under other names
            return output["loss"]
        logits = output["logits"] if named else output[0]
        labels = torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
        return LabelSmoother(factor)(output, labels, shift_labels=shifts)

    return loss


def _require_plain(args: Any, model: Any) -> None:
    """Check that the trainer leaves the model whole or divides it by FSDP2, and compiles nothing itself."""
    settings = args.fsdp_config or {} if args.fsdp else {}
    refused = {
        "torch_compile=True": (args.torch_compile, "leave it out: remat compiles the model"),
        "deepspeed": (args.deepspeed, "it splits the model over processes; use torchrun alone"),
        "FSDP1": (
            args.fsdp and not isinstance(model, FSDPModule),
            "set version to 2 in fsdp_config, with which Accelerate calls fully_shard",
        ),
        "activation_checkpointing in fsdp_config": (
            settings.get("activation_checkpointing"),
            "leave it out: the plan says what is recomputed",
        ),
        "accumulated gradients under FSDP2": (
            args.fsdp and args.gradient_accumulation_steps > 1,
            "Accelerate keeps whole gradients meanwhile: take a larger batch by plan instead",
        ),
        "nn.DataParallel": (args.n_gpu > 1, "start one process for each device: torchrun --nproc-per-node"),
    }
    for name, (used, hint) in refused.items():
        if used:
            raise UsageError(f"RematCallback does not work with {name}", hint=hint)
