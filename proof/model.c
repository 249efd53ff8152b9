/* SPDX-License-Identifier: Apache-2.0 */
/* The entry point: limits, JSON, then by model_type to the reader of a whole model or of its parts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "declared.h"
#include "digest.h"
#include "encoders.h"
#include "sized.h"
#include "text.h"

/* Models made of parts. Where flat is set old files keep the text's fields at the top. */
static const struct composite {
    const char *type, *text, *tower_key, *tower;
    uint32_t or_of;
    int flat;
    const char *also;  /* keys of the top that the parts do not need */
    const char *other; /* a tower beside it, whose layers are out of scope; then both may be missing or null */
} composites[] = {
    {"gemma3", "gemma3_text", "vision_config", "siglip_vision_model", TP_TERM_SPAN, 0, "", NULL},
    {"paligemma", "gemma", "vision_config", "siglip_vision_model", TP_TERM_PREFIX, 0,
     "hidden_size", NULL},
    {"llama4", "llama4_text", "vision_config", "llama4_vision_model", 0, 0, "", NULL},
    {"qwen2_vl", "qwen2_vl_text", "vision_config", "qwen2_vl_vision", 0, 1, "", NULL},
    {"qwen2_5_vl", "qwen2_5_vl_text", "vision_config", "qwen2_5_vl_vision", 0, 1, "", NULL},
    {"qwen3_vl", "qwen3_vl_text", "vision_config", "qwen3_vl_vision", 0, 0, "", NULL},
    {"mistral3", "mistral", "vision_config", "pixtral", 0, 0, "spatial_merge_size", NULL},
    {"llava", "llama", "vision_config", "clip_vision_model", 0, 0, "", NULL},
    {"qwen2_audio", "qwen2", "audio_config", "qwen2_audio_encoder", 0, 0, "", NULL},
    {"voxtral", "llama", "audio_config", "voxtral_encoder", 0, 0, "hidden_size", NULL},
    {"audioflamingo3", "qwen2", "audio_config", "audioflamingo3_encoder", 0, 0, "", NULL},
    {"aya_vision", "cohere2", "vision_config", "siglip_vision_model", 0, 0, "", NULL},
    {"cohere2_vision", "cohere2", "vision_config", "siglip_vision_model", 0, 0, "", NULL},
    {"deepseek_vl", "llama", "vision_config", "siglip_vision_model", 0, 0, "", NULL},
    {"glm4v", "glm4v_text", "vision_config", "glm4v_vision", 0, 0, "", NULL},
    {"glm46v", "glm4v_text", "vision_config", "glm4v_vision", 0, 0, "", NULL},
    {"glm4v_moe", "glm4v_moe_text", "vision_config", "glm4v_moe_vision", 0, 0, "", NULL},
    {"idefics3", "llama", "vision_config", "idefics3_vision", 0, 0, "", NULL},
    {"smolvlm", "llama", "vision_config", "smolvlm_vision", 0, 0, "", NULL},
    {"internvl", "qwen2", "vision_config", "internvl_vision", 0, 0, "", NULL},
    {"llava_next", "llama", "vision_config", "clip_vision_model", 0, 0, "", NULL},
    {"llava_next_video", "llama", "vision_config", "clip_vision_model", 0, 0, "", NULL},
    {"llava_onevision", "qwen2", "vision_config", "siglip_vision_model", 0, 0, "", NULL},
    {"vipllava", "llama", "vision_config", "clip_vision_model", 0, 0, "", NULL},
    {"lighton_ocr", "qwen3", "vision_config", "pixtral", 0, 0, "spatial_merge_size", NULL},
    {"ovis2", "qwen2", "vision_config", "ovis2_vision", 0, 0, "hidden_size", NULL},
    {"aria", "aria_text", "vision_config", "idefics3_vision", 0, 0, "", NULL},
    {"qwen3_vl_moe", "qwen3_vl_moe_text", "vision_config", "qwen3_vl_moe_vision", 0, 0, "", NULL},
    {"qwen3_5", "qwen3_5_text", "vision_config", "qwen3_5_vision", 0, 0, "", NULL},
    {"qwen3_5_moe", "qwen3_5_moe_text", "vision_config", "qwen3_5_moe_vision", 0, 0, "", NULL},
    {"gemma4", "gemma4_text", "vision_config", "gemma4_vision", TP_TERM_SPAN, 0, "vision_soft_tokens_per_image", "audio_config"},
};

/* No softmax attention in any layer: nothing of them can change it. */
static const struct {
    const char *type, *what;
} strangers[] = {
    {"mamba", "mamba"}, {"mamba2", "mamba"}, {"falcon_mamba", "mamba"}, {"rwkv", "rwkv"}};

/* Runs a reader on a scope of its own and asks that every key was known. */
typedef tp_status part_reader(tp__scope *scope, const char *type, void *context);

static tp_status in_scope(tp__scope *outer, const char *key, json_t *object, const char *usual,
                          part_reader *reader, void *context) {
    tp__scope scope;
    const char *type;
    TP_TRY(tp__scope_open(&scope, outer->source, object, key));
    tp_status status = tp__scope_string(&scope, "model_type", &type);
    if (status == TP_OK) status = reader(&scope, type ? type : usual, context);
    if (status == TP_OK) status = tp__scope_finish(&scope);
    tp__scope_close(&scope);
    return status;
}

static tp_status unknown_type(tp__scope *scope, const char *type) {
    return tp__scope_fail(
        scope, TP_UNSUPPORTED, "model_type",
        "is \"%.60s\": it is not known here (docs/models.md lists those that are)", type);
}

typedef struct part {
    const struct composite *whole;
    tp__builder *builder;
    int32_t dtype;
    int64_t tokens, span;
} part;

static tp_status read_tower(tp__scope *scope, const char *type, void *context) {
    part *p = context;
    const tp__encoder *encoder = tp__encoder_find(type);
    int32_t wanted = p->whole->tower_key[0] == 'a' ? TP_PART_AUDIO : TP_PART_VISION;
    if (!encoder || tp__encoder_part(encoder) != wanted) return unknown_type(scope, type);
    return tp__encoder_read(encoder, scope, p->dtype, p->builder, &p->tokens);
}

static tp_status read_text(tp__scope *scope, const char *type, void *context) {
    part *p = context;
    tp__text text;
    memset(&text, 0, sizeof text);
    text.family = tp__family_find(type);
    if (!text.family) return unknown_type(scope, type);
    text.scope = scope;
    text.base.dtype = p->dtype;
    text.or_of = p->whole ? p->whole->or_of : 0;
    text.span = text.or_of & TP_TERM_SPAN ? p->span : 0;
    text.prefix = text.or_of & TP_TERM_PREFIX ? p->tokens : 0;
    return tp__text_read(&text, p->builder);
}

/* The tower is read first, for its tokens may be the text's prefix; text comes first among the
 * groups. */
static tp_status read_parts(tp__scope *top, part *p, json_t *text, json_t *tower) {
    tp__builder towers = {.source = top->source}, *all = p->builder;
    p->builder = &towers;
    tp_status status = tower ? in_scope(top, p->whole->tower_key, tower, p->whole->tower, read_tower, p) : TP_OK;
    p->builder = all;
    if (status == TP_OK)
        status = text ? in_scope(top, "text_config", text, p->whole->text, read_text, p)
                      : read_text(top, p->whole->text, p);
    for (int i = 0; i < towers.count && status == TP_OK; i++)
        for (int j = 0; j < towers.groups[i]->layer_count && status == TP_OK; j++) {
            tp_layer_group copy;
            memcpy(&copy, towers.groups[i], sizeof copy);
            status = tp__builder_add(all, &copy, towers.groups[i]->layers[j]);
        }
    tp__builder_discard(&towers);
    return status;
}

static tp_status read_stranger(tp__scope *top, const char *what, int32_t where, tp__builder *builder) {
    int64_t layers = 0;
    tp_layer_group group;
    memset(&group, 0, sizeof group);
    group.part = where;
    group.out_of_scope = what;
    top->complete = 0;
    TP_TRY(tp__scope_count(top, "num_hidden_layers|n_layer", 1, TP_MODEL_MAX_LAYERS, &layers));
    if (!layers)
        return tp__scope_fail(top, TP_INVALID, "num_hidden_layers", "is missing: it must be given");
    for (int i = 0; i < layers; i++) TP_TRY(tp__builder_add(builder, &group, i));
    return TP_OK;
}

/* gemma4's audio: local attention with relative positions, by blocks. */
static tp_status read_other(tp__scope *scope, const char *type, void *context) {
    (void)type;
    return read_stranger(scope, "other", TP_PART_AUDIO, context);
}

static tp_status read_composite(tp__scope *top, const struct composite *whole,
                                tp__builder *builder) {
    /* gemma3 says how long an image is; where other towers may follow, the data does */
    part p = {.whole = whole, .builder = builder, .span = whole->other ? 0 : 256};
    json_t *text, *tower;
    const char *used;
    TP_TRY(tp__scope_dtype(top, &p.dtype));
    TP_TRY(tp__scope_object(top, "text_config", &text));
    TP_TRY(tp__scope_object(top, whole->tower_key, &tower));
    if (p.span && whole->or_of & TP_TERM_SPAN)
        TP_TRY(tp__scope_count(top, "mm_tokens_per_image", 1, 1 << 20, &p.span));
    if (*whole->also) tp__scope_find(top, whole->also, &used);
    if (!tower && !whole->other)
        return tp__scope_fail(top, TP_UNSUPPORTED, whole->tower_key,
                              "is missing: a %s without it is not mapped", whole->type);
    if (!text && !whole->flat)
        return tp__scope_fail(top, TP_UNSUPPORTED, "text_config",
                              "is missing: a %s without it is not mapped", whole->type);
    TP_TRY(read_parts(top, &p, text, tower));
    if (!whole->other) return TP_OK;
    TP_TRY(tp__scope_object(top, whole->other, &tower));
    return tower ? in_scope(top, whole->other, tower, "", read_other, builder) : TP_OK;
}

static int is_absent(const json_t *value) {
    return !value || json_is_null(value);
}
static int is_word(const json_t *value, const char *word) {
    return json_is_string(value) && !strcmp(json_string_value(value), word);
}

/* Eight bits of e4m3 with one scale for a tensor, known beforehand; strategy and the two flags may be left to what
   compressed-tensors takes for them. Other schemes store in another way: a scale for a token of all heads, or for a head of all
   tokens; zero points. */
static int is_e4m3_by_tensor(const json_t *scheme) {
    const json_t *bits = json_object_get(scheme, "num_bits"), *strategy = json_object_get(scheme, "strategy");
    const json_t *dynamic = json_object_get(scheme, "dynamic"), *symmetric = json_object_get(scheme, "symmetric");
    return json_is_integer(bits) && json_integer_value(bits) == 8 && is_word(json_object_get(scheme, "type"), "float") &&
           (is_absent(strategy) || is_word(strategy, "tensor")) && (is_absent(dynamic) || json_is_false(dynamic)) &&
           (is_absent(symmetric) || json_is_true(symmetric)) && is_absent(json_object_get(scheme, "group_size")) &&
           is_absent(json_object_get(scheme, "block_structure"));
}

/* Weights may be stored in any way; a stored cache changes what attention reads. */
static tp_status read_quantization(tp__scope *top) {
    json_t *object;
    TP_TRY(tp__scope_object(top, "quantization_config", &object));
    json_t *scheme = json_object_get(object, "kv_cache_scheme");
    if (!scheme || json_is_null(scheme)) return TP_OK;
    if (!is_e4m3_by_tensor(scheme))
        return tp__scope_fail(top, TP_UNSUPPORTED, "quantization_config.kv_cache_scheme",
                              "is set to what is not mapped: only num_bits 8, type float, strategy tensor, dynamic false and "
                              "symmetric true is, as e4m3/tensor");
    top->source->cache = "e4m3/tensor";
    return TP_OK;
}

static tp_status read_config(tp__scope *top, const char *type, void *context) {
    tp__builder *builder = context;
    part p = {.builder = builder};
    int64_t tokens;
    if (!type)
        return tp__scope_fail(top, TP_INVALID, "model_type",
                              "is missing: a config must name it (or declare tileproof_model)");
    TP_TRY(read_quantization(top));
    int nested = json_is_object(json_object_get(top->object, "text_config"));
    /* some files give the text's type to the whole model */
    const char *whole = nested && !strcmp(type, "ministral3") ? "mistral3" : type;
    for (size_t i = 0; i < sizeof composites / sizeof *composites; i++)
        if (!strcmp(whole, composites[i].type)) return read_composite(top, &composites[i], builder);
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
        if (!strcmp(type, strangers[i].type)) return read_stranger(top, strangers[i].what, TP_PART_TEXT, builder);
    if (!strcmp(type, "whisper")) return tp__whisper_read(top, builder);
    const tp__encoder *encoder = tp__encoder_find(type);
    if (encoder) return tp__encoder_read(encoder, top, 0, builder, &tokens);
    top->source->assumed = top->source->assume && !tp__family_find(type);
    return read_text(top, top->source->assumed ? top->source->assume : type, &p);
}

static tp_status read_ignore(tp__source *source, json_t *root) {
    json_t *list = json_object_get(root, "_tileproof_ignore"), *entry;
    size_t i;
    source->ignore = json_object();
    source->ignored = json_object();
    if (!source->ignore || !source->ignored)
        return tp__proof_fail(source->error, TP_NO_MEMORY, "out of memory for a config");
    if (list && !json_is_array(list))
        return tp__proof_fail(source->error, TP_INVALID,
                              "%s: _tileproof_ignore must be a list of keys", source->name);
    json_array_foreach(list, i, entry) {
        if (!json_is_string(entry))
            return tp__proof_fail(source->error, TP_INVALID,
                                  "%s: _tileproof_ignore must hold strings, as entry %zu is not",
                                  source->name, i);
        source->no_memory |= json_object_set_new(source->ignore, json_string_value(entry), json_true()) != 0;
    }
    return TP_OK;
}

/* How a file is laid out does not matter, so it is hashed as jansson writes it. */
static tp_status hash_root(tp__source *source, const json_t *root) {
    tp__page page = {0};
    tp__digest digest;
    tp__page_json(&page, root, JSON_COMPACT | JSON_SORT_KEYS);
    int failed = page.failed;
    tp__digest_begin(&digest);
    tp__digest_add(&digest, tp__page_text(&page), failed ? 0 : page.used);
    tp__digest_end(&digest, source->hash);
    tp__page_close(&page);
    return failed ? tp__proof_fail(source->error, TP_NO_MEMORY, "out of memory for a config") : TP_OK;
}

static tp_status read_root(tp__source *source, json_t *root, tp_model **model) {
    tp__scope none = {.source = source};
    tp__builder builder = {.source = source};
    const char *type = json_string_value(json_object_get(root, "model_type"));
    int declared = json_object_get(root, "tileproof_model") != NULL;
    tp_status status = read_ignore(source, root);
    if (status == TP_OK) status = hash_root(source, root);
    if (status == TP_OK)
        status =
            in_scope(&none, "", root, NULL, declared ? tp__declared_read : read_config, &builder);
    /* a key that could not be noted as read looks like an unknown one: memory is what is at fault */
    if (source->no_memory)
        status = tp__proof_fail(source->error, TP_NO_MEMORY, "%s: out of memory for a config", source->name);
    if (status == TP_OK) status = tp__builder_finish(&builder, declared ? "declared" : type, model);
    tp__builder_discard(&builder);
    json_decref(source->ignore);
    json_decref(source->ignored);
    return status;
}

tp_status tp_model_parse(const char *text, size_t size, const char *name, tp_model **model,
                         tp_error *error) {
    return tp_model_parse_with(text, size, name, NULL, model, error);
}

/* A word of locks and reports: what stands beside it there must not be taken for a part of it. */
static int is_label(const char *label) {
    size_t size = strlen(label);
    return size >= 1 && size <= 200 && tp__is_utf8(label, size) && !strpbrk(label, "@/\n\t") && label[0] != ' ' &&
           label[size - 1] != ' ';
}

tp_status tp_model_parse_with(const char *text, size_t size, const char *name, const tp_model_options *options,
                              tp_model **model, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp__source source = {
        .text = text, .size = size, .name = name ? name : "config", .error = error};
    tp_status status;
    if (!model) return tp__proof_fail(error, TP_INVALID, "tp_model is NULL");
    *model = NULL;
    if (!text) return tp__proof_fail(error, TP_INVALID, "text is NULL: it must be a config");
    if (options) {
        tp_model_options whole;
        TP_TRY(tp__take(&tp__model_options_shape, options, &whole, error));
        source.assume = whole.assume;
        source.label = whole.label;
    }
    if (size > TP_MODEL_MAX_BYTES)
        return tp__proof_fail(error, TP_INVALID, "%s has %zu bytes: a config has at most %u",
                              source.name, size, TP_MODEL_MAX_BYTES);
    if (!tp__is_utf8(source.name, strlen(source.name)))
        return tp__proof_fail(error, TP_INVALID,
                              "the name of a config is not UTF-8: it stands in JSON, so the file must have another name");
    if (source.assume && !tp__family_find(source.assume))
        return tp__proof_fail(error, TP_INVALID,
                              "assume is \"%.60s\": it must be the model_type of a decoder that is known, such as llama",
                              source.assume);
    if (source.label && !is_label(source.label))
        return tp__proof_fail(error, TP_INVALID,
                              "label is \"%.60s\": it must have 1..200 bytes of UTF-8, no '@', no '/' and no blank at its ends",
                              tp__is_utf8(source.label, strlen(source.label)) ? source.label : "?");
    json_t *root = tp__json_load(text, size, source.name, 0, error, &status);
    if (root) status = read_root(&source, root, model);
    json_decref(root);
    return status;
}
