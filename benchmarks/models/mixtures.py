"""Mixtures of experts, state-space models, and low-rank adapters."""

from __future__ import annotations

from typing import Any

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision

# isort: split

import peft
import transformers as hf

from benchmarks.models.common import causal, supervised, words

_SIZE = {
    "vocab_size": 500,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
_ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "output_router_logits": True}


def mixtral() -> tuple[Any, ...]:
    config = hf.MixtralConfig(**_SIZE, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True)
    return causal(hf.MixtralForCausalLM(config))


def qwen2_moe() -> tuple[Any, ...]:
    config = hf.Qwen2MoeConfig(**_SIZE, **_ROUTED, shared_expert_intermediate_size=128)
    return causal(hf.Qwen2MoeForCausalLM(config))


def qwen3_moe() -> tuple[Any, ...]:
    return causal(hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**_SIZE, **_ROUTED, head_dim=32)))


def deepseek_v3() -> tuple[Any, ...]:
    config = hf.DeepseekV3Config(
        **(_SIZE | {"num_key_value_heads": 4}),
        moe_intermediate_size=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=32,
        q_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=32,
    )
    return causal(hf.DeepseekV3ForCausalLM(config))


def gpt_oss() -> tuple[Any, ...]:
    config = hf.GptOssConfig(
        **_SIZE, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=32, output_router_logits=True
    )
    return causal(hf.GptOssForCausalLM(config))


def switch_transformers() -> tuple[Any, ...]:
    config = hf.SwitchTransformersConfig(
        vocab_size=500,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_decoder_layers=2,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_heads=4,
        num_experts=4,
        decoder_start_token_id=0,
    )
    module = hf.SwitchTransformersForConditionalGeneration(config)
    return supervised(module, input_ids=words(), labels=words(4, 64))


def mamba() -> tuple[Any, ...]:
    config = hf.MambaConfig(vocab_size=500, hidden_size=64, state_size=8, num_hidden_layers=2, use_cache=False)
    return causal(hf.MambaForCausalLM(config), 2, 32)


def mamba2() -> tuple[Any, ...]:
    config = hf.Mamba2Config(
        vocab_size=500,
        hidden_size=64,
        num_heads=4,
        head_dim=32,
        state_size=16,
        n_groups=1,
        chunk_size=16,
        num_hidden_layers=2,
        use_cache=False,
    )
    return causal(hf.Mamba2ForCausalLM(config), 2, 64)


def jamba() -> tuple[Any, ...]:
    """Attention, state spaces and experts in one."""
    config = hf.JambaConfig(
        **_SIZE,
        num_experts=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        use_mamba_kernels=False,
        mamba_d_state=8,
        mamba_dt_rank=8,
        use_cache=False,
    )
    return causal(hf.JambaForCausalLM(config), 2, 32)


def recurrent_gemma() -> tuple[Any, ...]:
    config = hf.RecurrentGemmaConfig(**_SIZE, lru_width=128, attention_window_size=32, use_cache=False)
    return causal(hf.RecurrentGemmaForCausalLM(config), 4, 16)


def rwkv() -> tuple[Any, ...]:
    config = hf.RwkvConfig(
        vocab_size=500, hidden_size=64, attention_hidden_size=64, num_hidden_layers=2, use_cache=False
    )
    return causal(hf.RwkvForCausalLM(config), 4, 8)


def llama_lora() -> tuple[Any, ...]:
    module = hf.LlamaForCausalLM(hf.LlamaConfig(**_SIZE))
    config = peft.LoraConfig(r=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return causal(peft.get_peft_model(module, config))


def t5_ia3() -> tuple[Any, ...]:
    config = hf.T5Config(
        vocab_size=500, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    module = peft.get_peft_model(hf.T5ForConditionalGeneration(config), peft.IA3Config(task_type="SEQ_2_SEQ_LM"))
    return supervised(module, input_ids=words(), labels=words(4, 64))


def bert_dora() -> tuple[Any, ...]:
    size = {k: v for k, v in _SIZE.items() if k != "num_key_value_heads"}
    config = peft.LoraConfig(r=8, use_dora=True, target_modules=["query", "value"])
    module = peft.get_peft_model(hf.BertForMaskedLM(hf.BertConfig(**size)), config)
    return supervised(module, input_ids=words(), labels=words())
