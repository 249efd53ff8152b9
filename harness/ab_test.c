/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/ab_test.h"

static const double slot_ns = 0.1e6;

static void look(struct ab_test *ab_test, int64_t seed) {
    const struct series *series = ab_test->series;
    const struct series *first = &series[AB_TEST_FIRST], *row = &series[AB_TEST_ROW];
    uint64_t from = (uint64_t)seed;
    ab_test->wall = slots_compare(&first->wall, &row->wall, look_miss, from);
    ab_test->cpu = slots_compare(&first->cpu, &row->cpu, look_miss, from);
    ab_test->control = slots_compare(&first->wall, &series[AB_TEST_CONTROL].wall, look_miss, from);
}

tp_status ab_test_run(struct ab_test *ab_test, double budget_ns, int64_t seed, tp_error *error) {
    double begin = now_ns();
    struct ticks before = ticks_now();
    int over = 0, final = 0;
    for (int at = 0; at < LOOK_COUNT && !over && !final; at++) {
        for (; ab_test->rounds < look_rounds[at] && !over; ab_test->rounds++) {
            for (int backward = 0; backward < 2; backward++) {
                tp_status status = slots_pass(ab_test->cases, ab_test->series, AB_TEST_ARMS, backward,
                                              slot_ns, error);
                if (status != TP_OK) return status;
            }
            over = now_ns() - begin > budget_ns;
        }
        look(ab_test, seed);
        final = speed_is_final(ab_test->wall, ab_test->control);
    }
    ab_test->steal = ticks_steal(before, ticks_now());
    return TP_OK;
}

void ab_test_free(struct ab_test *ab_test) {
    for (int i = 0; i < AB_TEST_ARMS; i++) series_free(&ab_test->series[i]);
}
