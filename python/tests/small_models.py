# SPDX-License-Identifier: Apache-2.0
"""Small transformers models of random weights, made without a network."""
import torch
import transformers

TINY = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128)  # fmt: skip
ENDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=95)


def llama(attention="sdpa", **more):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**TINY, **ENDS, **more}, attn_implementation=attention)
    return transformers.LlamaForCausalLM(config).eval()


def gemma3(attention="sdpa"):
    torch.manual_seed(0)
    sizes = {**TINY, "num_hidden_layers": 4, "sliding_window": 8, "query_pre_attn_scalar": 16}
    kinds = ["sliding_attention", "full_attention"] * 2
    config = transformers.Gemma3TextConfig(**sizes, **ENDS, layer_types=kinds, attn_implementation=attention)
    return transformers.Gemma3ForCausalLM(config).eval()


def whisper(attention="sdpa"):
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16, max_target_positions=32,
        decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=95, suppress_tokens=None,
        begin_suppress_tokens=None, attn_implementation=attention,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config).eval()


def generate(model, tokens=6):
    with torch.no_grad():
        if model.config.model_type == "whisper":
            mel = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(1))
            return model.generate(input_features=mel, max_new_tokens=tokens, do_sample=False)
        prompt = torch.arange(1, 21)[None]
        return model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
