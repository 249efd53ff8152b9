/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cutting a call into tasks, most costly first, claimed by an ascending ticket. A task is a range of merged
 * rows of some KV heads of one sequence, or of all that share a segment (cascade.h), and all the keys they see or one chunk
 * of them. How a call is cut changes no bit of the result, so the cut may follow the number of threads.
 *
 * Where rows and heads are too few for the threads, a range is split into its chunks: a *split range*, whose tasks
 * hand over their chunks' states in order. They stand in order among the tickets, so a task waits only for
 * one that another thread has claimed already.
 */
#ifndef TP_STRATEGIES_SCHEDULE_H
#define TP_STRATEGIES_SCHEDULE_H

#include <stdatomic.h>

#include "problem/sequence.h"
#include "strategies/cascade.h"
#include "tileproof.h"

/* Packing a block costs about as much as 27 rows of work, so a range is not cut below this. */
#define TP__RANGE_ROWS_MIN 256
/* Most rows, over all its heads, of a decode task and of a split range. */
#define TP__SPLIT_KV_ROWS 256

typedef struct tp__task {
    int64_t seq;          /* whose keys they are */
    const tp__segment *segment; /* NULL: rows of that sequence; otherwise of all its sequences */
    int64_t head, heads;  /* KV heads */
    int64_t first, count; /* merged rows of each head */
    int64_t chunk;        /* of a split range: its only chunk, by number; otherwise -1: all of them */
    int32_t split;        /* -1: none */
    int32_t decode;       /* by the decode loop, otherwise by the prefill loop */
    int64_t order;        /* among tasks of equal cost */
    size_t after;         /* how many tasks must be done before it: those of the levels before its own */
    double cost;          /* about the pairs it sees */
} tp__task;

typedef struct tp__schedule {
    atomic_size_t ticket, done;
    size_t count;
    tp__task *task;
    int splits; /* in use */
} tp__schedule;

/* Which loop serves a sequence. */
typedef enum tp__path { TP__BY_ROWS = 0, TP__PREFILL = 1, TP__DECODE = 2 } tp__path;

/* The path that was asked for: by the choice, or because the problem is invariant. */
tp__path tp__path_of(const tp_problem *problem, tp__path chosen);

/* Whether a sequence of this many rows goes by the decode loop. */
int tp__decodes(const tp_problem *problem, tp__path path, int64_t q_len);
/* Whether so many merged rows of sequences that share a segment do. */
int tp__decodes_shared(tp__path path, int64_t rows);
/* Whether any part of a call within the problem's bounds may go by the prefill loop. */
int tp__prefills(const tp_problem *problem, tp__path path);

/* The bucket of a sequence of this many rows, as tp_problem_class says it: by the problem, whatever a choice
   asks for. */
const char *tp__bucket(const tp_problem *problem, int64_t q_len);

/* What the cut depends on besides the tensors. */
typedef struct tp__cut {
    const tp_problem *problem;
    tp__path path;
    int threads;
    int64_t range_rows; /* most rows of a prefill range */
    const tp__cascade *cascade; /* of a call: its segments are cut level by level, and then its sequences */
} tp__cut;

/* Keys of a chunk. */
int64_t tp__chunk_keys(int decode);

/* Whether the heads of a token lie apart and the tokens of a head together: [head][token][dim], HND in pages. */
static inline int tp__heads_lie_apart(const tp_tensor *tensor) { return tensor->stride[2] > tensor->stride[1]; }

/* The greatest number of tasks, and of splits, that a call within the problem's bounds can have. */
int64_t tp__schedule_bound(const tp__cut *cut);
int tp__split_kv_bound(const tp__cut *cut);

/* Fills in the tasks; the array has tp__schedule_bound places. */
void tp__schedule_build(tp__schedule *schedule, const tp__cut *cut, const tp_tensors *tensors);

/* The next task, or NULL when none is left. */
static inline const tp__task *tp__schedule_next(tp__schedule *schedule) {
    size_t ticket = atomic_fetch_add_explicit(&schedule->ticket, 1, memory_order_relaxed);
    return ticket < schedule->count ? &schedule->task[ticket] : NULL;
}

#endif
