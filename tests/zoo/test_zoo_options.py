"""Options of architectures: what they do, and how bad ones are refused."""

import subprocess
import sys

import pytest

from remat_cli.errors import UsageError
from remat_cli.graph.model import Phase
from remat_cli.spec import describe_options, format_spec
from remat_cli.zoo.base import Architecture
from remat_cli.zoo.registry import ARCHITECTURES, architecture, build_graph
from remat_cli.zoo.training import Backward


@pytest.mark.parametrize("name", ARCHITECTURES.names())
def test_every_architecture_describes_itself(name):
    cls = ARCHITECTURES.load(name)
    assert issubclass(cls, Architecture)
    assert cls.name == name
    assert cls.summary
    assert isinstance(cls.reference, str)
    assert all(help_text for _, _, help_text in describe_options(cls))
    graph = cls().build()
    assert graph.name == name
    assert graph.metadata["architecture"] == name
    assert graph.metadata["spec"] == name


def test_specifications_round_trip():
    spec = "mobilenet-v2{batch=8,backward=operator,resolution=96x128,width=1.4}"
    built = architecture(spec)
    assert format_spec("mobilenet-v2", built) == spec
    assert built.backward is Backward.OPERATOR


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("vgg17", 'there is no architecture "vgg17"', "did you mean"),
        ("vgg16{batch=0}", "vgg16{batch}: 0 is out of range", "choose batch between 1 and 1000000"),
        ("vgg16{batch=-4}", "vgg16{batch}: -4 is out of range", "choose batch"),
        ("vgg16{batch=many}", 'vgg16{batch}: "many" is not a whole number', ""),
        ("vgg16{classes=1}", "vgg16{classes}: 1 is out of range", "choose classes between 2"),
        ("vgg16{dtype_bytes=16}", "vgg16{dtype_bytes}: 16 is out of range", "between 1 and 8"),
        ("vgg16{backward=reverse}", '"reverse" is not a choice', "checkmate, operator, none"),
        ("vgg16{resolution=31}", "vgg16{resolution}: 31 is too small", "between 32 and"),
        ("vgg16{resolution=224x1}", "vgg16{resolution}: 1 is too small", "between 32 and"),
        ("vgg16{resolution=2000000}", "vgg16{resolution}: 2000000 is too large", "between 32 and"),
        ("vgg16{resolution=big}", '"big" is not a height and width', "224 or 416x608"),
        ("vgg16{resolution=-224}", '"-224" is not a height and width', "224 or 416x608"),
        ("vgg16{bach=4}", 'vgg16 has no option "bach"', 'did you mean "batch"?'),
        ("vgg16{batch=1000000,resolution=1000000}", "is too large", "choose smaller options"),
        ("llama{width=4100}", "llama{width}: 4100 is not a multiple of 64", "choose width=4160"),
        ("llama{heads=12,width=768}", "llama{heads}: 12 is not a multiple of 8", "choose heads=16"),
        ("llama{sequence=100,chunks=8}", "llama{sequence}: 100 is not a multiple of 8", "choose sequence=104"),
        ("resnet-deep{depth=1000}", "1000 is not 2 more than a multiple of 9", "choose 992 or 1001"),
        ("densenet-deep{depth=249}", "249 is not 4 more than a multiple of 6", "choose 244 or 250"),
        ("unet{resolution=417x608}", "417 is not a multiple of 16", "choose 416 or 432"),
        ("segnet{resolution=40}", "40 is not a multiple of 32", "choose 32 or 64"),
        ("fcn8{resolution=416x600}", "600 is not a multiple of 32", "choose 576 or 608"),
        ("inception-v3{resolution=60}", "60 is too small", "between 75 and"),
        ("inception-v3{resolution=80,auxiliary=true}", "aux/pool slides a window of 5x5", "larger resolution"),
        ("mobilenet-v1{width=0}", "mobilenet-v1{width}: 0.0 is out of range", "between 0.1 and 10"),
        ("mobilenet-v2{width=nan}", 'mobilenet-v2{width}: "nan" is not a finite number', ""),
        ("mobilenet-v2{width=1e400}", 'mobilenet-v2{width}: "1e400" is not a finite number', ""),
        ("unet{filters=0}", "unet{filters}: 0 is out of range", "between 1 and 4096"),
        ("bert{depth=0}", "bert{depth}: 0 is out of range", "between 1 and 10000"),
        ("bert{width=100}", "bert{width}: 100 is not a multiple of 12 heads", "such as 108"),
        ("gpt2{heads=0}", "gpt2{heads}: 0 is out of range", "choose heads"),
        ("gpt2{sequence=1000000,width=768000,batch=1000}", "is too large", "choose smaller options"),
        ("linear{n=0}", "linear{n}: 0 is out of range", "between 1 and"),
        ("linear{n=3,costs=1:2}", "linear{costs}: 2 values for n=3 layers", "give 1 or 3"),
        ("linear{n=2,costs=1:x}", '"x" is not a whole number', "1:2:4"),
        ("linear{n=2,costs=1:0}", "linear{costs}: a value is out of range", "between 1 and"),
        ("linear{n=2,costs=1:²}", '"²" is not a whole number', "1:2:4"),
        ("linear{n=2,sizes=1MB:2G}", '"2G" is ambiguous', "2GB"),
        ("linear{n=2,sizes=1MB:0}", "linear{sizes}: a value is out of range", "between 1 and"),
        ("unit-chain{n=-1}", "unit-chain{n}: -1 is out of range", "between 1 and"),
    ],
)
def test_bad_options_are_usage_errors(spec, message, hint):
    with pytest.raises(UsageError) as caught:
        build_graph(spec)
    assert message in caught.value.message
    assert hint in caught.value.hint


SMALLEST = dict.fromkeys(["vgg16", "mobilenet-v1", "mobilenet-v2", "resnet50", "densenet121"], "32")
SMALLEST |= {"unet": "32x64", "fcn8": "32x64", "segnet": "32x64", "inception-v3": "75"}


@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_resolution_works(name):
    assert build_graph(f"{name}{{batch=1,resolution={SMALLEST[name]}}}").nodes


def test_the_forward_pass_alone():
    graph = build_graph("resnet50{batch=1,backward=none}")
    assert {node.phase for node in graph.nodes} == {Phase.FORWARD}
    assert all(len(node.outputs) == 1 for node in graph.nodes)
    assert [graph.value_name(v) for v in graph.outputs] == ["fc:0"]


def test_vgg_with_separate_and_fused_activations():
    separate, fused = build_graph("vgg16{batch=1}"), build_graph("vgg16{batch=1,fused=true}")
    assert len(fused.nodes) == 45
    assert len(separate.nodes) == 75
    assert [node.id for node in separate.nodes[:5]] == ["conv1_1", "relu1_1", "conv1_2", "relu1_2", "pool1"]
    assert [node.id for node in fused.nodes[:3]] == ["conv1_1", "conv1_2", "pool1"]


def test_depth_reaches_five_thousand_nodes():
    graph = build_graph("gpt2{depth=132,batch=1}")
    assert len(graph.nodes) >= 5000
    assert build_graph("bert{depth=3}").metadata["options"]["depth"] == 3


def test_linear_chains_take_costs_and_sizes():
    graph = build_graph("linear{n=3,costs=5:6:7,sizes=1kB:2kB:30}")
    assert [node.cost for node in graph.nodes] == [5, 6, 7, 1, 14, 12, 10]
    assert [node.outputs for node in graph.nodes] == [(1000,), (2000,), (30,), (1,), (30,), (2000,), (1000,)]
    assert graph.cost_unit == "unit"
    plain = build_graph("linear{n=3,backward=none,costs=4}")
    assert [node.cost for node in plain.nodes] == [4, 4, 4]
    assert plain.outputs == (2,)
    operator = build_graph("linear{n=2,backward=operator}")
    assert [node.id for node in operator.nodes] == [
        *["layer1", "layer2", "loss", "grad/loss", "grad/layer2", "grad/layer1"],
    ]


def test_the_unit_chain_of_the_checkmate_paper():
    graph = build_graph("unit-chain{n=17}")
    assert len(graph.nodes) == 17
    assert {(graph.producer[v], i) for i, node in enumerate(graph.nodes) for v in node.inputs} == {
        *((i, i + 1) for i in range(16)),
        *((i, 16 - i) for i in range(8)),
    }
    assert all(node.cost == 1 and node.outputs == (1,) for node in graph.nodes)
    assert graph.outputs == (16,)
    assert [node.phase for node in graph.nodes] == [Phase.FORWARD] * 8 + [Phase.LOSS] + [Phase.BACKWARD] * 8
    even = build_graph("unit-chain{n=4}")
    assert [node.inputs for node in even.nodes] == [(), (0,), (1,), (0, 2)]
    assert len(build_graph("unit-chain{n=1}").nodes) == 1


def test_the_zoo_needs_neither_numpy_nor_a_solver():
    code = (
        "import sys, remat_cli.zoo.registry as r; r.build_graph('resnet50{batch=1}'); "
        "print(*sorted({'numpy', 'scipy', 'pyomo', 'highspy', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
