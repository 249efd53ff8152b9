/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a problem, one by one. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/problem_texts.h"
#include "problem/sequence.h"

/* The text must name the field, its value and the rule. */
static void refused(const tp_problem *p, tp_status status, const char *const parts[3]) {
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_problem_check(p, &error), status);
    assert_int_equal(error.status, status);
    for (int i = 0; i < 3; i++)
        if (strstr(error.text, parts[i]) == NULL) fail_msg("no '%s' in: %s", parts[i], error.text);
    assert_int_equal(tp_problem_check(p, NULL), status);
}

#define REFUSED(field, value, status, ...)                                                         \
    do {                                                                                           \
        tp_problem refused_ = plain();                                                             \
        refused_.field = value;                                                                    \
        refused(&refused_, status, (const char *const[3]){__VA_ARGS__});                           \
    } while (0)

static void test_defaults(void **state) {
    (void)state;
    tp_problem p;
    tp_problem_init(&p);
    assert_int_equal(p.struct_size, sizeof p);
    assert_int_equal(p.batch, 1);
    assert_int_equal(p.q_heads, 1);
    assert_int_equal(p.o_dtype, TP_F32);
    assert_int_equal(p.align, TP_BOTTOM_RIGHT);
    assert_int_equal(tp_problem_check(&p, NULL), TP_INVALID); /* head dims are 0 */
    p = plain();
    assert_int_equal(tp_problem_check(&p, NULL), TP_OK);
    tp_problem_dtype(&p, TP_BF16);
    assert_int_equal(p.q_dtype + p.k_dtype + p.v_dtype + p.o_dtype, 4 * TP_BF16);
}

static void test_rules(void **state) {
    (void)state;
    REFUSED(struct_size, 8, TP_INVALID, "struct_size", "is 8", "must be in");
    REFUSED(op, 2, TP_INVALID, "op", "is 2", "TP_BACKWARD (1)");
    REFUSED(q_dtype, 0, TP_INVALID, "q_dtype", "is 0", "1..7");
    REFUSED(k_dtype, 99, TP_INVALID, "k_dtype", "is 99", "1..7");
    REFUSED(v_dtype, -3, TP_INVALID, "v_dtype", "is -3", "1..7");
    REFUSED(o_dtype, 8, TP_INVALID, "o_dtype", "is 8", "1..7");
    REFUSED(k_dtype, TP_E5M2, TP_UNSUPPORTED, "k_dtype", "e5m2", "f32, f16 and bf16");
    REFUSED(v_dtype, TP_I4, TP_INVALID, "v_scales is none (0) with v_dtype i4", "group", "its scales are");
    REFUSED(q_layout, 2, TP_INVALID, "q_layout", "is 2", "TP_PACKED");
    REFUSED(kv_layout, -1, TP_INVALID, "kv_layout", "is -1", "TP_PACKED");
    REFUSED(align, 7, TP_INVALID, "align", "is 7", "TP_TOP_LEFT");
    REFUSED(scale_set, 2, TP_INVALID, "scale_set", "is 2", "0");
    REFUSED(batch, -1, TP_INVALID, "batch", "is -1", "0..2^40");
    REFUSED(batch, ((int64_t)1 << 40) + 1, TP_INVALID, "batch", "1099511627777", "0..2^40");
    REFUSED(q_len, -5, TP_INVALID, "q_len", "is -5", "0..2^40");
    REFUSED(kv_len, INT64_MAX, TP_INVALID, "kv_len", "9223372036854775807", "0..2^40");
    REFUSED(q_heads, 0, TP_INVALID, "q_heads", "is 0", "1..2^20");
    REFUSED(kv_heads, ((int64_t)1 << 20) + 1, TP_INVALID, "kv_heads", "1048577", "1..2^20");
    REFUSED(kv_heads, 3, TP_INVALID, "q_heads is 1", "kv_heads 3", "multiple");
    REFUSED(head_dim_qk, 0, TP_INVALID, "head_dim_qk", "is 0", "1..2^20");
    REFUSED(head_dim_v, -1, TP_INVALID, "head_dim_v", "is -1", "1..2^20");
    REFUSED(head_dim_v, 1048577, TP_INVALID, "head_dim_v", "is 1048577", "1..2^20");
    REFUSED(mask_nodes, 16, TP_INVALID, "mask_nodes", "is 16", "0..15");
    REFUSED(mask_nodes, -1, TP_INVALID, "mask_nodes", "is -1", "0..15");
    REFUSED(mask_nodes, 1, TP_INVALID, "mask[0].kind", "is 0", "causal (16)");
    assert_int_equal(tp_problem_check(NULL, NULL), TP_INVALID);
}

static void test_products(void **state) {
    (void)state;
    tp_problem p = plain();
    p.batch = p.q_len = (int64_t)1 << 40;
    refused(
        &p, TP_INVALID,
        (const char *const[3]){"batch * q_heads * q_len * head_dim_qk", "1099511627776", "2^58"});
    p = plain();
    p.batch = p.kv_len = (int64_t)1 << 40;
    p.q_len = 0;
    refused(&p, TP_INVALID, (const char *const[3]){"kv_heads * kv_len", "1099511627776", "2^58"});
    p = plain();
    p.q_len = p.kv_len = (int64_t)1 << 40;
    refused(&p, TP_INVALID, (const char *const[3]){"q_len * kv_len", "1099511627776", "2^62"});
    p.batch = 0; /* nothing is there, so nothing is too large */
    assert_int_equal(tp_problem_check(&p, NULL), TP_OK);
    p = plain();
    p.kv_len = (int64_t)1 << 40;
    p.head_dim_qk = 577; /* above what fused kernels take, which is not this check's matter */
    assert_int_equal(tp_problem_check(&p, NULL), TP_OK);
}

static void test_scale(void **state) {
    (void)state;
    tp_problem p = plain();
    assert_float_equal(tp__scale(&p), 0.125f, 0);
    p.scale = NAN; /* not set, so not read */
    assert_int_equal(tp_problem_check(&p, NULL), TP_OK);
    p.scale_set = 1;
    refused(&p, TP_INVALID, (const char *const[3]){"scale", "nan", "finite"});
    p.scale = -INFINITY;
    refused(&p, TP_INVALID, (const char *const[3]){"scale", "-inf", "finite"});
    p.scale = FLT_MAX;
    refused(&p, TP_INVALID, (const char *const[3]){"scale", "3.40282e+38", "log2(e)"});
    const float good[] = {0.0f, -0.0f, -2.5f, 2.3e38f, -2.3e38f, FLT_MIN, 1e-45f};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        p.scale = good[i];
        assert_int_equal(tp_problem_check(&p, NULL), TP_OK);
        assert_true(tp__scale(&p) == good[i]);
    }
}

static void test_masks(void **state) {
    (void)state;
    tp_problem p = plain(), before;
    assert_int_equal(tp_problem_causal(&p), TP_OK);
    assert_int_equal(p.mask_nodes, 1);
    assert_int_equal(tp_problem_window(&p, 4, 0), TP_OK);
    assert_int_equal(p.mask_nodes, 3);
    assert_int_equal(p.mask[2].kind, TP_MASK_AND);
    before = p;
    assert_int_equal(tp_problem_window(&p, -2, 0), TP_INVALID);
    assert_memory_equal(&p, &before, sizeof p);
    assert_int_equal(tp_problem_window(&p, 0, INT64_MAX), TP_INVALID);
    assert_memory_equal(&p, &before, sizeof p);
    for (int i = 0; i < 6; i++) assert_int_equal(tp_problem_window(&p, i, -1), TP_OK);
    assert_int_equal(p.mask_nodes, TP_MAX_MASK_NODES);
    assert_int_equal(tp_problem_check(&p, NULL), TP_OK);
    before = p;
    assert_int_equal(tp_problem_causal(&p), TP_INVALID); /* full */
    assert_memory_equal(&p, &before, sizeof p);
    p.mask_nodes = INT32_MAX;
    assert_int_equal(tp_problem_causal(&p), TP_INVALID);
    p.mask_nodes = -4;
    assert_int_equal(tp_problem_causal(&p), TP_INVALID);
    p.struct_size = 0;
    assert_int_equal(tp_problem_causal(&p), TP_INVALID);
}

static void test_phase(void **state) {
    (void)state;
    assert_string_equal(tp__phase(1, 1), "decode");
    assert_string_equal(tp__phase(1, 0), "decode");
    assert_string_equal(tp__phase(16, 17), "decode");
    assert_string_equal(tp__phase(16, 16), "prefill");
    assert_string_equal(tp__phase(17, 4096), "prefill");
    assert_string_equal(tp__phase(0, 0), "prefill");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_rules),
        cmocka_unit_test(test_products), cmocka_unit_test(test_scale),
        cmocka_unit_test(test_masks),    cmocka_unit_test(test_phase),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
