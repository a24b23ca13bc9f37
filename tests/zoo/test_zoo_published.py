"""Parameters and multiply-accumulates of the networks against published numbers."""

import math

import pytest

from remat_cli.graph.analysis import no_remat_peak
from remat_cli.zoo.network import Network
from remat_cli.zoo.registry import architecture, build_graph

# Parameters and GMAC at batch 1, by network. Sources:
# [tv]  torchvision's table of pre-trained weights (num_params; GFLOPS, which counts one per multiply-accumulate).
# [mn]  Howard et al. 2017, table 4: 569 million mult-adds, 4.2 million parameters; Keras counts 4,231,976 trainable.
# [hf]  Hugging Face: num_parameters() of BertForMaskedLM("bert-base-uncased") and GPT2LMHeadModel("gpt2").
# [ll]  The model cards of Llama 3 and Hugging Face: num_parameters() of Meta-Llama-3-8B and Meta-Llama-3-70B.
# [fcn] Long et al. 2015, table 1: FCN-VGG16 has 134 million parameters.
# [timm] timm's table of results: resnet200 has 64.67 million parameters.
# [enet] Paszke et al. 2016 (ENet), table of hardware requirements: SegNet has 29.46 million parameters.
PUBLISHED = {
    "vgg16": (138_357_544, 15.47),  # [tv]
    "vgg19": (143_667_240, 19.632),  # [tv]
    "resnet18": (11_689_512, 1.814),  # [tv]
    "resnet34": (21_797_672, 3.664),  # [tv]
    "resnet50": (25_557_032, 4.089),  # [tv]
    "resnet101": (44_549_160, 7.801),  # [tv]
    "resnet152": (60_192_808, 11.514),  # [tv]
    "mobilenet-v1": (4_231_976, 0.569),  # [mn]
    "mobilenet-v2": (3_504_872, 0.301),  # [tv]
    "densenet121": (7_978_856, 2.834),  # [tv]
    "densenet161": (28_681_000, 7.728),  # [tv]
    "densenet169": (14_149_480, 3.36),  # [tv]
    "densenet201": (20_013_928, 4.291),  # [tv]
    "inception-v3": (27_161_264 - 3_326_696, 5.713),  # [tv], without the auxiliary classifier
    "inception-v3{auxiliary=true}": (27_161_264, None),  # [tv]
    "bert": (109_514_298, None),  # [hf]
    "gpt2": (124_439_808, None),  # [hf]
    "gpt2{depth=24,width=1024,heads=16}": (354_823_168, None),  # [hf] GPT2LMHeadModel("gpt2-medium")
    "llama": (8_030_261_248, None),  # [ll]
    "llama{depth=80,heads=64,width=8192,hidden=28672}": (70_553_706_496, None),  # [ll]
}
# Millions of parameters where sources give only rounded numbers, and how far ours may be from them.
# [fcn], [enet], [timm]; Huang et al. 2017, table 2
ROUNDED = {"fcn8": (134, 0.005), "segnet": (29.46, 0.005), "resnet200": (64.67, 0.005), "densenet-deep": (15.3, 0.005)}
# He et al., ECCV 2016, table 4. Implementations differ in the first shortcut and in scales of norms: 1.3 % here.
ROUNDED |= {"resnet-deep{depth=164}": (1.7, 0.02), "resnet-deep{depth=1001}": (10.2, 0.02)}


def network_of(spec: str) -> Network:
    return architecture(spec).network()  # type: ignore[attr-defined]  # every architecture asked for here has one


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_macs_are_the_published_ones(name):
    parameters, gmac = PUBLISHED[name]
    network = network_of(name if "{" in name else f"{name}{{batch=1}}")
    assert network.parameters == parameters
    if gmac is not None:
        assert network.macs / 1e9 == pytest.approx(gmac, rel=0.003)


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_agree_with_rounded_published_numbers(name):
    millions, within = ROUNDED[name]
    assert network_of(name).parameters / 1e6 == pytest.approx(millions, rel=within)


def test_unet_has_the_parameters_of_its_common_implementations():
    # Implementations with one input channel, one class, transposed convolutions and no batch normalisation count
    # 31,030,593; ours has two channels more (9 x 64 weights each) and 20 classes more (64 weights and a bias each).
    assert network_of("unet").parameters == 31_030_593 + 2 * 9 * 64 + 20 * 65


def test_a_deep_wide_resnet_takes_the_published_memory():
    # Beaumont et al. 2019, section 5.4: 225 GiB for 8 images of 224x224; four times as wide, it takes that.
    graph = build_graph("resnet-deep{wide=4,resolution=224,batch=8,backward=operator}")
    assert no_remat_peak(graph) / 2**30 == pytest.approx(225, abs=1)


def test_width_and_classes_change_the_published_way():
    # MobileNet v1 at half width: Howard et al. 2017, table 6: 149 million mult-adds, 1.3 million parameters.
    half = network_of("mobilenet-v1{width=0.5,batch=1}")
    assert half.macs / 1e6 == pytest.approx(149, rel=0.01)
    assert half.parameters / 1e6 == pytest.approx(1.3, abs=0.05)
    # ResNet-50's dense layer has 2049 parameters per class.
    assert network_of("resnet50").parameters - network_of("resnet50{classes=10}").parameters == 990 * 2049


def test_transformer_macs_follow_the_closed_form():
    depth, width, length, vocab = 3, 64, 40, 100
    network = network_of(f"gpt2{{batch=2,depth={depth},width={width},heads=4,sequence={length},vocab={vocab}}}")
    per_token = depth * (12 * width**2 + 2 * length * width) + vocab * width
    assert network.macs == 2 * length * per_token


def test_costs_and_inputs_grow_with_the_batch_and_parameters_do_not():
    one, four = network_of("resnet50{batch=1}"), network_of("resnet50{batch=4}")
    assert four.macs == 4 * one.macs
    assert four.flops == 4 * one.flops
    assert four.input_bytes == 4 * one.input_bytes == 4 * 4 * 3 * 224 * 224
    assert four.parameters == one.parameters


def test_convolutions_cost_two_flops_per_multiply_accumulate():
    for layer in network_of("mobilenet-v2{batch=2}").layers:
        if layer.macs:
            assert layer.flops == 2 * layer.macs
        else:
            assert layer.op not in {"conv2d", "depthwise_conv2d", "dense"}


# Bytes of outputs at batch 512 and multiply-accumulates, as Checkmate's own extraction from Keras gives them.
CHECKMATE_MOBILENET = {
    "stem/conv": (5_549_064_192, 822_083_584),
    "block1/dw/conv": (1_849_688_064, 822_083_584),
    "block1/pw/conv": (13_153_337_344, 1_644_167_168),
    "block2/dw/conv": (924_844_032, 411_041_792),
    "block2/pw/conv": (13_153_337_344, 822_083_584),
}


def test_mobilenet_agrees_with_checkmates_extraction():
    layers = {layer.id: layer for layer in network_of("mobilenet-v1").layers}
    for name, (macs, size) in CHECKMATE_MOBILENET.items():
        assert layers[name].macs == macs
        assert layers[name].outputs == (size,)
    assert layers["stem/bn"].flops == 822_083_584
    assert layers["stem/relu6"].flops == 205_520_896


# The same of its U-Net at batch 32 and 416x608, without reshape and softmax.
CHECKMATE_VGG_UNET = {
    "conv1_1": (13_985_906_688, 2_071_986_176),
    "conv1_2": (298_366_009_344, 2_071_986_176),
    "pool1": (None, 517_996_544),
    "conv4_3": (298_366_009_344, 258_998_272),
    "pool4": (None, 64_749_568),
    "up4/pad": (None, 73_400_320),
    "up4/conv": (74_591_502_336, 64_749_568),
    "up3/upsample": (None, 258_998_272),
    "up3/concat": (None, 388_497_408),
    "up3/conv": (223_774_507_008, 129_499_136),
    "up1/concat": (None, 1_553_989_632),
    "up1/pad": (None, 1_579_253_760),
    "up1/conv": (223_774_507_008, 517_996_544),
    "up1/bn": (None, 517_996_544),
    "score": (22_144_352_256, 153_780_224),
}


def test_the_unet_of_checkmates_experiments_agrees_with_its_extraction():
    network = network_of("vgg-unet{fused=true}")
    layers = {layer.id: layer for layer in network.layers}
    for name, (macs, size) in CHECKMATE_VGG_UNET.items():
        assert layers[name].outputs == (size,)
        assert macs is None or layers[name].macs == macs
    assert len(network.layers) == 35 - 2
    graph = build_graph("vgg-unet{fused=true}")
    assert no_remat_peak(graph) - graph.fixed_memory == 20_959_461_376  # that of the extraction


def test_the_transformers_are_those_of_the_first_paper():
    # Vaswani et al. 2017, table 3: 65 and 213 million parameters, with about 37,000 tokens.
    assert network_of("transformer{vocab=37000}").parameters / 1e6 == pytest.approx(65, rel=0.04)
    big = "transformer{batch=16,width=1024,heads=16,vocab=37000}"
    assert network_of(big).parameters / 1e6 == pytest.approx(213, rel=0.01)
    depth, width, length, vocab = 2, 64, 40, 100
    small = network_of(f"transformer{{batch=2,depth={depth},width={width},heads=4,sequence={length},vocab={vocab}}}")
    per_token = depth * (28 * width**2 + 6 * length * width) + vocab * width
    assert small.macs == 2 * length * per_token


def test_feed_forward_networks_follow_the_closed_form():
    network = network_of("feed-forward{batch=3,depth=5,width=7}")
    assert network.parameters == 6 * (7 * 7 + 7)
    assert network.macs == 6 * 3 * 7 * 7
    assert network.input_bytes == 2 * 3 * 7 * 4  # inputs and targets
    assert [layer.op for layer in network.layers] == ["dense", "relu"] * 5 + ["dense"]


@pytest.mark.parametrize(
    ("spec", "forward"),
    # Layers of Keras's graphs as Checkmate counts them, without padding, reshape and separate softmax layers.
    [("vgg16{fused=true}", 22), ("resnet50", 174), ("mobilenet-v1", 84), ("densenet121", 426), ("inception-v3", 313)],
)
def test_granularity_is_that_of_keras_graphs(spec, forward):
    assert len(network_of(spec).layers) == forward
    assert len(build_graph(spec).nodes) == 2 * forward + 1


def test_metadata_says_what_the_network_is():
    graph = build_graph("vgg16{batch=2,backward=operator}")
    network = network_of("vgg16{batch=2}")
    assert graph.metadata == {
        "architecture": "vgg16",
        "spec": "vgg16{batch=2,backward=operator}",
        "options": {
            "batch": 2,
            "backward": "operator",
            "dtype_bytes": 4,
            "resolution": "224",
            "classes": 1000,
            "fused": False,
        },
        "parameters": 138_357_544,
        "forward_flops": network.flops,
        "forward_macs": network.macs,
    }
    assert graph.cost_unit == "flops"
    assert math.isclose(network.macs / 2e9, 15.47, rel_tol=1e-3)


def test_chunks_of_attention_change_no_product():
    options = "depth=2,heads=4,kv_heads=2,width=64,hidden=96,sequence=64,vocab=100"
    assert network_of(f"llama{{{options}}}").macs == network_of(f"llama{{{options},chunks=8}}").macs
