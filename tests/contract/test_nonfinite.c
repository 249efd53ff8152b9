/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NaN and infinity lines of the contract. Each test poisons one element of a clean call and
 * asks of every row: does it see that element? Then it must show it. Otherwise its bits are the
 * clean call's.
 */
#include <math.h>
#include <stdio.h>

#include "support/call.h"

/* Rows of every strip see different keys; keys reach over panels, blocks (d > 256: 64 keys) and
 * chunks. */
static const char *const texts[] = {
    "b2 h4/2 q21 k40 d12 %s causal",
    "h3/1 q30 k140 d257/5 %s window=9,3",
    "h4/2 q21 k40 d12/20 %s top-left causal window=12,-1",
    "h2/1 q9 k5 d6 %s causal",
    "h2/1 q7 k4110 d3 %s causal",
    "h2/1 q5 k33 d17/9 %s",
};
static const char *const dtypes[] = {"f32", "f16", "bf16"};
static const float bad[] = {NAN, INFINITY, -INFINITY};

typedef struct pair {
    call *clean, *c;
    const char *kernel;
    char text[128];
} pair;

/* Calls that test(pair) for every text, dtype and kernel; c holds clean's data. */
static void each_pair(void (*test)(pair *)) {
    for (int n = 0; n < COUNT(texts); n++)
        for (int t = 0; t < COUNT(dtypes); t++)
            for (int k = 0; call_kernel(k) != NULL; k++) {
                pair p = {.kernel = call_kernel(k)};
                if (call_quick() && t != n % COUNT(dtypes)) continue;
                snprintf(p.text, sizeof p.text, texts[n], dtypes[t]);
                p.clean = call_new(p.text, NULL);
                p.c = call_new(p.text, NULL);
                call_run(p.clean, &(call_how){.kernel = p.kernel}, NULL);
                call_check(p.clean, p.text);
                test(&p);
                call_free(p.clean);
                call_free(p.c);
            }
}

static int sees(const call *c, int64_t seq, int64_t row, int64_t key) {
    return tp_mask_allowed(&c->problem, c->q_lens[seq], c->kv_lens[seq], row, key) == 1;
}

static int64_t keys_seen(const call *c, int64_t seq, int64_t row) {
    int64_t seen = 0;
    for (int64_t j = 0; j < c->kv_lens[seq]; j++) seen += sees(c, seq, row, j);
    return seen;
}

/* Where a poisoned key or row is tried: the ends, and around strips, panels, blocks and the chunk.
 */
static int worth_trying(int64_t index, int64_t count) {
    static const int64_t borders[] = {0, 4, 6, 8, 12, 16, 32, 64, 128, 4096};
    for (int i = 0; i < COUNT(borders); i++)
        if (index == borders[i] || index == borders[i] - 1) return 1;
    return index >= count - 2 || index % 37 == 5;
}

static int skip_key(int64_t key, int64_t count) {
    return !worth_trying(key, count) || (count > 1000 && key > 20 && key < 4090);
}

static int is_nan_row(const call *c, int64_t seq, int64_t row, int64_t head) {
    for (int64_t x = 0; x < c->problem.head_dim_v; x++)
        if (!isnan(call_get(c, CALL_O, seq, row, head, x))) return 0;
    return isnan(call_get(c, CALL_LSE, seq, row, head, 0));
}

static void expect_nan(const pair *p, int64_t seq, int64_t row, int64_t head, const char *why) {
    if (!is_nan_row(p->c, seq, row, head))
        fail_msg("%s: %s: %s: seq %d row %d head %d is not all NaN: o[0] %g, lse %g", p->text,
                 p->kernel, why, (int)seq, (int)row, (int)head,
                 call_get(p->c, CALL_O, seq, row, head, 0),
                 call_get(p->c, CALL_LSE, seq, row, head, 0));
}

static void expect_clean(const pair *p, int64_t seq, int64_t row, int64_t head, const char *why) {
    char what[256];
    snprintf(what, sizeof what, "%s: %s: %s", p->text, p->kernel, why);
    call_same_row(p->clean, seq, row, head, p->c, seq, row, head, what);
}

static void run(const pair *p) {
    call_run(p->c, &(call_how){.kernel = p->kernel}, NULL);
}

/* Every row of the call: those the element reaches are NaN, the others as if it were not there. */
static void expect_where(const pair *p, int64_t seq, int64_t key, int64_t kv_head,
                         const char *why) {
    int64_t group = p->c->problem.q_heads / p->c->problem.kv_heads;
    for (int64_t s = 0; s < p->c->tensors.batch; s++)
        for (int64_t r = 0; r < p->c->q_lens[s]; r++)
            for (int64_t h = 0; h < p->c->problem.q_heads; h++)
                if (s == seq && h / group == kv_head && sees(p->c, s, r, key))
                    expect_nan(p, s, r, h, why);
                else
                    expect_clean(p, s, r, h, why);
}

static void try_q(pair *p) {
    call *c = p->c;
    int64_t seq = c->tensors.batch - 1, head = c->problem.q_heads - 1,
            x = c->problem.head_dim_qk - 1;
    for (int64_t row = 0; row < c->q_lens[seq]; row++) {
        if (!worth_trying(row, c->q_lens[seq])) continue;
        float before = call_get(c, CALL_Q, seq, row, head, x);
        call_set(c, CALL_Q, seq, row, head, x, NAN);
        run(p);
        for (int64_t s = 0; s < c->tensors.batch; s++)
            for (int64_t r = 0; r < c->q_lens[s]; r++)
                for (int64_t h = 0; h < c->problem.q_heads; h++)
                    if (s == seq && r == row && h == head && keys_seen(c, s, r) > 0)
                        expect_nan(p, s, r, h, "NaN in its q");
                    else
                        expect_clean(p, s, r, h, "NaN in another's q");
        call_set(c, CALL_Q, seq, row, head, x, before);
    }
}

static void nan_in_q_spoils_its_row_alone(void **state) {
    (void)state;
    each_pair(try_q);
}

static void try_k(pair *p) {
    call *c = p->c;
    int64_t seq = c->tensors.batch - 1, head = c->problem.kv_heads - 1,
            x = c->problem.head_dim_qk / 2;
    for (int64_t key = 0; key < c->kv_lens[seq]; key++) {
        if (skip_key(key, c->kv_lens[seq])) continue;
        float before = call_get(c, CALL_K, seq, key, head, x);
        call_set(c, CALL_K, seq, key, head, x, NAN);
        run(p);
        expect_where(p, seq, key, head, "NaN in k");
        call_set(c, CALL_K, seq, key, head, x, before);
    }
}

static void nan_in_k_spoils_the_rows_that_see_it(void **state) {
    (void)state;
    each_pair(try_k);
}

/* q . k = +inf for every row: q is 1 where k is infinite. */
static void try_infinite_score(pair *p) {
    for (int64_t s = 0; s < p->c->tensors.batch; s++)
        for (int64_t r = 0; r < p->c->q_lens[s]; r++)
            for (int64_t h = 0; h < p->c->problem.q_heads; h++) {
                call_set(p->c, CALL_Q, s, r, h, 0, 1);
                call_set(p->clean, CALL_Q, s, r, h, 0, 1);
            }
    call_run(p->clean, &(call_how){.kernel = p->kernel}, NULL);
    call *c = p->c;
    for (int64_t key = 0; key < c->kv_lens[0]; key++) {
        if (skip_key(key, c->kv_lens[0])) continue;
        float before = call_get(c, CALL_K, 0, key, 0, 0);
        call_set(c, CALL_K, 0, key, 0, 0, INFINITY);
        run(p);
        expect_where(p, 0, key, 0, "a score of +inf");
        call_set(c, CALL_K, 0, key, 0, 0, before);
    }
}

static void an_infinite_score_spoils_its_rows(void **state) {
    (void)state;
    each_pair(try_infinite_score);
}

/* A score of -inf has no weight: the reference says so too, and the rows stay finite. */
static void try_minus_infinity(pair *p) {
    call *c = p->c;
    for (int64_t r = 0; r < c->q_lens[0]; r++)
        for (int64_t h = 0; h < c->problem.q_heads; h++) call_set(c, CALL_Q, 0, r, h, 0, 2);
    for (int step = 3; step >= 1; step -= 2) { /* some keys, then all of them */
        for (int64_t key = 0; key < c->kv_lens[0]; key += step)
            for (int64_t h = 0; h < c->problem.kv_heads; h++)
                call_set(c, CALL_K, 0, key, h, 0, -INFINITY);
        run(p);
        call_check_bounds(c, p->text);
        for (int64_t r = 0; r < c->q_lens[0]; r++)
            for (int64_t h = 0; h < c->problem.q_heads; h++)
                for (int64_t x = 0; x < c->problem.head_dim_v; x++) {
                    float o = call_get(c, CALL_O, 0, r, h, x),
                          lse = call_get(c, CALL_LSE, 0, r, h, 0);
                    assert_true(isfinite(o));
                    if (step == 1) assert_true(o == 0 && lse == -INFINITY);
                }
    }
}

static void scores_of_minus_infinity_have_no_weight(void **state) {
    (void)state;
    each_pair(try_minus_infinity);
}

/* A first block, or chunk, of nothing but -inf, then finite scores; and the other way round. */
static void blocks_of_minus_infinity(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t first, last;
    } cases[] = {
        {"h2/1 q5 k140 d257/5 f32", 0, 63},       {"h2/1 q5 k140 d257/5 f32", 64, 139},
        {"h2/1 q5 k4200 d3 f32", 0, 4095},        {"h2/1 q5 k4200 d3 f32", 4096, 4199},
        {"h2/1 q5 k4200 d3 f32 causal", 0, 4000},
    };
    for (int n = 0; n < COUNT(cases); n++)
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call *c = call_new(cases[n].text, NULL);
            for (int64_t r = 0; r < 5; r++)
                for (int64_t h = 0; h < 2; h++) call_set(c, CALL_Q, 0, r, h, 0, 1);
            for (int64_t key = cases[n].first; key <= cases[n].last; key++)
                call_set(c, CALL_K, 0, key, 0, 0, -INFINITY);
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check_bounds(c, cases[n].text);
            call_free(c);
        }
}

/* Only column x of the rows that see it; lse and the other columns keep their bits. */
static void expect_column(const pair *p, int64_t key, int64_t kv_head, int64_t column) {
    const call *c = p->c;
    int64_t group = c->problem.q_heads / c->problem.kv_heads;
    for (int64_t s = 0; s < c->tensors.batch; s++)
        for (int64_t r = 0; r < c->q_lens[s]; r++)
            for (int64_t h = 0; h < c->problem.q_heads; h++) {
                if (s > 0 || h / group != kv_head || !sees(c, s, r, key)) {
                    expect_clean(p, s, r, h, "v of a key it does not see");
                    continue;
                }
                for (int64_t x = 0; x < c->problem.head_dim_v; x++) {
                    float o = call_get(c, CALL_O, s, r, h, x),
                          was = call_get(p->clean, CALL_O, s, r, h, x);
                    if (x == column ? isfinite(o) : o != was)
                        fail_msg(
                            "%s: %s: v[%d] of key %d is not finite: o[%d] of row %d is %g, was %g",
                            p->text, p->kernel, (int)column, (int)key, (int)x, (int)r, o, was);
                }
                assert_true(call_get(c, CALL_LSE, s, r, h, 0) ==
                            call_get(p->clean, CALL_LSE, s, r, h, 0));
            }
}

static void try_v(pair *p) {
    call *c = p->c;
    int64_t head = c->problem.kv_heads - 1, dv = c->problem.head_dim_v;
    for (int64_t key = 0; key < c->kv_lens[0]; key++) {
        if (skip_key(key, c->kv_lens[0])) continue;
        float value = bad[key % COUNT(bad)];
        int64_t column = key % 2 == 0 ? dv - 1 : key % dv; /* also in the last, narrower panel */
        float before = call_get(c, CALL_V, 0, key, head, column);
        call_set(c, CALL_V, 0, key, head, column, value);
        run(p);
        expect_column(p, key, head, column);
        call_set(c, CALL_V, 0, key, head, column, before);
    }
}

static void v_that_is_not_finite_shows_where_it_is_seen(void **state) {
    (void)state;
    each_pair(try_v);
}

/* Even where its weight is 0, so far below the maximum is its score. */
static void v_that_is_not_finite_shows_without_weight(void **state) {
    (void)state;
    for (int b = 0; b < COUNT(bad); b++)
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call *c = call_new("q6 k140 d257/6 f32 scale=1", NULL);
            for (int64_t r = 0; r < 6; r++) call_set(c, CALL_Q, 0, r, 0, 0, 1000);
            call_set(c, CALL_K, 0, 3, 0, 0, -100);
            call_set(c, CALL_V, 0, 3, 0, 2, bad[b]);
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            for (int64_t r = 0; r < 6; r++)
                for (int64_t x = 0; x < 6; x++)
                    assert_int_equal(isfinite(call_get(c, CALL_O, 0, r, 0, x)) != 0, x != 2);
            call_free(c);
        }
}

/* Keys that nobody sees, and everything beyond the used lengths: the support's gaps are NaN
   already, so that here the clean call has them finite. */
static void try_hidden(pair *p) {
    call *c = p->c;
    int hidden_keys = 0;
    for (int64_t s = 0; s < c->tensors.batch; s++)
        for (int64_t key = 0; key < c->kv_lens[s]; key++) {
            int seen = 0;
            for (int64_t r = 0; r < c->q_lens[s] && !seen; r++) seen = sees(c, s, r, key);
            if (seen) continue;
            hidden_keys++;
            for (int64_t h = 0; h < c->problem.kv_heads; h++) {
                for (int64_t x = 0; x < c->problem.head_dim_qk; x++)
                    call_set(c, CALL_K, s, key, h, x, bad[(key + x) % COUNT(bad)]);
                for (int64_t x = 0; x < c->problem.head_dim_v; x++)
                    call_set(c, CALL_V, s, key, h, x, bad[(key + x) % COUNT(bad)]);
            }
        }
    if (hidden_keys == 0) return;
    run(p);
    for (int64_t s = 0; s < c->tensors.batch; s++)
        for (int64_t r = 0; r < c->q_lens[s]; r++)
            for (int64_t h = 0; h < c->problem.q_heads; h++)
                expect_clean(p, s, r, h, "keys that nobody sees");
}

static void hidden_keys_reach_nothing(void **state) {
    (void)state;
    each_pair(try_hidden);
    for (int k = 0; call_kernel(k) != NULL; k++) { /* most keys hidden, on both sides */
        static const char *const more[] = {
            "q9 k120 d9 f32 window=20,-1 causal", "q9 k120 d9 f16 top-left causal",
            "q4 k200 d257/9 bf16 window=2,0",     "q4 k200 d257/9 f32 top-left window=5,70",
            "q3 k4200 d5 f32 window=3,0",         "q3 k4200 d5 f32 top-left window=0,3"};
        for (int n = 0; n < COUNT(more); n++) {
            pair p = {call_new(more[n], NULL), call_new(more[n], NULL), call_kernel(k), ""};
            snprintf(p.text, sizeof p.text, "%s", more[n]);
            call_run(p.clean, &(call_how){.kernel = p.kernel}, NULL);
            try_hidden(&p);
            call_free(p.clean);
            call_free(p.c);
        }
    }
}

/* Padding holds NaN: tokens around packed sequences, beyond used lengths, gaps between rows. With
   it gone the bits are the same. */
static void padding_reaches_nothing(void **state) {
    (void)state;
    static const char *const seqs = "h4/2 seqs=1x9/30,1x20/7,1x1/41,1x0/3 d12/9";
    static const char *const forms[] = {"packed causal", "padded causal", "padded window=5,5"};
    for (int f = 0; f < COUNT(forms); f++)
        for (int t = 0; t < COUNT(dtypes); t++)
            for (int k = 0; call_kernel(k) != NULL; k++) {
                char text[160];
                snprintf(text, sizeof text, "%s %s %s", seqs, dtypes[t], forms[f]);
                call *gaps = call_new(text, &(call_shape){.layout = CALL_GAPS});
                call_run(gaps, &(call_how){.kernel = call_kernel(k)}, NULL);
                call_check_bounds(gaps, text);
                for (int64_t s = 0; s < 4; s++) { /* each alone, tightly */
                    char one[160];
                    int64_t request = s;
                    const char *mask = f < 2 ? "causal" : "window=5,5";
                    snprintf(one, sizeof one, "h4/2 q%d k%d d12/9 %s %s", (int)gaps->q_lens[s],
                             (int)gaps->kv_lens[s], dtypes[t], mask);
                    call *alone = call_new(one, &(call_shape){.request = &request});
                    call_run(alone, &(call_how){.kernel = call_kernel(k)}, NULL);
                    call_same_seq(alone, 0, gaps, s, text);
                    call_free(alone);
                }
                call_free(gaps);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_in_q_spoils_its_row_alone),
        cmocka_unit_test(nan_in_k_spoils_the_rows_that_see_it),
        cmocka_unit_test(an_infinite_score_spoils_its_rows),
        cmocka_unit_test(scores_of_minus_infinity_have_no_weight),
        cmocka_unit_test(blocks_of_minus_infinity),
        cmocka_unit_test(v_that_is_not_finite_shows_where_it_is_seen),
        cmocka_unit_test(v_that_is_not_finite_shows_without_weight),
        cmocka_unit_test(hidden_keys_reach_nothing),
        cmocka_unit_test(padding_reaches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
