/* SPDX-License-Identifier: Apache-2.0 */
/* What a run checks of its tensors: lengths, strides, pointers; legal views are accepted. */
#include "api/tensors_of.h"

#include <stdlib.h>
#include <string.h>

static void test_init(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors t = tensors_of(&p);
    assert_int_equal(t.struct_size, sizeof t);
    assert_int_equal(t.q.stride[0], ROWS * Q_HEADS * DIM);
    assert_int_equal(t.q.stride[1], Q_HEADS * DIM);
    assert_int_equal(t.q.stride[2], DIM);
    assert_int_equal(t.v.stride[1], KV_HEADS * DIM_V);
    assert_int_equal(t.o.stride[1], Q_HEADS * DIM_V);
    assert_null(t.lse.data);
    assert_int_equal(t.q_tokens, BATCH * ROWS);
    assert_int_equal(t.kv_tokens, BATCH * KEYS);
    accepted(&p, &t);
    t.lse.data = address(0x500000);
    accepted(&p, &t);
    p.kv_layout = TP_PAGED, p.page_size = 4; /* a pool: pages lie one after another, NHD */
    t = tensors_of(&p);
    assert_int_equal(t.k.stride[0], 4 * KV_HEADS * DIM);
    assert_int_equal(t.k.stride[1], KV_HEADS * DIM);
    assert_int_equal(t.k.stride[2], DIM);
    assert_int_equal(t.v.stride[0], 4 * KV_HEADS * DIM_V);
    assert_int_equal(t.kv_len, KEYS);
    const int32_t table[BATCH][2] = {{5, 1}, {0, 2}, {4, 3}};
    t.k_pages = table, t.page_slots = 2;
    refused(&p, &t, "k_pages[0][0] is 5", "pages = 0", "the pool");
    t.pages = 6;
    accepted(&p, &t);
    p.page_size = INT64_MAX;
    p.batch = p.q_len = p.head_dim_v = INT64_MAX; /* not checked yet: only no undefined behaviour */
    tp_tensors_init(&t, &p, NULL, NULL, NULL, NULL);
}

static void test_sequences(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors t = tensors_of(&p);
    tp__sequence s = tp__sequence_at(&p, &t, 2);
    assert_int_equal(s.q_len, ROWS);
    assert_int_equal(s.kv_len, KEYS);
    assert_int_equal(s.q, 2 * ROWS * Q_HEADS * DIM);
    assert_int_equal(s.v, 2 * KEYS * KV_HEADS * DIM_V);
    assert_int_equal(s.lse, 2 * ROWS * Q_HEADS);
    const int64_t lens[] = {1, 0, 4};
    t.index_type = TP_I64;
    t.q_lens = lens;
    s = tp__sequence_at(&p, &t, 2);
    assert_int_equal(s.q_len, 4);
    assert_int_equal(s.kv_len, KEYS);
    p.q_layout = TP_PACKED;
    const int64_t cu[] = {1, 3, 3, 8};
    t.cu_seqlens_q = cu;
    t.q_lens = NULL;
    s = tp__sequence_at(&p, &t, 2);
    assert_int_equal(s.q_len, 5);
    assert_int_equal(s.q, 3 * Q_HEADS * DIM);
    assert_int_equal(s.o, 3 * Q_HEADS * DIM_V);
    assert_int_equal(s.k, 2 * KEYS * KV_HEADS * DIM); /* the other side stays a batch */
    accepted(&p, &t);
}

static void test_scalars(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors good = tensors_of(&p), t;
    assert_int_equal(tp__tensors_check(&p, NULL, NULL), TP_INVALID);
    t = good, t.device = 2;
    refused_as(&p, &t, TP_UNSUPPORTED, "device", "is 2", "TP_CPU");
    t = good, t.index_type = 5;
    refused(&p, &t, "index_type", "is 5", "TP_I64");
    t = good, t.index_device = 1;
    refused_as(&p, &t, TP_UNSUPPORTED, "index_device", "is 1", "TP_CPU");
    t = good, t.batch = -1;
    refused(&p, &t, "batch", "is -1", "0..3");
    t = good, t.batch = 4;
    refused(&p, &t, "batch", "is 4", "0..3");
    t = good, t.q_len = -1;
    refused(&p, &t, "q_len", "is -1", "0..5");
    t = good, t.q_len = 6;
    refused(&p, &t, "q_len", "is 6", "0..5");
    t = good, t.kv_len = 8;
    refused(&p, &t, "kv_len", "is 8", "0..7");
    t = good, t.q_tokens = -9, t.kv_tokens = -9; /* ignored in a batch */
    accepted(&p, &t);
    t = good, t.batch = 1, t.q_len = 1, t.kv_len = 2; /* within the bounds */
    accepted(&p, &t);
}

static void test_cu_seqlens(void **state) {
    (void)state;
    tp_problem p = plain();
    p.q_layout = p.kv_layout = TP_PACKED;
    int32_t cu_q[] = {0, 5, 5, 9}, cu_kv[] = {2, 9, 10, 17};
    tp_tensors good = tensors_of(&p), t;
    good.cu_seqlens_q = cu_q;
    good.cu_seqlens_kv = cu_kv;
    accepted(&p, &good);
    t = good, t.cu_seqlens_q = NULL;
    refused(&p, &t, "cu_seqlens_q", "NULL", "TP_PACKED");
    t = good, t.cu_seqlens_kv = NULL;
    refused(&p, &t, "cu_seqlens_kv", "NULL", "TP_PACKED");
    t.batch = 0, t.cu_seqlens_q = NULL;
    accepted(&p, &t);
    t = good, t.q_tokens = -1;
    refused(&p, &t, "q_tokens", "is -1", "at least 0");
    t = good, t.kv_tokens = 16;
    refused(&p, &t, "cu_seqlens_kv[3]", "is 17", "kv_tokens = 16");
    t = good, t.cu_seqlens_q = (char *)cu_q + 2;
    refused(&p, &t, "cu_seqlens_q", "aligned", "4 bytes");
    t = good, cu_q[0] = -1;
    refused(&p, &t, "cu_seqlens_q[0]", "is -1", "at least 0");
    cu_q[0] = 0, cu_q[2] = 4;
    refused(&p, &t, "cu_seqlens_q[2] is 4", "cu_seqlens_q[1] = 5", "must not decrease");
    cu_q[2] = 5, cu_q[3] = 11;
    refused(&p, &t, "cu_seqlens_q[2..3] is 5..11", "a length of 6", "q_len = 5");
    int64_t wide[] = {0, 5, INT64_MIN, INT64_MAX};
    t = good, t.index_type = TP_I64, t.cu_seqlens_q = wide;
    int64_t wide_kv[] = {0, 1, 2, 3};
    t.cu_seqlens_kv = wide_kv;
    refused(&p, &t, "cu_seqlens_q[2] is -9223372036854775808", "= 5", "must not decrease");
    wide[2] = 6;
    refused(&p, &t, "9223372036854775807", "a length of", "q_len = 5");
    wide[3] = 7;
    accepted(&p, &t);
    p.q_layout = TP_BATCH;
    refused(&p, &t, "cu_seqlens_q", "TP_BATCH", "must be NULL");
    p.q_layout = TP_PACKED, p.kv_layout = TP_BATCH;
    refused(&p, &t, "cu_seqlens_kv", "TP_BATCH", "must be NULL");
    t.cu_seqlens_kv = NULL;
    accepted(&p, &t);
}

static void test_used_lengths(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors t = tensors_of(&p);
    int32_t q_lens[] = {0, 5, 3}, kv_lens[] = {7, 0, 1};
    t.q_lens = q_lens;
    t.kv_lens = kv_lens;
    accepted(&p, &t);
    q_lens[2] = 6;
    refused(&p, &t, "q_lens[2]", "is 6", "0..5");
    q_lens[2] = -1;
    refused(&p, &t, "q_lens[2]", "is -1", "0..5");
    q_lens[2] = 0, kv_lens[1] = 8;
    refused(&p, &t, "kv_lens[1]", "is 8", "0..7");
    t.kv_lens = (char *)kv_lens + 1;
    refused(&p, &t, "kv_lens", "aligned", "4 bytes");
    kv_lens[1] = 0, t.kv_lens = kv_lens;
    p.q_layout = TP_PACKED;
    int32_t cu[] = {0, 2, 5, 6};
    t.cu_seqlens_q = cu;
    refused(&p, &t, "q_lens[1]", "is 5", "0..3");
    q_lens[1] = 3;
    accepted(&p, &t);
}

static void test_data(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_problem_dtype(&p, TP_F16);
    p.k_dtype = TP_F32;
    tp_tensors good = tensors_of(&p), t;
    t = good, t.q.data = NULL;
    refused(&p, &t, "q.data", "NULL", "3 x 5 tokens x 4 heads");
    t = good, t.k.data = NULL;
    refused(&p, &t, "k.data", "NULL", "must point");
    t = good, t.v.data = NULL;
    refused(&p, &t, "v.data", "NULL", "must point");
    t = good, t.o.data = NULL;
    refused(&p, &t, "o.data", "NULL", "must point");
    t = good, t.q.data = address(0x100002);
    accepted(&p, &t);
    t = good, t.q.data = address(0x100001);
    refused(&p, &t, "q.data", "0x100001", "2 bytes of f16");
    t = good, t.k.data = address(0x200002);
    refused(&p, &t, "k.data", "0x200002", "4 bytes of f32");
    t = good, t.lse.data = address(0x500002);
    refused(&p, &t, "lse.data", "0x500002", "4 bytes of f32");
    for (int i = 0; i < 3; i++) {
        char name[] = "k.stride[0]";
        name[9] = (char)('0' + i);
        t = good, t.k.stride[i] = -4;
        refused(&p, &t, name, "is -4", "at least 0");
    }
    t = good, t.lse.data = address(0x500000), t.lse.stride[1] = -1;
    refused(&p, &t, "lse.stride[1]", "is -1", "at least 0");
    /* nothing to read or write: NULL is allowed */
    t = good, t.q_len = 0, t.q.data = t.o.data = NULL;
    accepted(&p, &t);
    t = good, t.kv_len = 0, t.k.data = t.v.data = NULL;
    accepted(&p, &t);
    t = good, t.batch = 0, t.q.data = t.k.data = t.v.data = t.o.data = NULL;
    accepted(&p, &t);
    const int32_t none[] = {0, 0, 0};
    t = good, t.kv_lens = none, t.k.data = t.v.data = NULL;
    accepted(&p, &t);
    p.q_layout = TP_PACKED;
    const int32_t cu[] = {4, 4, 4, 4};
    t = good, t.cu_seqlens_q = cu, t.q.data = t.o.data = NULL, t.q.stride[0] = -7; /* ignored */
    accepted(&p, &t);
}

static void test_strides(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors good = tensors_of(&p), t;
    t = good, memset(t.k.stride, 0, sizeof t.k.stride); /* an input may repeat */
    accepted(&p, &t);
    t = good, t.o.stride[1] = 0;
    refused(&p, &t, "o.stride[1] (token) is 0", "at least 8", "must not overlap");
    t = good, t.o.stride[2] = DIM_V - 1;
    refused(&p, &t, "o.stride[2] (head) is 7", "at least 8", "must not overlap");
    t = good, t.o.stride[1] = Q_HEADS * DIM_V - 1;
    refused(&p, &t, "o.stride[1] (token) is 31", "at least 32", "must not overlap");
    t = good, t.o.stride[0] = 0;
    refused(&p, &t, "o.stride[0] (batch) is 0", "at least 8", "must not overlap");
    t.batch = 1; /* of a dim that has one step the stride is never used */
    accepted(&p, &t);
    /* bhsd: the head dim outermost of a sequence */
    t = good, t.o.stride[2] = ROWS * DIM_V, t.o.stride[1] = DIM_V;
    accepted(&p, &t);
    t.o.stride[2]--;
    refused(&p, &t, "o.stride[2] (head) is 39", "at least 40", "must not overlap");
    t = good, t.lse.data = address(0x500000);
    t.lse.stride[0] = ROWS * Q_HEADS, t.lse.stride[1] = 1, t.lse.stride[2] = ROWS;
    accepted(&p, &t);
    t.lse.stride[2] = ROWS - 1;
    refused(&p, &t, "lse.stride[2] (head) is 4", "at least 5", "must not overlap");
}

static void test_huge(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors good = tensors_of(&p), t;
    t = good;
    t.q.stride[0] = (int64_t)1 << 40;
    t.k.stride[1] = ((int64_t)1 << 31) + 3;
    t.o.data = address((uintptr_t)1 << 52);
    t.o.stride[0] = ((int64_t)1 << 33) + 1;
    accepted(&p, &t);
    tp__sequence s = tp__sequence_at(&p, &t, 2);
    assert_true(s.q == (int64_t)1 << 41);
    assert_true(s.o == ((int64_t)1 << 34) + 2);
    t = good, t.q.stride[0] = INT64_MAX;
    refused(&p, &t, "q.stride[0]", "9223372036854775807", "int64");
    t = good, t.q.stride[0] = INT64_MAX / 4;
    refused(&p, &t, "q.stride[0]", "2305843009213693951", "int64");
    t = good, t.v.stride[1] = (int64_t)1 << 59;
    refused(&p, &t, "v.stride[1]", "576460752303423488", "int64");
    t = good, t.v.data = address(UINTPTR_MAX - 1023);
    refused(&p, &t, "v spans", "bytes", "address space");
    t = good, t.o.data = address(UINTPTR_MAX - 7);
    refused(&p, &t, "o spans", "bytes", "address space");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_cu_seqlens),
        cmocka_unit_test(test_used_lengths),
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_strides),
        cmocka_unit_test(test_huge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
