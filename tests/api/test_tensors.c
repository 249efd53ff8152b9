/* SPDX-License-Identifier: Apache-2.0 */
/* What a run checks of its tensors: every rule, and that legal views are accepted. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "problem/overlap.h"
#include "problem/sequence.h"
#include "tileproof.h"

/* Checks read no element of q, k, v, o or lse, so that addresses are enough. */
static void *address(uintptr_t value) {
    return (void *)value;
}

enum { BATCH = 3, ROWS = 5, KEYS = 7, Q_HEADS = 4, KV_HEADS = 2, DIM = 16, DIM_V = 8 };

static tp_problem plain(void) {
    tp_problem p;
    tp_problem_init(&p);
    p.batch = BATCH;
    p.q_len = ROWS;
    p.kv_len = KEYS;
    p.q_heads = Q_HEADS;
    p.kv_heads = KV_HEADS;
    p.head_dim_qk = DIM;
    p.head_dim_v = DIM_V;
    return p;
}

static tp_tensors tensors_of(const tp_problem *p) {
    tp_tensors t;
    tp_tensors_init(&t, p, address(0x100000), address(0x200000), address(0x300000),
                    address(0x400000));
    return t;
}

static void accepted(const tp_problem *p, const tp_tensors *t) {
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_problem_check(p, NULL), TP_OK);
    if (tp__tensors_check(p, t, &error) != TP_OK) fail_msg("refused: %s", error.text);
    if (tp_check_deep(p, t, &error) != TP_OK) fail_msg("refused by the deep check: %s", error.text);
}

static void refused_as(const tp_problem *p, const tp_tensors *t, tp_status status, const char *one,
                       const char *two, const char *three) {
    tp_error error = TP_ERROR_INIT;
    const char *parts[] = {one, two, three};
    assert_int_equal(tp_problem_check(p, NULL), TP_OK);
    assert_int_equal(tp__tensors_check(p, t, &error), status);
    for (int i = 0; i < 3; i++)
        if (strstr(error.text, parts[i]) == NULL) fail_msg("no '%s' in: %s", parts[i], error.text);
    assert_int_equal(tp_check_deep(p, t, NULL), status);
}

static void refused(const tp_problem *p, const tp_tensors *t, const char *one, const char *two,
                    const char *three) {
    refused_as(p, t, TP_INVALID, one, two, three);
}

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

/* o as a slice of one [token][q | k | v | o] buffer, all of one dtype. */
static void slices(const tp_problem *p, tp_tensors *t, char *buffer, int64_t bytes) {
    int64_t width = p->q_heads * (p->head_dim_qk + p->head_dim_v) +
                    p->kv_heads * (p->head_dim_qk + p->head_dim_v);
    int64_t k = p->q_heads * p->head_dim_qk, v = k + p->kv_heads * p->head_dim_qk,
            o = v + p->kv_heads * p->head_dim_v;
    const struct {
        tp_tensor *tensor;
        int64_t start, dim;
    } parts[] = {{&t->q, 0, p->head_dim_qk},
                 {&t->k, k, p->head_dim_qk},
                 {&t->v, v, p->head_dim_v},
                 {&t->o, o, p->head_dim_v}};
    for (int i = 0; i < 4; i++)
        *parts[i].tensor =
            (tp_tensor){address((uintptr_t)buffer + (uintptr_t)(parts[i].start * bytes)),
                        {p->q_len * width, width, parts[i].dim}};
}

static void test_interleaved(void **state) {
    (void)state;
    tp_problem p = plain();
    p.kv_len = p.q_len;
    tp_tensors t = tensors_of(&p), good;
    slices(&p, &t, address(0x700000), 4);
    good = t;
    accepted(&p, &t);
    t.o.data = (char *)t.o.data - 4; /* one element into v */
    refused(&p, &t, "o (", "overlap v", "0x");
    t = good, t.o.data = (char *)t.o.data + 4; /* one element into the next token's q */
    refused(&p, &t, "o (", "overlap q", "0x");
    t = good, t.o.data = t.q.data;
    refused(&p, &t, "o (", "overlap q", "interleave");
    t = good, t.o.stride[1] += 1, t.o.stride[0] = p.q_len * t.o.stride[1];
    refused(&p, &t, "o (", "overlap", "interleave");
    /* one row in the midst of the keys' buffer, and one key in the midst of the rows' */
    int64_t step = 4 * good.o.stride[1];
    t = good, t.batch = 1, t.q_len = 1;
    t.q.data = (char *)t.q.data + 2 * step, t.o.data = (char *)t.o.data + 2 * step;
    accepted(&p, &t);
    t.o.data = (char *)t.o.data - 4;
    refused(&p, &t, "o (", "overlap v", "interleave");
    t = good, t.batch = 1, t.kv_len = 1;
    t.k.data = (char *)t.k.data + 2 * step, t.v.data = (char *)t.v.data + 2 * step;
    accepted(&p, &t);
    t.v.data = (char *)t.v.data + 4;
    refused(&p, &t, "o (", "overlap v", "interleave");
    /* [token][head][q | k | v | o] */
    p.kv_heads = p.q_heads;
    int64_t head = 2 * DIM + 2 * DIM_V, token = head * p.q_heads;
    t = tensors_of(&p);
    t.q = (tp_tensor){address(0x700000), {token * p.q_len, token, head}};
    t.k = (tp_tensor){address(0x700000 + 4 * DIM), {token * p.q_len, token, head}};
    t.v = (tp_tensor){address(0x700000 + 8 * DIM), {token * p.q_len, token, head}};
    t.o = (tp_tensor){address(0x700000 + 8 * DIM + 4 * DIM_V), {token * p.q_len, token, head}};
    accepted(&p, &t);
    t.v.data = t.o.data;
    refused(&p, &t, "o (", "overlap v", "interleave");
    /* packed, and a call of one token against a longer buffer */
    p = plain();
    p.kv_len = p.q_len;
    p.q_layout = p.kv_layout = TP_PACKED;
    const int32_t cu[] = {0, 3, 4, 9};
    t = tensors_of(&p);
    slices(&p, &t, address(0x700000), 4);
    t.cu_seqlens_q = t.cu_seqlens_kv = cu;
    accepted(&p, &t);
    t.o.data = (char *)t.o.data - 4;
    refused(&p, &t, "o (", "overlap v", "interleave");
}

static void test_overlap(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors good = tensors_of(&p), t;
    int64_t q_bytes = 4 * BATCH * ROWS * Q_HEADS * DIM,
            o_bytes = 4 * BATCH * ROWS * Q_HEADS * DIM_V;
    t = good, t.o.data = t.k.data;
    refused(&p, &t, "o (", "overlap k", "must be apart");
    t = good, t.o.data = (char *)t.q.data + q_bytes; /* the byte behind is not shared */
    accepted(&p, &t);
    t.o.data = (char *)t.o.data - 4;
    refused(&p, &t, "o (", "overlap q", "must be apart");
    t = good, t.lse.data = (char *)t.o.data + o_bytes;
    accepted(&p, &t);
    t.lse.data = (char *)t.lse.data - 4;
    refused(&p, &t, "o (", "overlap lse", "must be apart");
    t.lse.data = t.v.data;
    refused(&p, &t, "lse (", "overlap v", "must be apart");
    t = good, t.k.data = t.v.data = t.q.data; /* inputs may be one another */
    accepted(&p, &t);
    int32_t lens[] = {1, 2, 3};
    t = good, t.kv_lens = lens, t.lse.data = lens;
    refused(&p, &t, "lse (", "overlap kv_lens", "must be apart");
    t = good, t.q_lens = lens, t.o.data = lens;
    refused(&p, &t, "o (", "overlap q_lens", "must be apart");
    p.kv_layout = TP_PACKED;
    int32_t cu[] = {1, 2, 3, 4};
    t = good, t.cu_seqlens_kv = cu, t.o.data = (char *)cu + 12;
    refused(&p, &t, "o (", "overlap cu_seqlens_kv", "must be apart");
}

/* The exact check alone, without the proofs that come before it. */
static void test_rows(void **state) {
    (void)state;
    tp_problem p = plain();
    tp_tensors good = tensors_of(&p), t;
    tp_error error = TP_ERROR_INIT;
    good.lse.data = address(0x500000);
    assert_int_equal(tp__check_rows(&p, &good, &error), TP_OK);
    t = good, t.o.stride[1] = DIM_V;
    assert_int_equal(tp__check_rows(&p, &t, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "written by o (sequence 0, token 0, head 1) and again by o "
                                       "(sequence 0, token 1, head 0)"));
    t = good, t.lse.data = (char *)t.o.data + 4 * DIM_V;
    assert_int_equal(tp__check_rows(&p, &t, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "by o (sequence 0, token 0, head 1) and again by lse"));
    /* k's rows lie behind o's except for the last one */
    t = good, t.k.stride[0] = t.k.stride[1] = 0, t.k.stride[2] = 100;
    t.k.data = (char *)t.o.data - 4 * 100;
    assert_int_equal(tp__check_rows(&p, &t, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "by o (sequence 0, token 0, head 0) and read by k (sequence "
                                       "0, token 0, head 1)"));
    t = good, t.k.data = (char *)t.o.data - 4 * DIM;
    t.k.stride[0] = t.k.stride[1] = t.k.stride[2] = 0;
    assert_int_equal(tp__check_rows(&p, &t, &error), TP_OK);
    t.k.data = (char *)t.k.data + 4; /* its last element is o's first */
    assert_int_equal(tp__check_rows(&p, &t, &error), TP_INVALID);
    t.k.data = (char *)good.o.data + 4 * BATCH * ROWS * Q_HEADS * DIM_V;
    assert_int_equal(tp__check_rows(&p, &t, &error), TP_OK);
    t.k.data = (char *)t.k.data - 4; /* its first element is o's last */
    assert_int_equal(tp__check_rows(&p, &t, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "by o (sequence 2, token 4, head 3) and read by k"));
    t = good, t.o.stride[2] = DIM_V - 1;
    assert_int_equal(tp__check_rows(&p, &t, &error), TP_INVALID);
    int32_t lens[] = {0, 0, 0, 0};
    t = good, t.kv_lens = lens, t.lse.data = lens + 2;
    assert_int_equal(tp__check_rows(&p, &t, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "written by lse and read by kv_lens"));
    t.q_lens = lens; /* no row is written */
    t.kv_lens = NULL;
    assert_int_equal(tp__check_rows(&p, &t, &error), TP_OK);
    assert_int_equal(tp_check_deep(NULL, &t, &error), TP_INVALID);
    assert_int_equal(tp_check_deep(&p, NULL, &error), TP_INVALID);
}

static uint64_t next(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static int64_t below(uint64_t *seed, int64_t bound) {
    return (int64_t)(next(seed) % (uint64_t)bound);
}

/* What the constant-time proof accepts, the exact check must accept: small random views of one
   buffer, so that overlaps and interleavings are frequent. */
static void test_proof_is_sound(void **state) {
    (void)state;
    uint64_t seed = 314159;
    int both = 0, proof_only = 0, exact_only = 0;
    for (int i = 0; i < 200000; i++) {
        tp_problem p;
        tp_tensors t;
        tp_problem_init(&p);
        p.batch = 1 + below(&seed, 2);
        p.q_len = p.kv_len = 1 + below(&seed, 3);
        p.q_heads = p.kv_heads = 1 + below(&seed, 2);
        p.head_dim_qk = p.head_dim_v = 1 + below(&seed, 3);
        tp_tensors_init(&t, &p, NULL, NULL, NULL, NULL);
        int64_t unit = 4 + below(&seed, 8);
        tp_tensor *all[] = {&t.q, &t.k, &t.v, &t.o, &t.lse};
        for (int n = 0; n < 5; n++) {
            all[n]->data = address(0x1000 + 4 * (uintptr_t)below(&seed, n < 3 ? 24 : 48));
            for (int d = 0; d < 3; d++)
                all[n]->stride[d] = below(&seed, 2) ? unit * below(&seed, 8) : below(&seed, 16);
        }
        if (below(&seed, 2)) t.lse.data = NULL;
        int proof = tp__tensors_check(&p, &t, NULL) == TP_OK;
        int exact = tp__check_rows(&p, &t, NULL) == TP_OK;
        both += proof && exact;
        proof_only += proof && !exact;
        exact_only += exact && !proof;
    }
    assert_int_equal(proof_only, 0);
    assert_true(both > 1000);
    assert_true(exact_only > 0); /* the proof is careful, not complete */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init),         cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_scalars),      cmocka_unit_test(test_cu_seqlens),
        cmocka_unit_test(test_used_lengths), cmocka_unit_test(test_data),
        cmocka_unit_test(test_strides),      cmocka_unit_test(test_huge),
        cmocka_unit_test(test_interleaved),  cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_rows),         cmocka_unit_test(test_proof_is_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
