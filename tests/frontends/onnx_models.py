"""Small and large ONNX models, without weights: those of large ones lie in a file that does not exist."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from remat_cli.frontends.imported import Wishes
from remat_cli.frontends.onnx.importing import import_onnx
from remat_cli.graph.document import parse_document
from remat_cli.graph.io import dump_document, graph_from_document, graph_to_document
from remat_cli.zoo.training import Backward


class Builder:
    """An ONNX graph under construction; methods take and return names of tensors."""

    def __init__(self, opset=17, element=TensorProto.FLOAT):
        self.opset = opset
        self.element = element
        self.nodes, self.initializers, self.inputs = [], [], []
        self._count = 0

    def fresh(self, what):
        self._count += 1
        return f"{what}{self._count}"

    def input(self, name, *shape, element=None):
        self.inputs.append(helper.make_tensor_value_info(name, element or self.element, shape))
        return name

    def weight(self, *shape):
        """A tensor in a file beside the model, which is not there."""
        tensor = TensorProto(name=self.fresh("weight"), data_type=self.element, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="not-there.bin")
        self.initializers.append(tensor)
        return tensor.name

    def constant(self, value):
        self.initializers.append(numpy_helper.from_array(np.asarray(value), self.fresh("constant")))
        return self.initializers[-1].name

    def node(self, op, *inputs, name="", outputs=1, domain="", **attributes):
        made = [self.fresh(op.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, made, name=name, domain=domain, **attributes))
        return made[0] if outputs == 1 else made

    def conv(self, x, channels, filters, kernel, *, stride=1, pad=0, bias=True, group=1, name=""):
        weights = [self.weight(filters, channels // group, kernel, kernel)]
        weights += [self.weight(filters)] if bias else []
        strides, pads = [stride] * 2, [pad] * 4
        return self.node("Conv", x, *weights, name=name, strides=strides, pads=pads, group=group)

    def batch_norm(self, x, channels):
        return self.node("BatchNormalization", x, *(self.weight(channels) for _ in range(4)))

    def gemm(self, x, features, units):
        return self.node("Gemm", x, self.weight(units, features), self.weight(units), transB=1)

    def model(self, *outputs, elements=None):
        """The model; ``elements`` says of which type outputs are that are not of the model's own."""
        kinds = elements or {}
        results = [helper.make_tensor_value_info(name, kinds.get(name, self.element), None) for name in outputs]
        for result in results:  # the checker wants a shape
            result.type.tensor_type.shape.SetInParent()
        graph = helper.make_graph(self.nodes, "net", self.inputs, results, self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)

    def save(self, path, *outputs, **options):
        onnx.save(self.model(*outputs, **options), path)
        return str(path)


def vgg16(batch="batch"):
    b = Builder()
    x, channels = b.input("images", batch, 3, 224, 224), 3
    for block, (filters, depth) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], start=1):
        for k in range(1, depth + 1):
            x = b.node("Relu", b.conv(x, channels, filters, 3, pad=1, name=f"conv{block}_{k}"))
            channels = filters
        x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Flatten", x)
    for k, (features, units) in enumerate([(25088, 4096), (4096, 4096), (4096, 1000)]):
        x = b.gemm(x, features, units)
        x = b.node("Relu", x) if k < 2 else x
    return b, x


def resnet50(batch="batch"):
    b = Builder()
    x = b.input("images", batch, 3, 224, 224)
    x = b.node("Relu", b.batch_norm(b.conv(x, 3, 64, 7, stride=2, pad=3, bias=False), 64))
    x, channels = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), 64
    for stage, depth in enumerate([3, 4, 6, 3]):
        width = 64 << stage
        for k in range(depth):
            stride = 2 if k == 0 and stage else 1
            y = b.node("Relu", b.batch_norm(b.conv(x, channels, width, 1, bias=False), width))
            y = b.node("Relu", b.batch_norm(b.conv(y, width, width, 3, stride=stride, pad=1, bias=False), width))
            y = b.batch_norm(b.conv(y, width, 4 * width, 1, bias=False), 4 * width)
            if k == 0:
                x = b.batch_norm(b.conv(x, channels, 4 * width, 1, stride=stride, bias=False), 4 * width)
            x, channels = b.node("Relu", b.node("Add", x, y)), 4 * width
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    return b, b.gemm(x, 2048, 1000)


def imported(tmp_path, builder, *outputs, sizes=None, backward="none", default_cost=None, **options):
    """The graph of a model, which goes through a document unchanged."""
    path = builder.save(tmp_path / "net.onnx", *outputs, **options)
    found = import_onnx(path, Wishes(sizes or {}, Backward(backward), default_cost))
    document = graph_to_document(found.graph)
    assert graph_from_document(parse_document(dump_document(document), "net.json")) == found.graph
    assert all(node.cost > 0 for node in found.graph.nodes)
    assert found.graph.metadata["notes"] == list(found.notes)
    return found.graph


def cost_of(tmp_path, builder, output, **options):
    """What the only operation of a model costs."""
    graph = imported(tmp_path, builder, output, **options)
    (node,) = graph.nodes
    return node.cost
