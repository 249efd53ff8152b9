/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a call, and the error rule for them: of each of d_q, d_k and d_v that of oracle.h, with
 *
 *     floor = 4 ulp(f32) * max(1, |lse|*3/8) * size + half an ulp of the gradient's dtype * its largest magnitude
 *
 * because a probability is computed anew from an lse that is stored as a float, times log2(e), and from a score
 * relative to it: each can be off by half an ulp of |lse|, which naive's distance from the maximum is not.
 * size is what one pair can bring: scale * |dO|.|v| * max|k| for d_q, the same with max|q| for d_k, and max|dO| for
 * d_v, where |dO|.|v| is the root mean square of both times the root of head_dim_v; with dropout both are divided by its
 * 1 - p, as a pair that is kept is. Rounding errors add like the steps of
 * a random walk, and 4 ulp are one of 16 pairs: where a sequence has more than 16 rows for each key, d_k and d_v are
 * allowed sqrt(rows / keys) / 4 times as much. Gradients of the bias, slopes and sinks are compared with naive only where
 * o is a float. Of slopes and sinks there is one value a head, and naive's error in it is a matter of luck: four times as
 * much is allowed. Every value also stays under its bound by tp_reference_backward.
 */
#ifndef TILEPROOF_HARNESS_GRADIENTS_H
#define TILEPROOF_HARNESS_GRADIENTS_H

#include "harness/tensors.h"

struct gradients {
    struct tensors held; /* laid out as the call: q, k and v hold d_q, d_k and d_v; o and lse d_o and d_lse */
    tp_gradients call;
    float *d_bias, *d_slopes, *d_sinks; /* NULL: the problem has none */
    int64_t bias_count, slope_count;
};

/* d_o and d_lse are random, everything else is poison. 0, or nonzero when memory ran out. Points the call at it. */
int gradients_create(struct gradients *gradients, struct tensors *tensors, const tp_lengths *lengths,
                     uint64_t seed);
void gradients_destroy(struct gradients *gradients);
/* The forward call, by whatever kernel serves: o and lse, which the backward one reads. */
tp_status gradients_forward(struct tensors *tensors, tp_context *context, tp_error *error);
void gradients_poison(struct gradients *gradients, int byte);

/* By the definition and as a plain backward rounds them. */
struct gradients_oracle {
    tp_reference_gradients *head; /* [sequence][KV head][2]: double, naive */
    int64_t count;
    double size[3];               /* of d_q, d_k, d_v: what one pair can bring */
    double pair;                  /* |dO|.|v| */
    int may_overflow;             /* 1: where a float may overflow, the bound is infinite and nothing is asked */
    double max_lse;               /* the largest |lse| that is finite, by the definition */
    double allowance;             /* factor on the lines that compare with TP_NAIVE; 0: 1. Set after it is created */
    int bounds_alone;             /* 1: those lines are not asked. Set after, too */
};
tp_status gradients_oracle_create(struct gradients_oracle *oracle, const struct tensors *tensors,
                                 const struct gradients *gradients, tp_error *error);
void gradients_oracle_destroy(struct gradients_oracle *oracle);
/* Rows and keys whose bound is infinite; all of them in *all. */
int64_t gradients_unbounded(const struct gradients_oracle *oracle, const struct tensors *tensors, int64_t *all);
/* Of the gradients that the call asked for: 0 when the rule holds; otherwise nonzero and what was expected and got. */
int gradients_compare(const struct gradients_oracle *oracle, const struct tensors *tensors,
                      const struct gradients *gradients, char *reason, size_t size);

#endif
