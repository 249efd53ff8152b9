/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers slide, are chunked, full, or no attention at all. layer_types wins over every
 * pattern. */
#include "text.h"

#include <string.h>

static const struct {
    const char *name;
    uint8_t kind;
} types[] = {
    {"full_attention", LAYER_FULL},
    {"sliding_attention", LAYER_SLIDING},
    {"chunked_attention", LAYER_CHUNKED},
    {"linear_attention", LAYER_LINEAR},
    {"mamba", LAYER_MAMBA},
};

static tp_status check_length(tp__text *text, const char *key, const json_t *list) {
    if (json_array_size(list) == (size_t)text->layers) return TP_OK;
    return tp__scope_fail(text->scope, TP_INVALID, key,
                          "has %zu entries and the model %lld layers: they must be as many",
                          json_array_size(list), (long long)text->layers);
}

/* *given: the file has the list, and kinds are set. */
static tp_status read_types(tp__text *text, int *given) {
    json_t *list, *entry;
    size_t i;
    TP_TRY(tp__scope_array(text->scope, "layer_types", &list));
    *given = list != NULL;
    if (!list) return TP_OK;
    TP_TRY(check_length(text, "layer_types", list));
    json_array_foreach(list, i, entry) {
        const char *name = json_is_string(entry) ? json_string_value(entry) : "(not a string)";
        size_t at = 0;
        while (at < sizeof types / sizeof *types && strcmp(name, types[at].name)) at++;
        if (at == sizeof types / sizeof *types)
            return tp__scope_fail(text->scope, TP_UNSUPPORTED, "layer_types",
                                  "holds \"%.40s\" for layer %zu: that is not known", name, i);
        text->kind[i] = types[at].kind;
    }
    return TP_OK;
}

/* sliding_window: absent is the class default, null is none. */
static tp_status read_window(tp__text *text) {
    tp__state state;
    text->sliding = text->family->sliding;
    TP_TRY(
        tp__scope_int(text->scope, "sliding_window", 1, (int64_t)1 << 40, &text->sliding, &state));
    if (state == TP__NULL) text->sliding = 0;
    return TP_OK;
}

static void every_nth_is_full(tp__text *text, int64_t n, uint8_t others) {
    for (int64_t i = 0; i < text->layers; i++) text->kind[i] = (i + 1) % n ? others : LAYER_FULL;
}

static tp_status by_pattern(tp__text *text) {
    int64_t pattern = text->family->pattern;
    int given;
    TP_TRY(read_window(text));
    if (text->family->flags & PATTERN_KEY)
        TP_TRY(tp__scope_count(text->scope, "sliding_window_pattern|_sliding_window_pattern", 1,
                               TP_MODEL_MAX_LAYERS, &pattern));
    TP_TRY(read_types(text, &given));
    if (!given) every_nth_is_full(text, pattern, LAYER_SLIDING);
    return TP_OK;
}

/* The window is off unless use_sliding_window is true, however large sliding_window reads. */
static tp_status by_use(tp__text *text) {
    int use = 0, given;
    int64_t first = text->family->pattern;
    tp__state state;
    TP_TRY(tp__scope_bool(text->scope, "use_sliding_window", &use));
    TP_TRY(read_window(text));
    TP_TRY(tp__scope_int(text->scope, "max_window_layers", 0, 1 << 20, &first, &state));
    if (use && text->family->flags & NEVER_SLIDES)
        return tp__scope_fail(text->scope, TP_UNSUPPORTED, "use_sliding_window",
                              "is true: which layers slide is not known for this model_type");
    if (!use) text->sliding = 0;
    TP_TRY(read_types(text, &given));
    for (int64_t i = 0; !given && i < text->layers; i++)
        text->kind[i] = text->sliding && i >= first ? LAYER_SLIDING : LAYER_FULL;
    return TP_OK;
}

static tp_status by_chunks(tp__text *text) {
    int64_t interval = text->family->pattern;
    json_t *list, *entry;
    tp__state state;
    size_t i;
    int given;
    text->chunk = text->family->sliding;
    TP_TRY(tp__scope_int(text->scope, "attention_chunk_size", 1, (int64_t)1 << 40, &text->chunk,
                         &state));
    if (state == TP__NULL) text->chunk = 0;
    TP_TRY(
        tp__scope_count(text->scope, "no_rope_layer_interval", 1, TP_MODEL_MAX_LAYERS, &interval));
    TP_TRY(tp__scope_array(text->scope, "no_rope_layers", &list));
    every_nth_is_full(text, interval, LAYER_CHUNKED);
    if (json_array_size(list)) {
        TP_TRY(check_length(text, "no_rope_layers", list));
        json_array_foreach(list, i, entry) {
            if (!json_is_integer(entry) || json_integer_value(entry) >> 1)
                return tp__scope_fail(text->scope, TP_INVALID, "no_rope_layers",
                                      "must hold 0 or 1 for layer %zu", i);
            text->kind[i] = json_integer_value(entry) ? LAYER_CHUNKED : LAYER_FULL;
        }
    }
    /* layer_types and no_rope_layers say two things, mask and rope; here they must be one */
    uint8_t rope[TP_MODEL_MAX_LAYERS];
    memcpy(rope, text->kind, sizeof rope);
    TP_TRY(read_types(text, &given));
    if (memcmp(rope, text->kind, (size_t)text->layers))
        return tp__scope_fail(
            text->scope, TP_UNSUPPORTED, "layer_types",
            "differs from no_rope_layers: chunked layers must be those with rope");
    return TP_OK;
}

static tp_status by_mamba(tp__text *text) {
    int64_t period = text->family->pattern, offset = 4;
    TP_TRY(tp__scope_count(text->scope, "attn_layer_period", 1, TP_MODEL_MAX_LAYERS, &period));
    TP_TRY(tp__scope_count(text->scope, "attn_layer_offset", 0, TP_MODEL_MAX_LAYERS, &offset));
    for (int64_t i = 0; i < text->layers; i++)
        text->kind[i] = i % period == offset ? LAYER_FULL : LAYER_MAMBA;
    return TP_OK;
}

static tp_status by_linear(tp__text *text) {
    int64_t interval = text->family->pattern;
    int given;
    TP_TRY(
        tp__scope_count(text->scope, "full_attention_interval", 1, TP_MODEL_MAX_LAYERS, &interval));
    TP_TRY(read_types(text, &given));
    if (!given) every_nth_is_full(text, interval, LAYER_LINEAR);
    return TP_OK;
}

/* A layer that slides needs a window, a chunked one a chunk. */
static tp_status check_kinds(tp__text *text) {
    for (int64_t i = 0; i < text->layers; i++) {
        if (text->kind[i] == LAYER_SLIDING && !text->sliding)
            return tp__scope_fail(
                text->scope, TP_INVALID, "sliding_window",
                "gives no window and layer %lld slides: one of the two must change", (long long)i);
        if (text->kind[i] == LAYER_CHUNKED && !text->chunk)
            return tp__scope_fail(text->scope, TP_INVALID, "attention_chunk_size",
                                  "gives no chunk and layer %lld is chunked: one must change",
                                  (long long)i);
    }
    return TP_OK;
}

static tp_status read_kinds(tp__text *text) {
    switch (text->family->window) {
    case NO_WINDOW: return TP_OK;
    case PATTERN: return by_pattern(text);
    case BY_USE: return by_use(text);
    case CHUNKS: return by_chunks(text);
    case MAMBA_MIX: return by_mamba(text);
    case LINEAR_MIX: return by_linear(text);
    case EVERY_LAYER:
        TP_TRY(read_window(text));
        if (text->sliding) memset(text->kind, LAYER_SLIDING, sizeof text->kind);
    }
    return TP_OK;
}

tp_status tp__text_kinds(tp__text *text) {
    TP_TRY(read_kinds(text));
    return check_kinds(text);
}
