/* SPDX-License-Identifier: Apache-2.0 */
/* The two sides of a call, rows and keys, as its checks see them. */
#ifndef TP_PROBLEM_SIDE_H
#define TP_PROBLEM_SIDE_H

#include "problem/sequence.h"

/* What q, o and lse share, or k and v. */
typedef struct tp__side {
    const char *name; /* "q" or "kv" */
    int packed;
    int64_t bound, len, tokens, heads;
    const void *cu, *lens;
    int used; /* found out: does any sequence hold a token that is used? */
    int64_t pages, page_size; /* page_size 0: not paged */
} tp__side;

/* gradients_check.c: what a backward call needs besides, and what it may ask for. */
tp_status tp__gradients_check(const tp_problem *problem, const tp_tensors *tensors, tp_error *error);

/* regions.c: every tensor is there, and no output shares a byte with another or with an input. */
tp_status tp__regions_check(const tp_problem *problem, const tp_tensors *tensors, const tp__side *q,
                            const tp__side *kv, tp_error *error);

#endif
