/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks speak of positions, not of indices. A kind gives two things:
 *
 *     allowed(node, q_pos, k_pos)   the scalar truth, used by the reference and by tests
 *     interval(node, q_pos, ...)    the same as the positions [lo, hi) one row sees
 *
 * and everything else follows from the intervals: the schedule cuts by them, a strip of rows finds its
 * tiles' classes (skip, full, partial) from them, counts sum them. So a new kind is one small file and
 * cannot disagree with itself.
 */
#ifndef TP_MASKS_MASK_H
#define TP_MASKS_MASK_H

#include "tileproof.h"

typedef struct tp__interval {
    int64_t lo, hi; /* [lo, hi); lo >= hi: empty */
} tp__interval;

typedef struct tp__mask_kind {
    int32_t kind; /* tp_mask_kind */
    const char *name;
    tp_status (*check)(const tp_mask_node *node, tp_error *error);
    int (*allowed)(const tp_mask_node *node, int64_t q_pos, int64_t k_pos);
    tp__interval (*interval)(const tp_mask_node *node, int64_t q_pos);
} tp__mask_kind;

#define TP_MASK(NAME, KIND) extern const tp__mask_kind tp__mask_##NAME;
#include "masks/masks.inc"
#undef TP_MASK

/* NULL when the number names no kind. */
const tp__mask_kind *tp__mask_kind_of(int32_t kind);

/* Every rule a tree must keep. */
tp_status tp__mask_check(const tp_problem *problem, tp_error *error);

/* q_pos of row 0 under the problem's alignment. */
int64_t tp__mask_first_position(const tp_problem *problem, int64_t q_len, int64_t kv_len);

/* The scalar truth of the whole tree. */
int tp__mask_allowed(const tp_problem *problem, int64_t q_pos, int64_t k_pos);

/* The keys [lo, hi) that the row at q_pos sees, within 0..kv_len. */
tp__interval tp__mask_interval(const tp_problem *problem, int64_t q_pos, int64_t kv_len);

/* From the first key that any row of the sequence sees to the last. */
tp__interval tp__mask_hull(const tp_problem *problem, int64_t q_len, int64_t kv_len);

/* Visible pairs of one head of one sequence. */
int64_t tp__mask_pairs(const tp_problem *problem, int64_t q_len, int64_t kv_len);

#endif
