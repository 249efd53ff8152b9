/* SPDX-License-Identifier: Apache-2.0 */
/* The statistics of bench and compare on made-up times with a known answer; every seed is fixed. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "harness/stats.h"
#include "harness/verdict.h"

enum { MAX_ROUNDS = 2048 };

static uint64_t state;
static double uniform(void) { /* in 0..1, ends excluded */
    state = state * 6364136223846793005u + 1442695040888963407u;
    uint64_t z = state ^ (state >> 29);
    z *= 0xBF58476D1CE4E5B9u;
    return ((double)(z >> 12) + 0.5) * 0x1p-52;
}
static double normal(void) {
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

/* Log noise of one slot. Each kind is one that timers on shared hosts show. */
enum noise { QUIET, NORMAL, HEAVY, OUTLIERS, BURSTS, NOISE_KINDS };
static const char *const noise_names[] = {"quiet", "normal", "heavy tails", "outliers", "bursts"};
static double slot_noise(enum noise kind, int burst) {
    switch (kind) {
    case QUIET: return 0.003 * normal();
    case NORMAL: return 0.03 * normal();
    case HEAVY: return fabs(0.01 * tan(3.0 * (uniform() - 0.5))); /* Cauchy, cut, one-sided */
    case OUTLIERS: return 0.01 * normal() + (uniform() < 0.1 ? 2 * uniform() : 0);
    default: return 0.01 * normal() + (burst ? 0.25 : 0);
    }
}

struct arms {
    double first[2 * MAX_ROUNDS], row[2 * MAX_ROUNDS], control[2 * MAX_ROUNDS];
};

/* Slots in the order first, row, control, control, row, first, under drift of the whole host and
   slow windows that come and go. */
static void make_times(struct arms *arms, enum noise kind, double ratio, double drift) {
    int burst = 0;
    double base = 0;
    for (int pass = 0; pass < 2 * MAX_ROUNDS; pass++)
        for (int i = 0; i < 3; i++) {
            int at = pass % 2 ? 2 - i : i;
            if (uniform() < 0.01) burst = !burst;
            base += drift;
            double slot = exp(13 + base + slot_noise(kind, burst));
            *(at == 0   ? &arms->first[pass]
              : at == 1 ? &arms->row[pass]
                        : &arms->control[pass]) = at == 1 ? slot * ratio : slot;
        }
}

struct outcome {
    enum speed verdict;
    size_t rounds;
    int held; /* every interval that was looked at held the true value */
};

/* What bench --against does with its slots. */
static struct outcome ab_test(const struct arms *arms, double oracle, uint64_t seed) {
    double ratios[MAX_ROUNDS], controls[MAX_ROUNDS];
    struct outcome outcome = {SPEED_AMBIGUOUS, 0, 1};
    for (int i = 0; i < LOOK_COUNT; i++) {
        size_t rounds = look_rounds[i];
        assert_int_equal(paired_ratios(arms->first, arms->row, 2 * rounds, ratios), rounds);
        paired_ratios(arms->first, arms->control, 2 * rounds, controls);
        struct interval ratio = interval_median(ratios, rounds, look_miss, seed);
        struct interval control = interval_median(controls, rounds, look_miss, seed);
        outcome.held &= ratio.low <= oracle && oracle <= ratio.high;
        outcome.verdict = speed_judge(ratio, control);
        outcome.rounds = rounds;
        if (speed_is_final(ratio, control)) break;
    }
    return outcome;
}

static int trials(void) {
    return getenv("TILEPROOF_TEST_QUICK") ? 30 : 100; /* one in a hundred may be wrong */
}

/* Equal, 10 % slower, 10 % faster under every noise, with and without drift. */
static void verdicts_are_right_and_found(void **unused) {
    static const struct {
        double ratio;
        enum speed right;
    } plants[] = {{1, SPEED_SAME}, {1.1, SPEED_SLOW}, {1 / 1.1, SPEED_FAST}};
    static struct arms arms;
    (void)unused;
    for (int kind = 0; kind < NOISE_KINDS; kind++)
        for (int plant = 0; plant < 3; plant++) {
            int right = 0, unsure = 0, missed = 0, count = trials();
            double rounds = 0;
            state = (uint64_t)(100 * kind + plant + 1);
            for (int i = 0; i < count; i++) {
                make_times(&arms, (enum noise)kind, plants[plant].ratio, i % 2 ? 1e-5 : 0);
                struct outcome outcome = ab_test(&arms, log(plants[plant].ratio), (uint64_t)i);
                right += outcome.verdict == plants[plant].right;
                unsure += outcome.verdict == SPEED_AMBIGUOUS;
                missed += !outcome.held;
                rounds += (double)outcome.rounds / count;
            }
            int wrong = count - right - unsure;
            print_message("%-12s %.3f: %d right, %d ambiguous, %d wrong; %d missed; %.0f rounds\n",
                          noise_names[kind], plants[plant].ratio, right, unsure, wrong, missed,
                          rounds);
            assert_true(wrong * 100 <= count);
            assert_true(missed * 100 <= count + 100); /* 1 % and one */
            assert_true(right * 10 >= count * 9);
        }
}

/* The border itself has no right answer but AMBIGUOUS; a verdict there is a coin toss at most. */
static void the_border_is_ambiguous(void **unused) {
    static struct arms arms;
    int decided = 0, count = trials();
    (void)unused;
    state = 7;
    for (int i = 0; i < count; i++) {
        make_times(&arms, NORMAL, 1 + same_share, 0);
        decided += ab_test(&arms, log1p(same_share), (uint64_t)i).verdict != SPEED_AMBIGUOUS;
    }
    print_message("ratio 1.03: %d of %d decided\n", decided, count);
    assert_true(decided * 50 <= count);
}

/* One look at 99 %, for few and many values and a lopsided distribution. */
static void intervals_hold_the_median(void **unused) {
    static const size_t sizes[] = {8, 9, 16, 31, 64, 200};
    double values[200];
    (void)unused;
    state = 11;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int count = 5 * trials(), missed = 0;
        for (int i = 0; i < count; i++) {
            for (size_t k = 0; k < sizes[s]; k++) values[k] = exp(normal()); /* median 1 */
            struct interval interval = interval_median(values, sizes[s], miss_share, (uint64_t)i);
            assert_true(interval.low <= interval.middle && interval.middle <= interval.high);
            missed += interval.low > 1 || interval.high < 1;
        }
        print_message("%zu values: %d of %d intervals missed\n", sizes[s], missed, count);
        /* 1 % and three standard deviations of that */
        assert_true(missed <= 0.01 * count + 3 * sqrt(0.01 * count));
    }
}

/* Not wider than it must be either: a normal median's interval is 2 * 2.576 * 1.2533 / sqrt(n). */
static void intervals_are_not_too_wide(void **unused) {
    double values[256], width = 0;
    int count = trials();
    (void)unused;
    state = 13;
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < 256; k++) values[k] = normal();
        struct interval interval = interval_median(values, 256, miss_share, (uint64_t)i);
        width += (interval.high - interval.low) / count;
    }
    double expected = 2 * 2.576 * 1.2533 / 16;
    print_message("width %.3f, of a normal distribution %.3f\n", width, expected);
    assert_true(width > 0.9 * expected && width < 1.25 * expected);
}

static void too_few_values_give_no_interval(void **unused) {
    double values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)unused;
    struct interval seven = interval_median(values, 7, miss_share, 1);
    assert_true(isinf(seven.low) && isinf(seven.high) && seven.middle == 4);
    assert_int_equal(speed_of(seven), SPEED_AMBIGUOUS);
    struct interval eight = interval_median(values, 8, miss_share, 1);
    assert_true(eight.low == 1 && eight.high == 8 && eight.middle == 4.5);
    struct interval none = interval_median(values, 0, miss_share, 1);
    assert_true(isnan(none.middle) && isinf(none.low));
    assert_int_equal(speed_of(none), SPEED_AMBIGUOUS);
    assert_true(interval_median(values, 3, 0, 0).middle == 2);
}

static void equal_seeds_give_equal_intervals(void **unused) {
    double values[64], turned[64];
    (void)unused;
    state = 17;
    for (int i = 0; i < 64; i++) turned[63 - i] = values[i] = normal();
    struct interval a = interval_median(values, 64, miss_share, 5);
    struct interval b = interval_median(turned, 64, miss_share, 5);
    assert_true(a.low == b.low && a.high == b.high && a.middle == b.middle);
}

static void the_rule_by_hand(void **unused) {
    static const struct {
        double low, high;
        enum speed right;
    } cases[] = {{-0.029, 0.029, SPEED_SAME},   {0, 0, SPEED_SAME},
                 {0.001, 0.02, SPEED_SAME},     {-0.031, 0.0, SPEED_AMBIGUOUS},
                 {0.0, 0.031, SPEED_AMBIGUOUS}, {0.031, 0.1, SPEED_SLOW},
                 {0.028, 0.1, SPEED_AMBIGUOUS}, {-0.1, -0.031, SPEED_FAST},
                 {-0.1, 0.1, SPEED_AMBIGUOUS},  {-INFINITY, INFINITY, SPEED_AMBIGUOUS},
                 {NAN, NAN, SPEED_AMBIGUOUS}};
    static const struct interval same = {-0.01, 0, 0.01}, wide = {-0.05, 0, 0.05},
                                 off = {0.05, 0.06, 0.07};
    (void)unused;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct interval ratio = {cases[i].low, 0, cases[i].high};
        assert_int_equal(speed_of(ratio), cases[i].right);
        assert_int_equal(speed_judge(ratio, same), cases[i].right);
        assert_int_equal(speed_judge(ratio, wide), SPEED_AMBIGUOUS);
        assert_int_equal(speed_judge(ratio, off), SPEED_AMBIGUOUS);
        assert_int_equal(speed_is_final(ratio, same), cases[i].right != SPEED_AMBIGUOUS);
        assert_false(speed_is_final(ratio, wide));
        assert_true(speed_is_final(ratio, off));
    }
}

static void pairs_cancel_drift_and_order(void **unused) {
    /* times 1 2 3 4: first, row, row, first; then 5 6 7 8 */
    double first[] = {1, 4, 5, 8}, row[] = {2, 3, 6, 7}, ratios[2];
    (void)unused;
    assert_int_equal(paired_ratios(first, row, 4, ratios), 2);
    assert_true(fabs(ratios[0] - 0.5 * log(2.0 * 3 / (1.0 * 4))) < 1e-15);
    assert_true(fabs(ratios[1] - 0.5 * log(6.0 * 7 / (5.0 * 8))) < 1e-15);
    assert_int_equal(paired_ratios(first, row, 3, ratios), 1); /* half a round is none */
    assert_int_equal(paired_ratios(first, row, 0, ratios), 0);
}

static void shifts_of_unpaired_sets(void **unused) {
    double a[64], b[64];
    int missed = 0, count = trials();
    (void)unused;
    state = 19;
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < 64; k++) a[k] = normal(), b[k] = 0.5 + normal();
        struct interval shift = interval_shift(a, 64, b, 48, miss_share, (uint64_t)i);
        missed += shift.low > 0.5 || shift.high < 0.5;
    }
    assert_true(missed * 100 <= count);
    assert_true(isinf(interval_shift(a, 64, b, 5, miss_share, 1).low));
}

static void trust_in_words(void **unused) {
    char text[128];
    struct trust none = {0};
    (void)unused;
    assert_true(trust_line(&(struct trust){1, {-0.002, 0, 0.003}}, text, sizeof text));
    assert_string_equal(text, "host: trusted, A/A SAME (0.998..1.003)");
    assert_false(trust_line(&(struct trust){1, {-0.1, 0, 0.2}}, text, sizeof text));
    assert_string_equal(text, "host: untrusted: A/A AMBIGUOUS (0.905..1.221)");
    assert_false(trust_line(&none, text, sizeof text));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verdicts_are_right_and_found),
        cmocka_unit_test(the_border_is_ambiguous),
        cmocka_unit_test(intervals_hold_the_median),
        cmocka_unit_test(intervals_are_not_too_wide),
        cmocka_unit_test(too_few_values_give_no_interval),
        cmocka_unit_test(equal_seeds_give_equal_intervals),
        cmocka_unit_test(the_rule_by_hand),
        cmocka_unit_test(pairs_cancel_drift_and_order),
        cmocka_unit_test(shifts_of_unpaired_sets),
        cmocka_unit_test(trust_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
