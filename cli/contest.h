/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two cases against each other, with an A/A control: rounds of slots first, row, control, control, row, first.
 * After 32, 128, 512 and 2,048 rounds it looks and stops when the verdict is sure. Each look has a quarter of the
 * misses, so that looking often makes no verdict less sure. The control is the first case once more.
 */
#ifndef TILEPROOF_CLI_CONTEST_H
#define TILEPROOF_CLI_CONTEST_H

#include "bench.h"

enum { CONTEST_FIRST, CONTEST_ROW, CONTEST_CONTROL, CONTEST_ARMS };

struct contest {
    struct bench_case cases[CONTEST_ARMS];
    struct series series[CONTEST_ARMS];
    struct interval wall, cpu, control;
    size_t rounds;
    double steal;
};

/* Until the verdict is sure or the time is over. The cases are open. */
tp_status contest_run(struct contest *contest, double budget_ns, int64_t seed, tp_error *error);
/* The series, not the cases. */
void contest_free(struct contest *contest);

#endif
