/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/schedule.h"

#include "base/arena.h"
#include "masks/mask.h"
#include "problem/sequence.h"

/* Ranges a thread should find, so that the last ones even out. */
#define RANGES_PER_THREAD 4

int64_t tp__schedule_bound(const tp_problem *problem, int64_t range_rows, int threads) {
    int64_t heads = tp__times(problem->batch, problem->kv_heads);
    int64_t rows = tp__times(heads, tp__times(problem->q_len, problem->q_heads / problem->kv_heads));
    int64_t ranges = rows / range_rows, spare = (int64_t)(RANGES_PER_THREAD + 1) * threads + 2;
    return heads > INT64_MAX / 4 || ranges > INT64_MAX / 4 ? INT64_MAX : heads + ranges + spare;
}

/* The visible pairs of a range, taking the mean of its first and last row for all. */
static double range_cost(const tp_problem *problem, const tp__sequence *seq, int64_t group,
                         int64_t first, int64_t count) {
    int64_t position = tp__mask_first_position(problem, seq->q_len, seq->kv_len);
    tp__interval a = tp__mask_interval(problem, position + first / group, seq->kv_len);
    tp__interval b =
        tp__mask_interval(problem, position + (first + count - 1) / group, seq->kv_len);
    return (double)count * 0.5 * (double)(a.hi - a.lo + b.hi - b.lo);
}

static void sift(tp__task *task, size_t root, size_t count) {
    for (;;) {
        size_t child = 2 * root + 1;
        if (child >= count) return;
        if (child + 1 < count && task[child + 1].cost < task[child].cost) child++;
        if (task[root].cost <= task[child].cost) return;
        tp__task swap = task[root];
        task[root] = task[child];
        task[child] = swap;
        root = child;
    }
}

/* Heap sort, most costly first: qsort may allocate, and a run must not. */
static void sort_by_cost(tp__task *task, size_t count) {
    for (size_t i = count / 2; i-- > 0;) sift(task, i, count);
    for (size_t end = count; end-- > 1;) {
        tp__task swap = task[0];
        task[0] = task[end];
        task[end] = swap;
        sift(task, 0, end);
    }
}

void tp__schedule_build(tp__schedule *schedule, const tp_problem *problem, const tp_tensors *tensors,
                        int64_t range_rows, int threads) {
    int64_t group = problem->q_heads / problem->kv_heads, total = 0, range = range_rows;
    for (int64_t s = 0; s < tensors->batch; s++)
        total += tp__sequence_at(problem, tensors, s).q_len * problem->q_heads;
    if (threads > 1) {
        int64_t fair = tp__max(total / (RANGES_PER_THREAD * (int64_t)threads), TP__RANGE_ROWS_MIN);
        range = tp__min(range, fair);
    }
    size_t n = 0;
    for (int64_t s = 0; s < tensors->batch; s++) {
        tp__sequence seq = tp__sequence_at(problem, tensors, s);
        int64_t rows = seq.q_len * group, ranges = (rows + range - 1) / range;
        /* even ranges: a short last one would pack all its keys for a few rows */
        int64_t even = ranges > 0 ? (rows + ranges - 1) / ranges : 0;
        for (int64_t first = 0; first < rows; first += even) {
            int64_t count = tp__min(even, rows - first);
            double cost = range_cost(problem, &seq, group, first, count);
            for (int64_t head = 0; head < problem->kv_heads; head++)
                schedule->task[n++] = (tp__task){s, head, first, count, cost};
        }
    }
    schedule->count = n;
    atomic_init(&schedule->ticket, 0);
    if (threads > 1) sort_by_cost(schedule->task, n);
}
