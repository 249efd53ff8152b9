/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <math.h>
#include <string.h>

#define MAX_HEADS  ((int64_t)1 << 20)
#define MAX_LENGTH ((int64_t)1 << 40)

static const tp__family families[] = {
#define X(...) {__VA_ARGS__},
#include "families.inc"
#undef X
};

const tp__family *tp__family_find(const char *type) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(type, families[i].type)) return &families[i];
    return NULL;
}

tp_status tp__scope_dtype(tp__scope *scope, int32_t *dtype) {
    static const struct {
        const char *name;
        int32_t dtype;
    } names[] = {{"bfloat16", TP_BF16}, {"float16", TP_F16}, {"half", TP_F16},
                 {"float32", TP_F32},   {"float", TP_F32},   {"auto", 0}};
    const char *name;
    TP_TRY(tp__scope_string(scope, "dtype|torch_dtype", &name));
    if (!name) return TP_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i].name)) {
            *dtype = names[i].dtype;
            return TP_OK;
        }
    return tp__scope_fail(scope, TP_UNSUPPORTED, scope->used,
                          "is \"%.40s\": it must be bfloat16, float16, float32 or auto", name);
}

/* Explicit, else hidden / heads, which must then divide. Hidden is never inferred from heads * dim.
 */
static tp_status read_head_dim(tp__text *text) {
    tp_layer_group *base = &text->base;
    tp__state state;
    int64_t dim = text->family->head_dim;
    TP_TRY(tp__scope_int(text->scope, "head_dim", 1, MAX_HEADS, &dim, &state));
    if (state == TP__NULL) dim = 0;
    if (!dim && text->hidden % base->q_heads)
        return tp__scope_fail(
            text->scope, TP_INVALID, "hidden_size",
            "is %lld and there are %lld heads: without head_dim it must be a multiple",
            (long long)text->hidden, (long long)base->q_heads);
    base->head_dim_qk = base->head_dim_v = dim ? dim : text->hidden / base->q_heads;
    return TP_OK;
}

static tp_status read_layers(tp__text *text) {
    tp__state state;
    const char *names = "num_hidden_layers|n_layer|n_layers|num_layers";
    /* a list of blocks counts them itself */
    if (text->family->window == BLOCK_MIX)
        return tp__scope_int(text->scope, names, 1, TP_MODEL_MAX_LAYERS, &text->layers, &state);
    return tp__scope_count(text->scope, names, 1, TP_MODEL_MAX_LAYERS, &text->layers);
}

static tp_status read_numbers(tp__text *text) {
    const tp__family *family = text->family;
    tp__scope *scope = text->scope;
    tp_layer_group *base = &text->base;
    tp__state state;
    text->layers = family->layers;
    text->hidden = family->hidden;
    base->q_heads = family->heads;
    base->q_max = family->positions;
    TP_TRY(read_layers(text));
    TP_TRY(tp__scope_count(scope, "num_attention_heads|n_head|n_heads|num_heads|attention_heads", 1, MAX_HEADS,
                           &base->q_heads));
    TP_TRY(tp__scope_count(scope, "hidden_size|n_embd|n_embed|d_model", 1, MAX_LENGTH,
                           &text->hidden));
    TP_TRY(tp__scope_count(scope,
                           "max_position_embeddings|n_positions|max_seq_len|n_ctx|seq_length", 1,
                           MAX_LENGTH, &base->q_max));
    base->kv_max = base->q_max;
    base->kv_heads = family->kv_heads ? family->kv_heads : base->q_heads;
    if (!(family->flags & (NO_KV_KEY | FALCON))) {
        TP_TRY(tp__scope_int(scope, "num_key_value_heads|num_kv_heads|n_head_kv", 1, MAX_HEADS,
                             &base->kv_heads, &state));
        if (state == TP__NULL) base->kv_heads = base->q_heads;
    }
    return TP_OK;
}

/* query_pre_attn_scalar s: the scale is 1/sqrt(s), whatever the head dim. */
static tp_status read_scores(tp__text *text) {
    const tp__family *family = text->family;
    tp_layer_group *base = &text->base;
    base->scale = 1 / sqrt((double)base->head_dim_qk);
    base->scale_source = "1/sqrt(d)";
    base->sinks = (family->flags & SINKS) != 0;
    base->alibi = (family->flags & ALIBI) != 0;
    if (family->flags & PRE_SCALAR) {
        double scalar = 256;
        TP_TRY(tp__scope_real(text->scope, "query_pre_attn_scalar", 1e-6, 1e9, 0, &scalar));
        base->scale = 1 / sqrt(scalar);
        base->scale_source = "query_pre_attn_scalar";
    }
    if (family->flags & UNIT_SCALE) {
        base->scale = 1;
        base->scale_source = "1";
    }
    if (family->flags & MULTIPLIER) {
        base->scale = 1;
        TP_TRY(tp__scope_real(text->scope, "attention_multiplier", 1e-9, 1e9, 0, &base->scale));
        base->scale_source = "attention_multiplier";
    }
    if (family->flags & (CAP_50 | CAP_NONE)) {
        base->softcap = family->flags & CAP_50 ? 50 : 0;
        TP_TRY(tp__scope_real(text->scope, "attn_logit_softcapping", 1e-6, 1e9, 1, &base->softcap));
    }
    return TP_OK;
}

/* One that attends both ways sees window / 2 keys on either side; only gemma3_text is known to do
 * so. */
static tp_status read_direction(tp__text *text) {
    int both = 0;
    if (!(text->family->flags & BIDIRECTIONAL_KEY)) return TP_OK;
    if (text->or_of & TP_TERM_PREFIX) both = 1;
    const char *used;
    json_t *named = tp__scope_find(text->scope, "use_bidirectional_attention", &used);
    if (text->family->flags & OWN_DIMS) { /* gemma4: images are spans where layers slide, if the name is vision */
        text->sliding_spans = json_is_string(named) && !strcmp(json_string_value(named), "vision");
        if (text->sliding_spans || !named || json_is_null(named)) return TP_OK;
        return tp__scope_fail(text->scope, TP_UNSUPPORTED, used, "must be null or \"vision\" here");
    }
    TP_TRY(tp__scope_bool(text->scope, "use_bidirectional_attention", &both));
    if (text->or_of & TP_TERM_PREFIX) {
        if (both) return TP_OK; /* the prefix is what it speaks of */
        return tp__scope_fail(text->scope, TP_UNSUPPORTED, "use_bidirectional_attention",
                              "is false: a prefix model without its prefix is not mapped");
    }
    if (both && !(text->family->flags & LOCAL_ROPE))
        return tp__scope_fail(text->scope, TP_UNSUPPORTED, "use_bidirectional_attention",
                              "is true: it is mapped for gemma3_text only");
    text->bidirectional = both;
    return TP_OK;
}

static void set_mask(const tp__text *text, int kind, tp_layer_group *group) {
    group->all_of = text->bidirectional ? 0 : TP_TERM_CAUSAL;
    if (kind == LAYER_SLIDING) {
        group->all_of |= TP_TERM_WINDOW;
        /* W keys with the row's own: W - 1 to the left */
        group->window_left = text->bidirectional ? text->sliding / 2 : text->sliding - 1;
        group->window_right = text->bidirectional ? text->sliding / 2 : 0;
    }
    if (kind == LAYER_CHUNKED) {
        group->all_of |= TP_TERM_CHUNK;
        group->chunk = text->chunk;
    }
    if (kind == LAYER_INDEXED) group->sparse = text->sparse;
    int spans = !(text->family->flags & OWN_DIMS) || (text->sliding_spans && kind == LAYER_SLIDING);
    group->or_of = spans ? text->or_of : 0;
    group->span = spans ? text->span : 0;
    group->prefix = text->prefix;
}

static int is_rotated(const tp__text *text, int layer) {
    unsigned flags = text->family->flags, still_when_full = NO_ROPE_WHEN_FULL | LLAMA4;
    if (text->sliding) still_when_full |= NO_ROPE_BESIDE_WINDOW;
    if (flags & NO_ROPE || text->own[layer].still) return 0;
    return text->kind[layer] != LAYER_FULL || !(flags & still_when_full);
}

static void set_positions(const tp__text *text, int layer, tp_layer_group *group) {
    unsigned flags = text->family->flags;
    int full = text->kind[layer] != LAYER_SLIDING && text->kind[layer] != LAYER_CHUNKED;
    const tp__rope *rope = full ? &text->rope : &text->local;
    int rotates = is_rotated(text, layer);
    if (rotates)
        tp__rope_apply(rope, group->rope_dims ? group->rope_dims : group->head_dim_qk, group);
    else
        group->rope_dims = 0;
    if (rotates && text->own[layer].theta > 0) group->rope_theta = text->own[layer].theta;
    if (flags & ROPE_SCALES_Q && rope->beta > 0) {
        group->query_scale_beta = rope->beta;
        group->query_scale_period = rope->original;
    }
    if (full && text->tuning_beta > 0) {
        group->query_scale_beta = text->tuning_beta;
        group->query_scale_period = text->tuning_period;
        group->query_scale_offset = 1;
    }
}

static void set_own(const tp__own *own, tp_layer_group *group) {
    if (own->heads) group->q_heads = own->heads;
    if (own->kv_heads) group->kv_heads = own->kv_heads;
    if (own->dim) group->head_dim_qk = group->head_dim_v = own->dim;
    group->kv_shared = own->kv_shared;
}

static void make_layer(const tp__text *text, int layer, tp_layer_group *group) {
    static const char *const others[] = {
        [LAYER_MAMBA] = "mamba", [LAYER_LINEAR] = "linear attention", [LAYER_CONVOLUTION] = "convolution",
        [LAYER_FORWARD] = "other"};
    int kind = text->kind[layer];
    if (kind >= LAYER_MAMBA) {
        memset(group, 0, sizeof *group);
        group->out_of_scope = others[kind];
        return;
    }
    memcpy(group, &text->base, sizeof *group);
    set_own(&text->own[layer], group);
    set_mask(text, kind, group);
    set_positions(text, layer, group);
    if (text->inverse_layer) {
        group->scale /= layer + 1;
        group->scale_source = "1/sqrt(d)/(layer+1)";
    }
}

tp_status tp__text_read(tp__text *text, tp__builder *builder) {
    TP_TRY(tp__scope_dtype(text->scope, &text->base.dtype));
    TP_TRY(read_numbers(text));
    TP_TRY(text->family->flags & LATENT ? tp__text_latent(text) : read_head_dim(text));
    text->base.rope_dims = text->family->flags & ROTARY_DIM ? 64 : text->base.rope_dims;
    if (text->family->flags & ROTARY_DIM)
        TP_TRY(tp__scope_count(text->scope, "rotary_dim", 2, text->base.head_dim_qk,
                               &text->base.rope_dims));
    TP_TRY(read_direction(text));
    if (!(text->family->flags & NO_ROPE)) TP_TRY(tp__text_ropes(text));
    TP_TRY(read_scores(text));
    TP_TRY(tp__text_special(text));
    TP_TRY(tp__text_kinds(text));
    TP_TRY(tp__text_own(text));
    TP_TRY(tp__text_rotations(text, builder));
    TP_TRY(tp__group_check(text->scope, &text->base));
    for (int layer = 0; layer < text->layers; layer++) {
        tp_layer_group group;
        make_layer(text, layer, &group);
        if (!group.out_of_scope) TP_TRY(tp__group_check(text->scope, &group));
        TP_TRY(tp__builder_add(builder, &group, layer));
    }
    return TP_OK;
}
