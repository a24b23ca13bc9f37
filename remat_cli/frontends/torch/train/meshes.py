"""Hands the meshes of DTensors through the functions of a plan, which know only the tensors of this rank."""

from typing import Any

from remat_cli.frontends.torch.capture.sharded import kept_inputs, kept_outputs
from remat_cli.frontends.torch.execute.forward_backward import ForwardBackward
from remat_cli.frontends.torch.types import GraphModule


def with_meshes(joint: GraphModule, forward_outputs: int, functions: ForwardBackward) -> ForwardBackward:
    """``functions`` for ``joint``, whose inputs and results hold meshes, too; ``functions`` itself if none do.

    Meshes are the same objects in every call, so those of the forward pass are returned by the backward pass.
    """
    placeholders = joint.graph.find_nodes(op="placeholder")
    inputs, outputs = kept_inputs(joint), kept_outputs(joint, forward_outputs)
    results = joint.graph.output_node().args[0]
    if len(inputs) == len(placeholders) and len(outputs) == len(results):
        return functions
    names = [node.name for node in placeholders]
    meshes: dict[str, Any] = {}

    def filled(tensors: list[Any], start: int, end: int) -> list[Any]:
        """The results of the joint graph in a range, of which ``tensors`` are those that are no meshes."""
        left = iter(tensors)
        return [
            next(left) if k in kept else None if results[k] is None else meshes[results[k].name]
            for k in range(start, end)
        ]

    kept = frozenset(outputs)
    forward_count = sum(k < forward_outputs for k in outputs)

    def forward(args: list[Any]) -> list[Any]:
        own = [args[k] for k in inputs if k < len(args)]
        meshes.update((names[k], args[k]) for k in range(len(args)) if k not in inputs)
        args.clear()
        made = functions.forward(own)
        return [*filled(made[:forward_count], 0, forward_outputs), *made[forward_count:]]

    def backward(args: list[Any]) -> list[Any]:
        return filled(functions.backward(args), forward_outputs, len(results))

    return ForwardBackward(forward, backward, functions.saved, functions.text)
