/* SPDX-License-Identifier: Apache-2.0 */
/* Between tensors of any dtype and the float32 rows of backward: delta, store_d. */
#include "kernels/leaf.h"
#include "kernels/softmax.h"

VEC_INLINE int not_zero(vec_f seen) {
    for (int i = 0; i < VEC_LANES; i++)
        if (!(seen[i] == 0.0f)) return 1;
    return 0;
}

/* Sums x*0 over rows, which stays 0 while every x is finite. */
VEC_INLINE vec_f times_zero(vec_f seen, const float *row, int64_t n) {
    for (int64_t x = 0; x < n; x += VEC_LANES) seen = vec_fma(vec_load(row + x), (vec_f){0}, seen);
    return seen;
}

#define BODY "kernels/gradient_body.inc"
#include "kernels/each_dtype.inc"
