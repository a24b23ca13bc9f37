"""Joint graphs of steps with DTensors, in the form of others: tensors of this rank, and nothing else.

AOTAutograd replaces every DTensor by the part that this rank has, and by its mesh, which is an input and an output of
the joint graph, too. Here meshes are left out. ``wait_tensor`` returns the tensor that it is given, which its fake
tensor does not tell; here it lies in the same memory, so that it is a view. Its readers then wait for the collective.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from remat_cli.frontends.torch.compat.distributed import WAIT, is_opaque, is_uneven
from remat_cli.frontends.torch.tensors import dense_bytes, storage, tensors_in
from remat_cli.frontends.torch.types import FxNode, GraphModule, Module
from remat_cli.graph.model import Graph, Node, NodeQueue


def plain_joint(joint: GraphModule, forward_outputs: int) -> tuple[GraphModule, int]:
    """``joint`` and the number of its forward outputs, without meshes; ``joint`` itself if there is nothing to do."""
    import torch

    nodes = list(joint.graph.nodes)
    if not any(is_opaque(node.meta.get("val")) or str(node.target) == WAIT for node in nodes):
        return joint, forward_outputs
    graph = torch.fx.Graph()
    copies: dict[FxNode, FxNode] = {}
    renewed: set[int] = set()
    for node in nodes[:-1]:
        if is_opaque(node.meta.get("val")):
            continue
        copies[node] = copy = graph.node_copy(node, copies.__getitem__)
        copy.meta = dict(node.meta)
        _share(copy, node, renewed)
    kept = kept_outputs(joint, forward_outputs)
    results = nodes[-1].args[0]
    output = graph.output(tuple(None if results[k] is None else copies[results[k]] for k in kept))
    output.meta = dict(nodes[-1].meta)
    output.meta["desc"] = [nodes[-1].meta["desc"][k] for k in kept]
    return torch.fx.GraphModule(joint, graph), sum(k < forward_outputs for k in kept)


def kept_inputs(joint: GraphModule) -> list[int]:
    """The positions of the inputs of ``joint`` that are no meshes."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    return [k for k, node in enumerate(placeholders) if not is_opaque(node.meta.get("val"))]


def kept_outputs(joint: GraphModule, forward_outputs: int) -> list[int]:
    """The positions of the outputs of ``joint`` that are no meshes, nor stand for the gradient of one."""
    results = joint.graph.output_node().args[0]
    forward = [k for k in range(forward_outputs) if results[k] is None or not is_opaque(results[k].meta.get("val"))]
    return forward + [forward_outputs + k for k in kept_inputs(joint) if forward_outputs + k < len(results)]


def whole_bytes(node: FxNode) -> int:
    """Bytes of what a collective reads or makes, whichever is more: one of both is the whole."""
    read = (argument.meta["val"] for argument in node.all_input_nodes)
    return max(
        sum(dense_bytes(tensor) for item in read for _, tensor in tensors_in(item)),
        sum(dense_bytes(tensor) for _, tensor in tensors_in(node.meta["val"])),
    )


def with_padding(graph: Graph, module: Module) -> Graph:
    """``graph``, the step of the first rank, with memory for what other ranks copy when they gather uneven parts.

    The last ranks have smaller parts, and pad them before a gather: a copy as large as the part of the first rank.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    facts = graph.metadata["places"]
    uneven = {
        k: fact["bytes"]
        for k, fact in enumerate(facts)
        if fact["kind"] == "parameter" and fact["name"] in parameters and is_uneven(parameters[fact["name"]])
    }
    if not uneven:
        return graph

    def padded(node: Node) -> Node:
        if node.queue is NodeQueue.COMPUTE or node.inputs:
            return node
        return replace(node, workspace=node.workspace + sum(uneven.get(k, 0) for k in _places(node.payload["args"])))

    return replace(graph, nodes=tuple(map(padded, graph.nodes)))


def _places(argument: Any) -> Iterator[int]:
    """The numbers of the places that an argument in a payload names."""
    if isinstance(argument, dict):
        if "place" in argument:
            yield argument["place"]
        argument = list(argument.values())
    for item in argument if isinstance(argument, list) else ():
        yield from _places(item)


def _share(copy: FxNode, node: FxNode, renewed: set[int]) -> None:
    """Let what waits, and views of what it returns, lie in the memory of the tensor that is waited for.

    ``renewed`` is the memory of the fake tensors that ``wait_tensor`` has in the original.
    """
    import torch

    if str(node.target) == WAIT:
        renewed.add(storage(node.meta["val"]))
        copy.meta["val"] = copy.args[0].meta["val"]
        return
    if node.op != "call_function" or renewed.isdisjoint(storage(t) for _, t in tensors_in(node.meta.get("val"))):
        return

    args, kwargs = torch.fx.map_arg((copy.args, dict(copy.kwargs)), lambda argument: argument.meta["val"])
    with torch.no_grad():
        copy.meta["val"] = copy.target(*args, **kwargs)
