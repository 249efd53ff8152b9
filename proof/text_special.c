/* SPDX-License-Identifier: Apache-2.0 */
/* What single families have beside the table: KV heads, dims, scale, extras. */
#include "text.h"

#include <string.h>

/* multi_query means one KV head, whatever num_kv_heads would default to; the new architecture has
 * the key. */
static tp_status read_falcon(tp__text *text) {
    tp_layer_group *base = &text->base;
    int alibi = 0, fresh = 0, multi_query = 1;
    int64_t heads = base->q_heads;
    tp__state state;
    TP_TRY(tp__scope_bool(text->scope, "alibi", &alibi));
    TP_TRY(tp__scope_bool(text->scope, "new_decoder_architecture", &fresh));
    TP_TRY(tp__scope_bool(text->scope, "multi_query", &multi_query));
    TP_TRY(tp__scope_int(text->scope, "num_kv_heads|n_head_kv|num_key_value_heads", 1, 1 << 20,
                         &heads, &state));
    if (alibi)
        return tp__scope_fail(
            text->scope, TP_UNSUPPORTED, "alibi",
            "is true: falcon scales its slopes by 1/sqrt(d), which is not mapped");
    base->kv_heads = fresh || !multi_query ? heads : 1;
    return TP_OK;
}

/* Newer files write down what follows from multi_query. */
static tp_status read_bigcode(tp__text *text) {
    tp_layer_group *base = &text->base;
    int multi_query = 1;
    tp__state state;
    TP_TRY(tp__scope_bool(text->scope, "multi_query", &multi_query));
    base->kv_heads = multi_query ? 1 : base->q_heads;
    int64_t given = base->kv_heads;
    TP_TRY(tp__scope_int(text->scope, "num_key_value_heads", 1, 1 << 20, &given, &state));
    return given == base->kv_heads ? TP_OK
                                   : tp__scope_fail(text->scope, TP_INVALID, "num_key_value_heads",
                                                    "is %lld: with this multi_query it must be %lld", (long long)given,
                                                    (long long)base->kv_heads);
}

static tp_status read_mpt_attention(tp__scope *scope, tp_layer_group *base) {
    double scale = 0, clip = 0;
    int64_t max = 8;
    int prefix = 0, qk_ln = 0, by_id = 0;
    const char *type, *implementation;
    base->alibi = 1;
    TP_TRY(tp__scope_bool(scope, "alibi", &base->alibi));
    TP_TRY(tp__scope_count(scope, "alibi_bias_max", 1, 1 << 20, &max));
    TP_TRY(tp__scope_real(scope, "softmax_scale", 1e-9, 1e9, 1, &scale));
    TP_TRY(tp__scope_real(scope, "clip_qkv", 0, 1e9, 1, &clip)); /* before the call, as is qk_ln */
    TP_TRY(tp__scope_bool(scope, "qk_ln", &qk_ln));
    TP_TRY(tp__scope_bool(scope, "prefix_lm", &prefix));
    TP_TRY(tp__scope_bool(scope, "attn_uses_sequence_id", &by_id));
    TP_TRY(tp__scope_string(scope, "attn_impl", &implementation));
    TP_TRY(tp__scope_string(scope, "attn_type", &type));
    if (type && strcmp(type, "multihead_attention"))
        return tp__scope_fail(scope, TP_UNSUPPORTED, "attn_type",
                              "is \"%.40s\": only multihead_attention is mapped", type);
    if (base->alibi && max != 8)
        return tp__scope_fail(scope, TP_UNSUPPORTED, "alibi_bias_max",
                              "is %lld: slopes are mapped for 8 only", (long long)max);
    if (by_id)
        return tp__scope_fail(scope, TP_UNSUPPORTED, "attn_uses_sequence_id",
                              "is true: it is not mapped");
    if (scale > 0) {
        base->scale = scale;
        base->scale_source = "softmax_scale";
    }
    return prefix ? tp__scope_fail(scope, TP_UNSUPPORTED, "prefix_lm",
                                   "is true: where the prefix ends is not in the file")
                  : TP_OK;
}

static tp_status read_mpt(tp__text *text) {
    json_t *object;
    const char *used;
    tp__scope inner;
    char path[160];
    TP_TRY(tp__scope_object(text->scope, "attn_config", &object));
    snprintf(path, sizeof path, "%s%sattn_config", text->scope->path,
             *text->scope->path ? "." : "");
    TP_TRY(tp__scope_open(&inner, text->scope->source, object, path));
    tp_status status = read_mpt_attention(&inner, &text->base);
    tp__scope_find(&inner, "model_type", &used);
    if (status == TP_OK) status = tp__scope_finish(&inner);
    tp__scope_close(&inner);
    return status;
}

static tp_status read_unit_keys(tp__text *text) {
    int scaled = 1;
    TP_TRY(tp__scope_bool(text->scope, "scale_attn_weights", &scaled));
    TP_TRY(tp__scope_bool(text->scope, "scale_attn_by_inverse_layer_idx", &text->inverse_layer));
    if (scaled) return TP_OK;
    text->base.scale = 1;
    text->base.scale_source = "scale_attn_weights false";
    return text->inverse_layer
               ? tp__scope_fail(text->scope, TP_UNSUPPORTED, "scale_attn_weights",
                                "is false beside scale_attn_by_inverse_layer_idx: not mapped")
               : TP_OK;
}

static tp_status read_llama4(tp__text *text) {
    int tuned = 1;
    double beta = 0.1;
    text->tuning_period = 8192;
    const char *used;
    json_t *tuning = tp__scope_find(text->scope, "attn_temperature_tuning", &used);
    if (json_is_integer(tuning)) /* the first files have 4 here, which counts as true */
        tuned = json_integer_value(tuning) != 0;
    else
        TP_TRY(tp__scope_bool(text->scope, "attn_temperature_tuning", &tuned));
    TP_TRY(tp__scope_count(text->scope, "floor_scale", 1, (int64_t)1 << 40, &text->tuning_period));
    TP_TRY(tp__scope_real(text->scope, "attn_scale", 0, 1e6, 0, &beta));
    text->tuning_beta = tuned ? beta : 0;
    return TP_OK;
}

/* granitemoehybrid rotates where the file says so by name. */
static tp_status read_position_name(tp__text *text) {
    const char *name;
    TP_TRY(tp__scope_string(text->scope, "position_embedding_type", &name));
    if (name && strcmp(name, "rope") && strcmp(name, "nope"))
        return tp__scope_fail(text->scope, TP_UNSUPPORTED, "position_embedding_type",
                              "is \"%.40s\": it must be rope, nope or null", name);
    if (!name || *name == 'n') text->rope.kind = text->local.kind = TP_ROPE_NONE;
    return TP_OK;
}

tp_status tp__text_special(tp__text *text) {
    unsigned flags = text->family->flags;
    if (flags & LATENT) tp__text_latent_scale(text);
    if (flags & FALCON) TP_TRY(read_falcon(text));
    if (flags & MPT) TP_TRY(read_mpt(text));
    if (flags & UNIT_KEYS) TP_TRY(read_unit_keys(text));
    if (flags & LLAMA4) TP_TRY(read_llama4(text));
    if (flags & POSITION_NAME) TP_TRY(read_position_name(text));
    return flags & BIGCODE ? read_bigcode(text) : TP_OK;
}
