/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of tp_reference: optional outputs, tensors that are left alone, refusals. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/small_call.h"

static void outputs_are_each_optional(void **state) {
    (void)state;
    static call c;
    double o[2], lse, bound, lse_bound;
    tp_row row = {0, 0, 1};
    setup(&c, 1, 1, 1, 2, 3, 2, 2);
#define ASK(...)                                                                                   \
    assert_int_equal(tp_reference(&c.problem, &c.tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, __VA_ARGS__, NULL),  \
                     TP_OK)
    ASK(o, NULL, NULL, NULL);
    ASK(NULL, &lse, NULL, NULL);
    ASK(NULL, NULL, &bound, NULL);
    ASK(NULL, NULL, NULL, &lse_bound);
#undef ASK
    assert_int_equal(
        tp_reference(&c.problem, &c.tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 0, NULL, NULL, NULL, NULL, NULL, NULL),
        TP_OK);
    assert_true(isfinite(o[0]) && isfinite(lse) && bound > 0 && lse_bound > 0);
}

static void tensors_with_an_output_are_checked_whole_and_left_alone(void **state) {
    (void)state;
    static call c;
    static float o[CAPACITY];
    double alone[3], with[3];
    tp_row row = {1, 3, 2};
    setup(&c, 2, 4, 2, 3, 5, 4, 3);
    memset(o, 0x77, sizeof o);
    double lse = row_of(&c, TP_DOUBLE, row, alone);
    tp_tensors_init(&c.tensors, &c.problem, c.q, c.k, c.v, o);
    assert_true(row_of(&c, TP_DOUBLE, row, with) == lse);
    assert_memory_equal(with, alone, sizeof with);
    for (size_t i = 0; i < sizeof o; i++) assert_int_equal(((unsigned char *)o)[i], 0x77);
    c.tensors.o.data = c.v; /* overlaps an input: no run would take it */
    assert_int_equal(
        tp_reference(&c.problem, &c.tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, with, NULL, NULL, NULL, NULL),
        TP_INVALID);
    setup(&c, 2, 4, 2, 3, 5, 4, 3);
    c.tensors.device = 1;
    assert_int_equal(
        tp_reference(&c.problem, &c.tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, with, NULL, NULL, NULL, NULL),
        TP_UNSUPPORTED);
}

static void refuse(const call *c, int precision, int64_t count, const tp_row *rows,
                   const char *part) {
    double o[64], lse[16];
    tp_error error = TP_ERROR_INIT;
    memset(o, 0x33, sizeof o);
    tp_status status = tp_reference(&c->problem, &c->tensors, (tp_precision)precision, TP_ARITHMETIC_F32, count, rows,
                                    o, lse, NULL, NULL, &error);
    assert_int_equal(status, TP_INVALID);
    assert_int_equal(error.status, TP_INVALID);
    if (strstr(error.text, part) == NULL) fail_msg("'%s' lacks '%s'", error.text, part);
    for (size_t i = 0; i < sizeof o; i++) assert_int_equal(((unsigned char *)o)[i], 0x33);
}

static void refusals_name_value_and_rule(void **state) {
    (void)state;
    static call c;
    const tp_row good = {1, 3, 2}, pair[] = {{0, 0, 0}, {0, 9, 0}};
#define FRESH setup(&c, 2, 4, 2, 3, 5, 4, 3)
    FRESH;
    refuse(&c, 7, 1, &good, "precision is 7");
    refuse(&c, 0, -1, &good, "count is -1");
    refuse(&c, 0, 1, NULL, "rows is NULL");
    refuse(&c, 0, 1, &(tp_row){2, 0, 0}, "rows[0].seq is 2: it must be at least 0 and below batch = 2");
    refuse(&c, 0, 1, &(tp_row){-1, 0, 0}, "seq is -1");
    refuse(&c, 0, 2, pair, "rows[1].head is 9");
    refuse(&c, 0, 1, &(tp_row){0, 0, 3}, "rows[0].row is 3: it must be at least 0 and below 3");
    c.tensors.v.data = NULL;
    refuse(&c, 0, 1, &good, "v.data is NULL");
    FRESH;
    c.tensors.k.stride[1] = -8;
    refuse(&c, 0, 1, &good, "k.stride[1] is -8");
    c.tensors.k.stride[1] = INT64_MAX / 2;
    refuse(&c, 0, 1, &good, "k.stride[1] is 4611686018427387903");
    FRESH;
    c.tensors.batch = 3;
    refuse(&c, 0, 1, &good, "batch is 3");
    FRESH;
    c.tensors.kv_len = 6;
    refuse(&c, 0, 1, &good, "kv_len is 6");
    FRESH;
    c.tensors.index_type = 2;
    refuse(&c, 0, 1, &good, "index_type is 2");
    FRESH;
    c.tensors.index_device = 1;
    assert_int_equal(tp_reference(&c.problem, &c.tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &good, NULL, NULL, NULL, NULL, NULL),
                     TP_UNSUPPORTED);
    assert_int_equal(tp_mask_visible(&c.problem, &c.tensors, 0, 0, 0, 0), -1);
    FRESH;
    c.tensors.struct_size = 8;
    refuse(&c, 0, 1, &good, "struct_size is 8");
    FRESH;
    c.problem.head_dim_v = 0;
    refuse(&c, 0, 1, &good, "head_dim_v is 0");
    FRESH;
    const int32_t long_lens[] = {5, 6}, falling[] = {0, 4, 3}, jump[] = {0, 6, 7},
                  low[] = {-1, 1, 2};
    c.tensors.kv_lens = long_lens;
    refuse(&c, 0, 1, &good, "kv_lens[1] is 6");
    FRESH;
    c.problem.kv_layout = TP_PACKED;
    refuse(&c, 0, 1, &good, "cu_seqlens_kv is NULL");
    c.tensors.cu_seqlens_kv = falling;
    refuse(&c, 0, 1, &good, "cu_seqlens_kv[2] is 3 after 4");
    c.tensors.cu_seqlens_kv = jump;
    refuse(&c, 0, 1, &good, "cu_seqlens_kv[1] is 6");
    c.tensors.cu_seqlens_kv = low;
    refuse(&c, 0, 1, &good, "cu_seqlens_kv[0] is -1");
    const int32_t fine[] = {0, 5, 10};
    c.tensors.cu_seqlens_kv = fine;
    c.tensors.kv_tokens = 9;
    refuse(&c, 0, 1, &good, "kv_tokens, 9");
#undef FRESH
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_each_optional),
        cmocka_unit_test(tensors_with_an_output_are_checked_whole_and_left_alone),
        cmocka_unit_test(refusals_name_value_and_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
