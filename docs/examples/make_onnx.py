"""Writes a small convolutional network for batches of any size as an ONNX model: python make_onnx.py small.onnx"""

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(0)
shapes = {"filters": (16, 3, 3, 3), "more": (32, 16, 3, 3), "weights": (10, 32 * 8 * 8), "bias": (10,)}
weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), name) for name, s in shapes.items()]

nodes = [
    helper.make_node("Conv", ["images", "filters"], ["a"], name="conv1", pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["a"], ["b"], name="relu1"),
    helper.make_node("MaxPool", ["b"], ["c"], name="pool1", kernel_shape=[2, 2], strides=[2, 2]),
    helper.make_node("Conv", ["c", "more"], ["d"], name="conv2", pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["d"], ["e"], name="relu2"),
    helper.make_node("MaxPool", ["e"], ["f"], name="pool2", kernel_shape=[2, 2], strides=[2, 2]),
    helper.make_node("Flatten", ["f"], ["g"], name="flatten"),
    helper.make_node("Gemm", ["g", "weights", "bias"], ["logits"], name="head", transB=1),
]
images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 32, 32])
logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
graph = helper.make_graph(nodes, "small", [images], [logits], weights)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), sys.argv[1])
