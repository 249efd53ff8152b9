/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine can do at best, measured with the same vectors the leaves use: fused multiply-adds
   from registers, and plain reads. Benchmarks state their figures against these. */
#include "kernels/leaf.h"

/* Independent chains enough to fill two pipes of latency 4 or 5; returns the flops done. */
double TP_LEAF_NAME(peak_f32)(int64_t rounds, float *out) {
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
void TP_LEAF_NAME(read_f32)(const float *from, int64_t floats, int streams, float *out) {
    int64_t part = floats / streams / (8 * VEC_LANES) * (8 * VEC_LANES);
    vec_f sum[8] = {{0}};
    for (int64_t x = 0; x < part; x += 8 * VEC_LANES)
        for (int s = 0; s < streams; s++)
            VEC_UNROLL for (int i = 0; i < 8; i++)
                sum[i] += vec_load(from + s * part + x + i * VEC_LANES);
    VEC_UNROLL for (int i = 1; i < 8; i++) sum[0] += sum[i];
    out[0] = sum[0][0];
}
