/* SPDX-License-Identifier: Apache-2.0 */
/* One sequence of a call: its actual lengths and where its tokens start. */
#ifndef TP_PROBLEM_SEQUENCE_H
#define TP_PROBLEM_SEQUENCE_H

#include "masks/mask.h"
#include "tileproof.h"

typedef struct tp__sequence {
    int64_t q_len, kv_len;
    const tp_tensors *tensors;
    int64_t index;
    int64_t q_token, kv_token; /* where arrays by row and by key hold the sequence */
    /* element offset of token 0, head 0, of each tensor */
    int64_t q, k, v, o, lse;
} tp__sequence;

/* Valid only for tensors that passed tp__tensors_check. */
tp__sequence tp__sequence_at(const tp_problem *problem, const tp_tensors *tensors, int64_t index);

/* The sequence as masks see it. */
tp__mask_view tp__sequence_view(const tp_problem *problem, const tp__sequence *sequence);

/* Everything a run checks of its tensors, in time proportional to the batch. */
tp_status tp__tensors_check(const tp_problem *problem, const tp_tensors *tensors, tp_error *error);

/* What masks and scores read of the tensors: mask_data.c, part of the above. */
tp_status tp__mask_data_check(const tp_problem *problem, const tp_tensors *tensors, tp_error *error);

/* The array at this place among those that masks and scores read: its bytes; name NULL: no more. One that
   the problem does not ask for has no data. */
typedef struct tp__mask_array {
    const char *name;
    const void *data;
    int64_t bytes;
} tp__mask_array;
tp__mask_array tp__mask_array_at(const tp_problem *problem, const tp_tensors *tensors, int index);

/* The factor of a row's scores: 1 + beta*log(1 + floor(max(q_pos + offset, 0) / length)). */
double tp__row_scale(const tp_problem *problem, int64_t q_pos);
/* Does anything but mask and scale change scores? A sink does not: it is one more. */
int tp__modifies_scores(const tp_problem *problem);

/* scale * log2(e): scores are kept in units of log2 so that exp is exp2. */
float tp__scale_log2(const tp_problem *problem);
/* The scale itself: the one given or 1/sqrt(head_dim_qk). */
float tp__scale(const tp_problem *problem);

/* The phase word of lengths: "prefill" or "decode". Up to 16 rows against more keys than rows, or
   one row, is decode. */
const char *tp__phase(int64_t q_len, int64_t kv_len);

#endif
