/* SPDX-License-Identifier: Apache-2.0 */
/* One row of the definition, and what its error bound is computed from. */
#ifndef TP_REFERENCE_REFERENCE_H
#define TP_REFERENCE_REFERENCE_H

#include "base/philox.h"
#include "problem/sequence.h"

#define TP__SINK INT64_MAX /* the index of a key that is the sink: its value is 0 */

/* A key the row sees, or the sink, which comes last. */
typedef struct tp__key {
    int64_t index;    /* in its sequence */
    int64_t place;    /* where the kernel meets it: the same, or its slot in the row's sparse indices */
    double score;     /* of the softmax, natural units */
    double plain;     /* scale * q.k, before it changes */
    double weight;    /* exp(score - max) */
    double stays;     /* what dropout multiplies the weight by where it meets v: 1, 0 or 1/(1 - p) */
    double error;     /* bound.c: of the kernel's score, in units of log2 */
    double plain_error; /* the same before softcap, ALiBi and bias */
    int64_t rescales; /* bound.c: how often the kernel may multiply the weight by a power of two */
} tp__key;

/* The columns of the output while bound.c walks the keys as the kernel does: [head_dim_v] each. */
typedef struct tp__columns {
    double *block, *chunk, *total; /* sums so far of weight * v */
    double *walk;                  /* of the magnitudes of all sums that a rounding may hit */
    double *size;                  /* sum of weight * |v| */
    double *shift, *spread;        /* sums of weight * growth * |v| and of weight * growth * |v - o| */
    double *largest, *farthest;    /* |v|, |v - o| */
    double *bound;                 /* found out: of this column's output */
} tp__columns;

typedef struct tp__reference_row {
    const tp_problem *problem;
    const struct tp__rounding *rounding; /* bound.c: of the kernel's arithmetic */
    const tp_tensors *tensors;
    tp__sequence sequence;
    tp__mask_view view;
    int64_t kv_len, row, head, position;
    double row_scale; /* the factor by position, or 1 */
    double farthest;  /* twice the largest magnitude of a position, or more */
    int64_t q_at;           /* elements: the row's q */
    int64_t k_head, v_head; /* elements: its KV head within a token */
    int64_t kv_head;
    float scale;
    tp__dropout_row dropout;
    /* results */
    int64_t count;   /* visible keys, and the sink */
    double max, sum; /* of the scores, of the weights */
    double lse;      /* NaN: the row is NaN; -inf: no key contributes */
    /* memory */
    tp__key *keys; /* [kv_len + 1] */
    double *q;     /* [head_dim_qk] */
    double *o;     /* [head_dim_v] */
    double *key;   /* [head_dim_qk] or [head_dim_v]: tp__row_k or tp__row_v of the key at hand */
    tp__columns columns;
} tp__reference_row;

/* Checks of problem and tensors that a run would make too, but outputs may be missing: *inputs has none. */
tp_status tp__reference_inputs(const tp_problem *problem, const tp_tensors *tensors, tp_tensors *inputs,
                               tp_error *error);
/* The same for the gradients that a backward call is given. */
tp_status tp__reference_d_o(const tp_problem *problem, const tp_tensors *tensors, tp_error *error);
/* Is there anything to read where the sequence has keys? */
tp_status tp__reference_data(const tp_problem *problem, const tp_tensors *inputs, int64_t seq, const tp__sequence *sequence,
                             tp_error *error);

/* Bytes of a row's memory at these lengths, and its pointers once there is some. */
size_t tp__row_scratch(const tp_problem *problem, int64_t kv_len);
void tp__row_memory(tp__reference_row *row, int64_t kv_len, void *memory);
/* Which row: everything above the results. */
void tp__row_place(tp__reference_row *row, const tp_row *chosen);

/* A key's k, and its v, which is 0 for the sink: in the row's memory until the next of these calls. */
const double *tp__row_k(const tp__reference_row *row, int64_t key);
const double *tp__row_v(const tp__reference_row *row, const tp__key *key);
/* The size of the scale that all of a key's k, or v, have; 1 where groups have their own, or nothing is scaled. */
double tp__code_scale(const tp__reference_row *row, int of_v, int64_t key);
float tp__rounded(int32_t dtype, float value);
/* What a score loses or gains by ALiBi, and its bias: -inf hides the key. */
double tp__alibi_at(const tp__reference_row *row, int64_t key);
double tp__bias_value(const tp__reference_row *row, int64_t key);

/* The keys that the row sees, and the sink; q, if it sees any key. */
void tp__row_keys(tp__reference_row *row);

/* The definition in double: fills in keys, max, sum, lse and o. */
void tp__row_double(tp__reference_row *row);

/* The yardstick. Needs tp__row_keys or tp__row_double before; overwrites the keys' weights, and o and lse. */
void tp__row_naive(tp__reference_row *row);

/* The error bounds of docs/maths.md for the row that tp__row_double has left. */
void tp__row_bound(tp__reference_row *row, double *bound, double *lse_bound);

#endif
