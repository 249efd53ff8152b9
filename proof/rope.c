/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Positions. Two generations of files: rope_theta and rope_scaling, or one object rope_parameters,
 * which may be split by layer type. M-RoPE is known by mrope_section: its type has been written as
 * "mrope" and as "default".
 */
#include "text.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int32_t kind;
    int factor; /* needs one */
} kinds[] = {
    {"default", TP_ROPE_DEFAULT, 0},   {"mrope", TP_ROPE_DEFAULT, 0}, {"linear", TP_ROPE_LINEAR, 1},
    {"dynamic", TP_ROPE_DYNAMIC, 1},   {"yarn", TP_ROPE_YARN, 1},     {"llama3", TP_ROPE_LLAMA3, 1},
    {"longrope", TP_ROPE_LONGROPE, 0}, {"su", TP_ROPE_LONGROPE, 0},
    {"proportional", TP_ROPE_PROPORTIONAL, 0},
};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

/* rope_type wins over type, the older name; they may differ only where one says mrope. */
static tp_status read_kind(tp__scope *scope, tp__rope *rope, int *mrope) {
    const char *name, *old;
    int at = 0;
    TP_TRY(tp__scope_string(scope, "rope_type", &name));
    TP_TRY(tp__scope_string(scope, "type", &old));
    if (!name && !old) return TP_OK;
    *mrope = (name && !strcmp(name, "mrope")) || (old && !strcmp(old, "mrope"));
    if (name && old && strcmp(name, old) && !*mrope)
        return tp__scope_fail(scope, TP_INVALID, "rope_type",
                              "is \"%.40s\" and type is \"%.40s\": they must agree", name, old);
    const char *key = name ? "rope_type" : "type";
    if (!name) name = old;
    while (at < KIND_COUNT && strcmp(name, kinds[at].name)) at++;
    if (at == KIND_COUNT)
        return tp__scope_fail(scope, TP_UNSUPPORTED, key, "is \"%.40s\": that is not known", name);
    rope->kind = kinds[at].kind;
    double factor = 0;
    TP_TRY(tp__scope_real(scope, "factor", 1e-6, 1e9, 0, &factor));
    if (kinds[at].factor && factor == 0)
        return tp__scope_fail(scope, TP_INVALID, "factor", "is missing: \"%s\" needs it", name);
    rope->factor = factor;
    return TP_OK;
}

static tp_status read_sections(tp__scope *scope, tp__rope *rope, int mrope) {
    json_t *list, *entry;
    size_t i;
    TP_TRY(tp__scope_array(scope, "mrope_section", &list));
    TP_TRY(tp__scope_bool(scope, "mrope_interleaved", &rope->interleaved));
    if (!list) {
        if (!mrope) return TP_OK;
        return tp__scope_fail(scope, TP_INVALID, "mrope_section", "is missing: mrope needs it");
    }
    if (json_array_size(list) != 3)
        return tp__scope_fail(scope, TP_INVALID, "mrope_section",
                              "has %zu entries: it must have 3, of time, height and width",
                              json_array_size(list));
    json_array_foreach(list, i, entry) {
        json_int_t size = json_integer_value(entry);
        if (!json_is_integer(entry) || size < 1 || size > 65536)
            return tp__scope_fail(scope, TP_INVALID, "mrope_section",
                                  "must hold whole numbers in 1..65536, as entry %zu is not", i);
        rope->section[i] = (int32_t)size;
    }
    return TP_OK;
}

static tp_status read_factors(tp__scope *scope, const char *key, int64_t dims, json_t **factors) {
    json_t *list, *entry;
    size_t i;
    TP_TRY(tp__scope_array(scope, key, &list));
    if (!list) return TP_OK;
    *factors = list;
    if (json_array_size(list) != (size_t)(dims / 2))
        return tp__scope_fail(scope, TP_INVALID, key,
                              "has %zu entries: it must have half the rotated dims, %lld",
                              json_array_size(list), (long long)(dims / 2));
    json_array_foreach(list, i, entry) {
        if (!json_is_number(entry) || json_number_value(entry) <= 0)
            return tp__scope_fail(scope, TP_INVALID, key,
                                  "must hold numbers above 0, as entry %zu is not", i);
    }
    return TP_OK;
}

/* They change the rotation alone, which happens before the call: tp_rope_from_model has them. */
static tp_status read_rest(tp__scope *scope, tp_rope_options *rest) {
    double unused;
    int64_t positions;
    int truncate = 1;
    const struct {
        const char *key;
        double *value;
    } reals[] = {{"low_freq_factor", &rest->low_freq_factor},
                 {"high_freq_factor", &rest->high_freq_factor},
                 {"beta_fast", &rest->beta_fast},
                 {"beta_slow", &rest->beta_slow},
                 {"mscale", &rest->mscale},
                 {"attention_factor", &rest->attention_factor},
                 {"long_mscale", &unused},
                 {"short_mscale", &unused}};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        TP_TRY(tp__scope_real(scope, reals[i].key, -1e9, 1e9, 1, reals[i].value));
    TP_TRY(tp__scope_count(scope, "max_position_embeddings", 1, (int64_t)1 << 40, &positions));
    TP_TRY(tp__scope_bool(scope, "truncate", &truncate));
    rest->yarn_untruncated = !truncate;
    return TP_OK;
}

static int64_t rotated_dims(const tp__text *text, const tp__rope *rope) {
    int64_t dims = text->base.rope_dims ? text->base.rope_dims : text->base.head_dim_qk;
    return (int64_t)((double)dims * rope->rotated);
}

static tp_status read_object(tp__text *text, tp__scope *scope, tp__rope *rope) {
    int mrope = 0;
    double theta = rope->theta;
    TP_TRY(read_kind(scope, rope, &mrope));
    TP_TRY(tp__scope_real(scope, "rope_theta", 1e-3, 1e12, 0, &theta));
    rope->theta = theta;
    TP_TRY(tp__scope_real(scope, "partial_rotary_factor", 1e-3, 1, 0, &rope->rotated));
    TP_TRY(tp__scope_real(scope, "mscale_all_dim", 0, 1e6, 1, &rope->mscale_all_dim));
    TP_TRY(tp__scope_count(scope, "original_max_position_embeddings", 1, (int64_t)1 << 40,
                           &rope->original));
    if (text->family->flags & ROPE_SCALES_Q) {
        TP_TRY(tp__scope_real(scope, "llama_4_scaling_beta", 0, 1e6, 1, &rope->beta));
        if (rope->beta > 0 && !rope->original)
            return tp__scope_fail(scope, TP_INVALID, "original_max_position_embeddings",
                                  "is missing: llama_4_scaling_beta needs it");
    }
    if (text->family->flags & ONLY_LONGROPE && rope->kind != TP_ROPE_DEFAULT &&
        rope->kind != TP_ROPE_LONGROPE)
        return tp__scope_fail(scope, TP_UNSUPPORTED, "type",
                              "must be default, longrope or su for this model_type");
    int64_t dims = rotated_dims(text, rope);
    TP_TRY(read_factors(scope, "short_factor", dims, &rope->factors[0]));
    TP_TRY(read_factors(scope, "long_factor", dims, &rope->factors[1]));
    TP_TRY(read_rest(scope, &rope->rest));
    rope->rest.mscale_all_dim = rope->mscale_all_dim;
    return read_sections(scope, rope, mrope);
}

static tp_status read_inner(tp__text *text, tp__scope *outer, const char *key, json_t *object,
                            tp__rope *rope) {
    tp__scope scope;
    char path[160];
    snprintf(path, sizeof path, "%s%s%s", outer->path, *outer->path ? "." : "", key);
    TP_TRY(tp__scope_open(&scope, outer->source, object, path));
    tp_status status = read_object(text, &scope, rope);
    if (status == TP_OK) status = tp__scope_finish(&scope);
    tp__scope_close(&scope);
    return status;
}

/* rope_parameters of the newest files: one object a layer type. */
static tp_status read_split(tp__text *text, tp__scope *scope) {
    json_t *full, *sliding;
    TP_TRY(tp__scope_object(scope, "full_attention", &full));
    TP_TRY(tp__scope_object(scope, "sliding_attention", &sliding));
    if (full) TP_TRY(read_inner(text, scope, "full_attention", full, &text->rope));
    if (sliding) TP_TRY(read_inner(text, scope, "sliding_attention", sliding, &text->local));
    if (!(text->family->flags & NULL_IS_STILL)) return tp__scope_finish(scope);
    if (json_is_null(json_object_get(scope->object, "full_attention"))) text->rope.kind = TP_ROPE_NONE;
    if (json_is_null(json_object_get(scope->object, "sliding_attention"))) text->local.kind = TP_ROPE_NONE;
    return tp__scope_finish(scope);
}

static tp_status read_parameters(tp__text *text, const char *key, json_t *object) {
    if (json_object_get(object, "full_attention") || json_object_get(object, "sliding_attention")) {
        tp__scope scope;
        char path[160];
        snprintf(path, sizeof path, "%s%s%s", text->scope->path, *text->scope->path ? "." : "",
                 key);
        TP_TRY(tp__scope_open(&scope, text->scope->source, object, path));
        tp_status status = read_split(text, &scope);
        tp__scope_close(&scope);
        return status;
    }
    if (text->family->flags & LOCAL_ROPE && !strcmp(key, "rope_parameters"))
        return tp__scope_fail(text->scope, TP_UNSUPPORTED, key,
                              "must be split into full_attention and sliding_attention here");
    json_t *outer = json_object_get(text->scope->object, "rope_theta");
    json_t *inner = json_object_get(object, "rope_theta");
    if (json_is_number(outer) && json_is_number(inner) &&
        json_number_value(outer) != json_number_value(inner))
        return tp__scope_fail(text->scope, TP_INVALID, "rope_theta",
                              "is %g and %s.rope_theta is %g: they must agree",
                              json_number_value(outer), key, json_number_value(inner));
    TP_TRY(read_inner(text, text->scope, key, object, &text->rope));
    if (!(text->family->flags & (LOCAL_ROPE | LOCAL_PLAIN))) text->local = text->rope;
    return TP_OK;
}

static tp_status check_rope(tp__text *text, const tp__rope *rope) {
    int64_t dims = rotated_dims(text, rope);
    int64_t sum = (int64_t)rope->section[0] + rope->section[1] + rope->section[2];
    if (dims < 2 || dims % 2)
        return tp__scope_fail(text->scope, TP_INVALID, "partial_rotary_factor",
                              "rotates %lld dims of a head: they must be even and at least 2",
                              (long long)dims);
    if (sum && sum != dims / 2)
        return tp__scope_fail(text->scope, TP_INVALID, "rope_scaling",
                              "has an mrope_section that sums to %lld: it must be half the rotated "
                              "dims, %lld",
                              (long long)sum, (long long)(dims / 2));
    /* The rule of tp_rope_create. */
    for (int axis = 1; axis < 3 && (rope->interleaved || tp__rope_takes_turns(text->family)); axis++)
        if (rope->section[axis] > (dims / 2 + 2 - axis) / 3)
            return tp__scope_fail(text->scope, TP_INVALID, "rope_scaling",
                                  "has an mrope_section of %d, %d, %d, whose pairs take turns: of %lld pairs %s has at most "
                                  "%lld, every third from pair %d on",
                                  (int)rope->section[0], (int)rope->section[1], (int)rope->section[2], (long long)(dims / 2),
                                  axis == 1 ? "height" : "width", (long long)((dims / 2 + 2 - axis) / 3), axis);
    return TP_OK;
}

static tp_status read_flat(tp__text *text) {
    tp__scope *scope = text->scope;
    tp__rope *rope = &text->rope;
    int split = text->family->window == HALF_PATTERN; /* modernbert has names of its own */
    TP_TRY(tp__scope_real(scope, split ? "rope_theta|global_rope_theta" : "rope_theta|rotary_emb_base", 1e-3, 1e12, 0,
                          &rope->theta));
    TP_TRY(tp__scope_real(scope, "partial_rotary_factor|rotary_pct", 1e-3, 1, 0, &rope->rotated));
    TP_TRY(tp__scope_count(scope, "original_max_position_embeddings", 1, (int64_t)1 << 40,
                           &rope->original));
    int unused;
    text->side_by_side = tp__rope_interleaves(text->family);
    TP_TRY(tp__scope_bool(scope, "rope_interleaved", &unused)); /* no class reads it */
    TP_TRY(tp__scope_bool(scope, "rope_interleave", &text->side_by_side));
    text->local = *rope;
    if (text->family->flags & LOCAL_ROPE) {
        text->local.theta = 1e4;
        if (text->family->rotated < 1) text->local.rotated = 1;
        TP_TRY(tp__scope_real(scope, split ? "local_rope_theta" : "rope_local_base_freq", 1e-3, 1e12, 0, &text->local.theta));
    }
    return TP_OK;
}

tp_status tp__text_ropes(tp__text *text) {
    tp__scope *scope = text->scope;
    json_t *scaling, *parameters;
    text->rope.kind = TP_ROPE_DEFAULT;
    text->rope.theta = text->family->theta;
    text->rope.rotated = text->family->rotated;
    TP_TRY(read_flat(text));
    TP_TRY(tp__scope_object(scope, "rope_scaling", &scaling));
    TP_TRY(tp__scope_object(scope, "rope_parameters", &parameters));
    if (scaling && parameters)
        return tp__scope_fail(scope, TP_INVALID, "rope_scaling",
                              "stands beside rope_parameters: one of them must go");
    if (!scaling && !parameters && text->family->flags & MUST_ROPE)
        return tp__scope_fail(
            scope, TP_UNSUPPORTED, "rope_scaling",
            "is missing: it, or rope_parameters, must be given for this model_type");
    if (scaling) TP_TRY(read_parameters(text, "rope_scaling", scaling));
    if (parameters) TP_TRY(read_parameters(text, "rope_parameters", parameters));
    TP_TRY(check_rope(text, &text->rope));
    return check_rope(text, &text->local);
}

void tp__rope_apply(const tp__rope *rope, int64_t head_dim, tp_layer_group *group) {
    group->rope = rope->kind;
    if (rope->kind == TP_ROPE_NONE) {
        group->rope_dims = 0;
        return;
    }
    group->rope_dims = (int64_t)((double)head_dim * rope->rotated);
    group->rope_theta = rope->theta;
    group->rope_factor = rope->factor;
    group->mrope_interleaved = rope->interleaved;
    memcpy(group->mrope_section, rope->section, sizeof group->mrope_section);
}
