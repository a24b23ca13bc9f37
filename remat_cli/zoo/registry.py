"""All architectures by name. To add one, write a class in a file of its own and one line here."""

from remat_cli.errors import UsageError
from remat_cli.graph.model import Graph
from remat_cli.registry import Registry
from remat_cli.spec import build, split_spec
from remat_cli.zoo.base import Architecture, NetworkArchitecture
from remat_cli.zoo.training import FLOPS, CostModel

ARCHITECTURES: Registry[Architecture] = Registry(
    kind="architecture",
    table={
        "bert": "remat_cli.zoo.transformer:Bert",
        "densenet121": "remat_cli.zoo.densenet:DenseNet121",
        "densenet161": "remat_cli.zoo.densenet:DenseNet161",
        "densenet169": "remat_cli.zoo.densenet:DenseNet169",
        "densenet201": "remat_cli.zoo.densenet:DenseNet201",
        "densenet-deep": "remat_cli.zoo.densenet:DeepDenseNet",
        "fcn8": "remat_cli.zoo.vgg:Fcn8",
        "feed-forward": "remat_cli.zoo.chain:FeedForward",
        "gpt2": "remat_cli.zoo.transformer:Gpt2",
        "inception-v3": "remat_cli.zoo.inception:InceptionV3",
        "linear": "remat_cli.zoo.chain:Linear",
        "llama": "remat_cli.zoo.transformer:Llama",
        "mobilenet-v1": "remat_cli.zoo.mobilenet:MobileNetV1",
        "mobilenet-v2": "remat_cli.zoo.mobilenet:MobileNetV2",
        "resnet101": "remat_cli.zoo.resnet:ResNet101",
        "resnet152": "remat_cli.zoo.resnet:ResNet152",
        "resnet18": "remat_cli.zoo.resnet:ResNet18",
        "resnet200": "remat_cli.zoo.resnet:ResNet200",
        "resnet34": "remat_cli.zoo.resnet:ResNet34",
        "resnet50": "remat_cli.zoo.resnet:ResNet50",
        "resnet-deep": "remat_cli.zoo.resnet:DeepResNet",
        "segnet": "remat_cli.zoo.vgg:SegNet",
        "transformer": "remat_cli.zoo.transformer:Transformer",
        "unet": "remat_cli.zoo.unet:UNet",
        "unit-chain": "remat_cli.zoo.chain:UnitChain",
        "vgg-unet": "remat_cli.zoo.unet:VggUNet",
        "vgg16": "remat_cli.zoo.vgg:Vgg16",
        "vgg19": "remat_cli.zoo.vgg:Vgg19",
    },
    group="remat.zoo",
)


def architecture(spec_text: str) -> Architecture:
    """The architecture of a specification such as ``vgg16{batch=256,backward=operator}``.

    Raises:
        UsageError: If there is no such architecture, or an option is unknown or out of range.
    """
    name, options = split_spec(spec_text)
    return build(ARCHITECTURES.load(name), name, options)


def build_graph(spec_text: str, costs: CostModel = FLOPS) -> Graph:
    """The graph of a specification such as ``vgg16{batch=256,backward=operator}``.

    Raises:
        UsageError: If there is no such architecture, an option is unknown or out of range, or the architecture has no
            other costs than its own.
    """
    built = architecture(spec_text)
    if costs is FLOPS:
        return built.build()
    if not isinstance(built, NetworkArchitecture):
        raise UsageError(
            f"{built.name} is no network of layers, so its costs are what its options say", hint="leave out the cost"
        )
    return built.build(costs)
