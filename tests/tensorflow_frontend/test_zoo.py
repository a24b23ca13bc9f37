"""Models of the zoo, at sizes that one slow core captures in seconds."""

import pytest

from remat_cli.errors import UsageError
from remat_cli.frontends.tensorflow.framework import TensorFlow

SMALL = {
    "vgg16": "batch=1,resolution=32,classes=10",
    "resnet50": "batch=1,resolution=32,classes=10",
    "mobilenet": "batch=1,resolution=32,classes=10",
    "unet": "batch=1,resolution=32,width=4,depth=2",
    "bert": "batch=2,depth=2,heads=2,width=16,sequence=8,vocab=50",
}


def test_all_are_tried():
    assert {f"tf/{name}" for name in SMALL} == set(TensorFlow.architectures.table)


@pytest.mark.parametrize("name", SMALL)
def test_a_model_becomes_a_graph(name):
    graph = TensorFlow().export_architecture(f"tf/{name}{{{SMALL[name]}}}", tell=print)
    assert graph.metadata["frontend"] == "tf"
    assert graph.metadata["source"].startswith(f"zoo:tf/{name}{{")
    assert graph.metadata["parameters"] > 1000
    assert all(node.phase is not None for node in graph.nodes)


@pytest.mark.parametrize("spec", ["tf/vgg16{resolution=8}", "tf/bert{width=10}", "tf/unet{resolution=100}"])
def test_options_out_of_range_are_refused(spec):
    with pytest.raises(UsageError):
        TensorFlow().export_architecture(spec)
