/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error rule. A result holds when, over the sampled rows,
 *
 *     max error  <= 2 * max error of TP_NAIVE + floor
 *     mean error <= 2 * mean error of TP_NAIVE + floor / 2
 *     error of every row <= the bound tp_reference derives for it
 *
 * (to each floor a step of subnormal floats for every term of a sum is added)
 * with floor = 4 ulp(f32) * max(1, |lse|/16) * max|V| + half an ulp of the output dtype * max|O|;
 * and the same for lse with floor = 4 ulp(f32) * max(1, |lse|). Scores beyond 16 are coarser than
 * the floor, which is why |lse| stands there. The largest error of naive is a matter of luck when
 * there are fewer than 32 rows: the first two lines, and that of lse, then allow twice as much. A row that sees
 * nothing must have lse -inf and o 0 exactly; a row that is NaN by the contract must be NaN. A row whose values are
 * finite must have a finite bound: an infinite one would let anything pass. Foreign arithmetic has no derived bound, and
 * nobody promised what its empty rows hold: for it the first two lines count, on rows that see a key.
 */
#ifndef TILEPROOF_HARNESS_ORACLE_H
#define TILEPROOF_HARNESS_ORACLE_H

#include "harness/tensors.h"

enum { ORACLE_ARITHMETICS = TP_ARITHMETIC_P_BF16 + 1 };

struct oracle {
    int64_t count, dim;
    tp_row *rows;
    double *memory; /* all of the arrays below */
    double *o, *lse;
    double *bound[ORACLE_ARITHMETICS],
        *lse_bound[ORACLE_ARITHMETICS]; /* by tp_arithmetic; NULL: the problem does not permit it */
    double *naive_o, *naive_lse;
    double max_v;
    int foreign;      /* another library's arithmetic. Set after oracle_create */
    double allowance; /* factor on the lines that compare with TP_NAIVE; 0: 1. Set after oracle_create */
    int bounds_alone; /* 1: those lines are not asked. Set after, too */
    int strict;       /* 1: what is infinite by the definition may not be NaN. Set after, too */
};

struct measured_error {
    double max, mean, naive_max, naive_mean, floor;
    struct {
        tp_row row;
        double error, bound, ratio; /* error / bound; bound 0: no row has both an error and a bound */
    } nearest;                      /* the row whose error is nearest to its bound, or furthest beyond */
    double lse_max, lse_naive_max;
};

/* Samples at most limit rows, or all when there are fewer; edges and borders come first. */
tp_status oracle_create(struct oracle *oracle, const struct tensors *tensors, int64_t limit,
                       uint64_t seed, tp_error *error);
/* The same on so many threads. */
tp_status oracle_create_on(struct oracle *oracle, const struct tensors *tensors, int64_t limit,
                          uint64_t seed, int threads, tp_error *error);
void oracle_destroy(struct oracle *oracle);
/* Of outputs that a kernel of this arithmetic (tp_receipt.arithmetic) wrote: 0 when the rule holds; otherwise nonzero and what
   was expected and got. */
int oracle_compare(const struct oracle *oracle, const struct tensors *tensors, int32_t arithmetic,
                   struct measured_error *measured, char *reason, size_t size);

/* Half a unit in the last place of 1. */
double half_ulp(tp_dtype dtype);

/* sample.c: how many rows of a problem are worth their time: 12 to 48; quick: where keys are many, fewer. */
int64_t sample_limit(const tp_problem *problem, int quick);
/* Rows sorted by (seq, head, row), no two equal; returns how many. */
int64_t sample_rows(const struct tensors *tensors, int64_t limit, uint64_t seed, tp_row **rows);

#endif
