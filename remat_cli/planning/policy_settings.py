"""Settings of tools for training, as text to paste: Python or YAML, with what is predicted and was checked as comments.

Each text says with which versions a test of this project has executed it, or compared it with the tool's own schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from remat_cli.planning.policy_chosen import Chosen
from remat_cli.strategies.policies import layer_choices as choices


def _said(chosen: Chosen, *more: str) -> str:
    """The comment above a setting."""
    return "".join(f"# {line}\n" for line in (*chosen.facts, *more))


def _strings(names: Iterable[str]) -> str:
    return json.dumps(list(names))


def torch_remat(chosen: Chosen) -> str:
    """Python for Meta's ``torch_remat``."""
    comment = _said(chosen, "Executed with torch_remat 0.2.2 and PyTorch 2.13, in eager mode on a CPU.")
    kind, *saved = chosen.settings
    if kind == choices.NONE:
        return f"{comment}# Nothing has to be recomputed.\n"
    layers = [module for module in _layers(chosen).modules if module is not None]
    return f"""\
{comment}\
import torch
import torch_remat as remat  # Meta's package; it is another project

LAYERS = {_strings(module.name for module in layers)}
SAVED = {_strings(saved)}  # in each layer; all else is computed again

def saving(part, name):
    run = remat.region(part.forward, name, recompute=False)

    def forward(*args, **kwargs):
        result = run(*args, **kwargs)
        parts = result if isinstance(result, (tuple, list)) else [result]
        remat.recompute_needs_tensor(*(part for part in parts if isinstance(part, torch.Tensor)))
        return result

    return forward

for path in LAYERS:
    layer = model.get_submodule(path)
    for name in SAVED:
        part = layer.get_submodule(name)
        part.forward = saving(part, name)
    layer.forward = remat.checkpoint(region_name=path)(layer.forward)
"""


def _layers(chosen: Chosen) -> choices.Layers:
    from remat_cli.strategies.base import Task  # these load numpy, which the help of a command is not to wait for
    from remat_cli.strategies.policies.layer_settings import layers_for

    return layers_for(Task(chosen.graph, None), "layers")


def trl(chosen: Chosen) -> str:
    """YAML for the trainers of TRL."""
    kind, *numbers = chosen.settings
    comment = _said(
        chosen, "Executed with SFTTrainer of TRL 1.16.0 and Transformers 5.23.0, from a file as trl sft reads."
    )
    if kind == choices.NONE:
        return f"{comment}gradient_checkpointing: false\n"
    n = int(numbers[0])
    setting = "gradient_checkpointing: true\ngradient_checkpointing_kwargs:\n  use_reentrant: false\n"
    if n == 1:
        return comment + setting
    return (
        comment
        + "# Versions of Transformers that do not know every_n_layers, such as 5.16.1, recompute every layer. So do\n"
        + "# trainers that generate (GRPO, RLOO): they switch recomputation off and on again.\n"
        + f"{setting}  every_n_layers: {n}\n"
    )


def axolotl(chosen: Chosen) -> str:
    """YAML for axolotl."""
    kind, *saved = chosen.settings
    comment = _said(
        chosen,
        "Compared with the schema of axolotl 0.19.0; its selective checkpointing executed with Transformers 5.23.0.",
    )
    if kind == choices.NONE:
        return f"{comment}gradient_checkpointing: false\n"
    setting = "gradient_checkpointing: true\ngradient_checkpointing_kwargs:\n  use_reentrant: false\n"
    if kind == choices.FULL:
        return comment + setting
    names = [name if name == choices.ATTENTION else f"aten::{name}" for name in saved]
    setting += "selective_checkpointing:\n  save:\n" + "".join(f'    - "{name}"\n' for name in names)
    return comment + setting + "  save_sliding_window: true\n"  # without it, layers with such attention save nothing


def titan(chosen: Chosen) -> str:
    """Python for a configuration of torchtitan."""
    kind, *saved = chosen.settings
    comment = _said(
        chosen,
        "Executed with torchtitan 0.3.0 on layers of a model on a CPU. Assumed: the blocks of torchtitan's model, its",
        "layers.0, layers.1 and so on, do what the layers of this graph do. RematAC came later, and was not compared.",
    )
    if kind == choices.NONE:
        return f"{comment}activation_checkpoint = None\n"
    if kind in {choices.FULL, choices.SELECTIVE}:
        name = "FullAC" if kind == choices.FULL else "SelectiveAC"
        return f"""\
{comment}\
from torchtitan.distributed.activation_checkpoint import {name}

activation_checkpoint = {name}.Config()  # of Trainer.Config
"""
    operators = [name for name in saved if name != choices.ATTENTION]
    if choices.ATTENTION in saved:
        operators += choices.ATTENTION_OPERATORS
    listed = "".join(f"            torch.ops.aten.{name}.default,\n" for name in operators)
    return f"""\
{comment}\
from dataclasses import dataclass

import torch
from torchtitan.distributed.activation_checkpoint import SelectiveAC

class SaveListed(SelectiveAC):
    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self):  # of products of matrices (mm), SelectiveAC saves every second
        return {{
{listed}\
        }}

activation_checkpoint = SaveListed.Config()  # of Trainer.Config
"""


def megatron(chosen: Chosen) -> str:
    """Fields of Megatron's ``TransformerConfig``, as Python."""
    kind, *names = chosen.settings
    fields: dict[str, object] = {"recompute_granularity": None}
    if kind in {choices.BLOCK, choices.UNIFORM}:
        fields = {"recompute_granularity": "full", "recompute_method": kind, "recompute_num_layers": int(names[0])}
    elif kind == choices.PARTS:
        fields = {"recompute_granularity": "selective", "recompute_modules": names}
    assumed = ["Assumed: Megatron's layers do what those of this graph do, without fused operations, on one device."]
    if kind == choices.PARTS:
        assumed.append(f"Megatron's names for parts stand for {_stands_for(chosen, names)}.")
    comment = _said(
        chosen,
        "Compared with TransformerConfig of megatron-core 0.16.1; not executed.",
        *assumed,
        "core_attn, moe_act and mla_up_proj were not tried: no names in the graph tell them.",
    )
    values = "".join(f"    {name}={value!r},\n" for name, value in fields.items()).replace("'", '"')
    return f"{comment}recompute = dict(\n{values})  # fields of TransformerConfig\n"


def _stands_for(chosen: Chosen, names: Sequence[str]) -> str:
    parts = choices.megatron_modules(_layers(chosen))
    return "; ".join(f"{name}: {', '.join(parts[name])}" for name in names)
