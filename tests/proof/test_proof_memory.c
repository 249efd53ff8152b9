/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ends: models, read and written. memory.h says what is asked. */
#include <dirent.h>

#include "memory.h"

struct config {
    char *text;
    size_t size;
    const char *name;
};

/* As a llama, where the type is not known. */
static tp_status parse_config(const struct config *config, tp_model **model, tp_error *error) {
    tp_model_options options = TP_MODEL_OPTIONS_INIT;
    options.assume = "llama";
    return tp_model_parse_with(config->text, config->size, config->name, &options, model, error);
}

static tp_status call_parse(void *subject, const void *about, tp_error *error) {
    return parse_config(about, subject, error);
}

static void *open_nothing(const void *about) {
    static tp_model *model;
    (void)about;
    model = NULL;
    return &model;
}

static void show_model(void *subject, const void *about, tp_status status) {
    tp_model *model = *(tp_model **)subject;
    (void)about;
    assert_true((status == TP_OK) == (model != NULL));
    if (!model) return;
    assert_int_equal(tp_model_write(model, TP_JSON, memory_collect, NULL), TP_OK);
    memory_collect(NULL, model->config_hash, 64);
}

static void close_model(void *subject) { tp_model_destroy(*(tp_model **)subject); }

static tp_model *parsed(const struct config *config) {
    tp_model *model;
    tp_error error = TP_ERROR_INIT;
    if (parse_config(config, &model, &error) != TP_OK) fail_msg("%s", error.text);
    return model;
}

static void *open_model(const void *about) { return parsed(about); }
static void close_parsed(void *subject) { tp_model_destroy(subject); }

static tp_status call_write_json(void *subject, const void *about, tp_error *error) {
    (void)about, (void)error;
    return tp_model_write(subject, TP_JSON, memory_collect, NULL);
}

static tp_status call_write_text(void *subject, const void *about, tp_error *error) {
    (void)about, (void)error;
    return tp_model_write(subject, TP_TEXT, memory_collect, NULL);
}

static tp_status call_words(void *subject, const void *about, tp_error *error) {
    const tp_model *model = subject;
    (void)about, (void)error;
    for (int g = 0; g < model->group_count; g++) {
        char layers[8 * TP_MODEL_MAX_LAYERS], formula[96];
        assert_int_equal(tp_layer_group_layers(model->groups[g], layers, sizeof layers), TP_OK);
        assert_int_equal(tp_layer_group_formula(model->groups[g], formula, sizeof formula), TP_OK);
    }
    return TP_OK;
}

static const struct walk parse = {"tp_model_parse", open_nothing, call_parse, show_model, close_model, 0};
static const struct walk write_json = {"tp_model_write JSON", open_model, call_write_json, NULL, close_parsed, 1};
static const struct walk write_text = {"tp_model_write text", open_model, call_write_text, NULL, close_parsed, 1};
static const struct walk words_of = {"tp_layer_group_layers and others", open_model, call_words, NULL, close_parsed, 0};

static struct config read_config(const char *folder, const char *name) {
    char path[512];
    struct config config = {.name = "models/a.json"};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    config.text = malloc(1 << 20);
    config.size = fread(config.text, 1, 1 << 20, file);
    assert_true(config.size > 0 && config.size < 1 << 20);
    fclose(file);
    return config;
}

static void every_shipped_model(void **state) {
    int count = 0;
    DIR *folder = opendir(TILEPROOF_MODELS);
    (void)state;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!strstr(entry->d_name, ".json") || (getenv("TILEPROOF_TEST_QUICK") && count++ % 8)) continue;
        struct config config = read_config(TILEPROOF_MODELS, entry->d_name);
        assert_true(exhaust(&parse, &config, TP_OK) > 20);
        assert_true(exhaust(&write_json, &config, TP_OK) > 20);
        assert_true(exhaust(&write_text, &config, TP_OK) > 1);
        assert_int_equal(exhaust(&words_of, &config, TP_OK), 0);
        free(config.text);
    }
    closedir(folder);
}

/* Long tokens, every escape, keys that are ignored, layers without attention; and what is refused with memory. */
static void made_models(void **state) {
    static const struct {
        const char *text;
        tp_status status;
    } texts[] = {
        {"{\"tileproof_model\": 1, \"groups\": [{\"layers\": \"0-3,7,9-1023/2\", \"problem\": \"h4/2 d64 f32 causal "
         "window=1023,0 softcap=50 spans\"}, {\"layers\": \"4\", \"out_of_scope\": \"mamba\"}]}",
         TP_OK},
        {"{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_attention_heads\":32,\"num_hidden_layers\":3,"
         "\"_name_or_path\":\"a name of more than sixty-four bytes, with \\u00e9\\ud83d\\ude00\\n\\t\\\\ in it, so that its "
         "buffer has to grow\",\"rms_norm_eps\":0.000009999999747378751635551452636718750,\"_tileproof_ignore\":"
         "[\"a_key_that_nobody_knows_at_all\"],\"a_key_that_nobody_knows_at_all\":[1,[2,{\"x\":null}],true,false]}",
         TP_OK},
        {"{\"model_type\":\"rwkv\",\"num_hidden_layers\":24}", TP_OK},
        {"{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_attention_heads\":32,\"num_hidden_layers\":3,"
         "\"quantization_config\":{\"kv_cache_scheme\":{\"num_bits\":8,\"type\":\"float\"}}}",
         TP_OK},
        {"{\"model_type\":\"llama\",\"hidden_size\":\"many, and more than can be shown in an error text of this size\"}",
         TP_INVALID},
        {"{\"model_type\":\"llama\",\"hidden_size\":4096,\"num_attention_heads\":32,\"num_hidden_layers\":3,\"strange\":"
         "[1,2,3]}",
         TP_UNSUPPORTED},
        {"{\"model_type\":\"a model type that nobody has ever heard of\",\"num_hidden_layers\":2}", TP_OK}, /* as a llama */
        {"{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":3,\"rope_parameters\":{\"full_attention\":{}},\"per_layer_"
         "config\":"
         "{\"0\":{\"head_dim\":64},\"2\":{\"num_key_value_heads\":8}}}",
         TP_OK},
        {"{\"model_type\":\"phi3\",\"hidden_size\":64,\"num_attention_heads\":16,\"rope_scaling\":{\"type\":\"longrope\","
         "\"short_factor\":[1,2],\"long_factor\":[3,4]}}",
         TP_OK},
        {"{\"a\":\"a string that does not end, however long it is read", TP_INVALID},
        {"{\"a\":1,\"a\":2}", TP_INVALID},
        {"[1,2,[3]]", TP_INVALID},
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct config config = {(char *)(uintptr_t)texts[i].text, strlen(texts[i].text), "made"};
        exhaust(&parse, &config, texts[i].status);
        if (texts[i].status != TP_OK) continue;
        exhaust(&write_json, &config, TP_OK);
        exhaust(&write_text, &config, TP_OK);
    }
}

static int prepare(void **state) {
    (void)state;
    memory_begin();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shipped_model),
        cmocka_unit_test(made_models),
    };
    return cmocka_run_group_tests(tests, prepare, NULL);
}
