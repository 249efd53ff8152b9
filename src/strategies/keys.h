/* SPDX-License-Identifier: Apache-2.0 */
/* Where the keys of a sequence lie, whatever the layout: one after another, in pages, or by sparse indices. */
#ifndef TP_STRATEGIES_KEYS_H
#define TP_STRATEGIES_KEYS_H

#include "kernels/kernel.h"
#include "problem/sequence.h"

typedef struct tp__keys {
    const tp_problem *problem;
    const tp_tensors *tensors;
    tp__sequence seq;
    int64_t index; /* of the sequence */
    int64_t token; /* whose sparse indices they are, where there are any */
    int64_t count; /* of keys: those of the sequence, or of the sparse indices */
    int64_t scales; /* set by whoever wants them: the functions below also say where the scales of keys lie, so many places behind
                       the keys themselves, where there are any; 0: not wanted */
} tp__keys;

/* The keys that this token of the sequence meets; without sparse indices, all tokens meet the same. */
tp__keys tp__keys_of(const tp_problem *problem, const tp_tensors *tensors, int64_t index, int64_t token);

/* Where this KV head lies in the rows of k, or of v, and in those of their scales. */
void tp__keys_head(const tp__keys *keys, int of_v, int64_t head, tp__keys_in *in);

/* Bytes from one head of a token to the next, in k or v. */
int64_t tp__head_step(const tp_problem *problem, const tp_tensors *tensors, int of_v);

/* Where head 0 of keys key..key+count-1 lies, in k and in v. Keys from `end` on may not be looked at: they
   get the place of the last one before. */
void tp__keys_rows(const tp__keys *keys, int64_t key, int64_t count, int64_t end, const char **k,
                   const char **v);

/* Keys first..end-1, which may not be looked at, get the place of one that may. */
void tp__keys_repeat(const tp__keys *keys, const char **k, const char **v, int64_t first, int64_t end, int64_t place);

/* Where keys first..last-1 of the block of keys from `key` on lie, of which those with a bit in `seen`, such
   as `first`, may be looked at. The others' pages may be of no pool: they get the place of the first. */
void tp__keys_seen(const tp__keys *keys, int64_t key, int64_t first, int64_t last, const uint64_t *seen,
                   const char **k, const char **v);

/* Where keys lie that are asked for ahead, seen or not: asking reads nothing. Those from `end` on, and those
   whose page is none of the pool's, get the place of the key before the first, which is resolved. */
void tp__keys_ahead(const tp__keys *keys, int64_t key, int64_t count, int64_t end, const char **k,
                    const char **v);

#endif
