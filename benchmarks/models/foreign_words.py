"""Foreign models of words: decoders, encoders, and encoders with decoders, small, with random weights.

Every builder returns a module that does not know its loss: the loop computes it from what the module returns.
"""

from __future__ import annotations

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import torch
import transformers as hf

from benchmarks.models.common import classes, cross_entropy, words

_WORDS = 500
_SIZE = {"vocab_size": _WORDS, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
_WIDE = _SIZE | {"intermediate_size": 384, "max_position_embeddings": 256}
_GROUPED = _WIDE | {"num_key_value_heads": 2}
_GPT = {"vocab_size": _WORDS, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 256}
_BOTH = {
    "vocab_size": _WORDS,
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 256,
}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _next_word(module: Any, batch: int = 8, length: int = 96, **more: Any) -> tuple[Any, ...]:
    """A decoder, with the cross entropy of each next word."""
    ids = words(batch, length)

    def loss(output: Any) -> Any:
        return cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return module.train(), {"input_ids": ids} | more, loss


def _every_word(module: Any, batch: int = 8, length: int = 96, **more: Any) -> tuple[Any, ...]:
    """An encoder, with the cross entropy of every word."""
    labels = words(batch, length)

    def loss(output: Any) -> Any:
        return cross_entropy(output.logits.flatten(0, 1), labels.flatten())

    return module.train(), {"input_ids": words(batch, length)} | more, loss


def _sentence(module: Any, batch: int = 8, length: int = 96, **more: Any) -> tuple[Any, ...]:
    """An encoder that puts texts into one of three classes."""
    labels = classes(batch, 3)

    def loss(output: Any) -> Any:
        return cross_entropy(output.logits, labels)

    return module.train(), {"input_ids": words(batch, length)} | more, loss


def _translation(module: Any, batch: int = 8, length: int = 64) -> tuple[Any, ...]:
    """An encoder with a decoder, which is given the words before the one that it is to say."""
    ids = words(batch, length)

    def loss(output: Any) -> Any:
        return cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return module.train(), {"input_ids": words(batch, length), "decoder_input_ids": ids}, loss


def opt() -> tuple[Any, ...]:
    return _next_word(hf.OPTForCausalLM(hf.OPTConfig(**_SIZE, ffn_dim=384, word_embed_proj_dim=128)))


def gpt_neo() -> tuple[Any, ...]:
    """Every other layer sees a window."""
    config = hf.GPTNeoConfig(
        vocab_size=_WORDS,
        hidden_size=128,
        num_layers=4,
        num_heads=4,
        attention_types=[[["global", "local"], 2]],
        window_size=16,
        max_position_embeddings=256,
        resid_dropout=0.1,
        attention_dropout=0.1,
    )
    return _next_word(hf.GPTNeoForCausalLM(config), 4)


def gpt_neox() -> tuple[Any, ...]:
    return _next_word(hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**_WIDE, attention_dropout=0.1, hidden_dropout=0.1)))


def gptj() -> tuple[Any, ...]:
    return _next_word(hf.GPTJForCausalLM(hf.GPTJConfig(**_GPT, rotary_dim=16)))


def ctrl() -> tuple[Any, ...]:
    config = hf.CTRLConfig(vocab_size=_WORDS, n_embd=128, dff=384, n_layer=3, n_head=4, n_positions=256)
    return _next_word(hf.CTRLLMHeadModel(config))


def falcon() -> tuple[Any, ...]:
    config = hf.FalconConfig(**_SIZE, alibi=True, hidden_dropout=0.1, new_decoder_architecture=False)
    return _next_word(hf.FalconForCausalLM(config))


def stablelm() -> tuple[Any, ...]:
    return _next_word(hf.StableLmForCausalLM(hf.StableLmConfig(**_GROUPED, qk_layernorm=True, use_qkv_bias=True)))


def olmo2() -> tuple[Any, ...]:
    return _next_word(hf.Olmo2ForCausalLM(hf.Olmo2Config(**_GROUPED)))


def cohere2() -> tuple[Any, ...]:
    return _next_word(hf.Cohere2ForCausalLM(hf.Cohere2Config(**_GROUPED, **_ENDS, sliding_window=16)))


def gemma2() -> tuple[Any, ...]:
    """Soft caps on scores and logits."""
    return _next_word(hf.Gemma2ForCausalLM(hf.Gemma2Config(**_GROUPED, head_dim=32, sliding_window=32)))


def mpt() -> tuple[Any, ...]:
    return _next_word(hf.MptForCausalLM(hf.MptConfig(vocab_size=_WORDS, d_model=128, n_heads=4, n_layers=3)))


def biogpt() -> tuple[Any, ...]:
    return _next_word(hf.BioGptForCausalLM(hf.BioGptConfig(**_WIDE, layerdrop=0.0)))


def lfm2() -> tuple[Any, ...]:
    """Short convolutions between attention."""
    config = hf.Lfm2Config(**_GROUPED, layer_types=["conv", "full_attention", "conv"])
    return _next_word(hf.Lfm2ForCausalLM(config))


def granite_hybrid() -> tuple[Any, ...]:
    """A state space, attention and experts."""
    config = hf.GraniteMoeHybridConfig(
        **(_GROUPED | {"num_hidden_layers": 2}),
        shared_intermediate_size=128,
        num_local_experts=4,
        num_experts_per_tok=2,
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_n_groups=1,
        mamba_chunk_size=16,
        layer_types=["mamba", "attention"],
    )
    return _next_word(hf.GraniteMoeHybridForCausalLM(config), 4, 64)


def olmoe() -> tuple[Any, ...]:
    config = hf.OlmoeConfig(**(_GROUPED | {"num_hidden_layers": 2}), num_experts=4, num_experts_per_tok=2)
    return _next_word(hf.OlmoeForCausalLM(config))


def roberta() -> tuple[Any, ...]:
    return _every_word(hf.RobertaForMaskedLM(hf.RobertaConfig(**_WIDE, pad_token_id=1)))


def _labelled(config: Any) -> Any:
    config.num_labels = 3
    return config


def electra() -> tuple[Any, ...]:
    """Told of padding."""
    mask = torch.ones(8, 96, dtype=torch.long)
    mask[2:, 70:] = 0
    config = _labelled(hf.ElectraConfig(**_WIDE, embedding_size=64))
    return _sentence(hf.ElectraForSequenceClassification(config), attention_mask=mask)


def roformer() -> tuple[Any, ...]:
    return _every_word(hf.RoFormerForMaskedLM(hf.RoFormerConfig(**_WIDE, embedding_size=128)))


def convbert() -> tuple[Any, ...]:
    """Convolutions whose kernels depend on the words."""
    return _every_word(hf.ConvBertForMaskedLM(hf.ConvBertConfig(**_WIDE, embedding_size=128)), 4)


def mobilebert() -> tuple[Any, ...]:
    config = hf.MobileBertConfig(**_WIDE, embedding_size=64, intra_bottleneck_size=64)
    return _every_word(hf.MobileBertForMaskedLM(config))


def squeezebert() -> tuple[Any, ...]:
    """Grouped convolutions instead of products."""
    return _sentence(
        hf.SqueezeBertForSequenceClassification(_labelled(hf.SqueezeBertConfig(**_WIDE, embedding_size=128)))
    )


def xlnet() -> tuple[Any, ...]:
    config = hf.XLNetConfig(vocab_size=_WORDS, d_model=128, n_layer=3, n_head=4, d_inner=256, num_labels=3)
    return _sentence(hf.XLNetForSequenceClassification(config))


def funnel() -> tuple[Any, ...]:
    """Pools its words on the way, and repeats them afterwards."""
    config = hf.FunnelConfig(
        vocab_size=_WORDS, block_sizes=[1, 1, 1], num_decoder_layers=1, d_model=128, n_head=4, d_head=32, d_inner=256
    )
    return _every_word(hf.FunnelForMaskedLM(config))


def nystromformer() -> tuple[Any, ...]:
    config = hf.NystromformerConfig(**_WIDE, segment_means_seq_len=96, num_landmarks=8)
    return _every_word(hf.NystromformerForMaskedLM(config))


def big_bird() -> tuple[Any, ...]:
    """Blocks that NumPy draws."""
    config = hf.BigBirdConfig(**_WIDE, block_size=16, num_random_blocks=2, attention_type="block_sparse")
    return _every_word(hf.BigBirdForMaskedLM(config), 2, 256)


def esm() -> tuple[Any, ...]:
    """Proteins."""
    config = hf.EsmConfig(
        **_WIDE, pad_token_id=1, mask_token_id=4, position_embedding_type="rotary", token_dropout=True
    )
    return _every_word(hf.EsmForMaskedLM(config))


def layout_lm() -> tuple[Any, ...]:
    """Words, and where on a page they stand."""
    boxes = torch.randint(0, 500, (8, 96, 4)).sort(-1).values
    config = _labelled(hf.LayoutLMConfig(**_WIDE))
    return _sentence(hf.LayoutLMForSequenceClassification(config), bbox=boxes)


def marian() -> tuple[Any, ...]:
    config = hf.MarianConfig(**_BOTH, pad_token_id=0, decoder_start_token_id=0, dropout=0.15)
    return _translation(hf.MarianMTModel(config))


def m2m_100() -> tuple[Any, ...]:
    """Skips layers at random."""
    config = hf.M2M100Config(**_BOTH, encoder_layerdrop=0.1, decoder_layerdrop=0.1)
    return _translation(hf.M2M100ForConditionalGeneration(config))


def blenderbot_small() -> tuple[Any, ...]:
    return _translation(hf.BlenderbotSmallForConditionalGeneration(hf.BlenderbotSmallConfig(**_BOTH)))


def led() -> tuple[Any, ...]:
    """Windows, and a few words that see all."""
    size = {key: value for key, value in _BOTH.items() if key != "max_position_embeddings"}
    config = hf.LEDConfig(
        **size, attention_window=16, max_encoder_position_embeddings=256, max_decoder_position_embeddings=128
    )
    module, inputs, loss = _translation(hf.LEDForConditionalGeneration(config), 4)
    seen_by_all = torch.zeros(4, 64, dtype=torch.long)
    seen_by_all[:, 0] = 1
    return module, inputs | {"global_attention_mask": seen_by_all}, loss


def longt5() -> tuple[Any, ...]:
    config = hf.LongT5Config(
        vocab_size=_WORDS,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        encoder_attention_type="transient-global",
        local_radius=7,
        global_block_size=8,
        decoder_start_token_id=0,
    )
    return _translation(hf.LongT5ForConditionalGeneration(config))


def prophetnet() -> tuple[Any, ...]:
    """Predicts two words at each place."""
    config = hf.ProphetNetConfig(
        vocab_size=_WORDS,
        hidden_size=128,
        encoder_ffn_dim=256,
        num_encoder_layers=2,
        num_encoder_attention_heads=4,
        decoder_ffn_dim=256,
        num_decoder_layers=2,
        num_decoder_attention_heads=4,
        max_position_embeddings=128,
        ngram=2,
        disable_ngram_loss=True,
    )
    return _translation(hf.ProphetNetForConditionalGeneration(config), 4)
