# SPDX-License-Identifier: Apache-2.0
"""A transformers model served by tileproof, and what every layer did. No download: a tiny Llama of random weights."""
import torch
import transformers

import tileproof

tileproof.transformers.register()

config = transformers.LlamaConfig(
    vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
    max_position_embeddings=512, pad_token_id=0,
)  # fmt: skip
torch.manual_seed(0)
model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="tileproof").eval()
# with weights: transformers.AutoModelForCausalLM.from_pretrained(NAME, attn_implementation="tileproof")

prompts = torch.randint(1, 256, (2, 40))
seen = torch.ones_like(prompts)
seen[0, :15] = 0  # the first prompt is shorter: padded on the left
tokens = model.generate(prompts, attention_mask=seen, max_new_tokens=8, do_sample=False, eos_token_id=None)
print("generated", tokens[:, 40:].tolist())
print(tileproof.transformers.report(model))
