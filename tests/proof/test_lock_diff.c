/* SPDX-License-Identifier: Apache-2.0 */
/* What changed between two revisions, in words and as JSON. */
#include "support.h"

static tp_lock *empty(void) {
    tp_lock *lock;
    assert_int_equal(tp_lock_create(&lock, NULL), TP_OK);
    return lock;
}

/* A model of groups "LAYERS PROBLEM", separated by ';'. */
static tp_model *model_of(const char *groups) {
    char text[1024] = "{\"tileproof_model\": 1, \"groups\": [", *state, copy[512];
    snprintf(copy, sizeof copy, "%s", groups);
    for (char *group = strtok_r(copy, ";", &state); group; group = strtok_r(NULL, ";", &state)) {
        size_t used = strlen(text), layers = strcspn(group, " ");
        snprintf(text + used, sizeof text - used, "%s{\"layers\": \"%.*s\", \"problem\": \"%s\"}", group == copy ? "" : ", ",
                 (int)layers, group, group + layers + 1);
    }
    strcat(text, "]}");
    return support_model(text);
}

static struct text diff_of(const tp_lock *a, int64_t i, const tp_lock *b, int64_t k, tp_format format) {
    struct text text = {NULL, 0};
    assert_int_equal(tp_lock_diff(a, i, b, k, format, text_collect, &text), TP_OK);
    return text;
}

static void says(const struct text *text, const char *expected, int there) {
    if ((strstr(text->bytes, expected) != NULL) != there) fail_msg("%s'%s' in:\n%s", there ? "" : "no ", expected, text->bytes);
}

/* Two configs of one model: what the text must have, and what it must not. */
static void configs(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *has[4], *lacks[2];
    } cases[] = {
        {"0-3 h4/2 d32 f32 causal", "0-3 h4/2 d48 f32 causal", {"text layers 0-3: head_dim 32 -> 48\n"}, {"heads", "bits"}},
        {"0-3 h4/2 d32 f32 causal",
         "0-3 h8/2 d32 bf16 causal",
         {"text layers 0-3: heads 4/2 -> 8/2; dtype f32 -> bf16\n"},
         {"head_dim"}},
        {"0-3 h4/2 d32 f32 causal",
         "0-3 h4/2 d32 f32 causal window=100,0",
         {"text layers 0-3: window none -> 100,0\n"},
         {"head_dim"}},
        {"0-3 h4/2 d32 f32 causal window=100,0", "0-3 h4/2 d32 f32 causal", {"window 100,0 -> none\n"}, {"head_dim"}},
        {"0-3 h4/2 d32 f32 causal", "0-3 h4/2 d32 f32 causal alibi", {"alibi none -> yes\n"}, {"head_dim"}},
        {"0-3 h4/2 d32 f32 causal", "0-5 h4/2 d32 f32 causal", {"text layers 0-3: layers 0-3 -> 0-5\n"}, {"group", "head_dim"}},
        {"0-3 h4/2 d32 f32 causal",
         "0-3 h4/2 d32 f32 causal;4-5 h4/2 d48 f32 causal",
         {"text layers 4-5: group none -> new\n", "text layers 4-5, decode: kernel none -> "},
         {"layers 0-3, ", "gone"}},
        {"0-3 h4/2 d32 f32 causal;4-5 h4/2 d48 f32 causal",
         "0-3 h4/2 d32 f32 causal",
         {"text layers 4-5: group there -> gone\n"},
         {"new"}},
    };
    tp_identity identity = support_identity();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_lock *lock = empty();
        tp_model *a = model_of(cases[i].from), *b = model_of(cases[i].to);
        support_put(lock, a, &identity, "one");
        support_put(lock, b, &identity, "two");
        struct text text = diff_of(lock, 0, lock, 1, TP_TEXT);
        for (int k = 0; k < 4 && cases[i].has[k]; k++) says(&text, cases[i].has[k], 1);
        for (int k = 0; k < 2 && cases[i].lacks[k]; k++) says(&text, cases[i].lacks[k], 0);
        char head[100];
        snprintf(head, sizeof head, "model.json %.12s (2026-11-16, tileproof on cpu %s) -> model.json %.12s (", a->config_hash,
                 identity.isa, b->config_hash);
        assert_int_equal(strncmp(text.bytes, head, strlen(head)), 0);
        free(text.bytes);
        tp_model_destroy(a);
        tp_model_destroy(b);
        tp_lock_destroy(lock);
    }
}

static void refuses(tp_cell *cell) {
    cell->status = TP_CELL_UNSUPPORTED;
    cell->reason = "avx2: head_dim 640, need <= 576";
}
static void falls_back(tp_cell *cell) {
    cell->status = TP_CELL_QUALIFIED_FALLBACK;
    cell->kernel = "math";
}
static void other_bits(tp_cell *cell) {
    cell->output = "00", cell->error = 0.5;
}
static void other_work(tp_cell *cell) {
    cell->bytes = 7, cell->scratch = 8, cell->panels_full = 9, cell->temporary = 10;
}
static void leaks(tp_cell *cell) {
    cell->contained = TP_KEPT_LEAKS, cell->observed = "not observable";
}

/* One config, of two locks: who serves it, and figures. */
static void cells(void **state) {
    (void)state;
    static const struct {
        void (*change)(tp_cell *cell);
        const char *has, *has_too;
    } cases[] = {
        {refuses, "prefill: kernel ", " -> refused: avx2: head_dim 640, need <= 576\n"},
        {falls_back, "-> math", " (fallback)\n"},
        {other_bits, "error 4.17e-08 -> 0.5", "bits "},
        {other_work, "tiles 0 full 0 partial 0 skipped -> 9 full", "bytes 1000 -> 7; scratch 0 -> 8; temporary 0 -> 10"},
        {leaks, "contained none -> leaks", "observed none -> not observable"},
    };
    tp_identity identity = support_identity();
    tp_model *model = support_model(support_config);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp_lock *a = empty(), *b = empty();
        support_put(a, model, &identity, "one");
        support_put_changed(b, model, &identity, 0, cases[i].change);
        struct text text = diff_of(a, 0, b, 0, TP_TEXT), json = diff_of(a, 0, b, 0, TP_JSON);
        says(&text, cases[i].has, 1);
        says(&text, cases[i].has_too, 1);
        says(&text, "decode", 0); /* which is as it was */
        says(&json, "\"where\":\"text layers 0-3\",\"phase\":\"prefill\"", 1);
        free(text.bytes);
        free(json.bytes);
        tp_lock_destroy(a);
        tp_lock_destroy(b);
    }
    tp_model_destroy(model);
}

/* Bits of different problems are different problems' bits. */
static void bits_of_one_problem(void **state) {
    (void)state;
    tp_identity identity = support_identity();
    tp_model *a = model_of("0-3 h4/2 d32 f32 causal"), *b = model_of("0-3 h4/2 d48 f32 causal");
    tp_lock *lock = empty();
    support_put(lock, a, &identity, "one");
    support_put_changed(lock, b, &identity, 0, other_bits);
    struct text text = diff_of(lock, 0, lock, 1, TP_TEXT);
    says(&text, "head_dim 32 -> 48", 1);
    says(&text, "bits", 0);
    free(text.bytes);
    tp_model_destroy(a);
    tp_model_destroy(b);
    tp_lock_destroy(lock);
}

static void identities(void **state) {
    (void)state;
    tp_identity one = support_identity(), two = one;
    tp_model *model = support_model(support_config);
    tp_lock *a = empty(), *b = empty();
    two.version = "0.9", two.versions = "cuda=13", two.cpu = "another", two.device = "opencl:x", two.cache = "i8/token";
    support_put(a, model, &one, "one");
    support_put(b, model, &one, "one");
    struct text text = diff_of(a, 0, b, 0, TP_TEXT);
    says(&text, "\n  the same\n", 1);
    free(text.bytes);
    support_put(b, model, &two, "two");
    text = diff_of(a, 0, b, 1, TP_TEXT);
    says(&text, "\n  all: engine device cpu -> opencl:x; engine cache plain -> i8/token; version ", 1);
    says(&text, " -> 0.9; ", 1);
    says(&text, "cuda none -> 13", 1);
    says(&text, "host cpu ", 1);
    says(&text, ", cache i8/token)", 1);
    free(text.bytes);
    struct text json = diff_of(a, 0, b, 1, TP_JSON);
    says(&json, "{\"from\":{\"revision\":{\"model\":\"model.json\",", 1);
    says(&json, "{\"where\":\"\",\"phase\":\"\",\"what\":\"engine device\",\"from\":\"cpu\",\"to\":\"opencl:x\"}", 1);
    free(json.bytes);
    assert_int_equal(tp_lock_diff(a, 1, b, 0, TP_TEXT, text_collect, &text), TP_INVALID);
    assert_int_equal(tp_lock_diff(a, 0, b, -1, TP_TEXT, text_collect, &text), TP_INVALID);
    assert_int_equal(tp_lock_diff(a, 0, NULL, 0, TP_TEXT, text_collect, &text), TP_INVALID);
    tp_model_destroy(model);
    tp_lock_destroy(a);
    tp_lock_destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs),
        cmocka_unit_test(cells),
        cmocka_unit_test(bits_of_one_problem),
        cmocka_unit_test(identities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
