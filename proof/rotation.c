/* SPDX-License-Identifier: Apache-2.0 */
/* How a model's layers rotate q and k: from what rope.c read to tp_rope_options. */
#include "control.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

#include "sized.h"

/* Families whose pairs lie side by side; where latents are rotated, the key rope_interleave may say otherwise. */
static const char *const side_by_side[] = {
    "cohere", "cohere2",       "cohere2_moe", "llama4_text", "gptj",          "codegen",        "ernie4_5",     "ernie4_5_moe",
    "glm",    "glm4",          "glm4v_text",  "helium",      "deepseek_v2",   "deepseek_v3",    "deepseek_v32", "axk1",
    "axk2",   "glm4_moe_lite", "glm_moe_dsa", "youtu",       "longcat_flash", "bailing_hybrid", "mistral4",
};
/* Families whose sections take turns, whether the file says so or not. */
static const char *const in_turns[] = {"qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_5_text", "qwen3_5_moe_text"};

static int is_in(const char *type, const char *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!strcmp(type, list[i])) return 1;
    return 0;
}
#define IS_IN(type, list) is_in(type, list, sizeof(list) / sizeof *(list))

int tp__rope_interleaves(const tp__family *family) {
    return IS_IN(family->type, side_by_side);
}

int tp__rope_takes_turns(const tp__family *family) {
    return IS_IN(family->type, in_turns);
}

static tp_status copy_factors(tp__text *text, json_t *list, const float **factors) {
    size_t count = json_array_size(list);
    if (!count) return TP_OK;
    float *copy = malloc(count * sizeof *copy);
    if (!copy)
        return tp__proof_fail(text->scope->source->error, TP_NO_MEMORY, "out of memory for %zu factors of longrope", count);
    for (size_t i = 0; i < count; i++) copy[i] = (float)json_number_value(json_array_get(list, i));
    *factors = copy;
    return TP_OK;
}

/* Kind, theta, dims and sections are a group's: single layers may have their own. */
static tp_status fill(tp__text *text, const tp__rope *rope, tp_rope_options *o) {
    int64_t positions = text->base.q_max;
    *o = rope->rest;
    o->style = text->side_by_side ? TP_ROPE_INTERLEAVED : TP_ROPE_NEOX;
    o->sections_interleave = tp__rope_takes_turns(text->family);
    o->original_length = rope->original && rope->kind != TP_ROPE_DYNAMIC ? rope->original : positions;
    o->factor = rope->factor;
    if (rope->kind != TP_ROPE_LONGROPE) return TP_OK;
    if (o->factor == 0 && o->original_length) o->factor = (double)positions / (double)o->original_length;
    o->factor_count = (int64_t)json_array_size(rope->factors[rope->factors[0] == NULL]); /* a file may have one of the lists */
    TP_TRY(copy_factors(text, rope->factors[0], &o->short_factors));
    return copy_factors(text, rope->factors[1], &o->long_factors);
}

tp_status tp__text_rotations(tp__text *text, tp__builder *builder) {
    TP_TRY(fill(text, &text->rope, &builder->rotations[0]));
    return fill(text, &text->local, &builder->rotations[1]);
}

static const tp_layer_group *group_of(const tp_model *model, int layer) {
    for (int i = 0; i < model->group_count; i++) {
        const tp_layer_group *group = model->groups[i];
        for (int j = 0; group->part == TP_PART_TEXT && j < group->layer_count; j++)
            if (group->layers[j] == layer) return group;
    }
    return NULL;
}

static void complete(const tp_layer_group *group, tp_rope_options *o) {
    int64_t sections = (int64_t)group->mrope_section[0] + group->mrope_section[1] + group->mrope_section[2];
    int scaled = group->rope != TP_ROPE_NONE && group->rope != TP_ROPE_DEFAULT;
    o->struct_size = sizeof *o;
    o->kind = group->rope;
    o->head_dim = group->head_dim_qk;
    o->dims = group->rope_dims;
    o->first = group->decode_dim_qk && group->rope ? group->head_dim_qk - group->rope_dims : 0; /* latents: the last dims */
    o->theta = group->rope_theta;
    if (!scaled) o->factor = 0, o->original_length = 0;
    if (group->rope != TP_ROPE_LONGROPE) o->short_factors = o->long_factors = NULL, o->factor_count = 0;
    memcpy(o->sections, group->mrope_section, sizeof o->sections);
    o->sections_interleave = sections && (o->sections_interleave || group->mrope_interleaved);
}

tp_status tp_rope_from_model(const tp_model *model, int layer, tp_rope_options *options, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    if (!model || !options) return tp__proof_fail(error, TP_INVALID, "%s is NULL: it must be given", model ? "options" : "model");
    const tp_layer_group *group = group_of(model, layer);
    if (!group) return tp__proof_fail(error, TP_INVALID, "layer is %d: %.100s has no such layer of text", layer, model->label);
    if (group->out_of_scope)
        return tp__proof_fail(error, TP_UNSUPPORTED, "layer %d of %.100s is %s: it has no q and k to rotate", layer, model->label,
                              group->out_of_scope);
    int slides = (group->all_of & (TP_TERM_WINDOW | TP_TERM_CHUNK)) != 0;
    tp_rope_options whole = ((const tp__owned_model *)model)->rotations[slides];
    complete(group, &whole);
    if (tp__give(&tp__rope_shape, &whole, options) == TP_OK) return TP_OK;
    return tp__proof_fail(error, TP_INVALID,
                          "options.struct_size is %u: it must be sizeof(tp_rope_options) of the caller (use its INIT)",
                          (unsigned)options->struct_size);
}
