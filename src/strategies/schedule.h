/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cutting a call into tasks, most costly first, claimed by an ascending ticket. A task is a range of
 * merged rows of one KV head of one sequence. How rows are cut changes no bit of the result, so the
 * cut may follow the number of threads.
 */
#ifndef TP_STRATEGIES_SCHEDULE_H
#define TP_STRATEGIES_SCHEDULE_H

#include <stdatomic.h>

#include "tileproof.h"

/* Packing a block costs about as much as 27 rows of work, so a range is not cut below this. */
#define TP__RANGE_ROWS_MIN 256

typedef struct tp__task {
    int64_t seq, head;    /* sequence, KV head */
    int64_t first, count; /* merged rows */
    double cost;          /* about the pairs it sees */
} tp__task;

typedef struct tp__schedule {
    atomic_size_t ticket;
    size_t count;
    tp__task *task;
} tp__schedule;

/* Most tasks a call within the problem's bounds can have when ranges hold at most range_rows rows. */
int64_t tp__schedule_bound(const tp_problem *problem, int64_t range_rows, int threads);

/* Fills in the tasks, which has room for tp__schedule_bound of them. */
void tp__schedule_build(tp__schedule *schedule, const tp_problem *problem, const tp_tensors *tensors,
                        int64_t range_rows, int threads);

/* The next task, or NULL when none is left. */
static inline const tp__task *tp__schedule_next(tp__schedule *schedule) {
    size_t ticket = atomic_fetch_add_explicit(&schedule->ticket, 1, memory_order_relaxed);
    return ticket < schedule->count ? &schedule->task[ticket] : NULL;
}

#endif
