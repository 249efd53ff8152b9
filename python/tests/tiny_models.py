# SPDX-License-Identifier: Apache-2.0
"""Every architecture of transformers, tiny: a config of a few layers with hidden sizes of at most 64, and the model of it
with random weights. No file and no network is read.

    config("olmo3"), model("olmo3"), types()

SMALL holds the sizes that fields of these names get in any config, at any depth; SPECIAL what single types need beside them.
A field that a config class does not have is left alone, so a class's own defaults decide all the rest."""
import functools

import torch
import transformers

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 4, 64, 4, 2, 24
SMALL = {
    **dict.fromkeys("num_hidden_layers n_layer n_layers num_layers depth encoder_layers decoder_layers".split(), LAYERS),
    **dict.fromkeys("hidden_size n_embd d_model embed_dim hidden_dim dim emb_dim word_embed_proj_dim".split(), HIDDEN),
    **dict.fromkeys("num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads"
                    " attention_heads".split(), HEADS),
    **dict.fromkeys("num_key_value_heads num_kv_heads".split(), KV_HEADS),
    **dict.fromkeys("intermediate_size ffn_hidden_size ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner dff d_ff d_inner"
                    " moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size"
                    " expert_ffn_hidden_size dense_intermediate_size".split(), HIDDEN),
    **dict.fromkeys("num_experts num_local_experts n_routed_experts moe_num_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok moe_topk moe_k".split(), 2),
    **dict.fromkeys("n_group topk_group num_expert_group".split(), 1),
    "head_dim": HEAD_DIM, "vocab_size": 128, "max_position_embeddings": 256, "n_positions": 256,
    "sliding_window": 8, "attention_chunk_size": 8,
    "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20,
    "image_size": 32, "patch_size": 8,
    **dict.fromkeys("pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id decoder_start_token_id"
                    " forced_eos_token_id forced_bos_token_id".split(), 1),
}  # fmt: skip
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
LATENT = {"num_key_value_heads": HEADS, "head_dim": 8}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16}
SPECIAL = {
    **dict.fromkeys("axk1 deepseek_v2 deepseek_v3 glm4_moe_lite longcat_flash minicpm3 youtu".split(), LATENT),
    **dict.fromkeys("axk2 deepseek_v32 glm_moe_dsa".split(), {**LATENT, "index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}),
    "bailing_hybrid": {**LATENT, "layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1, 3], **MAMBA},
    "beam": {"layer_types": [SLIDING, FULL, SLIDING, FULL]},
    "codegen": {"rotary_dim": 8},
    "cohere2_moe": {"num_shared_experts": 1},
    "cohere_compass_text": {"rope_parameters": {FULL: None, SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
                            "layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
    "dots1": {"max_window_layers": 2, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    **dict.fromkeys("gemma3_text gemma4_text gemma4_unified_text".split(), {"num_hidden_layers": 6}),
    "gemma3n_text": {"num_hidden_layers": 5, "num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": [LINEAR, FULL, LINEAR, FULL], "attention_multiplier": 0.3, **MAMBA},
    **dict.fromkeys("granite granitemoe granitemoeshared granite_swa granitemoe_swa hyperclovax".split(), {"attention_multiplier": 0.3}),
    "helium": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {**LATENT, "layer_types": [LINEAR, FULL, LINEAR, FULL]},
    "kolibri1": {"num_hidden_layers": 5},
    "laguna": {"layer_types": [FULL, SLIDING, FULL, SLIDING], "num_attention_heads_per_layer": [4, 6, 4, 6]},
    "lfm2": {"layer_types": ["conv", FULL, "conv", FULL]},
    "lfm2_moe": {"layer_types": ["conv", FULL, "conv", FULL]},
    "mellum": {"layer_types": [FULL, SLIDING, FULL, SLIDING]},
    "minimax": {"sliding_window": None},
    "modernbert-decoder": {"local_attention": 16},
}  # fmt: skip


def types():
    """Every model_type of this transformers."""
    return sorted(transformers.CONFIG_MAPPING)


def _merged(fields, special):
    for name, value in special.items():
        if isinstance(value, dict) and isinstance(fields.get(name), dict):
            value = _merged(fields[name], value)
        fields = {**fields, name: value}
    return fields


def _fields(cls):
    """What a class's default config has, made small."""
    default = cls()
    fields = {name: SMALL[name] for name in default.to_dict() if name in SMALL}
    for name, sub in cls.sub_configs.items():
        inner = getattr(default, name, None)
        if inner is None or not hasattr(inner, "to_dict"):
            continue
        kind = type(inner)
        fields[name] = {**_fields(kind), "model_type": inner.model_type}
        fields[name] = _merged(fields[name], SPECIAL.get(inner.model_type, {}))
        fields[name].pop("sub_configs", None)
    return fields


@functools.lru_cache(None)
def config(model_type):
    cls = transformers.CONFIG_MAPPING[model_type]
    return cls(**_merged(_fields(cls), SPECIAL.get(model_type, {})))


def model(model_type, seed=0, auto=transformers.AutoModel):
    """In eval mode, with eager attention. Norms and sinks get random weights too, so that nothing is 1 or 0 by chance."""
    torch.manual_seed(seed)
    made = auto.from_config(config(model_type), attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("sinks"):
                parameter.normal_()
    return made


def layers(text):
    """"0-4,6" and "0-40/2" as numbers."""
    for part in text.split(","):
        ends, _, step = part.partition("/")
        first, _, last = ends.partition("-")
        yield from range(int(first), int(last or first) + 1, int(step or 1))


def slopes(heads):
    """ALiBi's, by the usual rule for head counts that are no power of two."""
    whole = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    return torch.tensor(first + [2 ** (-4 * (2 * i + 1) / whole) for i in range(heads - whole)])


def lists(mask):
    """The keys that a mask [batch, 1, row, key] shows to each row, ascending and filled up with -1."""
    seen = mask[:, 0] >= 0
    width = int(seen.sum(-1).max())
    keys = torch.where(seen, torch.arange(seen.shape[-1]), seen.shape[-1]).sort(-1).values[..., :width]
    return torch.where(keys < seen.shape[-1], keys, -1)
