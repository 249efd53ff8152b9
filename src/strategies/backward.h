/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the backward strategy share.
 *
 *     kv_head_task    the rows of one KV head of one sequence, and its keys
 *     tile            TP__BACK_ROWS merged rows of a kv_head_task
 *     task            one block of keys of a kv_head_task: it owns the block's dk and dv
 *     slot            the rows of a kv_head_task in float32: q, d_o, dq
 *
 * Tasks are claimed by an ascending ticket: each kv_head_task in order, blocks in order within it.
 */
#ifndef TP_STRATEGIES_BACKWARD_H
#define TP_STRATEGIES_BACKWARD_H

#include <stdatomic.h>

#include "strategies/keys.h"
#include "strategies/visibility.h"
#include "strategies/strategy.h"

/* The rows of a kv_head_task. There are as many slots as can be in use: a kv_head_task takes one over when the one that had it
   is done. */
typedef struct tp__slot {
    atomic_llong kv_head_task;      /* whose rows these are; -1: nobody's yet */
    atomic_llong left;      /* of its tasks: those that are not done */
    void *q, *d_o;          /* [rows][ldq], [rows][ldo], as load_q leaves them */
    float *dq;              /* [rows][ldq] */
    float *lse, *delta;     /* [rows] */
    atomic_llong *next_block;     /* [tiles] the block that may add to the tile's dq next */
    unsigned char *not_finite; /* [tiles] q or d_o hold something that is not */
} tp__slot;

/* One thread's part of the workspace. */
typedef struct tp__backward_scratch {
    tp__trace *trace;
    void *k, *k_rows, *v;   /* a packed block of keys: k for scores and for dq, v for dp */
    int k_found, v_found;   /* what packing them found */
    float *dk, *dv;         /* [block][ldq], [block][ldo] */
    float *p, *ds;          /* [tile rows][lds] */
    float *slope;           /* [tile rows] */
    float **d_bias;         /* [tile rows] */
    tp__visibility visibility;
    const char **k_row, **v_row;
} tp__backward_scratch;

typedef struct tp__backward {
    const tp__job *job;
    const tp_gradients *gradients;
    atomic_llong ticket, look_ticket;
    int64_t *first_task;    /* [batch + 1] of each sequence */
    tp__interval *hull;     /* [batch][tiles] keys that a tile's rows see, from first to last */
    int64_t tiles;          /* of a sequence, at most */
    int64_t rows;           /* of a kv_head_task, at most */
    int64_t ldq, ldo, lds;
    int block, slots;
    tp__slot *slot;
    tp__backward_scratch *scratch;
    /* gradients that are summed over tasks or rows */
    double *slopes;         /* [tasks][group] sums of each task */
    float *deltas;          /* [batch * q_len][query heads] */
    atomic_uchar *done;     /* [tasks] for adding to d_bias in order */
    int bias_order;         /* tp__bias_order */
} tp__backward;

/* In which order tasks must add to d_bias, for sums that do not depend on threads. */
typedef enum tp__bias_order {
    TP__BIAS_DISJOINT,  /* no two add to the same element */
    TP__BIAS_HEADS,  /* heads share elements, blocks and tiles do not: after the same block of the head before */
    TP__BIAS_TASKS   /* anything: after all tasks before */
} tp__bias_order;

/* A task at work. */
typedef struct tp__back_task {
    int64_t ticket, kv_head_task, seq, head, block, blocks;
    tp__keys keys;
    int64_t rows, tiles;
} tp__back_task;

/* backward_sums.c: gradients that more than one task adds to. */
tp__bias_order tp__bias_order_of(const tp_problem *problem, const tp_tensors *tensors);
void tp__back_clear_bias(const tp__backward *b);
/* Waits until this task may add to d_bias. */
void tp__back_await_bias(const tp__backward *b, const tp__back_task *task);
/* After all tasks, on one thread: slopes and sinks. */
void tp__back_sums(const tp__backward *b);

/* backward_layout.c: sizes, and pointers when the arena has a base. */
void tp__back_lay_out(tp__backward *b, const tp_problem *problem, const tp__kernel_set *kernels, int threads,
                      tp__arena *arena);
/* Blocks of a sequence: one at least, so that its rows have a task. */
int64_t tp__back_blocks(const tp__backward *b, int64_t kv_len);

/* backward_rows.c: loads a tile's q and d_o, computes delta, clears dq; and stores dq. */
void tp__back_open_tile(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile,
                        tp__trace *trace);
/* Of the tile's rows that see any key of the block: their deltas, which the sinks ask for in the end. */
void tp__back_keep_deltas(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile,
                          const tp__row_tile *seen);
void tp__back_close_tile(const tp__backward *b, const tp__back_task *task, const tp__slot *slot, int64_t tile,
                         tp__trace *trace);

#endif
