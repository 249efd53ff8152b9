/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What masks and scores read of the tensors, made from a seed: positions with gaps and repeats, documents,
 * spans, prefixes, trees of drafts, bits, a bias, slopes, sinks, a callback, dropout's own seed. A value depends
 * on the seed, the sequence and the place in it, never on the layout. Some sequences have keys that are out of
 * order. Where `scattered` is asked for, a row stands at some key or none, whatever its index, documents are short,
 * parents distant, and bits come in a few runs.
 */
#ifndef TILEPROOF_HARNESS_MASK_DATA_H
#define TILEPROOF_HARNESS_MASK_DATA_H

#include "harness/guarded.h"
#include "tileproof.h"

enum { MASK_ARRAYS = 16 };

struct mask_data {
    void *array[MASK_ARRAYS];
    int count;
    /* asked for before it is created */
    enum guarded_side guarded;
    int empty_ends; /* bits and bias hide everything from the first and the last row of a sequence */
    int extreme;    /* biases, slopes and sinks of every size a float has */
    int scattered;  /* what neighbouring rows see is far apart */
    int shared_bias; /* 1: rows have the same bias, by a stride of 0; 2: sequences; 3: both */
    int shared_slopes; /* sequences have the same slopes, by a stride of 0 */
    int64_t bias_count; /* out: elements of the bias */
};

struct mask_lengths {
    const int64_t *q_lens, *kv_lens;   /* used */
    const int64_t *q_start, *kv_start; /* first token by sequence, read where packed */
};

/* Bytes that it takes, as a double so that it cannot overflow. */
double mask_data_bytes(const tp_problem *problem);
/* Sets the call's pointers to what the problem asks for. A view of a part of the call moves the callback by a
   callback_user of {first sequence, first row}. 0, or nonzero when memory ran out. */
int mask_data_create(struct mask_data *data, const tp_problem *problem, tp_tensors *call,
                     const struct mask_lengths *lengths, uint64_t seed);
void mask_data_destroy(struct mask_data *data);

#endif
