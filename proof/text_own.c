/* SPDX-License-Identifier: Apache-2.0 */
/* What single layers have of their own: heads, dims, a theta, no rotation, no keys. Kinds of layers are known by now. */
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Full layers of gemma4 are wider. Old files say so by two keys, new ones list the layers. */
static tp_status read_global(tp__text *text) {
    int64_t dim = 512, kv_heads = 0;
    int shared = 0;
    tp__state state;
    TP_TRY(tp__scope_count(text->scope, "global_head_dim", 1, 1 << 20, &dim));
    TP_TRY(tp__scope_int(text->scope, "num_global_key_value_heads", 1, 1 << 20, &kv_heads, &state));
    TP_TRY(tp__scope_bool(text->scope, "attention_k_eq_v", &shared));
    for (int64_t i = 0; i < text->layers; i++)
        if (text->kind[i] == LAYER_FULL)
            text->own[i] = (tp__own){.dim = dim, .kv_heads = shared ? kv_heads : 0};
    return TP_OK;
}

static tp_status read_layer(tp__scope *scope, tp__own *own) {
    TP_TRY(tp__scope_count(scope, "head_dim", 1, 1 << 20, &own->dim));
    TP_TRY(tp__scope_count(scope, "num_attention_heads", 1, 1 << 20, &own->heads));
    TP_TRY(tp__scope_count(scope, "num_key_value_heads", 1, 1 << 20, &own->kv_heads));
    return tp__scope_finish(scope);
}

/* {"05": {"head_dim": 512}}: layer 5 has that. */
static tp_status read_per_layer(tp__text *text, json_t *object) {
    const char *key, *whole = "per_layer_config";
    json_t *value;
    memset(text->own, 0, sizeof text->own);
    json_object_foreach(object, key, value) {
        tp__scope inner;
        char path[96], *end;
        long layer = *key >= '0' && *key <= '9' ? strtol(key, &end, 10) : -1;
        if (layer < 0 || *end || layer >= text->layers || !json_is_object(value))
            return tp__scope_fail(text->scope, TP_INVALID, whole,
                                  "must hold objects by layer, 0..%lld, as \"%.20s\" is not",
                                  (long long)text->layers - 1, key);
        snprintf(path, sizeof path, "%.40s%s%s", text->scope->path, *text->scope->path ? "." : "", whole);
        TP_TRY(tp__scope_open(&inner, text->scope->source, value, path));
        tp_status status = read_layer(&inner, &text->own[layer]);
        tp__scope_close(&inner);
        TP_TRY(status);
    }
    return TP_OK;
}

static tp_status read_dims(tp__text *text) {
    json_t *object;
    TP_TRY(read_global(text));
    TP_TRY(tp__scope_object(text->scope, "per_layer_config", &object));
    return object ? read_per_layer(text, object) : TP_OK;
}

static tp_status bad_entry(tp__text *text, const char *key, size_t i, const char *rule) {
    return tp__scope_fail(text->scope, TP_INVALID, key, "must hold %s for layer %zu", rule, i);
}

static tp_status read_heads(tp__text *text) {
    const char *key = "num_attention_heads_per_layer";
    json_t *list, *entry;
    size_t i;
    TP_TRY(tp__text_list(text, key, &list));
    json_array_foreach(list, i, entry) {
        text->own[i].heads = json_integer_value(entry);
        if (text->own[i].heads < 1 || text->own[i].heads > 1 << 20)
            return bad_entry(text, key, i, "a whole number in 1..1048576");
    }
    return TP_OK;
}

static tp_status read_thetas(tp__text *text) {
    const char *key = "layer_rope_theta";
    json_t *list, *entry;
    size_t i;
    TP_TRY(tp__text_list(text, key, &list));
    json_array_foreach(list, i, entry) {
        text->own[i].theta = json_number_value(entry);
        text->own[i].still = text->own[i].theta == 0;
        if (!json_is_number(entry) || text->own[i].theta < 0)
            return bad_entry(text, key, i, "a number that is not negative");
    }
    return TP_OK;
}

/* 0 in the list: not rotated, as is every n-th layer without it. */
static tp_status read_still(tp__text *text) {
    const char *key = "no_rope_layers";
    json_t *list, *entry;
    int64_t interval = text->family->pattern;
    size_t i;
    TP_TRY(tp__text_list(text, key, &list));
    TP_TRY(tp__scope_count(text->scope, "no_rope_layer_interval", 1, TP_MODEL_MAX_LAYERS, &interval));
    for (int64_t layer = 0; layer < text->layers; layer++) text->own[layer].still = (layer + 1) % interval == 0;
    json_array_foreach(list, i, entry) {
        if (!json_is_integer(entry) || json_integer_value(entry) >> 1) return bad_entry(text, key, i, "0 or 1");
        text->own[i].still = !json_integer_value(entry);
    }
    return TP_OK;
}

/* The last layers read what the last layer of their kind before them has kept. The class of gemma3n has 15 of them, gemma4's
   none; in a file with no more layers than that, none are. */
static tp_status read_kv_shared(tp__text *text) {
    int64_t shared = text->family->flags & OWN_DIMS ? 0 : 15;
    TP_TRY(tp__scope_count(text->scope, "num_kv_shared_layers", 0, TP_MODEL_MAX_LAYERS, &shared));
    for (int64_t i = text->layers - shared; shared < text->layers && i < text->layers; i++) text->own[i].kv_shared = 1;
    return TP_OK;
}

tp_status tp__text_own(tp__text *text) {
    if (text->family->flags & OWN_DIMS) TP_TRY(read_dims(text));
    switch (text->family->own_key) {
    case HEADS_KEY: return read_heads(text);
    case THETAS_KEY: return read_thetas(text);
    case STILL_KEY: return read_still(text);
    case KV_SHARED_KEY: return read_kv_shared(text);
    default: return TP_OK;
    }
}
