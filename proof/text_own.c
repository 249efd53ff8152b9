/* SPDX-License-Identifier: Apache-2.0 */
/* What single layers have of their own: heads, dims, a theta, no rotation. Kinds of layers are known by now. */
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

static tp_status not_a_number(tp__text *text, const char *key, size_t i, const char *rule) {
    return tp__scope_fail(text->scope, TP_INVALID, key, "must hold %s for layer %zu", rule, i);
}

/* laguna's num_attention_heads_per_layer, granite's layer_rope_theta (0: not rotated), smollm3's no_rope_layers (0: not
   rotated). A class that has none of a key refuses it as unknown, for only these families come here. */
static tp_status read_lists(tp__text *text) {
    json_t *heads, *thetas, *rotated, *entry;
    int64_t interval = 0;
    size_t i;
    TP_TRY(tp__text_list(text, "num_attention_heads_per_layer", &heads));
    TP_TRY(tp__text_list(text, "layer_rope_theta", &thetas));
    TP_TRY(tp__text_list(text, "no_rope_layers", &rotated));
    if (text->family->window == BY_USE) interval = text->family->pattern; /* smollm3 */
    TP_TRY(tp__scope_count(text->scope, "no_rope_layer_interval", 1, TP_MODEL_MAX_LAYERS, &interval));
    json_array_foreach(heads, i, entry) {
        text->own[i].heads = json_integer_value(entry);
        if (text->own[i].heads < 1 || text->own[i].heads > 1 << 20)
            return not_a_number(text, "num_attention_heads_per_layer", i, "a whole number in 1..1048576");
    }
    json_array_foreach(thetas, i, entry) {
        text->own[i].theta = json_number_value(entry);
        text->own[i].still = text->own[i].theta == 0;
        if (!json_is_number(entry) || text->own[i].theta < 0)
            return not_a_number(text, "layer_rope_theta", i, "a number that is not negative");
    }
    for (int64_t layer = 0; interval && layer < text->layers; layer++) text->own[layer].still = (layer + 1) % interval == 0;
    json_array_foreach(rotated, i, entry) {
        if (!json_is_integer(entry) || json_integer_value(entry) >> 1) return not_a_number(text, "no_rope_layers", i, "0 or 1");
        text->own[i].still = !json_integer_value(entry);
    }
    return TP_OK;
}

tp_status tp__text_own(tp__text *text) {
    if (text->family->flags & OWN_DIMS) TP_TRY(read_dims(text));
    return text->family->flags & OWN_LISTS ? read_lists(text) : TP_OK;
}
