/* SPDX-License-Identifier: Apache-2.0 */
/* The text form of a call, and of numbers: sizes, lengths by hash, locales, values that nobody has checked. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/problem_texts.h"
#include "problem/number_text.h"
#include "problem/sequence.h"

static void test_print_size(void **state) {
    (void)state;
    tp_problem p = plain();
    const char *expected = "prefill b1 h1/1 q8 k8 d64 f32";
    size_t need = strlen(expected) + 1;
    char text[64];
    for (size_t size = 0; size < sizeof text; size++) {
        memset(text, '#', sizeof text);
        tp_status status = tp_problem_print(&p, NULL, text, size);
        assert_int_equal(status, size >= need ? TP_OK : TP_INVALID);
        if (size >= need) assert_string_equal(text, expected);
        for (size_t i = size; i < sizeof text; i++) assert_int_equal(text[i], '#');
    }
    assert_int_equal(tp_problem_print(&p, NULL, NULL, 64), TP_INVALID);
    assert_int_equal(tp_problem_print(NULL, NULL, text, 64), TP_INVALID);
}

static void print_call(const tp_problem *p, const tp_tensors *t, const char *expected) {
    char text[1024];
    assert_int_equal(tp_problem_print(p, t, text, sizeof text), TP_OK);
    assert_string_equal(text, expected);
}

static void test_print_call(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors t;
    p.batch = 64;
    p.q_len = p.kv_len = 4096;
    tp_tensors_init(&t, &p, NULL, NULL, NULL, NULL);
    t.batch = 3;
    t.q_len = 1;
    t.kv_len = 100;
    print_call(&p, &t, "decode b3 h1/1 q1 k100 d64 f32");
    const int32_t lens[] = {100, 7, 7};
    t.kv_lens = lens;
    print_call(&p, &t, "decode b3 h1/1 seqs=1x1/100,2x1/7 d64 f32 padded");
    t.batch = 1;
    print_call(&p, &t, "decode b1 h1/1 q1 k100 d64 f32 padded");
    t.batch = 0;
    print_call(&p, &t, "decode b0 h1/1 q1 k100 d64 f32 padded");

    p.q_layout = p.kv_layout = TP_PACKED;
    tp_tensors_init(&t, &p, NULL, NULL, NULL, NULL);
    t.batch = 0;
    print_call(&p, &t, "prefill b0 h1/1 q4096 k4096 d64 f32 packed");
    const int64_t q[] = {5, 517, 518, 519}, kv[] = {0, 1024, 1034, 1044};
    t.batch = 3;
    char text[256];
    assert_int_equal(tp_problem_print(&p, &t, text, sizeof text), TP_INVALID); /* no cu_seqlens */
    t.cu_seqlens_q = q;
    t.cu_seqlens_kv = kv;
    t.index_type = 9;
    assert_int_equal(tp_problem_print(&p, &t, text, sizeof text), TP_INVALID);
    t.index_type = TP_I64;
    print_call(&p, &t, "mixed b3 h1/1 seqs=1x512/1024,2x1/10 d64 f32 packed");
    p.kv_layout = TP_BATCH;
    t.kv_len = 2000;
    print_call(&p, &t, "mixed b3 h1/1 seqs=1x512/2000,2x1/2000 d64 f32 packed-q");
}

static void test_print_many(void **state) {
    (void)state;
    tp_problem p = plain(), back;
    tp_lengths l;
    tp_tensors t;
    int32_t cu[41] = {0};
    char text[512], other[512];
    tp_error error = TP_ERROR_INIT;
    p.batch = 40;
    p.q_len = p.kv_len = 64;
    p.q_layout = p.kv_layout = TP_PACKED;
    tp_tensors_init(&t, &p, NULL, NULL, NULL, NULL);
    for (int i = 0; i < 40; i++) cu[i + 1] = cu[i] + 20 + (i < 16 ? i : 15);
    t.cu_seqlens_q = t.cu_seqlens_kv = cu;
    assert_int_equal(tp_problem_print(&p, &t, text, sizeof text), TP_OK); /* 16 runs: replayable */
    assert_int_equal(tp_problem_parse(text, &back, &l, &error), TP_OK);
    assert_int_equal(l.count, 16);
    assert_int_equal(l.seq[15].repeat, 25);
    for (int i = 0; i < 40; i++) cu[i + 1] = cu[i] + 20 + (i < 17 ? i : 16);
    assert_int_equal(tp_problem_print(&p, &t, text, sizeof text), TP_OK);
    assert_non_null(strstr(text, "prefill b40 h1/1 seqs=#40:"));
    assert_int_equal(strcspn(strstr(text, "#40:") + 4, " "), 16);
    assert_int_equal(tp_problem_parse(text, &back, &l, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "cannot be replayed"));
    cu[40]--; /* one length is another: so is the hash */
    assert_int_equal(tp_problem_print(&p, &t, other, sizeof other), TP_OK);
    assert_string_not_equal(text, other);
}

/* FNV-1a, so that another tool can compute the same. */
static void test_hash(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors t;
    int32_t cu[19] = {0};
    char text[512], expected[64];
    uint64_t hash = 0xcbf29ce484222325u;
    p.batch = 18;
    p.q_layout = p.kv_layout = TP_PACKED;
    tp_tensors_init(&t, &p, NULL, NULL, NULL, NULL);
    t.cu_seqlens_q = t.cu_seqlens_kv = cu;
    for (int i = 0; i < 18; i++) {
        int length = 2 + i % 3;
        cu[i + 1] = cu[i] + length;
        for (int n = 0; n < 16; n++)
            hash = (hash ^ (n % 8 ? 0u : (unsigned)length)) * 0x100000001b3u;
    }
    snprintf(expected, sizeof expected, "seqs=#18:%016llx ", (unsigned long long)hash);
    assert_int_equal(tp_problem_print(&p, &t, text, sizeof text), TP_OK);
    assert_non_null(strstr(text, expected));
}

static void test_numbers(void **state) {
    (void)state;
    const struct {
        const char *text;
        int good;
        int64_t value;
    } cases[] = {{"0", 1, 0},
                 {"-1", 1, -1},
                 {"9223372036854775807", 1, INT64_MAX},
                 {"-9223372036854775808", 1, INT64_MIN},
                 {"9223372036854775808", 0, 0},
                 {"-9223372036854775809", 0, 0},
                 {"-", 0, 0},
                 {"", 0, 0},
                 {"x", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *at = cases[i].text;
        int64_t value = 0;
        assert_int_equal(tp__read_integer(&at, at + strlen(at), &value), cases[i].good);
        assert_true(value == cases[i].value);
    }
}

/* A host program may have set a locale that writes a comma. Skipped where none is installed. */
static void test_locale(void **state) {
    (void)state;
    const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8", "de_DE"};
    const char *set = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && set == NULL; i++)
        set = setlocale(LC_NUMERIC, names[i]);
    if (set == NULL) {
        printf("not run here: no locale that writes a decimal comma is installed\n");
        return;
    }
    canonical("q9 d64 scale=1.5", "prefill b1 h1/1 q9 k9 d64 f32 scale=1.5");
    setlocale(LC_NUMERIC, "C");
}

/* Values that nobody has checked: an answer at once, or TP_INVALID. */
static void test_hostile(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors t;
    char text[512];
    tp_tensors_init(&t, &p, NULL, NULL, NULL, NULL);
    t.batch = INT64_MAX;
    assert_int_equal(tp_problem_print(&p, &t, text, sizeof text), TP_OK);
    assert_string_equal(text, "prefill b9223372036854775807 h1/1 q8 k8 d64 f32");
    t.batch = 1;
    p.q_layout = TP_PACKED;
    int64_t cu[3] = {0, 8, 8};
    t.index_type = TP_I64, t.cu_seqlens_q = (char *)cu + 4;
    assert_int_equal(tp_problem_print(&p, &t, text, sizeof text), TP_INVALID);
    t.cu_seqlens_q = cu, t.kv_lens = (char *)cu + 1;
    assert_int_equal(tp_problem_print(&p, &t, text, sizeof text), TP_INVALID);
    t.kv_lens = cu + 1;
    assert_int_equal(tp_problem_print(&p, &t, text, sizeof text), TP_OK);
    static const int nodes[] = {TP_MAX_MASK_NODES + 1, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        p.mask_nodes = nodes[i];
        assert_int_equal(tp_problem_print(&p, NULL, text, sizeof text), TP_INVALID);
        assert_int_equal(tp_problem_print(&p, &t, text, sizeof text), TP_INVALID);
        assert_int_equal(tp_problem_class(&p, text, sizeof text), TP_INVALID);
    }
    for (int32_t kind = -3; kind < 40; kind++) { /* any tree of any kinds */
        p.mask_nodes = TP_MAX_MASK_NODES;
        for (int i = 0; i < TP_MAX_MASK_NODES; i++) p.mask[i] = (tp_mask_node){kind + i % 3, 0, INT64_MIN, INT64_MAX};
        tp_problem_print(&p, NULL, text, sizeof text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_print_size),
        cmocka_unit_test(test_print_call),
        cmocka_unit_test(test_print_many),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
