/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fold: the states of two neighbouring key ranges become one.
 *
 *     m = max(m1, m2);  a = 2^((m1-m) unit), b = 2^((m2-m) unit);  l = l1*a + l2*b;  o = o1*a + o2*b
 *
 * An empty state has m = -inf, l = 0, o = 0, so its weight is exactly 0 and the other's exactly 1.
 */
#include "kernels/function.h"
#include "kernels/softmax.h"

void TP_FUNCTION_NAME(merge_state_f32)(tp__trace *trace, int64_t rows, int64_t ldo, float *m, float *l, float *o,
                            const float *m2, const float *l2, const float *o2, float unit) {
    trace->calls[TP_FUNCTION_ID(merge_state_f32)]++;
    for (int64_t r = 0; r < rows; r++) {
        float best = m[r] > m2[r] ? m[r] : m2[r], safe = safe_max(best);
        float a = exp2_one(m[r] - safe, unit), b = exp2_one(m2[r] - safe, unit);
        l[r] = l[r] * a + l2[r] * b;
        m[r] = best;
        for (int64_t x = 0; x < ldo; x += VEC_LANES) {
            float *to = o + r * ldo + x;
            vec_store(to, vec_fma(vec_load(o2 + r * ldo + x), vec_set1(b), vec_load(to) * vec_set1(a)));
        }
    }
}
