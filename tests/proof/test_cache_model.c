/* SPDX-License-Identifier: Apache-2.0 */
/* tp_cache_from_model: rows by hand, every shipped model against what capacity counts, refusals. */
#include <dirent.h>

#include "capacity.h"

static tp_cache_layer rows[TP_MODEL_MAX_LAYERS];

static tp_cache_options options_of(const tp_model *model, tp_part part) {
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    if (tp_cache_from_model(model, part, (tp_dtype)0, rows, TP_MODEL_MAX_LAYERS, &options, &error) != TP_OK)
        fail_msg("%s", error.text);
    assert_true(options.layers == rows && !options.same);
    return options;
}

static void a_row(int layer, int64_t heads, int64_t dim_qk, int64_t dim_v, int32_t dtype, int latent) {
    const tp_cache_layer *row = &rows[layer];
    if (row->kv_heads != heads || (heads && (row->head_dim_qk != dim_qk || row->head_dim_v != dim_v)) || row->k_dtype != dtype ||
        row->v_dtype != dtype || row->latent != latent)
        fail_msg("layer %d: %d heads of %d and %d", layer, (int)row->kv_heads, (int)row->head_dim_qk, (int)row->head_dim_v);
}

/* Groups with different heads and dims, windows and chunks, a layer that is no attention, keys of another part, latents. */
static void rows_by_hand(void **state) {
    (void)state;
    tp_model *model = declared(mixed_groups);
    tp_cache_options options = options_of(model, TP_PART_TEXT);
    assert_int_equal(options.layer_count, 9);
    assert_int_equal(options.sequence_tokens, 0); /* the file does not say */
    for (int i = 0; i < 8; i++)
        a_row(i, i >= 2 && i <= 4 ? 1 : 2, i >= 2 && i <= 4 ? 32 : 64, i >= 2 && i <= 4 ? 32 : 64, TP_BF16, 0);
    a_row(8, 0, 0, 0, TP_BF16, 0);
    options = options_of(model, TP_PART_CROSS);
    assert_true(options.layer_count == 3 && options.sequence_tokens == 300);
    a_row(2, 4, 32, 32, TP_BF16, 0);
    tp_model_destroy(model);
    model = support_model(latent_config);
    options = options_of(model, TP_PART_TEXT);
    assert_int_equal(options.layer_count, 2);
    a_row(1, 1, 48, 32, TP_F32, 1);
    tp_model_destroy(model);
}

/* The last layers of both kinds read keys of earlier ones. */
static void shared_keys_are_kept_once(void **state) {
    (void)state;
    tp_model *model = support_model(
        "{\"model_type\": \"gemma3n_text\", \"hidden_size\": 64, \"num_hidden_layers\": 6, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16, \"sliding_window\": 8, \"num_kv_shared_layers\": 2, "
        "\"intermediate_size\": 64, \"layer_types\": [\"sliding_attention\", \"full_attention\", "
        "\"sliding_attention\", \"full_attention\", \"sliding_attention\", \"full_attention\"]}");
    tp_cache_options options = options_of(model, TP_PART_TEXT);
    assert_int_equal(options.layer_count, 6);
    for (int i = 0; i < 6; i++) a_row(i, i < 4 ? 2 : 0, 16, 16, TP_BF16, 0);
    tp_model_destroy(model);
}

/* The cache of a model in a format, planned and counted: the same bytes of a token and a page, or both refuse a head dim. 1: they
   did not. */
static int same_bytes(const tp_model *model, const char *cache) {
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_capacity_options load_of = load(64, 1);
    tp_cache_capacity capacity;
    tp_capacity *counted;
    tp_error error = TP_ERROR_INIT;
    load_of.cache_dtype = TP_F16, load_of.cache = cache, load_of.page_size = 16;
    options.bytes = (int64_t)1 << 40, options.sequences = 4, options.page_size = 16;
    assert_int_equal(tp_cache_from_model(model, TP_PART_TEXT, TP_F16, rows, TP_MODEL_MAX_LAYERS, &options, &error), TP_OK);
    if (options.sequence_tokens == 0) options.sequence_tokens = 4096;
    assert_int_equal(tp_cache_format_layers(cache, rows, options.layer_count, &error), TP_OK);
    tp_status planned = tp_cache_plan(&options, &capacity, &error);
    tp_status asked = tp_capacity_create(model, planner, &load_of, &counted, &error);
    if (planned != asked) fail_msg("%s, %s: %d and %d, %s", model->label, cache, planned, asked, error.text);
    if (planned != TP_OK) return 0;
    int64_t token = 0, page = 0;
    for (int i = 0; i < model->group_count; i++)
        if (model->groups[i]->part == TP_PART_TEXT) {
            tp_capacity_cache one = cache_of(counted, i, 0);
            token += one.token_bytes, page += one.page_bytes * one.layers;
        }
    if (token != capacity.token_bytes || page != capacity.page_bytes)
        fail_msg("%s, %s: %lld bytes a token, not %lld", model->label, cache, (long long)capacity.token_bytes, (long long)token);
    tp_capacity_destroy(counted);
    return 1;
}

/* Bytes of a token are what tileproof capacity prints, whatever the model. */
static void shipped_models(void **state) {
    (void)state;
    DIR *folder = opendir(TILEPROOF_MODELS);
    int seen = 0, quantised = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[1024];
        static char text[1 << 20];
        tp_error error = TP_ERROR_INIT;
        tp_cache_capacity capacity;
        tp_model *model;
        if (strstr(entry->d_name, ".json") == NULL) continue;
        snprintf(path, sizeof path, "%s/%s", TILEPROOF_MODELS, entry->d_name);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        size_t size = fread(text, 1, sizeof text, file);
        fclose(file);
        assert_int_equal(tp_model_parse(text, size, entry->d_name, &model, &error), TP_OK);
        tp_cache_options options = TP_CACHE_OPTIONS_INIT;
        tp_capacity_options load_of = load(64, 1);
        tp_capacity *counted;
        tp_status status = tp_cache_from_model(model, TP_PART_TEXT, TP_F16, rows, TP_MODEL_MAX_LAYERS, &options, &error);
        load_of.cache_dtype = TP_F16;
        if (status == TP_UNSUPPORTED) { /* encoders: capacity refuses them, too */
            assert_int_equal(tp_capacity_create(model, planner, &load_of, &counted, &error), TP_UNSUPPORTED);
            tp_model_destroy(model);
            continue;
        }
        assert_int_equal(status, TP_OK);
        options.bytes = (int64_t)1 << 40, options.sequences = 4;
        if (options.sequence_tokens == 0) options.sequence_tokens = 4096;
        if (tp_cache_plan(&options, &capacity, &error) != TP_OK) fail_msg("%s: %s", entry->d_name, error.text);
        counted = ask(model, planner, &load_of);
        if (cache_of(counted, -1, 0).token_bytes != capacity.token_bytes)
            fail_msg("%s: %d bytes a token, not %d", entry->d_name, (int)capacity.token_bytes,
                     (int)cache_of(counted, -1, 0).token_bytes);
        tp_capacity_destroy(counted);
        static const char *const formats[] = {"i8", "i8/q8_0", "i4", "e4m3", "e4m3/token", "plain:i8", "e4m3/token:i4"};
        for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) quantised += same_bytes(model, formats[i]);
        tp_model_destroy(model);
        seen++;
    }
    closedir(folder);
    assert_true(seen >= 30 && quantised >= 6 * seen); /* some head dims are no multiple of 32, and latents are alike */
}

static void refusals(void **state) {
    (void)state;
    tp_model *model = declared(mixed_groups),
             *vision = declared("{\"part\": \"vision\", \"layers\": \"0\", \"problem\": \"h4 d32 bf16\"}");
    tp_cache_options options = TP_CACHE_OPTIONS_INIT, before = options;
    tp_error error = TP_ERROR_INIT;
#define REFUSED(status, says, model, part, dtype, room)                                                                          \
    do {                                                                                                                         \
        assert_int_equal(tp_cache_from_model(model, part, dtype, rows, room, &options, &error), status);                         \
        if (strstr(error.text, says) == NULL) fail_msg("%s", error.text);                                                        \
        assert_memory_equal(&options, &before, sizeof options);                                                                  \
    } while (0)
    REFUSED(TP_INVALID, "model is NULL", NULL, TP_PART_TEXT, (tp_dtype)0, 9);
    REFUSED(TP_INVALID, "part is 1: it must be TP_PART_TEXT (0) or TP_PART_CROSS (3)", model, TP_PART_VISION, (tp_dtype)0, 9);
    REFUSED(TP_UNSUPPORTED, "dtype is i4: a cache keeps f32, f16 or bf16", model, TP_PART_TEXT, TP_I4, 9);
    REFUSED(TP_INVALID, "room is 8: model.json has 9 text layers", model, TP_PART_TEXT, (tp_dtype)0, 8);
    REFUSED(TP_UNSUPPORTED, "model.json: no text layer of it generates", vision, TP_PART_TEXT, (tp_dtype)0, 9);
    assert_int_equal(tp_cache_from_model(model, TP_PART_TEXT, TP_F32, NULL, 9, &options, &error), TP_INVALID);
    assert_int_equal(tp_cache_from_model(model, TP_PART_TEXT, TP_F32, rows, 9, NULL, &error), TP_INVALID);
    assert_int_equal(tp_cache_from_model(model, TP_PART_TEXT, TP_F32, rows, 9, &options, &error), TP_OK);
    a_row(0, 2, 64, 64, TP_F32, 0);
    tp_model_destroy(model);
    tp_model_destroy(vision);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_by_hand), cmocka_unit_test(shared_keys_are_kept_once),
                                       cmocka_unit_test(shipped_models), cmocka_unit_test(refusals)};
    planner = one_thread();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tp_context_destroy(planner);
    return failed;
}
