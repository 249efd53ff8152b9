/* SPDX-License-Identifier: Apache-2.0 */
/* One row of scores becomes probabilities, in place: what attend and math share. */
#ifndef TP_KERNELS_SOFTMAX_H
#define TP_KERNELS_SOFTMAX_H

#include "kernels/vec/vec.h"

#include <math.h>

/* Rows are worked on in groups of 16 keys, whatever the ISA, so that sums have one order. */
#define GROUP 16
#define VEC_SUM_PARTS (GROUP / VEC_LANES)

/* The greatest of s[from..to), both multiples of GROUP. A NaN may be passed over: it comes back
   through the sum. */
VEC_INLINE float row_max(const float *s, int64_t from, int64_t to) {
    vec_f best[VEC_SUM_PARTS];
    VEC_UNROLL for (int i = 0; i < VEC_SUM_PARTS; i++) best[i] = vec_set1(-INFINITY);
    for (int64_t j = from; j < to; j += GROUP) {
        VEC_UNROLL for (int i = 0; i < VEC_SUM_PARTS; i++)
            best[i] = vec_max(best[i], vec_load(s + j + i * VEC_LANES));
    }
    VEC_UNROLL for (int i = 1; i < VEC_SUM_PARTS; i++) best[0] = vec_max(best[0], best[i]);
    return vec_max_lanes(best[0]);
}

/* p[j] = 2^((s[j] - m) * unit) for j in from..to, both multiples of GROUP; sum receives their sums by place within a group.
   narrow, a literal: p are rounded to bf16, two bytes each; the sum is not. p may lie where s does: nothing is written that
   is still to be read. */
VEC_INLINE void row_exp_parts(void *p, int narrow, const float *s, int64_t from, int64_t to, float m, float unit, vec_f *sum) {
    VEC_UNROLL for (int i = 0; i < VEC_SUM_PARTS; i++) sum[i] = (vec_f){0};
    for (int64_t j = from; j < to; j += GROUP) {
        VEC_UNROLL for (int i = 0; i < VEC_SUM_PARTS; i++) {
            vec_f e = vec_exp2(vec_load(s + j + i * VEC_LANES) - vec_set1(m), vec_set1(unit));
            if (narrow)
                vec_store_bf16((uint16_t *)p + j + i * VEC_LANES, e);
            else
                vec_store((float *)p + j + i * VEC_LANES, e);
            sum[i] += e;
        }
    }
}

/* The same; returns their sum. */
VEC_INLINE float row_exp(void *p, int narrow, const float *s, int64_t from, int64_t to, float m, float unit) {
    vec_f sum[VEC_SUM_PARTS];
    row_exp_parts(p, narrow, s, from, to, m, unit, sum);
    return vec_sum16(sum);
}

VEC_INLINE int32_t to_lane(int64_t at) { return at < 0 ? 0 : at < VEC_LANES ? (int32_t)at : VEC_LANES; }

/* -inf in the lanes of s[0..L) before lo and from hi on: a true -inf, so that its power is exactly 0. By whole vectors:
   whoever reads vectors next would wait for stores of single floats. */
VEC_INLINE void mask_lanes(float *s, int64_t lo, int64_t hi) {
    vec_i lane;
    VEC_UNROLL for (int i = 0; i < VEC_LANES; i++) lane[i] = i;
    vec_i hidden = (lane < to_lane(lo)) | (lane >= to_lane(hi));
    vec_store(s, (vec_f)(((vec_i)vec_load(s) & ~hidden) | ((vec_i)vec_set1(-INFINITY) & hidden)));
}

/* The same of s[from..lo) and s[hi..to); from and to are multiples of GROUP. */
VEC_INLINE void mask_row(float *s, int64_t from, int64_t lo, int64_t hi, int64_t to) {
    for (int64_t j = from; j < lo; j += VEC_LANES) mask_lanes(s + j, lo - j, hi - j);
    for (int64_t j = hi / VEC_LANES * VEC_LANES; j < to; j += VEC_LANES) mask_lanes(s + j, lo - j, hi - j);
}

/* -inf where the row's bit is not set; from and to are multiples of GROUP. */
VEC_INLINE void mask_bits(float *s, const uint64_t *bits, int64_t from, int64_t to) {
    vec_i lane;
    VEC_UNROLL for (int i = 0; i < VEC_LANES; i++) lane[i] = 1 << i;
    for (int64_t j = from; j < to; j += VEC_LANES) {
        vec_i word = (int32_t)(bits[j / 64] >> (j % 64)) + (vec_i){0};
        vec_i hidden = (word & lane) == 0;
        vec_f x = vec_load(s + j), none = vec_set1(-INFINITY);
        vec_store(s + j, (vec_f)(((vec_i)x & ~hidden) | ((vec_i)none & hidden)));
    }
}

VEC_INLINE float exp2_one(float x, float unit) { return vec_exp2(vec_set1(x), vec_set1(unit))[0]; }

/* What to subtract: a row whose every score is -inf has p = 2^(-inf - 0) = 0, not NaN. */
VEC_INLINE float safe_max(float m) { return m == -INFINITY ? 0.0f : m; }

#endif
