"""Damaged models: ONNX files, archives of torch.export and dumps of torch.fx, and traces of profilers.

Nothing but errors of remat may come of them, in clean text.
"""

import functools
import io
import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
from google.protobuf import json_format
from hypothesis import reject
from hypothesis import strategies as st
from mangling import spoiled_text
from onnx import TensorProto, helper

from campaigns.damage import as_bytes, as_text, damaged_bytes, damaged_data
from campaigns.documents import whole
from campaigns.inprocess import clean, folder, remat, timed
from remat_cli import import_model
from remat_cli.errors import ExitCode, RematError

DUMP = """class GraphModule(torch.nn.Module):
    def forward(self, p_weight: "f32[8, 16]", p_bias: "f32[8]", x: "f32[s0, 16]"):
        # File: net.py:7 in forward, code: return torch.relu(self.linear(x))
        linear: "f32[s0, 8]" = torch.ops.aten.linear.default(x, p_weight, p_bias);  x = p_weight = p_bias = None
        relu: "f32[s0, 8]" = torch.ops.aten.relu.default(linear)
        view: "f32[8*s0]" = torch.ops.aten.view.default(relu, [-1]);  relu = None
        add: "f32[s0, 8][8, 1]cpu" = torch.ops.aten.add.Tensor(linear, 1.0);  linear = None
        split = torch.ops.aten.split.Tensor(add, 4, -1);  add = None
        getitem: "f32[s0, 4]" = split[0];  split = None
        return (view, getitem)
"""
_OPTIONS = (
    ("--dim", "s0=4"),
    ("--dim", "s0=4", "--backward", "checkmate"),
    ("--dim", "s0=4", "--default-cost", "2"),
    (),
)


@functools.cache
def onnx_model() -> onnx.ModelProto:
    """A convolution, a reshape by a constant, a branchy operator and a product, over a symbolic batch."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Constant", [], ["shape"], value=helper.make_tensor("k", TensorProto.INT64, [2], [0, -1])),
        helper.make_node("Reshape", ["r", "shape"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["p"]),
        helper.make_node("Split", ["p"], ["a", "b"], axis=1, num_outputs=2),
    ]
    weights = [
        helper.make_tensor("w", TensorProto.FLOAT, [2, 1, 3, 3], [0.5] * 18),
        helper.make_tensor("m", TensorProto.FLOAT, [32, 4], [0.5] * 128),
    ]
    outputs = [value(name, TensorProto.FLOAT, ["s0", 2]) for name in "ab"]
    graph = helper.make_graph(nodes, "net", [value("x", TensorProto.FLOAT, ["s0", 1, 4, 4])], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@functools.cache
def archive() -> dict[str, bytes]:
    """The members of an archive of torch.export."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    target = io.BytesIO()
    torch.export.save(torch.export.export(model, (torch.randn(3, 4),), dynamic_shapes=shapes), target)
    with zipfile.ZipFile(target) as members:
        found = {name: members.read(name) for name in members.namelist()}
    program = next(name for name in found if name.endswith("models/model.json"))
    (symbol,) = json.loads(found[program])["range_constraints"]
    return {**found, program: found[program].replace(symbol.encode(), b"s0")}


def inputs() -> st.SearchStrategy[dict[str, Any]]:
    """A damaged model, and how it is imported."""
    archive()
    return _damaged_models()


@st.composite
def _damaged_models(draw: st.DrawFn) -> dict[str, Any]:
    suffix, make = draw(st.sampled_from([("onnx", _onnx), ("onnx", _onnx), ("pt2", _archive), ("py", _dump)]))
    options = draw(st.sampled_from(_OPTIONS))
    return {
        "file": f"in.{suffix}",
        "data": as_text(make(draw)),
        "options": list(options),
        "command": not draw(st.integers(0, 5)),
    }


def _onnx(draw: st.DrawFn) -> bytes:
    model = onnx_model()
    if draw(st.booleans()):
        return draw(damaged_bytes(model.SerializeToString()))
    data = draw(damaged_data(json_format.MessageToDict(model)))
    try:
        message = json_format.ParseDict(data, onnx.ModelProto(), ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, TypeError, AttributeError, ArithmeticError):
        reject()  # no such file can be written
    return message.SerializeToString()


def _archive(draw: st.DrawFn) -> bytes:
    members = dict(archive())
    level = draw(st.sampled_from(["values", "values", "values", "bytes", "archive", "missing"]))
    name = draw(st.sampled_from(sorted(members)))
    documents = sorted(n for n in members if n.endswith(".json"))
    if level == "values":
        name = draw(st.sampled_from([*documents, *[n for n in documents if "model" in n] * 2]))
        members[name] = json.dumps(draw(damaged_data(json.loads(members[name])))).encode()
    elif level == "bytes":
        members[name] = draw(damaged_bytes(members[name]))
    elif level == "missing":
        del members[name]
    target = io.BytesIO()
    method = zipfile.ZIP_STORED if draw(st.integers(0, 9)) else zipfile.ZIP_DEFLATED  # the latter is refused
    with zipfile.ZipFile(target, "w", method) as made:
        for member, raw in members.items():
            made.writestr(zipfile.ZipInfo(member), raw, method)
    return draw(damaged_bytes(target.getvalue())) if level == "archive" else target.getvalue()


def _dump(draw: st.DrawFn) -> bytes:
    words = ["f32[", "s0", "8", "(", ")", "*", "[" * 5000, "1e400", "\x1b[2J", "getitem", "None", "-1", "aten.", "é"]
    text = DUMP
    for _ in range(draw(st.integers(0, 2))):
        old = draw(st.sampled_from(["f32", "s0", "8", "linear", "aten", "[-1]", "16", ".default", "x", "getitem"]))
        at = draw(st.integers(1, text.count(old) or 1))
        parts = text.split(old, at)
        text = draw(st.sampled_from(words)).join([old.join(parts[:-1]), parts[-1]]) if len(parts) > 1 else text
    text = draw(spoiled_text(text)) if draw(st.booleans()) else text
    raw = text.encode("utf-8", "surrogatepass")
    return draw(damaged_bytes(raw)) if not draw(st.integers(0, 3)) else raw


def check(case: dict[str, Any], counts: Counter[str]) -> None:
    """Import the model; a Failure if anything but a clean error comes of it."""
    with folder() as here:
        (here / case["file"]).write_bytes(as_bytes(case["data"]))
        counts[f".{case['file'].partition('.')[2]}"] += 1
        if case["command"]:
            done = remat("convert", case["file"], *case["options"], "-o", "out.json")
            counts["taken" if done.code == ExitCode.OK else "refused"] += 1
            whole(here, ["convert", "-o", "out.json"], done.code)
            return
        options = dict(zip(case["options"][::2], case["options"][1::2], strict=True))
        try:
            with timed("import_model"):
                import_model(
                    Path(case["file"]),
                    sizes={"s0": 4} if "--dim" in options else None,
                    backward=options.get("--backward", "none"),
                    default_cost=2 if "--default-cost" in options else None,
                )
            counts["taken"] += 1
        except RematError as error:
            counts["refused"] += 1
            clean("message on a model", f"{error.message}\n{error.hint}")
