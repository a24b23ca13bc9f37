"""Makes graphs of models in files, as ``remat convert`` does with ``MODEL``."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from remat_cli.api.arguments import as_path, as_whole
from remat_cli.errors import UsageError, wrong_type
from remat_cli.files import read_text
from remat_cli.frontends.imported import Wishes
from remat_cli.frontends.models import import_model as imported
from remat_cli.frontends.models import model_format
from remat_cli.graph.model import Graph
from remat_cli.tracebacks import door
from remat_cli.zoo.training import Backward


@door
def import_model(
    path: str | PathLike[str],
    *,
    sizes: Mapping[str, int] | None = None,
    backward: str = "none",
    default_cost: int | None = None,
) -> Graph:
    """The graph of a model that another tool wrote. The model is not run, and its weights are not read.

    Reads ONNX, archives of torch.export (``.pt2``), the output of ``print_readable()`` of torch.fx, and HLO text as XLA
    dumps it. Neither PyTorch nor JAX need be installed. ``metadata["notes"]`` of the graph says which costs and sizes
    were read, and which were derived.

    >>> from pathlib import Path
    >>> import remat_cli as remat
    >>> written = Path("forward.py").write_text('''
    ... class Net(torch.nn.Module):
    ...     def forward(self, x: "f32[s0, 100]", w: "f32[10, 100]"):
    ...         y: "f32[s0, 10]" = torch.ops.aten.linear.default(x, w);  x = w = None
    ...         z: "f32[s0, 10]" = torch.ops.aten.relu.default(y);  y = None
    ...         return (z,)
    ... ''')
    >>> graph = remat.import_model("forward.py", sizes={"s0": 32})
    >>> [(node.id, node.cost, node.outputs) for node in graph.nodes]
    [('linear', 64000.0, (1280,)), ('relu', 320.0, (1280,))]

    Args:
        path: The file.
        sizes: Sizes of symbolic dimensions, and of those that depend on data, by name or as ``"tensor:axis"``.
        backward: Rule by which a loss and a backward pass are derived: ``checkmate`` or ``operator``; ``none`` adds
            neither.
        default_cost: FLOPs per element for operators without a rule; None refuses them.

    Raises:
        InputError: If the model cannot be read, or sizes or costs cannot be determined; the message says which.
        UsageError: If the file is not a model, or an argument is invalid.
        FrameworkUnavailable: If the package that reads the format is not installed.
    """
    if backward not in list(Backward):
        raise UsageError(f'there is no backward rule "{backward}"', hint=f"choose one of {', '.join(Backward)}")
    if default_cost is not None:
        as_whole(default_cost, "default_cost")
    source = as_path(path)
    if sizes is not None and not isinstance(sizes, Mapping):
        raise wrong_type("sizes", sizes, 'a mapping such as {"batch": 32}')
    wishes = Wishes(dict(sizes or {}), Backward(backward), default_cost)
    format = model_format(source)
    if format is None:
        read_text(source)  # raises if there is no such file
        raise UsageError(f"{source} is not a model that remat knows", hint="load_graph reads graphs in documents")
    return imported(source, format, wishes).graph
