"""Which files hold models, and which importer reads them."""

from __future__ import annotations

import re
from pathlib import Path

from remat_cli.errors import InputError, Problem
from remat_cli.frontends.imported import Imported, Wishes

ONNX, ARCHIVE, DUMP = "onnx", "pt2", "fx"
_BY_SUFFIX = {".onnx": ONNX, ".pt2": ARCHIVE}
_DOCUMENTS = (".json", ".yaml", ".yml", ".graphml")
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
_HEAD = 1 << 16
_DUMP = re.compile(rb"^[ \t]*class \w+\(torch\.nn\.Module\):", re.MULTILINE)
_LISTING = re.compile(rb"\A\s*graph\(\):\n\s+%", re.MULTILINE)


def model_format(path: str) -> str | None:
    """``onnx``, ``pt2`` or ``fx``; None for what is not a model but, as far as can be seen, a document.

    The suffix decides where it can, else the beginning of the file.

    Raises:
        InputError: If it is Python's pickle format, whose reading runs what the file says, or a listing without shapes.
    """
    suffix = Path(path).suffix.lower()
    if path == "-" or suffix in _DOCUMENTS:
        return None
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(_HEAD)
    except (OSError, ValueError):
        return None  # whoever reads it as a document will say what is wrong
    if head.startswith(b"\x80") or (suffix in _PICKLES and head.startswith(b"PK")):
        raise _refused(
            path,
            "holds pickled Python objects, and reading those runs whatever code the file names",
            "save the model with torch.export.save as a .pt2 file, or write the text of "
            "graph_module.print_readable(print_output=False) to a .py file",
        )
    if head.startswith(b"PK\x03\x04"):
        return ARCHIVE
    if _LISTING.match(head):
        raise _refused(
            path,
            "is a listing of a torch.fx graph without shapes and types",
            "write the text of graph_module.print_readable(print_output=False), which has them",
        )
    return DUMP if _DUMP.search(head) else None


def import_model(path: str, format: str, wishes: Wishes) -> Imported:
    """The graph of a model in a file.

    Args:
        path: The file.
        format: As :func:`model_format` says.
        wishes: What is to be done with it.

    Raises:
        RematError: If it cannot be read, or sizes or costs cannot be found out.
    """
    if format == ONNX:
        from remat_cli.frontends.onnx.importing import import_onnx

        return import_onnx(path, wishes)
    from remat_cli.frontends.aten.importing import import_aten

    return import_aten(path, format, wishes)


def _refused(path: str, message: str, hint: str) -> InputError:
    return InputError(path, [Problem(message, hint=hint)])
