/* SPDX-License-Identifier: Apache-2.0 */
/* A group in words, files of layer groups, and what a model writes. */
#include "summary.h"

#include <locale.h>
#include <stdlib.h>

static tp_model *parse(const char *config) {
    tp_error error = TP_ERROR_INIT;
    tp_model *model;
    if (tp_model_parse(config, strlen(config), "m", &model, &error) != TP_OK) fail_msg("%s", error.text);
    return model;
}

static void expect_problem(const char *config, int group, int64_t q_len, int64_t kv_len,
                           const char *expected) {
    char text[256];
    tp_model *model = parse(config);
    assert_int_equal(tp_layer_group_problem(model->groups[group], 1, q_len, kv_len, text, sizeof text),
                     TP_OK);
    assert_string_equal(text, expected);
    tp_model_destroy(model);
}

#define GEMMA2 "{\"model_type\":\"gemma2\",\"num_hidden_layers\":2,\"torch_dtype\":\"bfloat16\",\"query_pre_attn_scalar\":224}"
#define DEEPSEEK "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":1}"
#define SPARSE "{\"model_type\":\"deepseek_v32\",\"num_hidden_layers\":1}"
#define PALIGEMMA                                                                                   \
    "{\"model_type\":\"paligemma\",\"text_config\":{},\"vision_config\":{\"image_size\":224,\"patch_size\":14}}"
#define SCOUT "{\"model_type\":\"llama4_text\",\"num_hidden_layers\":4}"
#define OSS "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":2,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":32}}"

static void a_group_has_a_problem_text_for_each_phase(void **state) {
    (void)state;
    expect_problem(GEMMA2, 0, 512, 512,
                   "prefill b1 h8/4 q512 k512 d256 bf16 causal window=4095,0 softcap=50 scale=0.0668153092");
    expect_problem(GEMMA2, 1, 1, 512, "decode b1 h8/4 q1 k512 d256 bf16 causal softcap=50 scale=0.0668153092");
    expect_problem(DEEPSEEK, 0, 64, 64, "prefill b1 h128/128 q64 k64 d192/128 causal");
    /* absorbed: other KV heads and dims, the same scale */
    expect_problem(DEEPSEEK, 0, 1, 64, "decode b1 h128/1 q1 k64 d576/512 causal scale=0.0721687824");
    expect_problem(DEEPSEEK, 0, 4, 64, "decode b1 h128/128 q4 k64 d192/128 causal");
    expect_problem(PALIGEMMA, 0, 300, 300, "prefill b1 h16/16 q300 k300 d256 causal prefix=256");
    expect_problem(PALIGEMMA, 0, 1, 300, "decode b1 h16/16 q1 k300 d256 causal");
    expect_problem(SCOUT, 0, 1, 9000, "decode b1 h40/8 q1 k9000 d128 causal chunk=8192");
    /* chosen keys: where there are more than are chosen */
    expect_problem(SPARSE, 0, 512, 4096, "prefill b1 h128/128 q512 k4096 d192/128 sparse-sorted=2048 causal");
    expect_problem(SPARSE, 0, 1, 2049, "decode b1 h128/1 q1 k2049 d576/512 sparse-sorted=2048 causal scale=0.0721687824");
    expect_problem(SPARSE, 0, 2048, 2048, "prefill b1 h128/128 q2048 k2048 d192/128 causal");
    expect_problem(OSS, 0, 20, 20, "prefill b1 h64/8 q20 k20 d64 causal window=127,0 sinks");
}

static tp_status assume(const char *config, const char *family, tp_model **model, tp_error *error) {
    tp_model_options options = TP_MODEL_OPTIONS_INIT;
    options.assume = family;
    return tp_model_parse_with(config, strlen(config), "dir/m.json", &options, model, error);
}

static void an_unknown_type_is_read_as_what_the_caller_says(void **state) {
    (void)state;
    tp_model *model;
    tp_error error = TP_ERROR_INIT;
    char text[256];
    assert_int_equal(
        assume("{\"model_type\":\"kimi_k2\",\"num_hidden_layers\":2,\"sliding_window\":64}", "mistral", &model, &error), TP_OK);
    assert_string_equal(model->model_type, "kimi_k2");
    assert_string_equal(model->assumed, "mistral");
    assert_string_equal(model->name, "dir/m.json");
    assert_string_equal(model->label, "m.json (as mistral)");
    assert_int_equal(tp_layer_group_problem(model->groups[0], 1, 100, 100, text, sizeof text), TP_OK);
    assert_string_equal(text, "prefill b1 h32/8 q100 k100 d128 causal window=63,0");
    tp_model_destroy(model);
    assert_int_equal(assume("{\"model_type\":\"mistral\",\"sliding_window\":64}", "llama", &model, &error), TP_OK);
    assert_string_equal(model->assumed, "");
    tp_model_destroy(model);
    /* a known type is what it is, and a model is flagged only where something was assumed */
    assert_int_equal(assume("{\"model_type\":\"bert\"}", "llama", &model, &error), TP_OK);
    assert_string_equal(model->assumed, "");
    assert_string_equal(model->label, "m.json");
    assert_int_equal(model->groups[0]->all_of, 0);
    tp_model_destroy(model);
    /* unknown keys, a missing type and families that are none stay refused */
    assert_int_equal(assume("{\"model_type\":\"new\",\"twist\":1}", "llama", &model, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "twist is 1: this key is not known"));
    assert_null(model);
    assert_int_equal(assume("{}", "llama", &model, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "model_type is missing"));
    assert_int_equal(assume("{\"model_type\":\"new\"}", "bert", &model, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "assume is \"bert\": it must be the model_type of a decoder that is known"));
    assert_int_equal(assume("{\"model_type\":\"new\"}", NULL, &model, &error), TP_UNSUPPORTED);
    tp_model_options small = TP_MODEL_OPTIONS_INIT;
    small.struct_size = 4;
    assert_int_equal(tp_model_parse_with("{}", 2, "m", &small, &model, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "tp_model_options.struct_size is 4"));
}

static void registers_are_tokens_beside_the_patches(void **state) {
    (void)state;
    int64_t q_len, kv_len;
    tp_model *model =
        parse("{\"model_type\":\"dinov2_with_registers\",\"image_size\":32,\"patch_size\":16,\"num_register_tokens\":3}");
    tp_layer_group_lengths(model->groups[0], 0, &q_len, &kv_len);
    assert_int_equal(q_len, 4 + 1 + 3);
    tp_model_destroy(model);
}

static void texts_without_newer_words_parse_in_the_core(void **state) {
    (void)state;
    static const char *const configs[] = {DEEPSEEK, SPARSE, "{\"model_type\":\"mistral\"}", "{\"model_type\":\"bert\"}",
                                          "{\"model_type\":\"pixtral\"}", "{\"model_type\":\"whisper\"}"};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        tp_model *model = parse(configs[i]);
        for (int g = 0; g < model->group_count; g++)
            for (int decode = 0; decode < 2; decode++) {
                const tp_layer_group *group = model->groups[g];
                char text[256], again[256];
                int64_t q_len, kv_len;
                tp_problem problem;
                tp_error error = TP_ERROR_INIT;
                tp_layer_group_lengths(group, decode, &q_len, &kv_len);
                if (!q_len) continue;
                assert_int_equal(tp_layer_group_problem(group, 2, q_len, kv_len, text, sizeof text), TP_OK);
                if (tp_problem_parse(text, &problem, NULL, &error) != TP_OK) fail_msg("%s", error.text);
                assert_int_equal(problem.q_heads, group->q_heads);
                /* and it is the text the core itself would print, but for a dtype that is not given */
                if (!group->dtype) continue;
                assert_int_equal(tp_problem_print(&problem, NULL, again, sizeof again), TP_OK);
                assert_string_equal(text, again);
            }
        tp_model_destroy(model);
    }
}

static void a_text_that_does_not_fit_says_so(void **state) {
    (void)state;
    tp_model *model = parse(GEMMA2);
    char text[256];
    assert_int_equal(tp_layer_group_problem(model->groups[0], 1, 9, 9, text, 30), TP_INVALID);
    assert_int_equal(tp_layer_group_formula(model->groups[0], text, 8), TP_INVALID);
    assert_int_equal(tp_layer_group_layers(model->groups[0], text, 1), TP_INVALID);
    tp_model_destroy(model);
}

static void declared_groups_are_read_in_the_text_form(void **state) {
    (void)state;
    char summary[2048], text[256];
    tp_model *model = parse(
        "{\"tileproof_model\":1,\"_source\":\"ours\",\"groups\":["
        "{\"layers\":\"0-8/2\",\"problem\":\"h16/8 d256 bf16 causal window=4095,0 softcap=50.5 scale=0.0625\","
        "\"rope\":\"yarn\",\"max_positions\":8192},"
        "{\"layers\":\"1,5,9\",\"problem\":\"h16/8 d192/128 bf16 chunk=512 causal sinks alibi\"},"
        "{\"layers\":\"3\",\"problem\":\"h4 d64 causal first=4 window=99,0\"},"
        "{\"layers\":\"7\",\"out_of_scope\":\"mamba\"},"
        "{\"part\":\"vision\",\"layers\":\"0-9\",\"problem\":\"h16 d72 packed\"}]}");
    summarise(model, summary, sizeof summary);
    assert_string_equal(
        summary, "text 0-8/2 h16/8 d256 bf16 causal & window w=4095,0 scale=0.0625 cap=50.5 rope=yarn/256@0; "
                 "text 1-9/4 h16/8 d192/128 bf16 causal & chunk c=512 scale=0.0721688 sinks alibi; "
                 "text 3 h4/4 d64 f32 (causal & window) | first w=99,0 scale=0.125; "
                 "text 7 out: mamba; vision 0-9 h16/16 d72 f32 same-segment scale=0.117851");
    assert_string_equal(model->model_type, "declared");
    assert_int_equal(tp_layer_group_problem(model->groups[1], 1, 8, 8, text, sizeof text), TP_OK);
    assert_string_equal(text, "prefill b1 h16/8 q8 k8 d192/128 bf16 causal chunk=512 sinks alibi");
    assert_int_equal(tp_layer_group_problem(model->groups[2], 1, 1, 8, text, sizeof text), TP_OK);
    assert_string_equal(text, "decode b1 h4/4 q1 k8 d64 f32 causal window=99,0 first=4");
    assert_int_equal(tp_layer_group_problem(model->groups[3], 1, 8, 8, text, sizeof text), TP_UNSUPPORTED);
    tp_model_destroy(model);
}

static void layers_print_as_ranges(void **state) {
    (void)state;
    static const char *const ranges[] = {"0",   "0-1",     "0,2",       "0-4/2",     "3,7",   "0-2,4-6",
                                         "1-9/4", "0,2,7", "0-1,4,6", "0-4,6-10,12", "0,1023"};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        char config[256], text[64];
        snprintf(config, sizeof config,
                 "{\"tileproof_model\":1,\"groups\":[{\"layers\":\"%s\",\"problem\":\"d64\"}]}", ranges[i]);
        tp_model *model = parse(config);
        assert_int_equal(tp_layer_group_layers(model->groups[0], text, sizeof text), TP_OK);
        assert_string_equal(text, ranges[i]);
        tp_model_destroy(model);
    }
}

/* A key that is not known may be ignored by hand, and the model says so. */
static void ignored_keys_are_named(void **state) {
    (void)state;
    tp_model *model = parse("{\"model_type\":\"llama\",\"our_tag\":1,\"other\":{},"
                            "\"_tileproof_ignore\":[\"our_tag\",\"other\",\"absent\"]}");
    assert_string_equal(model->ignored, "our_tag,other");
    tp_model_destroy(model);
}

typedef struct buffer {
    char text[8192];
    size_t used;
} buffer;

static int collect(void *cookie, const char *bytes, size_t size) {
    buffer *b = cookie;
    if (b->used + size >= sizeof b->text) return 1;
    memcpy(b->text + b->used, bytes, size);
    b->text[b->used += size] = 0;
    return 0;
}

static int stop(void *cookie, const char *bytes, size_t size) {
    (void)cookie, (void)bytes, (void)size;
    return 1;
}

static void a_model_writes_itself(void **state) {
    (void)state;
    tp_model *model = parse(GEMMA2);
    buffer b = {.used = 0};
    assert_int_equal(tp_model_write(model, TP_TEXT, collect, &b), TP_OK);
    assert_non_null(strstr(b.text, "m: gemma2, 2 layer groups\n"));
    assert_non_null(strstr(b.text, "decode b1 h8/4 q1 k4096 d256 bf16 causal"));
    b.used = 0;
    assert_int_equal(tp_model_write(model, TP_JSON, collect, &b), TP_OK);
    assert_non_null(strstr(b.text, "\"softcap\":50.0"));
    assert_non_null(strstr(b.text, "\"window\":[4095,0]"));
    assert_int_equal(tp_model_write(model, TP_JSON, stop, NULL), TP_INVALID);
    assert_int_equal(tp_model_write(model, TP_TEXT, stop, NULL), TP_INVALID);
    assert_int_equal(tp_model_write(model, (tp_format)7, collect, &b), TP_INVALID);
    tp_model_destroy(model);
}

static void a_decimal_comma_changes_nothing(void **state) {
    (void)state;
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8"};
    for (size_t i = 0; i < sizeof locales / sizeof *locales; i++)
        if (setlocale(LC_NUMERIC, locales[i])) break;
    a_group_has_a_problem_text_for_each_phase(state);
    declared_groups_are_read_in_the_text_form(state);
    setlocale(LC_NUMERIC, "C");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_has_a_problem_text_for_each_phase),
        cmocka_unit_test(an_unknown_type_is_read_as_what_the_caller_says),
        cmocka_unit_test(registers_are_tokens_beside_the_patches),
        cmocka_unit_test(texts_without_newer_words_parse_in_the_core),
        cmocka_unit_test(a_text_that_does_not_fit_says_so),
        cmocka_unit_test(declared_groups_are_read_in_the_text_form),
        cmocka_unit_test(layers_print_as_ranges),
        cmocka_unit_test(ignored_keys_are_named),
        cmocka_unit_test(a_model_writes_itself),
        cmocka_unit_test(a_decimal_comma_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
