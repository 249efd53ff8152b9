/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs must not overlap each other or an input: what may interleave, what may not, and the quick proof against bytes. */
#include "api/tensors_of.h"
#include "problem/overlap.h"

#include <stdlib.h>
#include <string.h>

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
        cmocka_unit_test(test_interleaved),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_proof_is_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
