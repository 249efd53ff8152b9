/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel functions that look at the machine and at the vector layer itself: multiply-adds from registers and plain
   reads, against which benchmarks state their figures, and exp2 and tanh, which tests hold to their errors. */
#include "kernels/function.h"

/* Independent chains enough to fill two pipes of latency 4 or 5; returns the flops done. */
double TP_FUNCTION_NAME(peak_f32)(int64_t rounds, float *out) {
    vec_f acc[VEC_MR * VEC_NRV], a = vec_set1(out[0]), b = vec_set1(out[1]);
    VEC_UNROLL for (int i = 0; i < VEC_MR * VEC_NRV; i++) acc[i] = vec_set1((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        VEC_UNROLL for (int i = 0; i < VEC_MR * VEC_NRV; i++) acc[i] = vec_fma(acc[i], a, b);
    }
    vec_f sum = {0};
    VEC_UNROLL for (int i = 0; i < VEC_MR * VEC_NRV; i++) sum += acc[i];
    out[0] = sum[0];
    return 2.0 * VEC_LANES * VEC_MR * VEC_NRV * (double)rounds;
}

/* Reads `floats` floats from `streams` places at once, each a part of the whole. */
void TP_FUNCTION_NAME(read_f32)(const float *from, int64_t floats, int streams, float *out) {
    int64_t part = floats / streams / (8 * VEC_LANES) * (8 * VEC_LANES);
    vec_f sum[8] = {{0}};
    for (int64_t x = 0; x < part; x += 8 * VEC_LANES)
        for (int s = 0; s < streams; s++)
            VEC_UNROLL for (int i = 0; i < 8; i++)
                sum[i] += vec_load(from + s * part + x + i * VEC_LANES);
    VEC_UNROLL for (int i = 1; i < 8; i++) sum[0] += sum[i];
    out[0] = sum[0][0];
}

/* y[i] = 2^x[i], n a multiple of VEC_LANES, by the exp2 of the softmax. */
void TP_FUNCTION_NAME(exp2_f32)(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i += VEC_LANES) vec_store(y + i, vec_exp2(vec_load(x + i), vec_set1(1.0f)));
}

/* y[i] = tanh(x[i] * ln2 / 2), n a multiple of VEC_LANES, by the tanh of softcap. */
void TP_FUNCTION_NAME(tanh_f32)(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i += VEC_LANES) vec_store(y + i, vec_tanh(vec_load(x + i), 1.0f));
}
