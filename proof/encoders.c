/* SPDX-License-Identifier: Apache-2.0 */
#include "encoders.h"

#include <math.h>
#include <string.h>

#include "text.h"

enum {
    TURNS = 1,    /* positions by rows and columns of patches                        */
    PACKED = 2,   /* images one after another, each attends to itself                */
    OWN_DIM = 4,  /* head_dim                                                        */
    OUT_SIZE = 8, /* hidden_size is what comes out of the tower, not what is inside   */
    WINDOWS = 16, /* window_size in pixels; fullatt_block_indexes see the whole image */
    SOUND = 32,   /* max_source_positions                                            */
    WORDS = 64,   /* max_position_embeddings, is_decoder                             */
    REGISTERS = 128, /* num_register_tokens beside the patches                       */
    UNIT = 256,      /* the scale is 1                                               */
    KV_KEY = 512     /* num_key_value_heads, which must be as many as heads           */
};

struct tp__encoder {
    const char *type;
    int32_t part;
    const char *layer_names, *hidden_names, *head_names;
    int64_t layers, hidden, heads, image, patch, extra;
    unsigned flags;
};

static const tp__encoder encoders[] = {
#define X(...) {__VA_ARGS__},
#include "encoders.inc"
#undef X
};

const tp__encoder *tp__encoder_find(const char *type) {
    for (size_t i = 0; i < sizeof encoders / sizeof *encoders; i++)
        if (!strcmp(type, encoders[i].type)) return &encoders[i];
    return NULL;
}

int32_t tp__encoder_part(const tp__encoder *encoder) {
    return encoder->part;
}

static tp_status set_heads(tp__scope *scope, tp_layer_group *group, int64_t heads, int64_t hidden,
                           const char *name) {
    if (hidden % heads)
        return tp__scope_fail(scope, TP_INVALID, name,
                              "is %lld and there are %lld heads: it must be a multiple",
                              (long long)hidden, (long long)heads);
    group->q_heads = group->kv_heads = heads;
    group->head_dim_qk = group->head_dim_v = hidden / heads;
    return TP_OK;
}

static void set_scale(tp_layer_group *group) {
    group->scale = 1 / sqrt((double)group->head_dim_qk);
    group->scale_source = "1/sqrt(d)";
}

/* A number, or [height, width], which must be equal. */
static tp_status read_size(tp__scope *scope, const char *key, int64_t *size) {
    const char *used;
    json_t *pair = tp__scope_find(scope, key, &used);
    if (!json_is_array(pair)) return tp__scope_count(scope, key, 1, 1 << 20, size);
    json_int_t side = json_integer_value(json_array_get(pair, 0));
    if (json_array_size(pair) != 2 || side < 1 || side > 1 << 20 || json_integer_value(json_array_get(pair, 1)) != side)
        return tp__scope_fail(scope, TP_UNSUPPORTED, key, "must be a whole number in 1..1048576, or two that are equal");
    *size = side;
    return TP_OK;
}

static tp_status read_patches(const tp__encoder *encoder, tp__scope *scope, int64_t *tokens,
                              int64_t *patch) {
    int64_t image = encoder->image, merge = 2, frames = 2, registers = 4;
    *patch = encoder->patch;
    TP_TRY(read_size(scope, "patch_size", patch));
    TP_TRY(tp__scope_count(scope, "spatial_merge_size", 1, 1 << 20, &merge));
    TP_TRY(tp__scope_count(scope, "temporal_patch_size", 1, 1 << 20, &frames));
    if (encoder->image) TP_TRY(read_size(scope, "image_size", &image));
    if (encoder->flags & REGISTERS) TP_TRY(tp__scope_count(scope, "num_register_tokens", 0, 1 << 20, &registers));
    *tokens = image ? (image / *patch) * (image / *patch) + encoder->extra : 0;
    if (encoder->flags & REGISTERS) *tokens += registers - 4;
    if (image && image < *patch)
        return tp__scope_fail(scope, TP_INVALID, "image_size",
                              "is %lld: it must hold a patch of %lld", (long long)image,
                              (long long)*patch);
    return TP_OK;
}

static tp_status read_positions(const tp__encoder *encoder, tp__scope *scope, int64_t *tokens,
                                int64_t *patch) {
    if (encoder->flags & SOUND) {
        *tokens = encoder->image;
        return tp__scope_count(scope, "max_source_positions", 1, (int64_t)1 << 40, tokens);
    }
    if (!(encoder->flags & WORDS)) return read_patches(encoder, scope, tokens, patch);
    int decoder = 0;
    *tokens = encoder->image;
    TP_TRY(tp__scope_count(scope, "max_position_embeddings", 1, (int64_t)1 << 40, tokens));
    TP_TRY(tp__scope_bool(scope, "is_decoder", &decoder));
    return decoder ? tp__scope_fail(scope, TP_UNSUPPORTED, "is_decoder",
                                    "is true: this encoder as a decoder is not mapped")
                   : TP_OK;
}

static tp_status read_rope(const tp__encoder *encoder, tp__scope *scope, tp_layer_group *group) {
    if (!(encoder->flags & TURNS)) return TP_OK;
    double theta = 1e4;
    json_t *object;
    TP_TRY(tp__scope_real(scope, "rope_theta", 1e-3, 1e12, 0, &theta));
    TP_TRY(tp__scope_object(scope, "rope_parameters", &object));
    if (object) {
        tp__scope inner;
        const char *type;
        char path[160];
        snprintf(path, sizeof path, "%s%srope_parameters", scope->path, *scope->path ? "." : "");
        TP_TRY(tp__scope_open(&inner, scope->source, object, path));
        tp_status status = tp__scope_real(&inner, "rope_theta", 1e-3, 1e12, 0, &theta);
        if (status == TP_OK) status = tp__scope_string(&inner, "rope_type|type", &type);
        if (status == TP_OK && type && strcmp(type, "default") && strcmp(type, "axial"))
            status = tp__scope_fail(&inner, TP_UNSUPPORTED, "rope_type",
                                    "is \"%.40s\": a tower's must be default or axial", type);
        if (status == TP_OK) status = tp__scope_finish(&inner);
        tp__scope_close(&inner);
        TP_TRY(status);
    }
    group->rope = TP_ROPE_2D;
    group->rope_dims = group->head_dim_qk;
    group->rope_theta = theta;
    return TP_OK;
}

/* Which blocks see the whole image; all of them where there are no windows. */
static tp_status read_windows(const tp__encoder *encoder, tp__scope *scope, int64_t layers,
                              int64_t patch, int64_t *window, uint8_t *whole) {
    static const int usual[] = {7, 15, 23, 31};
    json_t *list, *entry;
    size_t i;
    *window = 0;
    memset(whole, 1, (size_t)layers);
    if (!(encoder->flags & WINDOWS)) return TP_OK;
    int64_t pixels = 112;
    TP_TRY(tp__scope_count(scope, "window_size", 1, 1 << 20, &pixels));
    TP_TRY(tp__scope_array(scope, "fullatt_block_indexes", &list));
    if (pixels < patch)
        return tp__scope_fail(scope, TP_INVALID, "window_size",
                              "is %lld: it must hold a patch of %lld", (long long)pixels,
                              (long long)patch);
    *window = (pixels / patch) * (pixels / patch);
    memset(whole, 0, (size_t)layers);
    for (i = 0; !list && i < sizeof usual / sizeof *usual; i++)
        if (usual[i] < layers) whole[usual[i]] = 1;
    json_array_foreach(list, i, entry) {
        json_int_t block = json_integer_value(entry);
        if (!json_is_integer(entry) || block < 0 || block >= layers)
            return tp__scope_fail(scope, TP_INVALID, "fullatt_block_indexes",
                                  "must hold blocks in 0..%lld, as entry %zu is not",
                                  (long long)layers - 1, i);
        whole[block] = 1;
    }
    return TP_OK;
}

tp_status tp__encoder_read(const tp__encoder *encoder, tp__scope *scope, int32_t dtype,
                           tp__builder *builder, int64_t *tokens) {
    int64_t layers = encoder->layers, hidden = encoder->hidden, heads = encoder->heads;
    int64_t patch = 0, window, out = 0, dim = 0, kv_heads = 0, longest;
    uint8_t whole[TP_MODEL_MAX_LAYERS];
    tp_layer_group group;
    tp__state state;
    memset(&group, 0, sizeof group);
    group.part = encoder->part;
    group.dtype = dtype;
    TP_TRY(tp__scope_dtype(scope, &group.dtype));
    TP_TRY(tp__scope_count(scope, encoder->layer_names, 1, TP_MODEL_MAX_LAYERS, &layers));
    TP_TRY(tp__scope_count(scope, encoder->hidden_names, 1, (int64_t)1 << 40, &hidden));
    TP_TRY(tp__scope_count(scope, encoder->head_names, 1, 1 << 20, &heads));
    if (encoder->flags & OUT_SIZE)
        TP_TRY(tp__scope_count(scope, "hidden_size", 1, (int64_t)1 << 40, &out));
    if (encoder->flags & OWN_DIM)
        TP_TRY(tp__scope_int(scope, "head_dim", 1, 1 << 20, &dim, &state));
    TP_TRY(set_heads(scope, &group, heads, hidden, encoder->hidden_names));
    if (dim) group.head_dim_qk = group.head_dim_v = dim;
    set_scale(&group);
    if (encoder->flags & UNIT) {
        group.scale = 1;
        group.scale_source = "1";
    }
    if (encoder->flags & KV_KEY) {
        TP_TRY(tp__scope_count(scope, "num_key_value_heads", 1, 1 << 20, &kv_heads));
        TP_TRY(tp__scope_count(scope, "max_position_embeddings", 1, (int64_t)1 << 40, &longest));
        if (kv_heads && kv_heads != heads)
            return tp__scope_fail(scope, TP_UNSUPPORTED, "num_key_value_heads",
                                  "is %lld and there are %lld heads: in this tower they must be as many",
                                  (long long)kv_heads, (long long)heads);
    }
    TP_TRY(read_positions(encoder, scope, tokens, &patch));
    TP_TRY(read_rope(encoder, scope, &group));
    TP_TRY(read_windows(encoder, scope, layers, patch, &window, whole));
    if (encoder->flags & PACKED) group.all_of = TP_TERM_SEGMENT;
    for (int64_t i = 0; i < layers; i++) {
        group.q_max = group.kv_max = whole[i] ? *tokens : window;
        TP_TRY(tp__builder_add(builder, &group, (int)i));
    }
    return TP_OK;
}

tp_status tp__whisper_read(tp__scope *scope, tp__builder *builder) {
    int64_t hidden = 384, layers[2] = {4, 4}, heads[2] = {6, 6}, source = 1500, target = 448;
    int both = 1;
    tp_layer_group group;
    memset(&group, 0, sizeof group);
    TP_TRY(tp__scope_dtype(scope, &group.dtype));
    TP_TRY(tp__scope_bool(scope, "is_encoder_decoder", &both));
    TP_TRY(tp__scope_count(scope, "d_model|hidden_size", 1, (int64_t)1 << 40, &hidden));
    TP_TRY(tp__scope_count(scope, "encoder_layers|num_hidden_layers", 1, TP_MODEL_MAX_LAYERS,
                           &layers[0]));
    TP_TRY(tp__scope_count(scope, "decoder_layers", 1, TP_MODEL_MAX_LAYERS, &layers[1]));
    TP_TRY(tp__scope_count(scope, "encoder_attention_heads", 1, 1 << 20, &heads[0]));
    TP_TRY(tp__scope_count(scope, "decoder_attention_heads", 1, 1 << 20, &heads[1]));
    TP_TRY(tp__scope_count(scope, "max_source_positions", 1, (int64_t)1 << 40, &source));
    TP_TRY(tp__scope_count(scope, "max_target_positions", 1, (int64_t)1 << 40, &target));
    const struct {
        int32_t part;
        int side;
        uint32_t all_of;
        int64_t q_max, kv_max;
    } sites[] = {{TP_PART_TEXT, 1, TP_TERM_CAUSAL, target, target},
                 {TP_PART_AUDIO, 0, 0, source, source},
                 {TP_PART_CROSS, 1, 0, target, source}};
    for (size_t s = 0; s < sizeof sites / sizeof *sites; s++) {
        group.part = sites[s].part;
        group.all_of = sites[s].all_of;
        group.q_max = sites[s].q_max;
        group.kv_max = sites[s].kv_max;
        TP_TRY(set_heads(scope, &group, heads[sites[s].side], hidden, "d_model"));
        set_scale(&group);
        for (int64_t i = 0; i < layers[sites[s].side]; i++)
            TP_TRY(tp__builder_add(builder, &group, (int)i));
    }
    return TP_OK;
}
