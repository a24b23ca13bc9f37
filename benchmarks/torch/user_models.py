"""Models of transformers and torchvision in sizes that users train on one GPU, with random weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint


def _of_transformers(module: Any) -> None:
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _of_blocks(module: Any) -> None:
    module.checkpointed = True


@dataclass(frozen=True)
class Trained:
    """A model to train.

    Attributes:
        build: Makes the module, whose result has the loss under "loss".
        batch: Makes its arguments, the same every time.
        autocast: The type of autocast; None without.
        set_checkpoints: Turns the model's own checkpoints on.
        named: The model by name, as `remat fits` takes it: the source, or a configuration of transformers, and options.
    """

    build: Callable[[], Any]
    batch: Callable[[], Mapping[str, Any]]
    autocast: Any = None
    set_checkpoints: Callable[[Any], None] = _of_transformers
    named: tuple[Any, Mapping[str, Any]] | None = None


class Images(nn.Module):
    """A ResNet-50 with its loss; ``checkpointed`` puts a checkpoint around each block."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import resnet50

        self.body = resnet50()
        self.checkpointed = False

    def forward(self, images: Any, labels: Any) -> Any:
        body = self.body
        x = body.maxpool(body.relu(body.bn1(body.conv1(images))))
        for stage in (body.layer1, body.layer2, body.layer3, body.layer4):
            for block in stage:
                x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return {"loss": nn.functional.cross_entropy(body.fc(x.mean((2, 3))), labels)}


def _images(batch: int, size: int) -> Mapping[str, Any]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(batch, 3, size, size, generator=generator)
    return {"images": images, "labels": torch.randint(0, 1000, (batch,), generator=generator)}


def _tokens(words: int, batch: int, length: int) -> Callable[[], Mapping[str, Any]]:
    def made() -> Mapping[str, Any]:
        ids = torch.randint(0, words, (batch, length), generator=torch.Generator().manual_seed(1))
        return {"input_ids": ids, "labels": ids}

    return made


_GPT2 = transformers.GPT2Config(use_cache=False, architectures=["GPT2LMHeadModel"])
_LLAMA = transformers.LlamaConfig(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    use_cache=False,
    architectures=["LlamaForCausalLM"],
)
_BERT = transformers.BertConfig(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    architectures=["BertForMaskedLM"],
)


def models(*, quick: bool) -> dict[str, Trained]:
    """The models by name; a small one if ``quick``."""
    gpt2, llama, bert = transformers.GPT2LMHeadModel, transformers.LlamaForCausalLM, transformers.BertForMaskedLM
    if quick:
        small = transformers.GPT2Config(
            vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, architectures=["GPT2LMHeadModel"]
        )
        asked = {"batch": 2, "length": 16, "dtype": "float32"}
        return {"GPT-2": Trained(lambda: gpt2(small), _tokens(64, 2, 16), named=(small, asked))}
    return {
        "GPT-2, bfloat16 autocast, 16 x 1024": Trained(
            lambda: gpt2(_GPT2),
            _tokens(50257, 16, 1024),
            torch.bfloat16,
            named=(_GPT2, {"batch": 16, "length": 1024, "dtype": "bfloat16-mixed"}),
        ),
        "Llama of 0.9B, bfloat16, 4 x 2048": Trained(
            lambda: llama(_LLAMA).to(torch.bfloat16),
            _tokens(32000, 4, 2048),
            named=(_LLAMA, {"batch": 4, "length": 2048, "dtype": "bfloat16"}),
        ),
        "BERT-large, float32, 16 x 512": Trained(
            lambda: bert(_BERT),
            _tokens(30522, 16, 512),
            named=(_BERT, {"batch": 16, "length": 512, "dtype": "float32"}),
        ),
        "ResNet-50, float32, 64 images": Trained(
            Images,
            lambda: _images(64, 224),
            set_checkpoints=_of_blocks,
            named=("torchvision:resnet50", {"batch": 64, "resolution": 224}),
        ),
    }
