/* SPDX-License-Identifier: Apache-2.0 */
/* What a tp_cache of a model keeps: a row for each layer, by its number in the model. */
#include "capacity.h"
#include "control.h"

static const tp_cache_layer nothing = TP_CACHE_LAYER_INIT;

static tp_cache_layer row_of(const tp_layer_group *group, int32_t dtype) {
    tp_cache_layer row = nothing;
    int latent = group->decode_dim_qk > 0; /* one row of latents, of which v's are parts */
    row.kv_heads = latent ? group->decode_kv_heads : group->kv_heads;
    row.head_dim_qk = latent ? group->decode_dim_qk : group->head_dim_qk;
    row.head_dim_v = latent ? group->decode_dim_v : group->head_dim_v;
    row.k_dtype = row.v_dtype = dtype ? dtype : group->dtype ? group->dtype : TP_BF16;
    row.latent = latent;
    return row;
}

/* Layers that share keys are the last ones of the model, and so the last of their group. */
static void put_group(const tp_layer_group *group, int32_t dtype, tp_cache_layer *layers) {
    for (int32_t i = 0; i < group->layer_count - group->kv_shared; i++) layers[group->layers[i]] = row_of(group, dtype);
}

tp_status tp_cache_from_model(const tp_model *model, tp_part part, tp_dtype dtype, tp_cache_layer *layers, int64_t room,
                              tp_cache_options *options, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_cache_options known;
    int64_t count = 0, caches = 0, tokens = 0;
    if (!model || !layers) return tp__proof_fail(error, TP_INVALID, "%s is NULL: it must be given", !model ? "model" : "layers");
    TP_TRY(tp__take(&tp__cache_options_shape, options, &known, error));
    if (part != TP_PART_TEXT && part != TP_PART_CROSS)
        return tp__proof_fail(error, TP_INVALID, "part is %d: it must be TP_PART_TEXT (0) or TP_PART_CROSS (3)", (int)part);
    if (dtype && dtype != TP_F32 && dtype != TP_F16 && dtype != TP_BF16)
        return tp__proof_fail(error, TP_UNSUPPORTED, "dtype is %s: a cache keeps f32, f16 or bf16", tp_dtype_name(dtype));
    if (!dtype && *model->cache)
        return tp__proof_fail(error, TP_INVALID,
                              "dtype is not said, and the file of %.150s wants keys and values kept as %s "
                              "(quantization_config.kv_cache_scheme), which loses something: name the dtype of a plain cache; "
                              "tp_cache_format_layers makes a quantised one of it",
                              model->label, model->cache);
    for (int i = 0; i < model->group_count; i++) {
        const tp_layer_group *group = model->groups[i];
        if (group->part != (int32_t)part || !group->layer_count) continue;
        int64_t last = group->layers[group->layer_count - 1] + 1;
        if (last > count) count = last;
        if (!tp__group_caches(group)) continue;
        caches++;
        if (group->kv_max && (!tokens || group->kv_max < tokens)) tokens = group->kv_max;
    }
    if (!caches)
        return tp__proof_fail(error, TP_UNSUPPORTED, "%s: no %s layer of it generates, so none keeps keys and values",
                              model->label, tp_part_name(part));
    if (room < count)
        return tp__proof_fail(error, TP_INVALID, "room is %lld: %s has %lld %s layers", (long long)room, model->label,
                              (long long)count, tp_part_name(part));
    for (int64_t i = 0; i < count; i++) layers[i] = nothing;
    for (int i = 0; i < model->group_count; i++)
        if (model->groups[i]->part == (int32_t)part && tp__group_caches(model->groups[i]))
            put_group(model->groups[i], (int32_t)dtype, layers);
    options->layers = layers;
    options->layer_count = count;
    options->same = 0;
    if (tokens) options->sequence_tokens = tokens;
    return TP_OK;
}
