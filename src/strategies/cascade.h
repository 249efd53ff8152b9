/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefixes that sequences of a call share: their keys are read once, for the merged rows of all sharers.
 *
 *     order      sequences beside each other that have keys in common: sharers of any prefix are neighbours
 *     segment    keys [from, to) that all sequences of a run of that order share; prefixes of prefixes are levels
 *     state      of each row, behind the keys of its last segment, from which the next level and at last its own
 *                sequence go on
 *
 * A level's segments are independent of each other. Their tasks come before those of the next level, which wait for them, and
 * the call's own sequences, with the keys that they do not share, come last.
 */
#ifndef TP_STRATEGIES_CASCADE_H
#define TP_STRATEGIES_CASCADE_H

#include "base/arena.h"
#include "problem/sequence.h"
#include "tileproof.h"

/* Levels of shared prefixes; what is shared deeper is read by each sequence. Part of the error bound. */
#define TP__CASCADE_LEVELS 3
/* Merged rows of a sequence that takes part, at most: more of them pay for their own packing. */
#define TP__CASCADE_ROWS 256
/* Merged rows of a segment that take the decode loop, at most. More than of a sequence: what they are compared with is decode. */
#define TP__CASCADE_FEW 48

typedef struct tp__state {
    float *m, *l, *o; /* [rows], [rows], [rows][ldo] */
} tp__state;

tp__state tp__state_take(tp__arena *arena, int64_t rows, int64_t ldo);

typedef struct tp__segment {
    int64_t first, count; /* places of the order */
    int64_t from, to;     /* keys */
    int level;
} tp__segment;

typedef struct tp__cascade {
    int levels; /* in use */
    int64_t segments, members;
    tp__segment *segment; /* a prefix before those that continue it */
    int64_t *order;       /* [members] sequences */
    int64_t *shared;      /* [members] keys in common with the sequence before it in the order */
    int64_t *row;         /* [members + 1] its first row among those of all, of one KV head */
    /* by sequence */
    int64_t *place, *cut; /* in the order, -1: nowhere; keys that segments have */
    int64_t *next, *limit; /* of the search: the sequence behind it; keys that all its rows see */
    tp__state whole, open; /* [kv_heads][rows]: of merged chunks; invariant: of a chunk that a cut leaves open */
} tp__cascade;

/* Merged rows that a segment may have at the problem's bounds. */
int64_t tp__cascade_rows(const tp_problem *problem);

/* Room for any call within the problem's bounds; nothing where it asks for no cascade. */
tp__cascade tp__cascade_take(tp__arena *arena, const tp_problem *problem, int64_t ldo);

/* What sequences of this call share, in whole blocks of `unit` keys. */
void tp__cascade_find(tp__cascade *cascade, const tp_problem *problem, const tp_tensors *tensors, int64_t unit);

static inline int64_t tp__segment_rows(const tp__cascade *cascade, const tp__segment *segment) {
    return cascade->row[segment->first + segment->count] - cascade->row[segment->first];
}

#endif
