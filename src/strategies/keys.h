/* SPDX-License-Identifier: Apache-2.0 */
/* Where the keys of a sequence lie, whatever the layout: one after another, in pages, or by a list. */
#ifndef TP_STRATEGIES_KEYS_H
#define TP_STRATEGIES_KEYS_H

#include "problem/sequence.h"

typedef struct tp__keys {
    const tp_problem *problem;
    const tp_tensors *tensors;
    tp__sequence seq;
    int64_t index; /* of the sequence */
    int64_t token; /* whose list it is, when there are lists */
    int64_t count; /* of keys: those of the sequence, or those listed */
} tp__keys;

/* The keys that this token of the sequence meets; without lists, all tokens meet the same. */
tp__keys tp__keys_of(const tp_problem *problem, const tp_tensors *tensors, int64_t index, int64_t token);

/* Where head 0 of keys key..key+count-1 lies, in k and in v. Keys from `end` on may not be looked at: they
   get the place of the last one before. */
void tp__keys_rows(const tp__keys *keys, int64_t key, int64_t count, int64_t end, const char **k,
                   const char **v);

/* Where keys first..last-1 of the block of keys from `key` on lie, of which those with a bit in `seen`, such
   as `first`, may be looked at. The others' pages may be of no pool: they get the place of the first. */
void tp__keys_seen(const tp__keys *keys, int64_t key, int64_t first, int64_t last, const uint64_t *seen,
                   const char **k, const char **v);

/* Where keys lie that are asked for ahead, seen or not: asking reads nothing. Those from `end` on, and those
   whose page is none of the pool's, get the place of the key before the first, which is resolved. */
void tp__keys_ahead(const tp__keys *keys, int64_t key, int64_t count, int64_t end, const char **k,
                    const char **v);

#endif
