/* SPDX-License-Identifier: Apache-2.0 */
/* One row on its way back, and what the error bounds of gradients are computed from. */
#ifndef TP_REFERENCE_BACKWARD_H
#define TP_REFERENCE_BACKWARD_H

#include "reference/reference.h"

/* What one pair of a row and a key, or the sink, hands on. */
typedef struct tp__pair {
    double p;       /* the probability as it meets v: dropped and scaled */
    double d_score; /* of the softmax's input, natural units */
    double d_plain; /* of scale * q.k */
    double p_error, score_error, d_error; /* backward_bound.c: of p, d_score and d_plain, absolute */
    int overflows; /* a float of the forward row may, or one of P decides between NaN and infinity: nothing is promised */
} tp__pair;

typedef struct tp__backward_row {
    tp__reference_row row;
    double *d_o; /* [head_dim_v] */
    double d_lse;
    tp__pair *pairs; /* [kv_len + 1], as row.keys */
} tp__backward_row;

/* The definition, after tp__row_double, and the yardstick, after tp__row_naive. The row has a finite or NaN lse. */
void tp__pairs_double(tp__backward_row *b);
void tp__pairs_naive(tp__backward_row *b);
/* The errors of the pairs that tp__pairs_double has left. */
void tp__pairs_bound(tp__backward_row *b);

/* A sum over pairs while it grows: its value, what the errors of its terms add up to, and its magnitudes. */
typedef struct tp__sum {
    double value, error, size;
    int overflows; /* a term's pair does */
} tp__sum;
/* How far a kernel's result factor * sum of so many terms may be off, in its dtype. */
double tp__sum_bound(const tp__sum *sum, int64_t terms, double factor, int32_t dtype);

#endif
