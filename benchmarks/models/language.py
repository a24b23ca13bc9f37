"""Language models: decoders, encoders, and encoders with decoders."""

from __future__ import annotations

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import transformers as hf

from benchmarks.models.common import causal, supervised, words

_VOCABULARY = 500
_SIZE = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
_GROUPED = _SIZE | {"num_key_value_heads": 2}


def _masked(module: Any, length: int = 128) -> tuple[Any, ...]:
    return supervised(module, input_ids=words(4, length), labels=words(4, length))


def gpt2() -> tuple[Any, ...]:
    return causal(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=_VOCABULARY, n_positions=256, n_embd=128, n_layer=3,
                                                   n_head=4)))  # fmt: skip


def llama() -> tuple[Any, ...]:
    return causal(hf.LlamaForCausalLM(hf.LlamaConfig(**_GROUPED)))


def mistral() -> tuple[Any, ...]:
    return causal(hf.MistralForCausalLM(hf.MistralConfig(**_GROUPED, sliding_window=32)))


def qwen3() -> tuple[Any, ...]:
    return causal(hf.Qwen3ForCausalLM(hf.Qwen3Config(**_GROUPED, head_dim=32)))


def gemma3() -> tuple[Any, ...]:
    return causal(hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**_GROUPED, head_dim=32, sliding_window=32)))


def phi3() -> tuple[Any, ...]:
    return causal(hf.Phi3ForCausalLM(hf.Phi3Config(**_GROUPED, resid_pdrop=0.1, embd_pdrop=0.1)))


def bloom() -> tuple[Any, ...]:
    config = hf.BloomConfig(vocab_size=_VOCABULARY, hidden_size=128, n_layer=3, n_head=4, hidden_dropout=0.1)
    return causal(hf.BloomForCausalLM(config))


def bert() -> tuple[Any, ...]:
    return _masked(hf.BertForMaskedLM(hf.BertConfig(**_SIZE)))


def albert() -> tuple[Any, ...]:
    """All layers share their weights."""
    return _masked(hf.AlbertForMaskedLM(hf.AlbertConfig(**_SIZE, embedding_size=64, hidden_dropout_prob=0.1)))


def deberta() -> tuple[Any, ...]:
    config = hf.DebertaV2Config(**_SIZE, relative_attention=True, position_buckets=32, pos_att_type=["p2c", "c2p"])
    return _masked(hf.DebertaV2ForMaskedLM(config))


def modernbert() -> tuple[Any, ...]:
    return _masked(hf.ModernBertForMaskedLM(hf.ModernBertConfig(**_SIZE, local_attention=32, embedding_dropout=0.1)))


def longformer() -> tuple[Any, ...]:
    return _masked(hf.LongformerForMaskedLM(hf.LongformerConfig(**_SIZE, attention_window=32)))


def fnet() -> tuple[Any, ...]:
    """Mixes words by Fourier transforms."""
    size = {k: v for k, v in _SIZE.items() if k != "num_attention_heads"}
    return _masked(hf.FNetForMaskedLM(hf.FNetConfig(**size)))


def _translated(module: Any, **more: Any) -> tuple[Any, ...]:
    return supervised(module, input_ids=words(), labels=words(4, 64), **more)


def t5() -> tuple[Any, ...]:
    config = hf.T5Config(
        vocab_size=_VOCABULARY, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return _translated(hf.T5ForConditionalGeneration(config))


_SEQUENCES = {
    "vocab_size": _VOCABULARY,
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_position_embeddings": 256,
}


def bart() -> tuple[Any, ...]:
    return _translated(hf.BartForConditionalGeneration(hf.BartConfig(**_SEQUENCES)))


def encoder_decoder() -> tuple[Any, ...]:
    """BERT as the encoder and, with cross attention, as the decoder."""
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(hf.BertConfig(**_SIZE), hf.BertConfig(**_SIZE))
    config.decoder_start_token_id = config.pad_token_id = 0
    return _translated(hf.EncoderDecoderModel(config))
