/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strategy is the loop around the tiles: it cuts a call into tasks, lays out the workspace and calls
 * kernel functions. It allocates nothing and decides nothing: problem, kernels and threads come in.
 */
#ifndef TP_STRATEGIES_STRATEGY_H
#define TP_STRATEGIES_STRATEGY_H

#include "kernels/set.h"
#include "strategies/parallel.h"
#include "tileproof.h"

/* What prepare.h has made of the start of the workspace. */
typedef struct tp__prepared {
    uint64_t *seen;      /* [batch][heads][words] keys that any row sees; NULL: plain masks */
    uint64_t *called;    /* [batch][rows][words] the callback's answers; NULL: none */
    int64_t rows, words;
    int64_t heads;       /* KV heads, or 1 where all see the same */
} tp__prepared;

/* How the scale is applied: scale * q.k = gain * (q_factor*q).k. q_factor is a power of two with the scale's sign, or 0,
   so that multiplying q by it is exact; gain is in [1, 2). Scores that change are natural ones from then on. */
typedef struct tp__units {
    float q_factor, gain;
    float left; /* natural score = left * score in the softmax (gain; 1 where tp__modify has applied gain) */
    float unit; /* left * log2(e) */
} tp__units;

typedef struct tp__job {
    const tp_problem *problem;
    const tp_tensors *tensors;
    const tp__kernel_set *kernels;
    tp__parallel parallel;
    int path;        /* tp__path: which of its loops; math has one */
    int threads;     /* tasks that may run at once: slots of the workspace */
    char *workspace; /* at least workspace(problem, kernels, path, threads) bytes */
    tp__trace *trace; /* the sum over all tasks comes out here */
    tp__prepared prepared;
    tp__units units; /* of the problem */
} tp__job;

typedef struct tp__strategy {
    const char *name;
    int max_head_dim; /* 0: no limit */
    int fused;        /* never writes the score matrix */
    /* Bytes for any call within the problem's bounds; SIZE_MAX: cannot be addressed. */
    size_t (*workspace)(const tp_problem *problem, const tp__kernel_set *kernels, int path, int threads);
    void (*run)(const tp__job *job);
    /* Tasks that can be at work at once; NULL: by rows and chunks of keys. */
    int64_t (*max)(const tp_problem *problem, const tp_tensors *tensors);
} tp__strategy;

#define TP_STRATEGY(NAME) extern const tp__strategy tp__strategy_##NAME;
#include "strategies/strategies.inc"
#undef TP_STRATEGY

/* Where the element at this offset of a tensor lies. */
static inline char *tp__element(const tp_tensor *tensor, int64_t offset, int32_t dtype) {
    return (char *)tensor->data + offset * (int64_t)tp_dtype_bytes((tp_dtype)dtype);
}

/* Bytes of one row's q, o and lse, and of one key's k and v, for one head; backward: and of their gradients.
   tensors NULL: with lse. A latent cache's v is not counted again. */
int64_t tp__row_bytes(const tp_problem *problem, const tp_tensors *tensors);
int64_t tp__key_bytes(const tp_problem *problem);

tp__units tp__units_of(const tp_problem *problem);

/* lse of rows of a query head, or of its group from that head on: left*m + log(l), written to the tensor if wanted;
   otherwise its strides may be anything. */
void tp__store_lse(const tp_tensors *tensors, int64_t start, int64_t head, const tp__rows *rows, const float *m,
                   const float *l, float left);

/* Bytes that were read of a mask's bits or of a bias. */
void tp__trace_masks(tp__trace *trace, int64_t bytes);
void tp__trace_add(tp__trace *sum, const tp__trace *one);

#endif
