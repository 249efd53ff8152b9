/* SPDX-License-Identifier: Apache-2.0 */
/* tp_merge: its formula in long double, its bound, empty states, bits, and what it refuses. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tileproof.h"

enum { PARTS = 9, ROWS = 7, DIM = 130 };

typedef struct states {
    float o[PARTS][ROWS * DIM], lse[PARTS][ROWS];
    const float *o_at[PARTS], *lse_at[PARTS];
} states;

static uint32_t seed;

static float uniform(void) { /* -1..1 */
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed * 0x1p-31f;
}

static void fill(states *s, float middle, float width) {
    seed = 99;
    for (int i = 0; i < PARTS; i++) {
        s->o_at[i] = s->o[i];
        s->lse_at[i] = s->lse[i];
        for (int x = 0; x < ROWS * DIM; x++) s->o[i][x] = uniform() * 3;
        for (int r = 0; r < ROWS; r++) s->lse[i][r] = middle + width * uniform();
    }
}

/* The formula of the header for one value, in long double. */
static long double exact(const states *s, int parts, int row, int column, long double *lse) {
    long double max = -INFINITY, sum = 0, total = 0;
    for (int i = 0; i < parts; i++)
        if (s->lse[i][row] > max) max = s->lse[i][row];
    for (int i = 0; i < parts; i++) {
        if (s->lse[i][row] == -INFINITY) continue;
        long double weight = expl(s->lse[i][row] - max);
        sum += weight;
        total += weight * s->o[i][row * DIM + column];
    }
    *lse = max + logl(sum);
    return total / sum;
}

static tp_status merge(const states *s, int parts, float *o, float *lse) {
    return tp_merge(parts, ROWS, DIM, s->o_at, s->lse_at, o, lse, NULL);
}

static void follows_the_formula_within_its_bound(void **state) {
    (void)state;
    static states s;
    static float o[ROWS * DIM], lse[ROWS];
    const float middles[] = {0, 5, -1e5f, 1e5f, 3e38f};
    for (size_t m = 0; m < sizeof middles / sizeof middles[0]; m++) {
        for (int parts = 2; parts <= PARTS; parts++) {
            fill(&s, middles[m], 4);
            s.lse[1][3] = -INFINITY;
            assert_int_equal(merge(&s, parts, o, lse), TP_OK);
            for (int r = 0; r < ROWS; r++) {
                for (int x = 0; x < DIM; x++) {
                    long double oracle_lse, oracle = exact(&s, parts, r, x, &oracle_lse);
                    /* tighter than promised: one rounding, whatever the number of states */
                    assert_true(fabsl(o[r * DIM + x] - oracle) <=
                                0x1.01p-24L * fabsl(oracle) + 1e-15L);
                    assert_true(fabsl(lse[r] - oracle_lse) <= 0x1.01p-24L * fabsl(oracle_lse));
                }
            }
        }
    }
}

static void empty_states_are_never_read(void **state) {
    (void)state;
    static states s, clean;
    static float o[ROWS * DIM], lse[ROWS], expected[ROWS * DIM], expected_lse[ROWS];
    fill(&s, 1, 2);
    fill(&clean, 1, 2);
    for (int r = 0; r < ROWS; r++) {
        s.lse[2][r] = clean.lse[2][r] = -INFINITY;
        for (int x = 0; x < DIM; x++) {
            s.o[2][r * DIM + x] = NAN;
            clean.o[2][r * DIM + x] = 0;
        }
    }
    assert_int_equal(merge(&s, PARTS, o, lse), TP_OK);
    assert_int_equal(merge(&clean, PARTS, expected, expected_lse), TP_OK);
    assert_memory_equal(o, expected, sizeof o);
    assert_memory_equal(lse, expected_lse, sizeof lse);

    for (int i = 0; i < PARTS; i++)
        for (int r = 0; r < ROWS; r++) s.lse[i][r] = -INFINITY;
    for (int parts = 0; parts <= 2; parts++) {
        memset(o, 0xff, sizeof o);
        assert_int_equal(merge(&s, parts, o, lse), TP_OK);
        for (int x = 0; x < ROWS * DIM; x++) assert_true(o[x] == 0 && !signbit(o[x]));
        for (int r = 0; r < ROWS; r++) assert_true(lse[r] == -INFINITY);
    }
}

static void one_state_comes_back_bit_for_bit(void **state) {
    (void)state;
    static states s;
    static float o[ROWS * DIM], lse[ROWS];
    for (int only = 0; only < PARTS; only++) {
        fill(&s, -20, 3);
        const uint32_t odd[] = {0x80000000, 0x7fc12345, 0x00000001, 0xff800000, 0x7f7fffff};
        memcpy(s.o[only], odd, sizeof odd);
        for (int i = 0; i < PARTS; i++)
            for (int r = 0; r < ROWS && i != only; r++) s.lse[i][r] = -INFINITY;
        assert_int_equal(merge(&s, PARTS, o, lse), TP_OK);
        assert_memory_equal(o, s.o[only], sizeof o);
        assert_memory_equal(lse, s.lse[only], sizeof lse);
    }
}

static void outputs_may_be_the_first_state(void **state) {
    (void)state;
    static states s;
    static float o[ROWS * DIM], lse[ROWS];
    fill(&s, 0, 3);
    s.lse[0][2] = -INFINITY;                                 /* takes others in      */
    for (int i = 0; i < PARTS; i++) s.lse[i][4] = -INFINITY; /* all empty            */
    for (int i = 1; i < PARTS; i++) s.lse[i][5] = -INFINITY; /* stays what it is     */
    for (int i = 0; i < PARTS - 1; i++) s.lse[i][6] = -INFINITY;
    assert_int_equal(merge(&s, PARTS, o, lse), TP_OK);
    assert_int_equal(merge(&s, PARTS, s.o[0], s.lse[0]), TP_OK);
    assert_memory_equal(o, s.o[0], sizeof o);
    assert_memory_equal(lse, s.lse[0], sizeof lse);
}

static void spoilt_sums_spoil_their_row_alone(void **state) {
    (void)state;
    static states s;
    static float o[ROWS * DIM], lse[ROWS];
    fill(&s, 0, 1);
    s.lse[1][0] = NAN;
    s.lse[0][1] = INFINITY;
    s.lse[0][2] = s.lse[1][2] = -INFINITY;
    s.lse[2][2] = NAN; /* the only state that is not empty */
    s.o[1][3 * DIM + 5] = INFINITY;
    assert_int_equal(merge(&s, 3, o, lse), TP_OK);
    for (int r = 0; r < ROWS; r++) {
        assert_int_equal(isnan(lse[r]) != 0, r < 3);
        for (int x = 0; x < DIM; x++) {
            if (r < 3) assert_true(isnan(o[r * DIM + x]));
            if (r >= 3) assert_int_equal(isfinite(o[r * DIM + x]) != 0, r * DIM + x != 3 * DIM + 5);
        }
    }
}

/* ((a b) c) and (a (b c)) differ by what the rounding of the middle lse allows. */
static void order_of_merging_matters_within_the_bound(void **state) {
    (void)state;
    static states s;
    static float left[ROWS * DIM], left_lse[ROWS], right[ROWS * DIM], right_lse[ROWS];
    const float middles[] = {0, 1e3f, -1e5f};
    for (size_t m = 0; m < sizeof middles / sizeof middles[0]; m++) {
        fill(&s, middles[m], 2);
        const float *o_pair[] = {left, s.o[2]}, *lse_pair[] = {left_lse, s.lse[2]};
        assert_int_equal(merge(&s, 2, left, left_lse), TP_OK);
        assert_int_equal(tp_merge(2, ROWS, DIM, o_pair, lse_pair, left, left_lse, NULL), TP_OK);
        assert_int_equal(tp_merge(2, ROWS, DIM, s.o_at + 1, s.lse_at + 1, right, right_lse, NULL),
                         TP_OK);
        const float *o_other[] = {s.o[0], right}, *lse_other[] = {s.lse[0], right_lse};
        static float both[ROWS * DIM], both_lse[ROWS];
        assert_int_equal(tp_merge(2, ROWS, DIM, o_other, lse_other, both, both_lse, NULL), TP_OK);
        for (int r = 0; r < ROWS; r++) {
            double bound = FLT_EPSILON * (3 + 2 + fabs(left_lse[r])) * 3;
            assert_true(fabs(left_lse[r] - both_lse[r]) <=
                        2 * FLT_EPSILON * (fabs(left_lse[r]) + 1));
            for (int x = 0; x < DIM; x++)
                assert_true(fabs(left[r * DIM + x] - both[r * DIM + x]) <= bound);
        }
    }
}

static void assert_refused(tp_status status, const tp_error *error, const char *part) {
    assert_int_equal(status, TP_INVALID);
    assert_int_equal(error->status, TP_INVALID);
    if (strstr(error->text, part) == NULL) fail_msg("'%s' lacks '%s'", error->text, part);
}

static void refusals_name_value_and_rule(void **state) {
    (void)state;
    static states s;
    static float o[ROWS * DIM], lse[ROWS];
    tp_error e = TP_ERROR_INIT;
    fill(&s, 0, 1);
    memset(o, 0x11, sizeof o);
#define MERGE(...) tp_merge(__VA_ARGS__, &e)
    assert_refused(MERGE(-1, ROWS, DIM, s.o_at, s.lse_at, o, lse), &e, "parts is -1");
    assert_refused(MERGE(2, -3, DIM, s.o_at, s.lse_at, o, lse), &e, "rows is -3");
    assert_refused(MERGE(2, ROWS, -4, s.o_at, s.lse_at, o, lse), &e, "dim is -4");
    assert_refused(MERGE(2, INT64_MAX / 2, 3, s.o_at, s.lse_at, o, lse), &e, "rows * dim");
    assert_refused(MERGE(2, ROWS, DIM, NULL, s.lse_at, o, lse), &e, "o_parts is NULL");
    assert_refused(MERGE(2, ROWS, DIM, s.o_at, NULL, o, lse), &e, "lse_parts is NULL");
    assert_refused(MERGE(2, ROWS, DIM, s.o_at, s.lse_at, NULL, lse), &e, "o is NULL");
    assert_refused(MERGE(2, ROWS, DIM, s.o_at, s.lse_at, o, NULL), &e, "lse is NULL");
    assert_refused(MERGE(2, ROWS, DIM, s.o_at, s.lse_at, s.o[1], lse), &e, "o_parts[1]");
    assert_refused(MERGE(2, ROWS, DIM, s.o_at, s.lse_at, s.o[0] + 1, lse), &e, "o_parts[0]");
    assert_refused(MERGE(2, ROWS, DIM, s.o_at, s.lse_at, o, s.lse[1]), &e, "lse_parts[1]");
    assert_refused(MERGE(2, ROWS, DIM, s.o_at, s.lse_at, o, s.o[1]), &e, "o_parts[1]");
    assert_refused(MERGE(2, 1, ROWS, s.o_at, s.lse_at, s.lse[1], lse), &e, "lse_parts[1]");
    assert_refused(MERGE(2, ROWS, DIM, s.o_at, s.lse_at, o, o + 5), &e, "apart");
    const float *same[] = {s.o[0], s.o[0]}, *hole[] = {s.o[0], NULL},
                *hole_lse[] = {NULL, s.lse[1]};
    assert_refused(MERGE(2, ROWS, DIM, same, s.lse_at, s.o[0], lse), &e, "o_parts[1]");
    assert_refused(MERGE(2, ROWS, DIM, hole, s.lse_at, o, lse), &e, "o_parts[1] is NULL");
    assert_refused(MERGE(2, ROWS, DIM, s.o_at, hole_lse, o, lse), &e, "lse_parts[0] is NULL");
#undef MERGE
    for (size_t i = 0; i < sizeof o; i++) assert_int_equal(((unsigned char *)o)[i], 0x11);
}

static void nothing_to_do_is_fine(void **state) {
    (void)state;
    const float one = 2, other = 3, *o_parts[] = {NULL, NULL}, *lse_parts[] = {&one, &other};
    float lse = 0;
    assert_int_equal(tp_merge(2, 0, 8, NULL, NULL, NULL, NULL, NULL), TP_OK);
    assert_int_equal(tp_merge(0, 1, 0, NULL, NULL, NULL, &lse, NULL), TP_OK);
    assert_true(lse == -INFINITY);
    assert_int_equal(tp_merge(2, 1, 0, o_parts, lse_parts, NULL, &lse, NULL), TP_OK);
    assert_true(fabs(lse - (3 + log1p(exp(-1)))) < 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_formula_within_its_bound),
        cmocka_unit_test(empty_states_are_never_read),
        cmocka_unit_test(one_state_comes_back_bit_for_bit),
        cmocka_unit_test(outputs_may_be_the_first_state),
        cmocka_unit_test(spoilt_sums_spoil_their_row_alone),
        cmocka_unit_test(order_of_merging_matters_within_the_bound),
        cmocka_unit_test(refusals_name_value_and_rule),
        cmocka_unit_test(nothing_to_do_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
