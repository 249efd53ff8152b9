/* SPDX-License-Identifier: Apache-2.0 */
/* tp_rope_from_model: what configs say of the rotation, layer by layer, and what is no layer. */
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include <tileproof_proof.h>

static tp_model *read(const char *config) {
    tp_error error = TP_ERROR_INIT;
    tp_model *model = NULL;
    if (tp_model_parse(config, strlen(config), "config.json", &model, &error) != TP_OK) fail_msg("%s", error.text);
    return model;
}

static tp_rope_options layer_of(const tp_model *model, int layer) {
    tp_error error = TP_ERROR_INIT;
    tp_rope_options options = TP_ROPE_OPTIONS_INIT;
    memset((char *)&options + sizeof options.struct_size, 0xa5, sizeof options - sizeof options.struct_size); /* all is written */
    if (tp_rope_from_model(model, layer, &options, &error) != TP_OK) fail_msg("%s", error.text);
    return options;
}

/* "kind style head_dim dims first theta factor original attention low,high fast,slow mscale,all sections turns untruncated" */
static void says(const char *config, int layer, const char *wanted) {
    tp_model *model = read(config);
    tp_rope_options o = layer_of(model, layer);
    tp_error error = TP_ERROR_INIT;
    tp_rotary *rotary = NULL;
    char text[400];
    snprintf(text, sizeof text, "%s %d %lld %lld %lld %g %g %lld %g %g,%g %g,%g %g,%g %d,%d,%d %d %d",
             tp_rope_name((tp_rope)o.kind), o.style, (long long)o.head_dim, (long long)o.dims, (long long)o.first, o.theta,
             o.factor, (long long)o.original_length, o.attention_factor, o.low_freq_factor, o.high_freq_factor, o.beta_fast,
             o.beta_slow, o.mscale, o.mscale_all_dim, o.sections[0], o.sections[1], o.sections[2], o.sections_interleave,
             o.yarn_untruncated);
    assert_string_equal(text, wanted);
    assert_int_equal(o.struct_size, sizeof o);
    if (tp_rope_create(&o, &rotary, &error) != TP_OK) fail_msg("%s: %s", text, error.text);
    tp_rope_destroy(rotary);
    tp_model_destroy(model);
}

#define LLAMA "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4, "

static void every_kind(void **state) {
    (void)state;
    says(LLAMA "\"rope_theta\": 5e5}", 1, "default 0 16 16 0 500000 0 0 0 0,0 0,0 0,0 0,0,0 0 0");
    says(LLAMA "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}", 0,
         "linear 0 16 16 0 10000 4 2048 0 0,0 0,0 0,0 0,0,0 0 0");
    /* dynamic goes by the longest that the file allows, whatever the model was trained on */
    says(LLAMA "\"max_position_embeddings\": 4096, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2, "
               "\"original_max_position_embeddings\": 77}}",
         0, "dynamic 0 16 16 0 10000 2 4096 0 0,0 0,0 0,0 0,0,0 0 0");
    says(LLAMA "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
               "\"original_max_position_embeddings\": 8192}}",
         0, "llama3 0 16 16 0 10000 8 8192 0 1,4 0,0 0,0 0,0,0 0 0");
    says(LLAMA
         "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32, \"beta_fast\": 30, \"beta_slow\": 2, \"truncate\": false, "
         "\"mscale\": 0.5, \"mscale_all_dim\": 0.25, \"attention_factor\": 1.5, \"original_max_position_embeddings\": 4096}}",
         0, "yarn 0 16 16 0 10000 32 4096 1.5 0,0 30,2 0.5,0.25 0,0,0 0 1");
    says(LLAMA "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}, \"max_position_embeddings\": 512}", 0,
         "yarn 0 16 16 0 10000 2 512 0 0,0 0,0 0,0 0,0,0 0 0");
    says("{\"model_type\": \"gpt2\"}", 3, "none 0 64 0 0 0 0 0 0 0,0 0,0 0,0 0,0,0 0 0");
}

static void styles_parts_and_layers(void **state) {
    (void)state;
    says("{\"model_type\": \"gptj\", \"rotary_dim\": 32}", 0, "default 1 256 32 0 10000 0 0 0 0,0 0,0 0,0 0,0,0 0 0");
    says("{\"model_type\": \"gpt_neox\"}", 0, "default 0 96 24 0 10000 0 0 0 0,0 0,0 0,0 0,0,0 0 0");
    says("{\"model_type\": \"cohere\"}", 0, "default 1 128 128 0 500000 0 0 0 0,0 0,0 0,0 0,0,0 0 0");
    /* latents: the rotated dims are the last */
    says("{\"model_type\": \"deepseek_v3\"}", 0, "default 1 192 64 128 10000 0 0 0 0,0 0,0 0,0 0,0,0 0 0");
    says("{\"model_type\": \"deepseek_v3\", \"rope_interleave\": false}", 0,
         "default 0 192 64 128 10000 0 0 0 0,0 0,0 0,0 0,0,0 0 0");
    /* layers that slide have a theta of their own, and no scaling */
    const char *gemma = "{\"model_type\": \"gemma3_text\", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}}";
    says(gemma, 0, "default 0 256 256 0 10000 0 0 0 0,0 0,0 0,0 0,0,0 0 0");
    says(gemma, 5, "linear 0 256 256 0 1e+06 8 131072 0 0,0 0,0 0,0 0,0,0 0 0");
    const char *sections =
        "{\"model_type\": \"%s\", \"hidden_size\": 1024, \"num_attention_heads\": 8, \"num_key_value_heads\": 8, "
        "\"head_dim\": 128, \"rope_parameters\": {\"rope_type\": \"default\", \"mrope_section\": [24, 20, 20]}}";
    char config[400];
    snprintf(config, sizeof config, sections, "qwen2_vl_text");
    says(config, 0, "default 0 128 128 0 1e+06 0 0 0 0,0 0,0 0,0 24,20,20 0 0");
    snprintf(config, sizeof config, sections, "qwen3_vl_text"); /* in turns, though the file does not say so */
    says(config, 0, "default 0 128 128 0 500000 0 0 0 0,0 0,0 0,0 24,20,20 1 0");
}

static void factors_of_longrope(void **state) {
    (void)state;
    tp_model *model =
        read("{\"model_type\": \"phi3\", \"hidden_size\": 64, \"num_attention_heads\": 8, \"num_key_value_heads\": 8, "
             "\"max_position_embeddings\": 131072, \"original_max_position_embeddings\": 4096, \"rope_scaling\": "
             "{\"type\": \"longrope\", \"short_factor\": [1, 1.5, 2, 2.5], \"long_factor\": [1, 4, 16, 64]}}");
    tp_rope_options o = layer_of(model, 31);
    assert_int_equal(o.kind, TP_ROPE_LONGROPE);
    assert_int_equal(o.original_length, 4096);
    assert_true(o.factor == 32 && o.factor_count == 4 && o.dims == 8);
    assert_true(o.short_factors[1] == 1.5f && o.short_factors[3] == 2.5f && o.long_factors[0] == 1 && o.long_factors[3] == 64);
    tp_rotary *rotary = NULL;
    assert_int_equal(tp_rope_create(&o, &rotary, NULL), TP_OK);
    tp_model_destroy(model); /* the rotation has a copy */
    int64_t position = 5000;
    float cosines[4], sines[4];
    assert_int_equal(tp_rope_angles(rotary, 1, 1, &position, 0, cosines, sines, NULL), TP_OK);
    double attention = sqrt(1 + log(32) / log(4096));
    for (int i = 0; i < 4; i++) assert_true(fabs(cosines[i] - attention * cos(5000 * pow(1e4, -i / 4.0) / pow(4, i))) < 1e-6);
    tp_rope_destroy(rotary);
    /* a file without its lists is read; the rotation asks for them */
    model = read("{\"model_type\": \"phi3\", \"rope_scaling\": {\"type\": \"longrope\"}}");
    tp_error error = TP_ERROR_INIT;
    o = layer_of(model, 0);
    assert_int_equal(tp_rope_create(&o, &rotary, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "longrope needs half the rotated dims of each, 48, which a config has as short_factor"));
    static float ones[48];
    for (int i = 0; i < 48; i++) ones[i] = 1;
    o.short_factors = o.long_factors = ones, o.factor_count = 48; /* the caller has them */
    assert_int_equal(tp_rope_create(&o, &rotary, NULL), TP_OK);
    tp_rope_destroy(rotary);
    tp_model_destroy(model);
    /* one of them in the file: its length is known, and the other is asked for */
    model = read("{\"model_type\": \"phi3\", \"hidden_size\": 64, \"num_attention_heads\": 8, \"num_key_value_heads\": 8, "
                 "\"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [1, 4, 16, 64]}}");
    o = layer_of(model, 0);
    assert_true(o.factor_count == 4 && o.short_factors == NULL && o.long_factors[3] == 64);
    assert_int_equal(tp_rope_create(&o, &rotary, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "short_factors are NULL: longrope needs dims / 2 of them, 4"));
    o.short_factors = ones;
    assert_int_equal(tp_rope_create(&o, &rotary, NULL), TP_OK);
    tp_rope_destroy(rotary);
    tp_model_destroy(model);
}

static void what_is_no_layer(void **state) {
    (void)state;
    tp_model *model = read("{\"model_type\": \"jamba\"}"); /* layer 4 is attention, without a rotation */
    tp_error error = TP_ERROR_INIT;
    tp_rope_options o = TP_ROPE_OPTIONS_INIT, before = o;
    assert_int_equal(layer_of(model, 4).kind, TP_ROPE_NONE);
    assert_int_equal(tp_rope_from_model(model, 0, &o, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "layer 0 of config.json is mamba: it has no q and k to rotate"));
    assert_int_equal(tp_rope_from_model(model, 32, &o, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "layer is 32: config.json has no such layer of text"));
    assert_int_equal(tp_rope_from_model(model, -1, &o, &error), TP_INVALID);
    assert_int_equal(tp_rope_from_model(NULL, 0, &o, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "model is NULL"));
    assert_int_equal(tp_rope_from_model(model, 4, NULL, &error), TP_INVALID);
    assert_memory_equal(&o, &before, sizeof o);
    o.struct_size = 8;
    assert_int_equal(tp_rope_from_model(model, 4, &o, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "options.struct_size is 8"));
    tp_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind), cmocka_unit_test(styles_parts_and_layers),
                                       cmocka_unit_test(factors_of_longrope), cmocka_unit_test(what_is_no_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
