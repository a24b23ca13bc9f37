"""Retrieval, and models of images with words."""

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import torch
import transformers as hf

from benchmarks.models.tasks import Built, cross_entropy, image, supervised, words

_SIZE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
_TEXT = _SIZE | {"vocab_size": 500, "max_position_embeddings": 128}
_VISION = _SIZE | {"image_size": 64, "patch_size": 8}
_IDS = {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}


def clip() -> Built:
    config = hf.CLIPConfig(text_config=_TEXT | _IDS, vision_config=_VISION, projection_dim=64)
    return supervised(hf.CLIPModel(config), input_ids=words(8, 32), pixel_values=image(8), return_loss=True)


def siglip() -> Built:
    config = hf.SiglipConfig(text_config=_TEXT | {"projection_size": 128} | _IDS, vision_config=_VISION)
    return supervised(hf.SiglipModel(config), input_ids=words(8, 32), pixel_values=image(8), return_loss=True)


def clap() -> Built:
    """Sounds and words."""
    audio = {"spec_size": 64, "num_mel_bins": 16, "patch_size": 4, "patch_stride": [4, 4], "window_size": 4,
             "depths": [2, 2], "num_attention_heads": [2, 4], "patch_embeds_hidden_size": 32, "hidden_size": 64,
             "num_classes": 10}  # fmt: skip
    config = hf.ClapConfig(text_config=_TEXT | {"pad_token_id": 1}, audio_config=audio, projection_dim=64)
    features = torch.randn(4, 1, 256, 16)
    return supervised(hf.ClapModel(config), input_ids=words(4, 32), input_features=features, return_loss=True)


class _Pairs(torch.nn.Module):
    """Questions and passages, each by an encoder; the loss is over all pairs of a batch."""

    def __init__(self, questions: Any, passages: Any, similarity: Any) -> None:
        super().__init__()
        self.questions, self.passages, self.similarity = questions, passages, similarity

    def forward(self, questions: Any, passages: Any) -> Any:
        scores = self.similarity(self.questions(questions)[0], self.passages(passages)[0])
        return cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def dpr() -> Built:
    config = hf.DPRConfig(**_TEXT, projection_dim=64)
    module = _Pairs(hf.DPRQuestionEncoder(config), hf.DPRContextEncoder(config), lambda q, p: q @ p.t())
    return module.train(), (words(8, 32), words(8, 96))


def _latest(questions: Any, passages: Any) -> Any:
    """ColBERT's: every word of a question with its best word of a passage."""
    questions, passages = (torch.nn.functional.normalize(x, dim=-1) for x in (questions, passages))
    return torch.einsum("qik,pjk->qpij", questions, passages).amax(3).sum(2)


def colbert() -> Built:
    encoder = hf.BertModel(hf.BertConfig(**_TEXT), add_pooling_layer=False)
    return _Pairs(encoder, encoder, _latest).train(), (words(8, 32), words(8, 96))


def blip() -> Built:
    text = _TEXT | {"encoder_hidden_size": 128, "sep_token_id": 2} | _IDS
    config = hf.BlipConfig(text_config=text, vision_config=_VISION)
    ids = words(4, 32)
    return supervised(hf.BlipForConditionalGeneration(config), pixel_values=image(), input_ids=ids, labels=ids)


def llava() -> Built:
    """Patches of an image take the places of the words marked 4."""
    text = hf.LlamaConfig(**_TEXT)
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**_VISION), text_config=text, image_token_index=4, vision_feature_layer=-1
    )
    ids = torch.cat([torch.full((2, 64), 4), words(2, 48)], 1)
    module = hf.LlavaForConditionalGeneration(config)
    return supervised(module, input_ids=ids, pixel_values=image(2), labels=ids)


def trocr() -> Built:
    """Reads: a vision transformer, and a decoder with cross attention."""
    decoder = hf.BertConfig(**_TEXT, is_decoder=True, add_cross_attention=True)
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(hf.ViTConfig(**_VISION), decoder)
    config.decoder_start_token_id = config.pad_token_id = 0
    return supervised(hf.VisionEncoderDecoderModel(config), pixel_values=image(), labels=words(4, 48))


def decision_transformer() -> Built:
    config = hf.DecisionTransformerConfig(
        state_dim=8, act_dim=4, hidden_size=128, n_layer=2, n_head=4, max_ep_len=64, action_tanh=True
    )
    inputs = {
        "states": torch.randn(4, 32, 8),
        "actions": torch.randn(4, 32, 4),
        "rewards": torch.randn(4, 32, 1),
        "returns_to_go": torch.randn(4, 32, 1),
        "timesteps": torch.arange(32).repeat(4, 1),
        "attention_mask": torch.ones(4, 32, dtype=torch.long),
    }
    module = hf.DecisionTransformerModel(config).train()
    return module, inputs, lambda out: (out.action_preds - inputs["actions"]).square().mean()
