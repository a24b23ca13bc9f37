"""Writes a small convolutional network for batches of any size as an ONNX model: python make_onnx.py small.onnx"""

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DEPTH, CHANNELS = 6, 16
rng = np.random.default_rng(0)
nodes, weights = [], []


def weight(name, *shape):
    """Name of a new parameter of the given shape."""
    weights.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return name


x, channels = "images", 3
for k in range(1, DEPTH + 1):
    filters = weight(f"filters{k}", CHANNELS, channels, 3, 3)
    nodes.append(helper.make_node("Conv", [x, filters], [f"c{k}"], name=f"conv{k}", pads=[1, 1, 1, 1]))
    nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"], name=f"relu{k}"))
    x, channels = f"r{k}", CHANNELS
nodes.append(helper.make_node("GlobalAveragePool", [x], ["means"], name="pool"))
nodes.append(helper.make_node("Flatten", ["means"], ["features"], name="flatten"))
head = [weight("weights", 10, CHANNELS), weight("bias", 10)]
nodes.append(helper.make_node("Gemm", ["features", *head], ["logits"], name="head", transB=1))

images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 32, 32])
logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
graph = helper.make_graph(nodes, "small", [images], [logits], weights)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), sys.argv[1])
