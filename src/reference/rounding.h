/* SPDX-License-Identifier: Apache-2.0 */
/* What one operation of a kernel can lose: the letters of docs/maths.md. */
#ifndef TP_REFERENCE_ROUNDING_H
#define TP_REFERENCE_ROUNDING_H

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "base/constants.h"
#include "tileproof.h"

#define UNIT         0x1p-24
#define TINY         0x1p-149 /* twice what a result below 2^-126 can lose */
#define EXP2_ERROR   2.0001e-7
#define TANH_ERROR   2.5e-7 /* relative, of softcap's tanh */
#define OVERFLOWS    0x1.ffffffp127 /* a result of this size rounds to infinity */
#define SECOND_ORDER 1.0001 /* products of errors that are not carried, and the double's own */
#define LN_2         0.69314718055994530942

/* What an arithmetic does to the operands of its two products, and to their sums: relative errors. Everything else, the
   softmax and what lies between chunks, is float32 in every arithmetic. */
typedef struct tp__rounding {
    double sum;    /* of one step of a sum q.k or p.v */
    double query;  /* of an element of q as it meets a key; 0: it is as the tensor has it */
    double key;    /* of an element of k as it meets q */
    double weight; /* of a weight as it meets its value; the row sum takes it before. Back: of p and of ds in their sums */
    double value;  /* of an element of v as it meets a weight */
    double lowest; /* in log2, how far below the maximum a weight is at least kept: further below it may become 0, and two
                      further it is 0 */
    double kept;   /* the first of these where the problem permits p=bf16, for which kernels keep fewer in all their loops; 0:
                      lowest */
    double tiny;   /* back: twice what a step of a sum can lose because its result is small */
    double flushes; /* back: elements below it may count as 0 */
    double log;    /* of the log of the row sum, where lse is computed in float; 0: in double, and rounded once */
    int64_t block, split; /* keys between two updates of the running maximum, and keys of a split, where one kernel merges
                      splits and another has none; 0: as the CPU's loops cut them */
    int64_t step; /* products that a kernel may sum in two chains of its own, by turns, before they join the sum; 0: none does */
} tp__rounding;

/* NULL: no such arithmetic. */
const tp__rounding *tp__rounding_of(int32_t arithmetic);

/* Of a product whose operands have these errors. */
static inline double tp__product_error(double a, double b) { return a + b + a * b; }

/* Half the distance between neighbours of an output's dtype at this magnitude. f32 has no rounding beyond that of
   the last operation. */
static inline double tp__store_error(int32_t dtype, double magnitude) {
    int exponent;
    frexp(magnitude, &exponent); /* magnitude < 2^exponent */
    if (dtype == TP_F16)
        return magnitude < 65520 ? fmax(ldexp(1, exponent - 12), 0x1p-25) : INFINITY;
    if (dtype == TP_BF16)
        return magnitude < 0x1.ffp127 ? fmax(ldexp(1, exponent - 9), 0x1p-134) : INFINITY;
    return magnitude < FLT_MAX ? 0 : INFINITY;
}

#endif
