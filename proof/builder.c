/* SPDX-License-Identifier: Apache-2.0 */
#include "builder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct owned_group {
    tp_layer_group group;
    int32_t layers[TP_MODEL_MAX_LAYERS];
} owned_group;

static tp_status no_memory(const tp__builder *builder) {
    return tp__proof_fail(builder->source->error, TP_NO_MEMORY, "out of memory for layer groups");
}

static int same(const tp_layer_group *group, const tp_layer_group *prototype) {
    tp_layer_group copy;
    memcpy(&copy, group, sizeof copy);
    copy.struct_size = prototype->struct_size;
    copy.layers = prototype->layers;
    copy.layer_count = prototype->layer_count;
    copy.kv_shared = prototype->kv_shared;
    return memcmp(&copy, prototype, sizeof copy) == 0;
}

static tp_status add_group(tp__builder *builder, const tp_layer_group *prototype) {
    if (builder->count == builder->capacity) {
        int capacity = builder->capacity ? 2 * builder->capacity : 8;
        tp_layer_group **groups = realloc(builder->groups, (size_t)capacity * sizeof *groups);
        if (!groups) return no_memory(builder);
        builder->groups = groups;
        builder->capacity = capacity;
    }
    owned_group *owned = calloc(1, sizeof *owned);
    if (!owned) return no_memory(builder);
    memcpy(&owned->group, prototype, sizeof owned->group);
    owned->group.struct_size = sizeof owned->group;
    owned->group.layers = owned->layers;
    owned->group.layer_count = 0;
    owned->group.kv_shared = 0;
    builder->groups[builder->count++] = &owned->group;
    return TP_OK;
}

tp_status tp__builder_add(tp__builder *builder, const tp_layer_group *prototype, int layer) {
    int at = 0;
    while (at < builder->count && !same(builder->groups[at], prototype)) at++;
    if (at == builder->count) TP_TRY(add_group(builder, prototype));
    owned_group *owned = (owned_group *)builder->groups[at];
    if (owned->group.layer_count == TP_MODEL_MAX_LAYERS)
        return tp__proof_fail(builder->source->error, TP_INVALID,
                              "more than %d layers in one group", TP_MODEL_MAX_LAYERS);
    owned->layers[owned->group.layer_count++] = layer;
    owned->group.kv_shared += prototype->kv_shared;
    return TP_OK;
}

tp_status tp__group_check(const tp__scope *scope, const tp_layer_group *group) {
    if (group->q_heads % group->kv_heads)
        return tp__scope_fail(
            scope, TP_INVALID, "num_key_value_heads",
            "is %lld and there are %lld query heads: these must be a multiple of it",
            (long long)group->kv_heads, (long long)group->q_heads);
    if (!isfinite(group->scale) || group->scale <= 0)
        return tp__scope_fail(scope, TP_INVALID, "model_type",
                              "gives the scale %g: it must be above 0 and finite", group->scale);
    return TP_OK;
}

static void free_groups(tp_layer_group *const *groups, int count) {
    for (int i = 0; i < count; i++) free(groups[i]);
}

static void free_rotations(tp_rope_options rotations[2]) {
    for (int i = 0; i < 2; i++) {
        free((float *)(uintptr_t)rotations[i].short_factors);
        free((float *)(uintptr_t)rotations[i].long_factors);
    }
    memset(rotations, 0, 2 * sizeof *rotations);
}

void tp__builder_discard(tp__builder *builder) {
    free_rotations(builder->rotations);
    free_groups(builder->groups, builder->count);
    free(builder->groups);
    builder->groups = NULL;
    builder->count = builder->capacity = 0;
}

/* "a,b" of the keys that were ignored; the caller frees it. */
static char *join_keys(json_t *set) {
    size_t size = 1;
    const char *key;
    json_t *value;
    json_object_foreach(set, key, value) size += strlen(key) + 1;
    char *text = calloc(1, size);
    if (!text) return NULL;
    json_object_foreach(set, key, value) {
        if (*text) strcat(text, ",");
        strcat(text, key);
    }
    return text;
}

static char *make_label(const tp__source *source) {
    const char *slash = strrchr(source->name, '/'), *base = source->label ? source->label : slash ? slash + 1 : source->name;
    const char *assumed = source->assumed ? source->assume : "";
    size_t size = strlen(base) + strlen(assumed) + sizeof " (as )";
    char *label = malloc(size);
    if (label) snprintf(label, size, source->assumed ? "%s (as %s)" : "%s%s", base, assumed);
    return label;
}

tp_status tp__builder_finish(tp__builder *builder, const char *model_type, tp_model **result) {
    tp__owned_model *owned = calloc(1, sizeof *owned);
    if (!owned) return no_memory(builder);
    tp_model *model = &owned->model;
    model->struct_size = sizeof *model;
    model->assumed = strdup(builder->source->assumed ? builder->source->assume : "");
    model->label = make_label(builder->source);
    model->name = strdup(builder->source->name);
    model->model_type = strdup(model_type);
    model->ignored = join_keys(builder->source->ignored);
    model->config_hash = strdup(builder->source->hash);
    model->cache = builder->source->cache ? builder->source->cache : "";
    if (!model->name || !model->model_type || !model->ignored || !model->config_hash || !model->assumed || !model->label) {
        tp_model_destroy(model);
        return no_memory(builder);
    }
    memcpy(owned->rotations, builder->rotations, sizeof owned->rotations);
    memset(builder->rotations, 0, sizeof builder->rotations);
    model->groups = builder->groups;
    model->group_count = builder->count;
    builder->groups = NULL;
    builder->count = builder->capacity = 0;
    *result = model;
    return TP_OK;
}

void tp_model_destroy(tp_model *model) {
    if (!model) return;
    free_rotations(((tp__owned_model *)model)->rotations);
    free_groups(model->groups, model->group_count);
    free((void *)model->groups);
    free((char *)model->name);
    free((char *)model->model_type);
    free((char *)model->ignored);
    free((char *)model->config_hash);
    free((char *)model->assumed);
    free((char *)model->label);
    free(model);
}
