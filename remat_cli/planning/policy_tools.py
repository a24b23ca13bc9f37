"""Tools that recompute by themselves: which strategy finds the best that each can express, and how to say it to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from remat_cli.graph.model import Graph
from remat_cli.graph.tools import Tagged, as_autograd_holds, as_scans_hold
from remat_cli.plan.model import Compute
from remat_cli.planning.policy_chosen import Chosen
from remat_cli.planning.policy_settings import axolotl, megatron, titan, torch_remat, trl


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that recomputes.

    Attributes:
        name: ``torch-checkpoint``.
        title: What it is, for the command line.
        unit: What it chooses: ``modules``, ``layers``, ``names``, or one of its ``settings`` for all layers.
        frontend: The frontend whose graphs it is for.
        strategy: The strategy whose plans it can carry out.
        snippet: The lines that say so to the tool.
        memory: The graph as the tool holds its values.
        others: Whether it takes graphs of another origin, too, if their names are as it needs them.
        needs: The metadata of the graph that it needs; None for none.
        note: What does not hold on every device.
        orders: Whether it runs operations in the graph's order, so that the plan's peak is its peak.
    """

    name: str
    title: str
    unit: str
    frontend: str
    strategy: str
    snippet: Callable[[Chosen], str]
    memory: Callable[[Graph], Graph] = lambda graph: graph
    others: bool = False
    needs: str | None = None
    note: str | None = None
    orders: bool = True


def _torch_checkpoint(chosen: Chosen) -> str:
    if not chosen.settings:
        return "# Nothing has to be recomputed.\n"
    return f"""\
from functools import partial
from torch.utils.checkpoint import checkpoint

for name in {json.dumps(chosen.settings)}:
    part = model.get_submodule(name)
    part.forward = partial(checkpoint, part.forward, use_reentrant=False)
"""


def _hf_every_n(chosen: Chosen) -> str:
    return f"""\
from transformers.modeling_layers import GradientCheckpointingLayer

# With a Trainer, leave gradient_checkpointing of its arguments off: it would choose the layers anew.
enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
enable({{"use_reentrant": False}})
layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
for part in model.modules():
    if hasattr(part, "gradient_checkpointing"):
        part.gradient_checkpointing = part in layers[::{chosen.options["n"]}]
"""


def _keras_layers(chosen: Chosen) -> str:
    return f'''\
import keras

layers = {json.dumps([name.rpartition(".")[2] for name in chosen.settings])}

def recomputing(build):
    """What build makes; layers with these names, if it makes them, are recomputed."""
    with keras.RematScope(mode="list_of_layers", layer_names=layers):
        return build()
'''


def _jax_names(chosen: Chosen) -> str:
    names = ",\n    ".join(map(json.dumps, chosen.settings))
    return f"""\
import jax
from remat_cli.frontends.jax import named

policy = jax.checkpoint_policies.save_only_these_names(
    {names}
)
loss = jax.checkpoint(named(loss), policy=policy)
"""


def _jax_scan(chosen: Chosen) -> str:
    names = ", ".join(map(json.dumps, chosen.settings))
    return f"""\
import jax
from remat_cli.frontends.jax import checkpointed_scans

loss = checkpointed_scans(loss, jax.checkpoint_policies.save_only_these_names({names}))
"""


def _torch_tags(chosen: Chosen) -> str:
    saved, again = tagged_calls(chosen)
    loss = 'output["loss"] if isinstance(output, dict) else getattr(output, "loss", output)'
    if chosen.graph.metadata.get("loss") == "separate":
        loss = "loss(output)"
    return f"""\
from collections import Counter
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

# The calls of each operator that are saved, and those that are recomputed.
SAVED = {_table(saved)}
AGAIN = {_table(again)}

def contexts():
    calls = Counter()

    def policy(context, operator, *args, **kwargs):
        name = operator.__name__.split(".")[0].rstrip("_")
        number = calls[context.is_recompute, name]
        calls[context.is_recompute, name] += 1
        if operator.is_view or name == "_unsafe_view":  # a saved view would keep what it shows
            return CheckpointPolicy.MUST_RECOMPUTE
        if number in AGAIN.get(name, ()):
            return CheckpointPolicy.MUST_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if number in SAVED.get(name, ()) else CheckpointPolicy.PREFER_SAVE

    return create_selective_checkpoint_contexts(policy)

def exported(*inputs, **named):
    output = model(*inputs, **named)
    return {loss}

@torch.compile
def step(*inputs, **named):
    return checkpoint(exported, *inputs, use_reentrant=False, context_fn=contexts, **named)
"""


def tagged_calls(chosen: Chosen) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """The numbers of the calls of each operator that a plan computes once, and of those that it computes again."""
    tagged = Tagged.of(chosen.graph, chosen.plan.strategy)
    runs = [0] * len(chosen.graph.nodes)
    for statement in chosen.plan.statements:
        if isinstance(statement, Compute):
            runs[statement.node] += 1
    tables: tuple[dict[str, list[int]], dict[str, list[int]]] = ({}, {})
    names = chosen.graph.metadata["tags"]
    for node in range(tagged.training.sweep):
        for value in chosen.graph.values_of(node)[:1]:
            if (name := names.get(chosen.graph.value_name(value))) is not None:
                operator, _, number = name.rpartition(".")
                tables[runs[node] > 1].setdefault(operator, []).append(int(number))
    return tables


def _table(calls: Mapping[str, list[int]]) -> str:
    lines = "".join(f'    "{operator}": {numbers},\n' for operator, numbers in sorted(calls.items()))
    return "{\n" + lines + "}" if lines else "{}"


_ALIKE = (
    "the peak is that of the graph's own model with this setting; the tool's models have other operations, and it may "
    "divide them among devices"
)
_LATE = (
    "with saved operators, PyTorch may hold one more result of a layer than predicted while that layer is recomputed"
)
TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "torch-checkpoint",
            "torch.utils.checkpoint of modules",
            "modules",
            "torch",
            "module-checkpoint",
            _torch_checkpoint,
            memory=as_autograd_holds,
            others=True,
        ),
        Tool(
            "hf-every-n",
            "every n-th layer of Transformers",
            "layers",
            "torch",
            "every-n-layers",
            _hf_every_n,
            memory=as_autograd_holds,
            needs="layers",
        ),
        Tool(
            "torch-tags",
            "tagged operations under torch.compile",
            "names",
            "torch",
            "save-only",
            _torch_tags,
        ),
        Tool(
            "jax-names",
            "jax.checkpoint by names of values",
            "names",
            "jax",
            "save-only",
            _jax_names,
            note="the values fit the budget if each is computed again right before the backward pass needs it; XLA "
            "orders operations anew, and on a CPU it undoes the recomputation (jax-scan holds in a scan): measure with "
            "memory_analysis() of the compiled step",
            orders=False,
        ),
        Tool(
            "jax-scan",
            "the same in every scan",
            "names",
            "jax",
            "save-only",
            _jax_scan,
            memory=as_scans_hold,
            note="the plan fits the budget in the order of the graph, with all that one step of a scan keeps for its "
            "gradients; XLA may fuse or copy more: measure with memory_analysis() of the compiled step",
            orders=False,
        ),
        Tool(
            "keras-layers",
            "keras.RematScope by names of layers",
            "layers",
            "tf",
            "keras-layers",
            _keras_layers,
            note="the layers fit the budget in the order of the graph; TensorFlow orders operations anew in every "
            "step, and may hold more: measure",
            orders=False,
        ),
        *(
            Tool(
                name,
                title,
                "settings",
                "torch",
                f"layer-settings{{tool={name}}}",
                snippet,
                memory=as_autograd_holds,
                needs="layers" if name in {"trl", "axolotl"} else None,
                note=note,
            )
            for name, title, snippet, note in (
                ("torch-remat", "Meta's torch_remat in every layer", torch_remat, None),
                ("titan", "torchtitan's activation_checkpoint", titan, _ALIKE),
                ("trl", "gradient_checkpointing of its trainers", trl, None),
                ("axolotl", "its gradient and selective checkpointing", axolotl, _LATE),
                ("megatron", "its recompute_granularity and recompute_modules", megatron, _ALIKE),
            )
        ),
    )
}
"""The tools by name."""
