/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a config. Either a model whose groups keep the rules, or a reason.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tileproof_proof.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const formats[] = {NULL, "i8", "i8/q8_0", "i4", "e4m3", "e4m3/token:i4"};
enum { FORMATS = sizeof formats / sizeof *formats };

static int count(void *cookie, const char *bytes, size_t size) {
    (void)bytes;
    *(size_t *)cookie += size;
    return 0;
}

static void require(int condition) {
    if (!condition) abort();
}

static void check_group(const tp_layer_group *group) {
    char text[1024];
    static char layers[8 * TP_MODEL_MAX_LAYERS];
    require(group->layer_count > 0 && group->layer_count <= TP_MODEL_MAX_LAYERS);
    for (int i = 1; i < group->layer_count; i++) require(group->layers[i - 1] < group->layers[i]);
    require(tp_layer_group_layers(group, layers, sizeof layers) == TP_OK);
    require(tp_layer_group_formula(group, text, 96) == TP_OK);
    tp_status status = tp_layer_group_problem(group, 1, 64, 64, text, sizeof text);
    require(status == (group->out_of_scope ? TP_UNSUPPORTED : TP_OK));
    if (group->out_of_scope) return;
    for (int i = 0; i < FORMATS; i++)
        for (int rows = 1; rows <= 64; rows += 63)
            require(tp_layer_group_problem_in(group, formats[i], 1, rows, 64, text, sizeof text) == TP_OK);
    require(group->q_heads > 0 && group->kv_heads > 0 && group->q_heads % group->kv_heads == 0);
    require(group->head_dim_qk > 0 && group->head_dim_v > 0 && group->scale_source != NULL);
}

/* A layer rotates, or there is a reason; cosines and sines are those of an angle, times the attention factor. */
static void check_rotation(const tp_model *model, const tp_layer_group *group) {
    tp_rope_options options = TP_ROPE_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_rotary *rotary = NULL;
    int64_t positions[3] = {70000, 3, 1};
    float cosines[2048], sines[2048];
    if (group->part != TP_PART_TEXT) return;
    tp_status status = tp_rope_from_model(model, group->layers[0], &options, &error);
    require(status == (group->out_of_scope ? TP_UNSUPPORTED : TP_OK));
    if (status != TP_OK) return;
    status = tp_rope_create(&options, &rotary, &error);
    require((status == TP_OK) == (rotary != NULL) && (status == TP_OK || strlen(error.text) > 0));
    if (status != TP_OK) return;
    require(tp_rope_pairs(rotary) <= 2048 && tp_rope_angles(rotary, 1, 1, positions, 0, cosines, sines, &error) == TP_OK);
    double first = (double)cosines[0] * cosines[0] + (double)sines[0] * sines[0];
    for (int64_t i = 0; i < tp_rope_pairs(rotary); i++)
        require(fabs((double)cosines[i] * cosines[i] + (double)sines[i] * sines[i] - first) <= 1e-6 * first);
    tp_rope_destroy(rotary);
}

/* Small and huge loads: figures that add up, or a reason. */
static void check_capacity(const tp_model *model) {
    static const int64_t loads[][3] = {{17, 3, 0}, {(int64_t)1 << 20, 1 << 10, 16}, {(int64_t)1 << 40, (int64_t)1 << 40, 4096}};
    static tp_context *context;
    tp_context_options one = TP_CONTEXT_OPTIONS_INIT;
    one.threads = 1, one.policy = TP_PERMIT;
    if (!context) require(tp_context_create(&one, &context, NULL) == TP_OK);
    for (int i = 0; i < 3 * FORMATS; i++) {
        tp_capacity_options options = TP_CAPACITY_OPTIONS_INIT;
        tp_capacity_cache kept = TP_CAPACITY_CACHE_INIT, evicted = TP_CAPACITY_CACHE_INIT;
        tp_error error = TP_ERROR_INIT;
        tp_capacity *capacity;
        const int64_t *load = loads[i % 3];
        options.context = load[0], options.concurrency = load[1], options.page_size = load[2], options.cache = formats[i / 3];
        tp_status status = tp_capacity_create(model, context, &options, &capacity, &error);
        require((status == TP_OK) == (capacity != NULL));
        require(status == TP_OK || (error.status == (int)status && strlen(error.text) > 0));
        if (!capacity) continue;
        require(tp_capacity_cache_at(capacity, -1, 0, &kept) == TP_OK &&
                tp_capacity_cache_at(capacity, -1, 1, &evicted) == TP_OK);
        require(kept.bytes >= evicted.bytes && evicted.bytes >= 0 && kept.bytes == kept.sequence_bytes * options.concurrency);
        require(kept.pages >= evicted.pages && kept.layers == evicted.layers);
        tp_capacity_destroy(capacity);
    }
}

static void try_one(const uint8_t *data, size_t size, const char *assume) {
    tp_model_options options = TP_MODEL_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_model *model;
    size_t written = 0;
    char name[64];
    options.assume = assume;
    tp_status status = tp_model_parse_with((const char *)data, size, "fuzz", &options, &model, &error);
    require((status == TP_OK) == (model != NULL));
    if (status != TP_OK) {
        require(error.status == (int)status && strlen(error.text) > 0);
        return;
    }
    require(!*model->assumed || (assume && !strcmp(model->assumed, assume) && strstr(model->label, " (as ")));
    require(model->group_count > 0);
    require(!*model->cache || tp_cache_format_name(model->cache, name, sizeof name, &error) == TP_OK);
    for (int i = 0; i < model->group_count; i++) {
        check_group(model->groups[i]);
        check_rotation(model, model->groups[i]);
    }
    require(tp_model_write(model, TP_JSON, count, &written) == TP_OK && written > 0);
    require(tp_model_write(model, TP_TEXT, count, &written) == TP_OK);
    check_capacity(model);
    tp_model_destroy(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    try_one(data, size, NULL);
    try_one(data, size, "llama");
    return 0;
}
