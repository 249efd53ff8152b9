# SPDX-License-Identifier: Apache-2.0
"""The model that these measurements run: Llama's layers with random weights, 12 of them, hidden 768, 12 heads of 64."""
import torch
import transformers

NAME = "a Llama of random weights: 12 layers, hidden 768, MLP 2048, 12 heads of 64, vocabulary 8192"
VOCABULARY = 8192


def build(how, layers=12, dtype=torch.float32):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=layers, num_attention_heads=12, num_key_value_heads=12,
        vocab_size=VOCABULARY, max_position_embeddings=8192, attn_implementation=how,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(dtype).eval()
