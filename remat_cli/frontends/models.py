"""Recognises files that hold models, and chooses the importer."""

import re
from pathlib import Path

from remat_cli.errors import InputError
from remat_cli.frontends.imported import Imported, Wishes

ONNX, ARCHIVE, DUMP, HLO = "onnx", "pt2", "fx", "hlo"
_BY_SUFFIX = {".onnx": ONNX, ".pt2": ARCHIVE}
_DOCUMENTS = (".json", ".yaml", ".yml", ".graphml")
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
_HLO = re.compile(rb"\A(?:\s|//[^\n]*\n)*HloModule\s")
_STABLE = re.compile(rb"\A(?:\s|//[^\n]*\n|#[^\n]*\n)*module\s[^{]*\{[\s\S]*(?:stablehlo|mhlo)\.")
_HEAD = 1 << 16
_DUMP = re.compile(rb"^[ \t]*class \w+\(torch\.nn\.Module\):", re.MULTILINE)
_LISTING = re.compile(rb"\A\s*graph\(\):\n\s+%", re.MULTILINE)


def model_format(path: str) -> str | None:
    """``onnx``, ``pt2``, ``fx`` or ``hlo``; None if the file is not a model, and probably a document.

    The suffix decides; if it is unknown, the beginning of the file does.

    Raises:
        InputError: If the file is a pickle, which runs code when it is read, or a listing without shapes, or StableHLO.
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
        return None  # the reader of documents reports what is wrong
    if head.startswith(b"\x80") or (suffix in _PICKLES and head.startswith(b"PK")):
        raise InputError.of(
            path,
            "holds pickled Python objects, and reading those runs whatever code the file names",
            "save the model with torch.export.save as a .pt2 file, or write the text of "
            "graph_module.print_readable(print_output=False) to a .py file",
        )
    if head.startswith(b"PK\x03\x04"):
        return ARCHIVE
    if _LISTING.match(head):
        raise InputError.of(
            path,
            "is a listing of a torch.fx graph without shapes and types",
            "write the text of graph_module.print_readable(print_output=False), which has them",
        )
    if _HLO.match(head):
        return HLO
    if _STABLE.match(head):
        raise InputError.of(
            path,
            "is a module of StableHLO",
            "give the HLO text that XLA makes of it: XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text'",
        )
    return DUMP if _DUMP.search(head) else None


def import_model(path: str, format: str, wishes: Wishes) -> Imported:
    """The graph of a model in a file, whose format is as :func:`model_format` says.

    Raises:
        RematError: If the model cannot be read, or sizes or costs cannot be determined.
    """
    if format == ONNX:
        from remat_cli.frontends.onnx.importing import import_onnx

        return import_onnx(path, wishes)
    if format == HLO:
        from remat_cli.frontends.hlo.importing import import_hlo

        return import_hlo(path, wishes)
    from remat_cli.frontends.aten.importing import import_aten

    return import_aten(path, format, wishes)
