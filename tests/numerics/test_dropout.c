/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout on probabilities: which pairs stay, that nothing but their place decides it, and what it
 * costs in accuracy. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/philox.h"
#include "kernels/set.h"
#include "support/call.h"
#include "support/parallel.h"

/* The formula of base/philox.h once more, from its text. */
static void philox(const uint32_t counter[4], uint32_t k0, uint32_t k1, uint32_t out[4]) {
    uint32_t x[4];
    memcpy(x, counter, sizeof x);
    for (uint32_t round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)x[0] * 0xD2511F53, b = (uint64_t)x[2] * 0xCD9E8D57;
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ x[1] ^ (k0 + round * 0x9E3779B9), (uint32_t)b,
                            (uint32_t)(a >> 32) ^ x[3] ^ (k1 + round * 0xBB67AE85), (uint32_t)a};
        memcpy(x, next, sizeof x);
    }
    memcpy(out, x, sizeof x);
}

static int kept(const call *c, int64_t seq, int64_t head, int64_t row, int64_t key) {
    uint64_t seed = c->tensors.dropout_seed, offset = c->tensors.dropout_offset,
             four = (uint64_t)key / 4;
    uint32_t first[4] = {(uint32_t)row, (uint32_t)((row >> 32) + 256 * head), (uint32_t)seq,
                         (uint32_t)(seq >> 32)};
    uint32_t second[4] = {(uint32_t)four, (uint32_t)(four >> 32), (uint32_t)offset,
                          (uint32_t)(offset >> 32)};
    uint32_t r[4], w[4];
    philox(first, (uint32_t)seed, (uint32_t)(seed >> 32), r);
    philox(second, r[0], r[1], w);
    return w[key % 4] >= floor((double)c->problem.dropout * 4294967296.0);
}

/* Published answers of Philox4x32-10. */
static void known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < COUNT(known); i++) {
        uint32_t x[4];
        memcpy(x, known[i].counter, sizeof x);
        tp__philox(x, known[i].key[0], known[i].key[1]);
        assert_memory_equal(x, known[i].words, sizeof x);
        philox(known[i].counter, known[i].key[0], known[i].key[1], x);
        assert_memory_equal(x, known[i].words, sizeof x);
    }
    assert_int_equal(tp__dropout_threshold(0), 0);
    assert_int_equal(tp__dropout_threshold(0.5f), 0x80000000u);
    assert_int_equal(tp__dropout_threshold(0x1.fffffep-1f), 0xffffff00u);
}

/* With q = 0 all keys weigh the same, and v shows which of them arrived. */
static void show_keys(call *c) {
    for (int64_t s = 0; s < c->tensors.batch; s++)
        for (int64_t h = 0; h < c->problem.q_heads; h++) {
            for (int64_t r = 0; r < c->q_lens[s]; r++)
                for (int64_t x = 0; x < c->problem.head_dim_qk; x++)
                    call_set(c, CALL_Q, s, r, h, x, 0);
            for (int64_t j = 0; j < c->kv_lens[s] && h < c->problem.kv_heads; j++)
                for (int64_t x = 0; x < c->problem.head_dim_v; x++)
                    call_set(c, CALL_V, s, j, h, x, x == j);
        }
}

static void the_formula_decides(void **state) {
    (void)state;
    static const char *const texts[] = {
        "b2 h4/2 q7 k100 d8/100 f32 dropout=0.3", "b2 h2/1 q50 k70 d16/70 f32 causal dropout=0.6",
        "b3 h2/2 seqs=1x3/20,1x40/33,1x1/90 d8/90 f32 packed dropout=0.1",
        "h6/2 q2 k60 d8/60 f32 paged=16 dropout=0.5"};
    static const char *const strategies[] = {"prefill", "decode", NULL};
    for (int t = 0; t < COUNT(texts); t++) {
        call *c = call_new(texts[t], NULL);
        show_keys(c);
        for (int i = 0; call_kernel(i) != NULL; i++)
            for (int s = 0; s < COUNT(strategies); s++) {
                if (strcmp(call_kernel(i), "math") == 0 && strategies[s] != NULL) continue;
                call_run(c, &(call_how){.kernel = call_kernel(i), .strategy = strategies[s]}, NULL);
                for (int64_t seq = 0; seq < c->tensors.batch; seq++)
                    for (int64_t h = 0; h < c->problem.q_heads; h++)
                        for (int64_t r = 0; r < c->q_lens[seq]; r++)
                            for (int64_t j = 0; j < c->kv_lens[seq]; j++) {
                                int seen =
                                    tp_mask_visible(&c->problem, &c->tensors, seq, h, r, j) == 1;
                                int arrived = call_get(c, CALL_O, seq, r, h, j) > 0;
                                if (arrived != (seen && kept(c, seq, h, r, j)))
                                    fail_msg("%s: %s: row %d head %d key %d", texts[t],
                                             call_kernel(i), (int)r, (int)h, (int)j);
                            }
            }
        call_free(c);
    }
}

static void against_the_reference(void **state) {
    (void)state;
    static const char *const texts[] = {
        "b2 h4/2 q70 k600 d40 f32 causal dropout=0.1",
        "h4/2 q100 k150 d64/48 bf16 dropout=0.5",
        "h2/1 q130 k130 d24 f16->f32 window=40,3 dropout=0.9",
        "h8/2 q3 k2100 d32 f32 dropout=0.25",
        "h4/2 seqs=1x40/90,1x9/9,1x70/4200 d24 f32 packed causal sinks dropout=0.2",
        "h4/2 q40 k90 d24 bf16 bits softcap=3 alibi bias=f32 sinks dropout=0.4",
        "h2/1 q80 k80 d16 f32 documents dropout=0.999"};
    for (int t = 0; t < COUNT(texts); t++) call_check_all(texts[t], NULL);
}

static void none_is_none(void **state) {
    (void)state;
    for (int i = 0; call_kernel(i) != NULL; i++) {
        call *plain = call_new("h4/2 q50 k700 d24 f32 causal", NULL),
             *zero = call_new("h4/2 q50 k700 d24 f32 causal dropout=0", NULL);
        zero->tensors.dropout_seed = 99;
        call_run(plain, &(call_how){.kernel = call_kernel(i)}, NULL);
        call_run(zero, &(call_how){.kernel = call_kernel(i)}, NULL);
        call_same(plain, zero, "dropout=0");
        call_free(plain);
        call_free(zero);
    }
}

/* Threads, order of tasks, layouts and what else the call holds. */
static void nothing_else_decides(void **state) {
    (void)state;
    const char *text = "b3 h4/2 seqs=1x60/300,1x5/5000,1x130/130 d24 f32 packed causal dropout=0.3";
    for (int i = 0; call_kernel(i) != NULL; i++) {
        call *one = call_new(text, NULL),
             *other = call_new(text, &(call_shape){.layout = CALL_GAPS});
        call_run(one, &(call_how){.kernel = call_kernel(i)}, NULL);
        for (int threads = 2; threads <= 5; threads++) {
            parallel how = {.seed = (uint64_t)threads};
            call_run(other,
                     &(call_how){.kernel = call_kernel(i),
                                 .threads = threads,
                                 .parallel_for = parallel_shuffled,
                                 .user = &how},
                     NULL);
            call_same(one, other, "tasks in another order");
            call_run(other,
                     &(call_how){.kernel = call_kernel(i),
                                 .threads = threads,
                                 .parallel_for = parallel_threads,
                                 .user = &how},
                     NULL);
            call_same(one, other, "threads");
        }
        call_free(other);
        /* other neighbours: the last sequence alone differs in length */
        other = call_new("b3 h4/2 seqs=1x60/300,1x5/5000,1x20/90 d24 f32 packed causal dropout=0.3",
                         NULL);
        call_run(other, &(call_how){.kernel = call_kernel(i)}, NULL);
        for (int64_t s = 0; s < 2; s++) call_same_seq(one, s, other, s, "another neighbour");
        call_free(one);
        call_free(other);
    }
}

/* What must change it, and what it must not change: the lse. */
static void seed_and_offset_count(void **state) {
    (void)state;
    call *c = call_new("b2 h4/2 q64 k256 d8 f32 dropout=0.5", NULL),
         *plain = call_new("b2 h4/2 q64 k256 d8 f32", NULL);
    call_run(plain, &(call_how){0}, NULL);
    float first[5], lse = call_get(plain, CALL_LSE, 1, 3, 2, 0);
    for (int n = 0; n < 5; n++) {
        c->tensors.dropout_seed = n == 1 ? 1 : n == 2 ? (uint64_t)1 << 32 : 0;
        c->tensors.dropout_offset = n == 3 ? 1 : n == 4 ? (uint64_t)1 << 32 : 0;
        call_run(c, &(call_how){0}, NULL);
        first[n] = call_get(c, CALL_O, 1, 3, 2, 5);
        assert_true(call_get(c, CALL_LSE, 1, 3, 2, 0) == lse);
        for (int m = 0; m < n; m++) assert_true(first[m] != first[n]);
    }
    call_free(c);
    call_free(plain);
}

/* Of 2^20 pairs the share that stays is right within six standard deviations; so are those of rows
   and of keys that differ by one, which a poor generator would join. */
static void the_rate_is_right(void **state) {
    (void)state;
    static const float rates[] = {0.01f, 0.1f, 0.5f, 0.9f};
    for (int i = 0; i < COUNT(rates); i++) {
        call *c = call_new("h2 q4 k4 d4 f32", NULL);
        c->problem.dropout = rates[i];
        double p = rates[i], n = 0, stay = 0, both_keys = 0, both_rows = 0;
        for (int64_t row = 0; row < 512; row++)
            for (int64_t key = 0; key < 1024; key++) {
                int here = kept(c, 0, 1, row, key);
                n++;
                stay += here;
                both_keys += here && kept(c, 0, 1, row, key + 1);
                both_rows += here && kept(c, 0, 1, row + 1, key);
            }
        double q = 1 - p, square = q * q;
        assert_true(fabs(stay - n * q) <= 6 * sqrt(n * p * q));
        assert_true(fabs(both_keys - n * square) <= 12 * sqrt(n * square * (1 - square)));
        assert_true(fabs(both_rows - n * square) <= 12 * sqrt(n * square * (1 - square)));
        call_free(c);
    }
}

/* Indices beyond 2^32, straight at the kernel function: no tensor is that long. */
static void large_indices(void **state) {
    (void)state;
    static const int64_t keys[] = {0,
                                   64,
                                   ((int64_t)1 << 32) - 64,
                                   (int64_t)1 << 34,
                                   ((int64_t)1 << 34) - 32,
                                   (int64_t)1 << 39};
    call *c = call_new("q1 k1 d1 f32 dropout=0.5", NULL);
    tp_machine machine = {.struct_size = sizeof machine};
    tp_machine_detect(&machine, NULL);
    c->tensors.dropout_seed = 0xfedcba9876543210u;
    c->tensors.dropout_offset = 0x1122334455667788u;
    for (int set = 0; set < TP__SETS; set++) {
        const tp__kernel_set *kernels = tp__kernel_sets[set];
        if (kernels->needs & ~machine.isa) continue;
        for (int i = 0; i < COUNT(keys); i++) {
            enum { KEYS = 48 };
            int64_t row = keys[COUNT(keys) - 1 - i] + 3, seq = keys[i] / 2, head = 1 << 19;
            tp__dropout_row own = tp__dropout_row_of(c->tensors.dropout_seed, seq, head, row);
            tp__drop drop = {&own, c->tensors.dropout_offset, tp__dropout_threshold(0.5f), keys[i]};
            float s[64] = {0}, m = -INFINITY, l = 0, factor;
            int32_t lo = 0, hi = KEYS;
            s[KEYS] = 7; /* behind the row: not touched */
            tp__trace trace = {0};
            kernels->attend(&trace, &(tp__row_tile){.unit = 1,
                                                .s = s,
                                                .lds = 64,
                                                .m = &m,
                                                .l = &l,
                                                .c = &factor,
                                                .lo = &lo,
                                                .hi = &hi,
                                                .rows = 1,
                                                .d = 1,
                                                .dv = 1,
                                                .block = 64,
                                                .drop = &drop});
            assert_true(l == KEYS && m == 0);
            for (int64_t j = 0; j < KEYS; j++)
                assert_true(s[j] == (kept(c, seq, head, row, keys[i] + j) ? 1.0f : 0.0f));
            assert_true(s[KEYS] == 7);
        }
    }
    call_free(c);
}

/* A dropped pair counts as multiplied by 0: what is not finite in a visible key still shows. */
static void not_finite_shows(void **state) {
    (void)state;
    for (int i = 0; call_kernel(i) != NULL; i++) {
        call *c = call_new("h2/1 q20 k40 d8 f32 causal dropout=0.9", NULL);
        call_set(c, CALL_V, 0, 25, 0, 3, NAN); /* seen by rows 5.. */
        call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
        for (int64_t r = 0; r < 20; r++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t x = 0; x < 8; x++)
                    assert_int_equal(isnan(call_get(c, CALL_O, 0, r, h, x)) != 0, x == 3 && r >= 5);
        call_free(c);
    }
}

static void wrong_values_are_named(void **state) {
    (void)state;
    static const float wrong[] = {1, -0.5f, 1.5f, NAN, INFINITY};
    tp_problem p, again;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_problem_parse("q5 d8 f32 sinks dropout=0.1", &p, NULL, &error), TP_OK);
    char text[256];
    assert_int_equal(tp_problem_print(&p, NULL, text, sizeof text), TP_OK);
    assert_non_null(strstr(text, "sinks dropout=0.1"));
    assert_int_equal(tp_problem_parse(text, &again, NULL, &error), TP_OK);
    assert_memory_equal(&p, &again, sizeof p);
    for (int i = 0; i < COUNT(wrong); i++) {
        p.dropout = wrong[i];
        assert_int_equal(tp_problem_check(&p, &error), TP_INVALID);
        assert_non_null(strstr(error.text, "dropout is "));
        assert_non_null(strstr(error.text, "below 1"));
    }
    assert_int_equal(tp_problem_parse("q5 d8 f32 dropout=1", &p, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "dropout=1"));
    assert_int_equal(tp_problem_parse("q5 d8 f32 sparse=4 dropout=0.5", &p, NULL, &error),
                     TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "dropout with sparse indices"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),         cmocka_unit_test(the_formula_decides),
        cmocka_unit_test(against_the_reference), cmocka_unit_test(none_is_none),
        cmocka_unit_test(nothing_else_decides),  cmocka_unit_test(seed_and_offset_count),
        cmocka_unit_test(the_rate_is_right),     cmocka_unit_test(large_indices),
        cmocka_unit_test(not_finite_shows),      cmocka_unit_test(wrong_values_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
