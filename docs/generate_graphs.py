"""Makes the files of ``graphs/`` from the zoo: ``python docs/generate_graphs.py graphs``. Run it with ``make graphs``.

``toy.yaml`` there is written by hand and only described.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from remat_cli.errors import RematError, UsageError
from remat_cli.files import write_text
from remat_cli.graph.analysis import no_remat_peak, working_sets
from remat_cli.graph.io import dump_document, graph_to_document, load_graph
from remat_cli.graph.model import Graph
from remat_cli.units import format_bytes
from remat_cli.zoo.registry import build_graph

FILES: Final = {
    "vgg16.json": "vgg16",
    "vgg19.json": "vgg19",
    "mobilenet-v1.json": "mobilenet-v1",
    "mobilenet-v2.json": "mobilenet-v2",
    "resnet18.json": "resnet18",
    "resnet34.json": "resnet34",
    "resnet50.json": "resnet50",
    "resnet101.json": "resnet101",
    "resnet152.json": "resnet152",
    "resnet200.json": "resnet200",
    "unet.json": "unet",
    "vgg-unet.json": "vgg-unet",
    "fcn8.json": "fcn8",
    "segnet.json": "segnet",
    "densenet121.json": "densenet121",
    "densenet161.json": "densenet161",
    "densenet169.json": "densenet169",
    "densenet201.json": "densenet201",
    "inception-v3.json": "inception-v3",
    "bert-base.json": "bert",
    "gpt2-small.json": "gpt2",
    "transformer-base.json": "transformer",
    "feed-forward100.json": "feed-forward",
    "llama2.json": "llama{depth=2}",
    "resnet164.json": "resnet-deep{depth=164}",
    "densenet100.json": "densenet-deep{depth=100,growth=12}",
    "linear32.json": "linear{n=32}",
    "unit-chain17.json": "unit-chain{n=17}",
}
"""File name to specification."""
HAND_WRITTEN: Final = ("toy.yaml",)

_INTRODUCTION = """\
# Graphs

`make graphs` makes these files and this page from the architectures in `remat_cli/zoo`. Only `toy.yaml` is written by
hand, as an example of the format.

All networks are training steps (forward, loss, backward) with `backward=checkmate`: for every layer i a node grad(i)
that reads out(i), and out(j) and grad(j) of every user j of i, costs twice i and is as large. The other rule,
`backward=operator`, reads what each operation's derivative needs; `backward=none` is the forward pass alone.
`fused=true` puts the ReLU inside the convolutions of VGG, FCN-8s and U-Net, as Keras counts layers. Any of these, at
any batch size, comes from `remat export`, for example

    remat export 'zoo:resnet50{batch=64,backward=operator}' -o resnet50.json

Costs are FLOPs for the whole batch, two per multiply-accumulate. Fixed memory is the batch of inputs and twice the
parameters (themselves and their gradients), 4 bytes per number. Batch sizes and resolutions of VGG16, MobileNet,
ResNet-50 and the U-Net on VGG16 are those of the experiments published with the Checkmate paper; their relatives have
the same: 256 images of 224x224 (MobileNet 512, Inception v3 299x299), segmentation 32 images of 416x608. BERT-base has
16 sequences of 512 tokens, GPT-2 small 8 of 1024, the Transformer 8 pairs of 256.

The no-remat peak includes the fixed memory. The largest working set (inputs, outputs and workspace of one node) does
not: no budget below the working set plus the fixed memory can work. GMAC: 10^9 multiply-accumulates of one forward
pass of one image or sequence.
"""
_HEADER = ("file", "specification", "nodes", "edges", "no-remat peak", "of it fixed", "largest working set")
_COUNTS = ("parameters", "GMAC")


def readme(graphs: dict[str, Graph]) -> str:
    """The page that describes the files."""
    numbers = len(_HEADER) - 2 + len(_COUNTS)
    rows = [[*_HEADER, *_COUNTS], ["---", "---", *["---:"] * numbers]]
    rows += [_row(file, graph) for file, graph in graphs.items()]
    return _INTRODUCTION + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _row(file: str, graph: Graph) -> list[str]:
    metadata = graph.metadata or {}
    specification = f"`zoo:{FILES[file]}`" if file in FILES else "written by hand"
    parameters = metadata.get("parameters")
    macs = metadata.get("forward_macs")
    return [
        f"[{file}]({file})",
        specification,
        str(len(graph.nodes)),
        str(graph.edges),
        _size(no_remat_peak(graph)),
        _size(graph.fixed_memory),
        _size(max(working_sets(graph))),
        "" if parameters is None else f"{parameters:,}",
        "" if macs is None else f"{macs / metadata['options']['batch'] / 1e9:.3f}",
    ]


def _size(count: int) -> str:
    return f"{count} B" if count < 1000 else f"{count:,} B ({format_bytes(count)})"


def documents(directory: Path) -> dict[str, str]:
    """The text of every generated file by name, ``README.md`` included.

    Raises:
        RematError: If a hand-written file is missing or wrong.
    """
    graphs = {file: build_graph(spec) for file, spec in FILES.items()}
    texts = {file: dump_document(graph_to_document(graph)) for file, graph in graphs.items()}
    by_hand = {file: load_graph(str(directory / file)) for file in HAND_WRITTEN}
    return texts | {"README.md": readme(graphs | by_hand)}


def main(arguments: list[str] | None = None) -> int:
    """Write all files into the directory that the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the files of graphs/ again.")
    parser.add_argument("directory", type=Path, help="where the files go; must have the hand-written ones")
    directory = parser.parse_args(arguments).directory
    try:
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a directory", hint="name the graphs folder of the project")
        for file, text in documents(directory).items():
            write_text(str(directory / file), text)
    except RematError as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
