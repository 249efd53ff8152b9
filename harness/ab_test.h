/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two cases against each other, with an A/A control: rounds of slots first, row, control, control, row, first.
 * After 32, 128, 512 and 2,048 rounds it looks and stops when the verdict is sure. Each look has a quarter of the
 * misses, so that looking often makes no verdict less sure. The control is the first case once more.
 */
#ifndef TILEPROOF_HARNESS_AB_TEST_H
#define TILEPROOF_HARNESS_AB_TEST_H

#include "harness/slots.h"

enum { AB_TEST_FIRST, AB_TEST_ROW, AB_TEST_CONTROL, AB_TEST_ARMS };

struct ab_test {
    struct timed_case cases[AB_TEST_ARMS];
    struct series series[AB_TEST_ARMS];
    struct interval wall, cpu, control;
    size_t rounds;
    double steal;
};

/* Until the verdict is sure or the time is over. The cases are open. */
tp_status ab_test_run(struct ab_test *ab_test, double budget_ns, int64_t seed, tp_error *error);
/* The series, not the cases. */
void ab_test_free(struct ab_test *ab_test);

#endif
