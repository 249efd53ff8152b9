/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients against the definition in double, on every kernel; the same bits however they are computed. */
#include "support/back.h"
#include "support/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_all(const char *text, int flags) {
    back *b = back_new(text, flags);
    for (int i = 0; back_kernel(i) != NULL; i++) {
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        back_run(b, &(call_how){.kernel = back_kernel(i)}, &receipt);
        assert_string_equal(receipt.kernel, receipt.pairs_visible > 0 ? back_kernel(i) : "none");
        back_check(b, text);
    }
    back_free(b);
}

static void shapes(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h1 q1 k1 d1 f32",
        "h2 q7 k5 d3 f32",
        "h4/2 q50 k61 d24 f32",
        "b2 h6/2 q100 k130 d40 f32 causal",
        "h2/1 q200 k420 d64 f32 causal",
        "h1 q97 k193 d128 f32",
        "h2 q60 k70 d33/17 f32 causal",
        "h1 q40 k90 d16/80 f32",
        "h2 q30 k200 d300/130 f32 causal",
        "h1 q20 k70 d576 f32",
        "h8/1 q64 k64 d32 f32 causal",
        "h3 q13 k77 d20 bf16 causal",
        "h4/2 q70 k50 d64 f16",
        "h2 q50 k60 d24 bf16->f32 causal",
        "h2 q50 k60 d24 f32:bf16:f16->f32",
        "h1 q193 k385 d16 f32", /* one row behind a tile, one key behind a block */
        "h1 q97 k385 d24 bf16",
    };
    for (int i = 0; i < COUNT(texts); i++) check_all(texts[i], 0);
}

static void lengths(void **state) {
    (void)state;
    static const char *const texts[] = {
        "seqs=1x30/40,2x5/200,1x0/7,1x9/0,1x100/100 h4/2 d24 f32 packed causal",
        "seqs=1x30/40,2x5/20,1x0/7,1x9/0 h2 d16 f32 padded",
        "seqs=1x30/30,1x70/70 h2/1 d32 bf16 packed causal window=16,0",
        "b3 h2 q20 k10 d8 f32 causal",          /* rows before the first key see nothing */
        "b3 h2 q20 k10 d8 f32 causal top-left", /* and here those behind see all */
        "b0 h2 q20 k10 d8 f32",
        "b2 h2 q0 k10 d8 f32",
        "b2 h2 q10 k0 d8 f32",
    };
    for (int i = 0; i < COUNT(texts); i++) check_all(texts[i], 0);
}

static void masks(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h2 q150 k150 d16 f32 window=20,10",
        "h2 q150 k450 d16 f32 causal window=30,0",
        "h4/2 q150 k150 d16 f32 causal chunk=40",
        "h2 q150 k150 d16 f32 causal prefix=33",
        "h2 q150 k450 d16 f32 causal window=9,0 first=4",
        "b2 h2 q150 k150 d16 f32 causal documents",
        "b2 h2 q150 k150 d16 f32 causal spans",
        "h2 q40 k150 d16 f32 tree",
        "b2 h4/2 q120 k450 d16 f32 bits",
        "h4/2 q120 k150 d16 f32 causal callback",
        "b2 h2 q100 k130 d16 f32 causal positions",
    };
    for (int i = 0; i < COUNT(texts); i++) check_all(texts[i], 0);
}

static void scores(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h2 q100 k120 d16 f32 causal scale=0",
        "h2 q100 k120 d16 f32 causal scale=-0.3",
        "h2 q100 k120 d16 f32 causal softcap=2",
        "b2 h4/2 q100 k120 d16 f32 causal alibi",
        "b2 h4/2 q100 k220 d16 f32 causal bias=f32",
        "b2 h4/2 q60 k70 d16 f32 bias=bf16 softcap=3 qscale=0.2,16,0",
        "b2 h4/2 q60 k70 d16 f32 causal sinks",
        "b2 h2 q100 k120 d16 f32 causal qscale=0.1,16,3",
        "b2 h4/2 q100 k220 d16 f32 causal window=50,0 alibi bias=f32 sinks softcap=4 qscale=0.1,8,0",
        "seqs=1x30/40,1x100/90 h4/2 d16 f32 packed causal alibi sinks bias=f32",
        "b2 h4/2 q100 k420 d40 f32 causal dropout=0.2",
        "b2 h2 q70 k100 d16 bf16 bits dropout=0.7 sinks",
    };
    for (int i = 0; i < COUNT(texts); i++) {
        check_all(texts[i], 0);
        check_all(texts[i], BACK_D_LSE | BACK_SHARE_BIAS | BACK_SHARE_SLOPES);
    }
}

/* d_q, d_k and d_v within one tensor. */
static void slices(void **state) {
    (void)state;
    check_all("b2 h2 q70 k70 d16 f32 causal", BACK_SLICES);
    check_all("b2 h4/2 q70 k70 d16 bf16 causal", BACK_SLICES | BACK_D_LSE);
}

/* Any subset of gradients: what is left has the same bits. */
static void wanted(void **state) {
    (void)state;
    back *all = back_new("h4/2 q120 k250 d24 f32 causal", 0);
    back_run(all, &(call_how){0}, NULL);
    for (int mask = 0; mask < 7; mask++) {
        back *some = back_new("h4/2 q120 k250 d24 f32 causal", 0);
        back_run(some, &(call_how){0}, NULL);
        for (int i = 0; i < 3; i++)
            if (!(mask >> i & 1)) back_tensor_of(some, (back_tensor)(BACK_DQ + i))->data = NULL;
        tp_error error = TP_ERROR_INIT;
        assert_int_equal(back_try(some, &(call_how){0}, NULL, &error), TP_OK);
        for (int i = 0; i < 3; i++) {
            int which = BACK_DQ + i;
            if (mask >> i & 1)
                assert_memory_equal(some->rows.buffer[which].memory, all->rows.buffer[which].memory,
                                    all->rows.buffer[which].bytes);
            else
                for (size_t at = 0; at < some->rows.buffer[which].bytes; at++)
                    assert_int_equal(((unsigned char *)some->rows.buffer[which].memory)[at], 0xff);
        }
        back_free(some);
    }
    back_free(all);
}

static void threads(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int flags;
    } calls[] = {
        {"h1 q700 k900 d16 f32 causal", 0},
        {"b3 h4/2 q200 k500 d24 bf16 causal window=100,0", 0},
        {"b2 h2/1 q150 k600 d16 f32 bits alibi sinks bias=f32", BACK_SHARE_BIAS},
        {"seqs=1x30/40,7x5/20,1x400/800,1x0/3,1x3/0 h4/2 d16 f32 packed causal bias=f32 alibi",
         BACK_SHARE_BIAS | BACK_SHARE_SLOPES},
    };
    static const int counts[] = {2, 3, 8};
    for (int i = 0; i < COUNT(calls); i++) {
        back *one = back_new(calls[i].text, calls[i].flags);
        back_run(one, &(call_how){0}, NULL);
        for (int n = 0; n < COUNT(counts); n++) {
            parallel with = {.threads = counts[n], .seed = 7};
            tp_parallel_for ways[] = {parallel_threads, parallel_reverse, parallel_shuffled};
            for (int way = 0; way < COUNT(ways); way++) {
                back *other = back_new(calls[i].text, calls[i].flags);
                back_run(other,
                         &(call_how){.threads = counts[n], .parallel_for = ways[way], .user = &with, .fill = 0x7e},
                         NULL);
                for (int t = BACK_DQ; t <= BACK_DV; t++) /* the poison between rows is another one */
                    for (int64_t s = 0; s < one->c->tensors.batch; s++) {
                        int64_t len = t == BACK_DQ ? one->c->q_lens[s] : one->c->kv_lens[s];
                        int64_t heads = t == BACK_DQ ? one->problem.q_heads : one->problem.kv_heads;
                        size_t row = (size_t)one->problem.head_dim_qk * tp_dtype_bytes((tp_dtype)one->problem.q_dtype);
                        for (int64_t at = 0; at < len * heads; at++)
                            assert_memory_equal(back_at(one, (back_tensor)t, s, at / heads, at % heads),
                                                back_at(other, (back_tensor)t, s, at / heads, at % heads), row);
                    }
                if (one->d_bias != NULL) /* shared: some row of some sequence has each element */
                    assert_memory_equal(one->d_bias, other->d_bias, (size_t)one->bias_count * sizeof(float));
                if (one->d_slopes != NULL)
                    assert_memory_equal(one->d_slopes, other->d_slopes, (size_t)one->slope_count * sizeof(float));
                if (one->d_sinks != NULL)
                    assert_memory_equal(one->d_sinks, other->d_sinks, (size_t)one->problem.q_heads * sizeof(float));
                back_free(other);
            }
        }
        back_free(one);
    }
}

/* The two vector kernels give the same bits. */
static void kernels_agree(void **state) {
    (void)state;
    back *first = NULL;
    for (int i = 0; back_kernel(i) != NULL; i++) {
        if (strcmp(back_kernel(i), "generic") == 0) continue; /* it has no fused multiply-add */
        back *b = back_new("b2 h4/2 q130 k420 d40 f32 causal softcap=5", 0);
        back_run(b, &(call_how){.kernel = back_kernel(i)}, NULL);
        if (first != NULL) back_same(first, b, back_kernel(i));
        if (first == NULL)
            first = b;
        else
            back_free(b);
    }
    if (first != NULL) back_free(first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes), cmocka_unit_test(lengths), cmocka_unit_test(masks),
        cmocka_unit_test(scores), cmocka_unit_test(slices),  cmocka_unit_test(wanted),
        cmocka_unit_test(threads), cmocka_unit_test(kernels_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
