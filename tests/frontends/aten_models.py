"""Programs of torch.export, as files, and what the tests of their import share."""

import functools
import json
import warnings
import zipfile

import torch
from torch import nn

from remat_cli.frontends.imported import Wishes
from remat_cli.frontends.models import import_model, model_format
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import dump_document, graph_from_document, graph_to_document


class Small(nn.Module):
    """A convolutional net with normalisation, in training, and with nothing random."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(16, 4, 2, stride=2)
        self.head = nn.Linear(4 * 8 * 8, 10)

    def forward(self, x):
        x = nn.functional.relu(self.norm(self.conv1(x)), inplace=True)
        x = nn.functional.gelu(self.up(self.conv2(x)))
        return self.head(nn.functional.max_pool2d(x, 2).flatten(1))


def block():
    return nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)


EXAMPLES = {"conv": (Small, (4, 3, 16, 16)), "block": (block, (4, 10, 32))}


@functools.cache
def exported(name, *, batch=4, dynamic=False):
    """The program of an example, the same object each time."""
    build, shape = EXAMPLES[name]
    example = torch.randn(batch, *shape[1:])
    dims = ({0: torch.export.Dim("batch", min=2, max=64)},) if dynamic else None
    return torch.export.export(build(), (example,), dynamic_shapes=dims)


def save(program, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own pickles
        torch.export.save(program, path)
    return str(path)


def imported(path, *, sizes=None, **options):
    """The graph of a file, which goes through a document unchanged."""
    graph = import_model(path, model_format(path), Wishes(sizes or {}, **options)).graph
    assert graph_from_document(parse_document(dump_document(graph_to_document(graph)), "x.json")) == graph
    assert all(node.cost > 0 for node in graph.nodes)
    return graph


class Archives(dict):
    """``archives["conv"]`` is exported at batch 4, ``conv8`` at batch 8, ``conv*`` for all; made when wanted."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def __missing__(self, key):
        name = key.rstrip("8*")
        program = exported(name, batch=8 if key.endswith("8") else 4, dynamic=key.endswith("*"))
        self[key] = save(program, self.folder / f"{key.replace('*', '-any')}.pt2")
        return self[key]


def nodes(graph):
    """What every operation is, costs, and makes."""
    return [(node.op, node.cost, node.outputs) for node in graph.nodes]


def model_json(path):
    """The document in an archive."""
    with zipfile.ZipFile(path) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("models/model.json")]
        return json.loads(archive.read(name))


def symbol_of(path, size):
    """The only symbolic dimension of an archive, with this size."""
    (symbol,) = model_json(path)["range_constraints"]
    return {symbol: size}
