/* SPDX-License-Identifier: Apache-2.0 */
/* Between tensors of any dtype and the float32 rows of backward: delta, store_d. */
#include "kernels/function.h"
#include "kernels/rows.h"
#include "kernels/softmax.h"

/* Sums x*0 over rows, which stays 0 while every x is finite. */
VEC_INLINE vec_f times_zero(vec_f seen, const float *row, int64_t n) {
    for (int64_t x = 0; x < n; x += VEC_LANES) seen = vec_fma(vec_load(row + x), (vec_f){0}, seen);
    return seen;
}

#define BODY "kernels/gradient_body.inc"
#include "kernels/each_dtype.inc"
