"""Models of sounds and series of transformers that take more than a name and sizes."""

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision, which transformers imports

# isort: split

import torch
import transformers as hf
from torch.nn import functional

from benchmarks.models.tasks import Built, classes, cross_entropy

_SIZE = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384}


def sew() -> Built:
    """Speech, squeezed."""
    config = hf.SEWConfig(
        **_SIZE,
        conv_dim=(32, 64, 64),
        conv_stride=(5, 4, 2),
        conv_kernel=(10, 5, 3),
        squeeze_factor=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        apply_spec_augment=False,
        layerdrop=0.0,
        num_labels=6,
    )
    labels = classes(4, 6)
    module = hf.SEWForSequenceClassification(config)
    return module.train(), {"input_values": torch.randn(4, 8000)}, lambda output: cross_entropy(output.logits, labels)


def wav2vec2_conformer() -> Built:
    config = hf.Wav2Vec2ConformerConfig(
        **(_SIZE | {"num_hidden_layers": 2}),
        conv_dim=(32, 64, 64),
        conv_stride=(5, 4, 4),
        conv_kernel=(10, 5, 5),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        conv_depthwise_kernel_size=15,
        position_embeddings_type="rotary",
        apply_spec_augment=False,
        layerdrop=0.0,
        vocab_size=32,
    )
    labels = torch.randint(1, 32, (4, 20))

    def loss(output: Any) -> Any:
        log_probabilities = output.logits.log_softmax(-1).transpose(0, 1)
        lengths = torch.full((4,), len(log_probabilities)), torch.full((4,), 20)
        return functional.ctc_loss(log_probabilities, labels, *lengths)

    return hf.Wav2Vec2ConformerForCTC(config).train(), {"input_values": torch.randn(4, 8000)}, loss


class _Codec(torch.nn.Module):
    """Encoder and decoder of a codec of sounds, without its quantizer."""

    def __init__(self, codec: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = codec.encoder, codec.decoder

    def forward(self, sound: Any) -> Any:
        return self.decoder(self.encoder(sound))


def dac() -> Built:
    """A codec with sines as its activations."""
    config = hf.DacConfig(
        encoder_hidden_size=16,
        downsampling_ratios=[2, 4],
        decoder_hidden_size=64,
        upsampling_ratios=[4, 2],
        n_codebooks=2,
        codebook_size=32,
        codebook_dim=4,
    )
    sound = torch.randn(2, 1, 2048)
    return _Codec(hf.DacModel(config)).train(), (sound,), lambda out: (out - sound[..., : out.shape[-1]]).abs().mean()


def patch_mixer() -> Built:
    config = hf.PatchTSMixerConfig(
        context_length=128,
        prediction_length=16,
        num_input_channels=4,
        d_model=64,
        num_layers=4,
        patch_length=8,
        patch_stride=8,
    )
    wanted = torch.randn(32, 16, 4)
    module, series = hf.PatchTSMixerForPrediction(config), torch.randn(32, 128, 4)
    return module.train(), {"past_values": series}, lambda out: (out.prediction_outputs - wanted).square().mean()
