/* SPDX-License-Identifier: Apache-2.0 */
/*
 * merge_state: the states of two neighbouring key ranges become one.
 *
 *     m = max(m1, m2);  a = 2^((m1-m) unit), b = 2^((m2-m) unit);  l = l1*a + l2*b;  o = o1*a + o2*b
 *
 * An empty state has m = -inf, l = 0, o = 0, so its weight is exactly 0 and the other's exactly 1.
 *
 * merge_sinks: the same with a key that has a score and no value, in natural units: l = l1*a + b, o = o1*a.
 */
#include "base/constants.h"
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

void TP_FUNCTION_NAME(merge_sinks_f32)(tp__trace *trace, const tp__rows *rows, const float *sinks, int64_t ldo,
                                       float left, float *m, float *l, float *o) {
    trace->calls[TP_FUNCTION_ID(merge_sinks_f32)]++;
    for (int64_t i = 0; i < rows->count; i++) {
        float sink = sinks[(rows->first + i) % rows->group];
        m[i] *= left;
        if (sink == -INFINITY) continue;
        float best = m[i] > sink ? m[i] : sink; /* +inf or NaN spoils the row: inf - inf is NaN */
        float a = exp2_one((m[i] - best) * (float)TP__LOG2_E, 1.0f);
        l[i] = l[i] * a + exp2_one((sink - best) * (float)TP__LOG2_E, 1.0f);
        m[i] = best;
        for (int64_t x = 0; x < ldo && a != 1.0f; x += VEC_LANES)
            vec_store(o + i * ldo + x, vec_load(o + i * ldo + x) * vec_set1(a));
    }
}
