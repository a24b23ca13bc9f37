"""Reads archives of ``torch.export.save`` (``.pt2``) without PyTorch: zip files with the graph as JSON.

Weights, constants and example inputs are in other members of the archive, which are never opened: example inputs are
pickled. PyTorch compresses no member, and one that is compressed is refused: a small file could expand to any size. The
layout is that of PyTorch's ``torch/_export/serde/schema.py``, major version 8.
"""

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from remat_cli.errors import InputError
from remat_cli.frontends.aten.program import Call, Input, Program, Ref, TensorType
from remat_cli.frontends.aten.symbols import Sizes
from remat_cli.graph.jsontext import load_json
from remat_cli.graph.quoting import escape_token, quote, show_pointer

SCHEMA = 8
"""Major version of the schema that this reader is for. PyTorch raises it if old readers would misread."""
_LARGEST = 1 << 28
"""Most bytes of a document in an archive: that of a graph of 4000 calls has 2 MB, and its data take some 20 times as
much memory."""
_ITEMSIZE = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2, 28: 2, 34: 4, 35: 8}
_ITEMSIZE |= dict.fromkeys(range(29, 34), 1)
"""Bytes of an element by PyTorch's number of its type."""
_FLOATING = frozenset([6, 7, 8, 9, 10, 11, 13])
_STRIDED = 7
_POSITIONAL = 1
_KINDS = {"parameter": "parameter", "buffer": "buffer", "tensor_constant": "constant", "user_input": "input"}
_RESULTS = {
    "user_output": "output",
    "loss_output": "loss",
    "gradient_to_parameter": "gradient",
    "gradient_to_user_input": "gradient",
}
_WEIGHTS = "its list of weights is not as torch.export writes it"
_PLAIN = (
    "as_int",
    "as_float",
    "as_bool",
    "as_string",
    "as_ints",
    "as_floats",
    "as_bools",
    "as_strings",
    "as_int_lists",
)


def read_archive(path: str, given: Mapping[str, int]) -> Program:
    """The graph in an archive; ``given`` are sizes of symbolic dimensions.

    Raises:
        InputError: If the file is not such an archive, or of another version, or sizes are missing.
    """
    data, storages = _members(path)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, dict) or version.get("major") != SCHEMA:
        found = f"version {version.get('major')}" if isinstance(version, dict) else "no version"
        raise InputError.of(
            path,
            f"the schema of its graph has {found}, and this remat knows version {SCHEMA}",
            "save it again with a torch that remat knows (see pyproject.toml)",
        )
    reader = None
    try:
        reader = _Reader(data, storages, dict(given), path)
        return reader.program()
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        StopIteration,
        TypeError,
        ValueError,
    ) as error:
        words = f"its graph is not as torch.export writes it: {type(error).__name__}: {error}"
        raise InputError.of(path, words, pointer="" if reader is None else show_pointer(reader.at)) from None


def _members(path: str) -> tuple[Any, dict[str, str]]:
    """The graph, and for each weight the file of the archive that holds it: tied weights share a file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            graphs = [name for name in names if name.rpartition("/")[0].endswith("models") and name.endswith(".json")]
            if len(graphs) != 1:
                raise _not_one(path, names, len(graphs))
            weights = [name for name in names if name.endswith("weights/model_weights_config.json")]
            graph, *configuration = [_text(archive, name, path) for name in (graphs[0], *weights[:1])]
    except FileNotFoundError:
        raise InputError.of(path, "there is no such file") from None
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise InputError.of(path, f"not an archive of torch.export: {error}") from None
    storages = _storages(load_json(configuration[0], f"{path}:{weights[0]}"), path) if configuration else {}
    return load_json(graph, f"{path}:{graphs[0]}"), storages


def _storages(data: Any, path: str) -> dict[str, str]:
    """For each weight the file that holds it: ``{"config": {"conv.weight": {"path_name": "weight_0", ...}}}``."""
    config = data.get("config") if isinstance(data, dict) else None
    if not isinstance(config, dict):
        raise InputError.of(path, f"{_WEIGHTS}: there is no object config in it")
    for name, weight in config.items():
        if not isinstance(weight, dict) or not isinstance(weight.get("path_name"), str):
            raise InputError.of(path, f"{_WEIGHTS}: the weight {quote(name)} has no path_name")
    return {name: weight["path_name"] for name, weight in config.items()}


def _not_one(path: str, names: list[str], count: int) -> InputError:
    if any(name.endswith("data.pkl") for name in names):
        return InputError.of(
            path,
            "holds pickled Python objects, and reading those runs whatever code the file names",
            "save the model with torch.export.save",
        )
    found = "no graph" if not count else f"{count} graphs"
    return InputError.of(
        path, f"holds {found}, expected one", "save one model with the torch.export.save of torch 2.8 or newer"
    )


def _text(archive: zipfile.ZipFile, name: str, path: str) -> str:
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:
        raise InputError.of(
            path,
            f"{name} is compressed, and torch.export.save compresses nothing",
            "save the model again, or pack the archive without compression (zip -0)",
        )
    with archive.open(member) as stream:
        data = b"" if member.file_size > _LARGEST else stream.read(_LARGEST + 1)
    if max(member.file_size, len(data)) > _LARGEST:
        raise InputError.of(path, f"{name} is larger than {_LARGEST} bytes, which no graph needs")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError.of(path, f"{name} is not UTF-8") from None


class _Reader:
    """Makes a program of the JSON."""

    def __init__(self, data: Mapping[str, Any], storages: Mapping[str, str], given: dict[str, int], path: str) -> None:
        module = data["graph_module"]
        self._graph = module["graph"]
        self._signature = module["signature"]
        self._storages = storages
        self._path = path
        self._version = str(data.get("torch_version") or "")
        ranges = {name: (r.get("min_val"), r.get("max_val")) for name, r in data.get("range_constraints", {}).items()}
        self._sizes = Sizes(given, ranges)
        self._types: dict[str, TensorType] = {}
        self.at = "/graph_module"
        """JSON pointer to what is being read."""

    def _each(self, pointer: str, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a list or the keys of an object, each while :attr:`at` points to it."""
        for k, item in enumerate(items):
            self.at = f"/graph_module/{pointer}/{escape_token(item) if isinstance(item, str) else k}"
            yield item

    def program(self) -> Program:
        values = self._graph["tensor_values"]
        for spec in self._each("signature/input_specs", self._signature["input_specs"]):
            name = _tensor_of(next(iter(spec.values())))
            if name is not None and "user_input" in spec:
                for axis, size in enumerate(values[name]["sizes"]):
                    if size.get("as_expr"):
                        self._sizes.name_axis(name, axis, size["as_expr"]["expr_str"])
        for name in self._each("graph/tensor_values", values):
            self._types[name] = self._type(name, values[name])
        specs, results = self._signature["input_specs"], self._signature["output_specs"]
        inputs = [i for spec in self._each("signature/input_specs", specs) for i in self._inputs(spec)]
        nodes = enumerate(self._each("graph/nodes", self._graph["nodes"]))
        calls = tuple(call for k, node in nodes for call in self._calls(k, node))
        outputs = [o for spec in self._each("signature/output_specs", results) for o in _outputs(spec)]
        dimensions = self._sizes.check(self._path)
        metadata = {"format": "pt2", "torch": self._version, "dimensions": dimensions}
        return Program(tuple(inputs), calls, tuple(outputs), metadata)

    def _type(self, name: str, meta: Mapping[str, Any]) -> TensorType:
        if meta["layout"] != _STRIDED:
            raise InputError.of(self._path, f"tensor {quote(name)} is not dense, so its size is unknown")
        shape = tuple(self._size(size) for size in meta["sizes"])
        stride = tuple(self._size(size) for size in meta["strides"])
        return TensorType(_ITEMSIZE[meta["dtype"]], meta["dtype"] in _FLOATING, shape, stride)

    def _size(self, size: Mapping[str, Any]) -> int:
        if size.get("as_expr"):
            hint = (size["as_expr"].get("hint") or {}).get("as_int")
            return self._sizes.value(size["as_expr"]["expr_str"], hint)
        if int(size["as_int"]) < 0:
            raise ValueError(f"a size is {size['as_int']}")
        return int(size["as_int"])

    def _inputs(self, spec: Mapping[str, Any]) -> list[Input]:
        ((key, value),) = ((k, v) for k, v in spec.items() if v is not None)
        name = _tensor_of(value)
        if name is None:
            return []
        storage = self._storages.get(value.get(f"{key}_name", ""))
        return [Input(name, _KINDS[key], replace(self._types[name], storage=storage))]

    def _calls(self, number: int, node: Mapping[str, Any]) -> list[Call]:
        target = node["target"].removeprefix("torch.ops.")
        outputs: list[tuple[str, TensorType] | None] = []
        for output in node["outputs"]:
            outputs += [None if name is None else (name, self._types[name]) for name in _tensors(output)]
        if not any(outputs):
            return []  # a number, which is known already, or a check
        arguments = [(a["name"], self._argument(a["arg"], target), a.get("kind")) for a in node["inputs"]]
        module = (node.get("metadata") or {}).get("nn_module_stack", "")
        return [
            Call(
                name=node.get("name") or f"call{number}",
                target=target,
                positional=tuple(value for _, value, kind in arguments if kind == _POSITIONAL),
                named={name: value for name, value, kind in arguments if kind != _POSITIONAL},
                outputs=tuple(outputs),
                module=_module(module),
            )
        ]

    def _argument(self, argument: Mapping[str, Any], target: str) -> Any:
        ((kind, value),) = argument.items()
        if kind in _PLAIN:
            return value
        if kind == "as_sym_int":
            return self._number(value)
        if kind == "as_sym_ints":
            return [self._number(item) for item in value]
        if kind == "as_graph":
            raise InputError.of(
                self._path,
                f"{target} holds a graph of its own, and how often that runs is not known",
                "export the model without control flow, and without torch.no_grad inside",
            )
        if kind == "as_none":
            return None
        refs = [None if name is None else Ref(name) for name in _tensors(argument)]
        return refs if kind in {"as_tensors", "as_optional_tensors"} else refs[0] if refs else json.dumps(value)

    def _number(self, value: Mapping[str, Any]) -> int:
        if "as_name" in value:
            return self._size(self._graph["sym_int_values"][value["as_name"]])
        return int(value["as_int"])


def _tensor_of(value: Mapping[str, Any]) -> str | None:
    """The tensor in an argument of a signature: ``{"arg": {"name": ...}}`` or ``{"arg": {"as_tensor": ...}}``."""
    argument = value.get("arg", {})
    found = argument.get("as_tensor", argument)
    name = found.get("name") if isinstance(found, dict) else None
    return None if name is None or "class_fqn" in found else str(name)


def _tensors(argument: Mapping[str, Any]) -> list[str | None]:
    """Names of the tensors in an argument or a result, None for one that is left out; empty if it is not of tensors."""
    ((kind, value),) = argument.items()
    if kind == "as_tensor":
        return [_name(value)]
    if kind == "as_tensors":
        return [_name(item) for item in value]
    if kind == "as_optional_tensor":
        return _tensors(value)
    if kind == "as_optional_tensors":
        return [name for item in value for name in _tensors(item)]
    return [None] if kind == "as_none" else []


def _name(value: Mapping[str, Any]) -> str:
    name = value["name"]
    if not isinstance(name, str):
        raise TypeError(f"a tensor is called {quote(name)}")
    return name


def _outputs(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    ((key, value),) = ((k, v) for k, v in spec.items() if v is not None)
    name = _tensor_of(value)
    return [] if name is None else [(name, _RESULTS.get(key, "mutation"))]


def _module(stack: str) -> str:
    """The innermost module in ``L__self___c,c,torch.nn.modules.conv.Conv2d;...``."""
    parts = stack.rpartition(";")[2].split(",")
    return parts[1] if len(parts) > 2 else ""
