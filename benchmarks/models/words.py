"""Models of words that take more than a name and sizes: of transformers and peft."""

from benchmarks.models import operators  # noqa: F401 - has to come before torchvision, which transformers imports

# isort: split

import peft
import torch
import transformers as hf

from benchmarks.models.tasks import Built, causal, masked, sentence, translated, translation

_SIZE = {
    "vocab_size": 500,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
_WIDE = {
    "vocab_size": 500,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 384,
    "max_position_embeddings": 256,
}


def encoder_decoder() -> Built:
    """BERT as the encoder and, with cross attention, as the decoder."""
    both = [hf.BertConfig(**(_SIZE | {"num_hidden_layers": 3})) for _ in range(2)]
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(*both)
    config.decoder_start_token_id = config.pad_token_id = 0
    return translated(hf.EncoderDecoderModel(config))


def llama_lora() -> Built:
    module = hf.LlamaForCausalLM(hf.LlamaConfig(**_SIZE, num_key_value_heads=2))
    config = peft.LoraConfig(r=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return causal(peft.get_peft_model(module, config))


def t5_ia3() -> Built:
    config = hf.T5Config(
        vocab_size=500, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return translated(
        peft.get_peft_model(hf.T5ForConditionalGeneration(config), peft.IA3Config(task_type="SEQ_2_SEQ_LM"))
    )


def bert_dora() -> Built:
    config = peft.LoraConfig(r=8, use_dora=True, target_modules=["query", "value"])
    return masked(peft.get_peft_model(hf.BertForMaskedLM(hf.BertConfig(**_SIZE)), config))


def electra() -> Built:
    """Told of padding."""
    mask = torch.ones(8, 96, dtype=torch.long)
    mask[2:, 70:] = 0
    config = hf.ElectraConfig(**_WIDE, embedding_size=64, num_labels=3)
    return sentence(hf.ElectraForSequenceClassification(config), attention_mask=mask)


def layout_lm() -> Built:
    """Words, and where on a page they stand."""
    boxes = torch.randint(0, 500, (8, 96, 4)).sort(-1).values
    return sentence(hf.LayoutLMForSequenceClassification(hf.LayoutLMConfig(**_WIDE, num_labels=3)), bbox=boxes)


def led() -> Built:
    """Windows, and a few words that see all."""
    config = hf.LEDConfig(
        vocab_size=500,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        attention_window=16,
        max_encoder_position_embeddings=256,
        max_decoder_position_embeddings=128,
    )
    seen_by_all = torch.zeros(4, 64, dtype=torch.long)
    seen_by_all[:, 0] = 1
    return translation(hf.LEDForConditionalGeneration(config), 4, global_attention_mask=seen_by_all)
