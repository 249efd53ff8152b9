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
    {"indexed_attention", LAYER_INDEXED},
    {"linear_attention", LAYER_LINEAR},
    {"mamba", LAYER_MAMBA},
    {"conv", LAYER_CONVOLUTION},
    {"moe", LAYER_FORWARD},
    {"mlp", LAYER_FORWARD},
    {"attention", LAYER_FULL}, /* older names */
    {"deepseek_sparse_attention", LAYER_INDEXED},
};

tp_status tp__text_list(tp__text *text, const char *key, json_t **list) {
    TP_TRY(tp__scope_array(text->scope, key, list));
    if (!*list || json_array_size(*list) == (size_t)text->layers) return TP_OK;
    return tp__scope_fail(text->scope, TP_INVALID, key,
                          "has %zu entries and the model %lld layers: they must be as many",
                          json_array_size(*list), (long long)text->layers);
}

static tp_status read_names(tp__text *text, const char *key, const json_t *list) {
    json_t *entry;
    size_t i;
    json_array_foreach(list, i, entry) {
        const char *name = json_is_string(entry) ? json_string_value(entry) : "(not a string)";
        size_t at = 0;
        while (at < sizeof types / sizeof *types && strcmp(name, types[at].name)) at++;
        if (at == sizeof types / sizeof *types)
            return tp__scope_fail(text->scope, TP_UNSUPPORTED, key,
                                  "holds \"%.40s\" for layer %zu: that is not known", name, i);
        text->kind[i] = types[at].kind;
    }
    return TP_OK;
}

/* *given: the file has the list, and kinds are set. */
static tp_status read_types(tp__text *text, int *given) {
    json_t *list;
    TP_TRY(tp__text_list(text, "layer_types", &list));
    *given = list != NULL;
    if (!list && text->family->flags & MUST_TYPES)
        return tp__scope_fail(text->scope, TP_UNSUPPORTED, "layer_types",
                              "is missing: it must be given for this model_type");
    return list ? read_names(text, "layer_types", list) : TP_OK;
}

/* sliding_window: absent is the class default, null is none. min 0: so is 0. */
static tp_status read_window(tp__text *text, int64_t min) {
    tp__state state;
    int64_t both = 2 * text->family->sliding;
    text->sliding = text->family->sliding;
    TP_TRY(tp__scope_int(text->scope, "sliding_window", min, (int64_t)1 << 40, &text->sliding, &state));
    if (state == TP__NULL) text->sliding = 0;
    if (text->family->window != HALF_PATTERN) return TP_OK;
    TP_TRY(tp__scope_count(text->scope, "local_attention", 2, (int64_t)1 << 40, &both));
    text->sliding = both / 2;
    return TP_OK;
}

/* n < 0: the first layer, and every n-th after it. n 0: none. */
static void every_nth_is_full(tp__text *text, int64_t n, uint8_t others) {
    for (int64_t i = 0; i < text->layers; i++)
        text->kind[i] = !n || (n > 0 ? i + 1 : i) % n ? others : LAYER_FULL;
}

/* The pattern's own key counts where there is no list; beside one it may hold anything. */
static tp_status by_pattern(tp__text *text) {
    int64_t n = text->family->pattern, every = n < 0 ? -n : n;
    unsigned flags = text->family->flags;
    int given, by_n = text->family->own_key == EVERY_N_KEY, has_key = by_n || flags & PATTERN_KEY;
    const char *key = by_n ? "global_attn_every_n_layers" : "sliding_window_pattern|_sliding_window_pattern", *used;
    TP_TRY(read_window(text, 1));
    TP_TRY(read_types(text, &given));
    if (has_key && given) tp__scope_find(text->scope, key, &used);
    if (has_key && !given) TP_TRY(tp__scope_count(text->scope, key, 1, TP_MODEL_MAX_LAYERS, &every));
    if (!given) every_nth_is_full(text, n < 0 ? -every : every, text->sliding || n ? LAYER_SLIDING : LAYER_FULL);
    for (int64_t i = 0; flags & LAST_FULL && i < text->layers; i++)
        if (i + 1 == text->layers) text->kind[i] = LAYER_FULL;
    return TP_OK;
}

/* The window is off unless use_sliding_window is true, however large sliding_window reads. */
static tp_status by_use(tp__text *text) {
    int use = (text->family->flags & ALWAYS_USE) != 0, given;
    int64_t first = text->family->pattern;
    tp__state state;
    if (!use) TP_TRY(tp__scope_bool(text->scope, "use_sliding_window", &use));
    TP_TRY(read_window(text, use ? 1 : 0)); /* a file that switches it off may say 0 */
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
        TP_TRY(tp__text_list(text, "no_rope_layers", &list));
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

/* The layers with attention by number; without the list there is none. */
static tp_status by_indices(tp__text *text) {
    json_t *list, *entry;
    size_t i;
    TP_TRY(tp__scope_array(text->scope, "attn_layer_indices", &list));
    memset(text->kind, LAYER_MAMBA, sizeof text->kind);
    json_array_foreach(list, i, entry) {
        json_int_t layer = json_is_integer(entry) ? json_integer_value(entry) : -1;
        if (layer < 0 || layer >= text->layers)
            return tp__scope_fail(text->scope, TP_INVALID, "attn_layer_indices",
                                  "must hold layers in 0..%lld, as entry %zu is not", (long long)text->layers - 1, i);
        text->kind[layer] = LAYER_FULL;
    }
    return TP_OK;
}

static tp_status by_mamba(tp__text *text) {
    int64_t period = text->family->pattern, offset = 4;
    if (!period) return by_indices(text);
    TP_TRY(tp__scope_count(text->scope, "attn_layer_period", 1, TP_MODEL_MAX_LAYERS, &period));
    TP_TRY(tp__scope_count(text->scope, "attn_layer_offset", 0, TP_MODEL_MAX_LAYERS, &offset));
    for (int64_t i = 0; i < text->layers; i++)
        text->kind[i] = i % period == offset ? LAYER_FULL : LAYER_MAMBA;
    return TP_OK;
}

static tp_status by_linear(tp__text *text) {
    int64_t interval = text->family->pattern;
    tp__own_key own = text->family->own_key;
    const char *used, *key = own == INTERVAL_KEY ? "full_attention_interval" : "layer_group_size";
    int given;
    if (own) TP_TRY(tp__scope_count(text->scope, key, 1, TP_MODEL_MAX_LAYERS, &interval));
    if (interval < 0) tp__scope_find(text->scope, "block_size", &used); /* of minimax's linear layers */
    TP_TRY(read_types(text, &given));
    if (!given) every_nth_is_full(text, interval, LAYER_LINEAR);
    return TP_OK;
}

/* gpt_neo: layers that are local see window_size keys. attention_types says the same in short and is not needed. */
static tp_status by_local_list(tp__text *text) {
    json_t *list, *entry;
    const char *used;
    size_t i;
    text->sliding = text->family->sliding;
    TP_TRY(tp__scope_count(text->scope, "window_size", 1, (int64_t)1 << 40, &text->sliding));
    tp__scope_find(text->scope, "attention_types", &used);
    TP_TRY(tp__text_list(text, "attention_layers", &list));
    if (!list)
        return tp__scope_fail(text->scope, TP_UNSUPPORTED, "attention_layers",
                              "is missing: it must be given for this model_type");
    json_array_foreach(list, i, entry) {
        const char *name = json_is_string(entry) ? json_string_value(entry) : "(not a string)";
        if (strcmp(name, "local") && strcmp(name, "global"))
            return tp__scope_fail(text->scope, TP_UNSUPPORTED, "attention_layers",
                                  "holds \"%.40s\" for layer %zu: that is not known", name, i);
        text->kind[i] = *name == 'l' ? LAYER_SLIDING : LAYER_FULL;
    }
    return TP_OK;
}

static int block_kind(char letter) {
    switch (letter) {
    case 'M': return LAYER_MAMBA;
    case '*': return LAYER_FULL;
    case '-':
    case 'E': return LAYER_FORWARD;
    }
    return -1;
}

/* nemotron_h: "M-M*", or the same as a list of names. Either counts the layers, whatever num_hidden_layers says. */
static tp_status by_blocks(tp__text *text) {
    json_t *list;
    const char *pattern, *used;
    tp__scope_find(text->scope, "chunk_size", &used); /* of the mamba layers */
    TP_TRY(tp__scope_array(text->scope, "layers_block_type", &list));
    TP_TRY(tp__scope_string(text->scope, "hybrid_override_pattern", &pattern));
    size_t count = list ? json_array_size(list) : pattern ? strlen(pattern) : 0;
    const char *key = list ? "layers_block_type" : "hybrid_override_pattern";
    if (count < 1 || count > TP_MODEL_MAX_LAYERS)
        return tp__scope_fail(text->scope, count ? TP_INVALID : TP_UNSUPPORTED, key,
                              "gives %zu layers: it must give 1..%d", count, TP_MODEL_MAX_LAYERS);
    text->layers = (int64_t)count;
    if (list) return read_names(text, key, list);
    for (size_t i = 0; i < count; i++) {
        int kind = block_kind(pattern[i]);
        if (kind < 0)
            return tp__scope_fail(text->scope, TP_UNSUPPORTED, key, "holds '%c' for layer %zu: that is not known",
                                  pattern[i], i);
        text->kind[i] = (uint8_t)kind;
    }
    return TP_OK;
}

/* index_topk keys for each row, chosen by the model: known from the data only. */
static tp_status by_index(tp__text *text) {
    int given;
    text->sparse = text->family->sliding;
    TP_TRY(tp__scope_count(text->scope, "index_topk", 1, (int64_t)1 << 40, &text->sparse));
    TP_TRY(read_types(text, &given));
    if (!given) every_nth_is_full(text, 0, LAYER_INDEXED);
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
        if (text->kind[i] == LAYER_INDEXED && !text->sparse)
            return tp__scope_fail(text->scope, TP_UNSUPPORTED, "layer_types",
                                  "holds \"indexed_attention\" for layer %lld: it is not mapped for this model_type",
                                  (long long)i);
    }
    return TP_OK;
}

static tp_status read_kinds(tp__text *text) {
    switch (text->family->window) {
    case NO_WINDOW: return TP_OK;
    case PATTERN:
    case HALF_PATTERN: return by_pattern(text);
    case BY_USE: return by_use(text);
    case CHUNKS: return by_chunks(text);
    case MAMBA_MIX: return by_mamba(text);
    case LINEAR_MIX: return by_linear(text);
    case LOCAL_LIST: return by_local_list(text);
    case BLOCK_MIX: return by_blocks(text);
    case INDEX_MIX: return by_index(text);
    case EVERY_LAYER:
        TP_TRY(read_window(text, 1));
        if (text->sliding) memset(text->kind, LAYER_SLIDING, sizeof text->kind);
    }
    return TP_OK;
}

tp_status tp__text_kinds(tp__text *text) {
    TP_TRY(read_kinds(text));
    return check_kinds(text);
}
