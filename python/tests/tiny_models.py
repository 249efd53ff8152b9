# SPDX-License-Identifier: Apache-2.0
"""Every architecture of transformers, tiny: a config of a few layers with hidden sizes of at most 64, and the model of it
with random weights. No file and no network is read.

    config("olmo3"), model("olmo3"), types()

SMALL holds the sizes that fields of these names get in any config, at any depth; SPECIAL what single types need beside them.
A field that a config class does not have is left alone, so a class's own defaults decide all the rest."""
import functools
import inspect
import json
import re

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
    **dict.fromkeys("num_experts_per_tok num_experts_per_token moe_topk moe_k".split(), 2),
    **dict.fromkeys("n_group topk_group num_expert_group".split(), 1),
    "head_dim": HEAD_DIM, "vocab_size": 128, "max_position_embeddings": 256, "n_positions": 256, "n_ctx": 256,
    "sliding_window": 8, "attention_chunk_size": 8, "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 16,
    "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 20,
    "image_size": 32, "patch_size": 8, "max_source_positions": 24, "num_mel_bins": 16, "embedding_size": HIDDEN,
    **dict.fromkeys("pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id decoder_start_token_id"
                    " forced_eos_token_id forced_bos_token_id".split(), 1),
}  # fmt: skip
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
LATENT = {"num_key_value_heads": HEADS, "head_dim": 8}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16}
SPECIAL = {
    **dict.fromkeys("axk1 deepseek_v2 deepseek_v3 glm4_moe_lite longcat_flash minicpm3 youtu".split(), LATENT),
    **dict.fromkeys("axk2 deepseek_v32 glm_moe_dsa".split(), {**LATENT, "index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}),
    "bailing_hybrid": {**LATENT, "layer_group_size": 2, "num_expert_group": 1, "topk_group": 1, "num_experts": 8},
    "bamba": {"attn_layer_indices": [1, 3], **MAMBA},
    "beam": {"layer_types": [SLIDING, FULL, SLIDING, FULL]},
    "codegen": {"rotary_dim": 8},
    "cohere2_moe": {"num_shared_experts": 1},
    "cohere_compass_text": {"rope_parameters": {FULL: None, SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
                            "layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
    "dots1": {"max_window_layers": 2, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    **dict.fromkeys("gemma3_text gemma4_text gemma4_unified_text".split(), {"num_hidden_layers": 6}),
    "gemma3n_text": {"num_hidden_layers": 5, "num_kv_shared_layers": 0},
    "gemma4_vision": {"num_key_value_heads": HEADS},
    **dict.fromkeys("glm4v_text glm4v_moe_text".split(), {"rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}}),
    "llama4_vision_model": {"intermediate_size": 256, "projector_input_dim": 64, "projector_output_dim": 64},
    "pixtral": {"head_dim": 16},
    "qwen2_5_vl_vision": {"fullatt_block_indexes": [1, 3], "window_size": 32},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": [LINEAR, FULL, LINEAR, FULL], "attention_multiplier": 0.3, **MAMBA},
    **dict.fromkeys("granite granitemoe granitemoeshared granite_swa granitemoe_swa hyperclovax".split(), {"attention_multiplier": 0.3}),
    "helium": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "gpt_bigcode": {"num_key_value_heads": 1},
    "nemotron_h": {"sliding_window": None},
    **dict.fromkeys("qwen2_vl_text qwen2_5_vl_text".split(), {"rope_parameters": {
        "rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}}),
    "kimi_linear": {**LATENT, "layer_types": [LINEAR, FULL, LINEAR, FULL]},
    "kolibri1": {"num_hidden_layers": 5},
    "laguna": {"layer_types": [FULL, SLIDING, FULL, SLIDING], "num_attention_heads_per_layer": [4, 6, 4, 6]},
    "lfm2": {"layer_types": ["conv", FULL, "conv", FULL]},
    "lfm2_moe": {"layer_types": ["conv", FULL, "conv", FULL]},
    "mellum": {"layer_types": [FULL, SLIDING, FULL, SLIDING]},
    **dict.fromkeys("gemma2 vaultgemma".split(), {"attn_logit_softcapping": 2.0}),
    "mistral4": {**LATENT, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "mscale_all_dim": 1.0,
                 "original_max_position_embeddings": 128, "llama_4_scaling_beta": 0.1}},
    **dict.fromkeys("qwen3_vl_text qwen3_vl_moe_text qwen3_5_text qwen3_5_moe_text".split(), {"sliding_window": None, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 1] , "partial_rotary_factor": 0.25}}),
    "minimax": {"sliding_window": None},
    "xmod": {"default_language": "en_XX"},
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


def file(model_type):
    """The config as config.json has it when every field is written, and when only those are that differ from the class's
    defaults; without a dtype."""
    made = config(model_type)
    whole, short = (json.loads(made.to_json_string(use_diff=x)) for x in (False, True))
    return _without_dtype(whole), _without_dtype(short)


def _without_dtype(fields):
    inner = {name: _without_dtype(x) if isinstance(x, dict) else x for name, x in fields.items()}
    return {name: x for name, x in inner.items() if name != "dtype"}


# How a model is fed, by model_type: those that are not here get tokens.
IMAGES = """siglip_vision_model clip_vision_model vit aimv2_vision_model chinese_clip_vision_model deit dinov2
    dinov2_with_registers idefics3_vision ijepa internvl_vision ovis2_vision smolvlm_vision vit_msn llama4_vision_model
    pixtral""".split()
PATCHES = """qwen2_vl_vision qwen2_5_vl_vision qwen3_vl_vision qwen3_vl_moe_vision qwen3_5_vision qwen3_5_moe_vision
    glm4v_vision glm4v_moe_vision""".split()
SOUND = "qwen2_audio_encoder voxtral_encoder audioflamingo3_encoder".split()


def feed_tower(model_type, tower):
    """One or two inputs of this tower's kind; False: it is no tower."""
    made, rest = tower.config, {}
    if model_type in IMAGES:
        if model_type == "pixtral":
            rest = {"image_sizes": torch.tensor([[32, 32], [32, 32]])}
        tower(pixel_values=torch.randn(2, 3, 32, 32), **rest)
    elif model_type in PATCHES:
        size = 3 * made.temporal_patch_size * made.patch_size**2
        tower(torch.randn(16 + 24, size), grid_thw=torch.tensor([[1, 4, 4], [1, 4, 6]]))
    elif model_type == "gemma4_vision":
        grid = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(6), indexing="xy"), -1).reshape(1, 36, 2)
        tower(torch.randn(2, 36, 3 * made.patch_size**2), grid.expand(2, 36, 2))
    elif model_type in SOUND:
        if model_type == "audioflamingo3_encoder":
            rest = {"input_features_mask": torch.ones(2, 2 * made.max_source_positions)}
        tower(torch.randn(2, made.num_mel_bins, 2 * made.max_source_positions), **rest)
    else:
        return False
    return True


def feed_tokens(made, cached=True, **first):
    """21 tokens, then, where the model keeps a cache, three more and one more."""
    torch.manual_seed(1)
    ids = [torch.randint(2, 100, (2, n)) for n in (21, 3, 1)]
    kinds = getattr(made.config.get_text_config(), "layer_types", None) or getattr(made.config, "layers_block_type", None) or ()
    plain = not any(re.search("linear|conv|mamba|hybrid|indexed", x) for x in kinds)
    # a plain cache keeps every key, so that positions of keys are their places
    cache = transformers.DynamicCache() if plain else transformers.DynamicCache(config=made.config)
    if not cached or "past_key_values" not in inspect.signature(made.forward).parameters:
        made(input_ids=ids[0], **first)
        return
    made(input_ids=ids[0], past_key_values=cache, use_cache=True, **first)
    for more in ids[1:]:
        if cache.get_seq_length():
            made(input_ids=more, past_key_values=cache, use_cache=True)


def tower_of(made):
    """(part, model_type, module) of the image or audio tower inside a model, if it has one."""
    for part in ("vision", "audio"):
        inner = getattr(made.config, f"{part}_config", None)
        for module in made.modules():
            if inner is not None and getattr(module, "config", None) is inner:
                return part, inner.model_type, module
    return None
