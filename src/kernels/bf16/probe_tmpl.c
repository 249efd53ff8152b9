/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction's own peak: a limit beside which figures of bf16 are stated. */
#include "kernels/function.h"

/* As peak in kernels/probe_tmpl.c: two products and two sums for each lane of a vec_dot; returns the flops done. */
double TP_FUNCTION_NAME(peak_f32)(int64_t rounds, float *out) {
    vec_f acc[VEC_MR * VEC_NRV];
    vec_i a = (vec_i)vec_set1(out[0]), b = (vec_i)vec_set1(out[1]);
    VEC_UNROLL for (int i = 0; i < VEC_MR * VEC_NRV; i++) acc[i] = vec_set1((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        VEC_UNROLL for (int i = 0; i < VEC_MR * VEC_NRV; i++) acc[i] = vec_dot(a, b, acc[i]);
    }
    vec_f sum = {0};
    VEC_UNROLL for (int i = 0; i < VEC_MR * VEC_NRV; i++) sum += acc[i];
    out[0] = sum[0];
    return 4.0 * VEC_LANES * VEC_MR * VEC_NRV * (double)rounds;
}
