/* SPDX-License-Identifier: Apache-2.0 */
/* Plain vector extensions, four lanes: what every compiler target has. fma is multiply, then add. */
#ifndef TP_VEC_GENERIC_H
#define TP_VEC_GENERIC_H

#include "base/dtype.h"

#define VEC_LANES 4
#define VEC_MR    4 /* 4x2 accumulators, 2 of K or V, 1 broadcast: 11 of 16 registers */
#define VEC_NRV   2
#define VEC_DOT_ROWS 1 /* 1x2x4 accumulators */
#define VEC_DOT_KEYS 2
#define VEC_STRIPS 24 /* as many as use a K panel while it is in L1 */
#define VEC_ROWS(X) X(1) X(2) X(3) X(4)

#define VEC_EVEN  0, 2, 4, 6
#define VEC_ODD   1, 3, 5, 7
#define VEC_LOWER 0, 4, 1, 5
#define VEC_UPPER 2, 6, 3, 7

typedef float vec_f __attribute__((vector_size(16)));
typedef int32_t vec_i __attribute__((vector_size(16)));
typedef uint32_t vec_u __attribute__((vector_size(16))); /* of bits that are computed with: these wrap */
typedef uint64_t vec_w __attribute__((vector_size(16)));
typedef vec_f vec_f_any __attribute__((aligned(4), may_alias));

static inline vec_f vec_fma(vec_f a, vec_f b, vec_f c) { return a * b + c; }

/* The second operand where either is NaN, as maxps. */
static inline vec_f vec_max(vec_f a, vec_f b) {
    vec_i take = a > b;
    return (vec_f)(((vec_i)a & take) | ((vec_i)b & ~take));
}

/* p * 2^n where n >= VEC_MIN or n is NaN, otherwise +0; t = n + VEC_MAGIC. */
static inline vec_f vec_scale(vec_f p, vec_f t, vec_f n) {
    vec_f power = (vec_f)(((vec_u)t - (VEC_MAGIC_BITS - 127)) << 23);
    return (vec_f)((vec_i)(p * power) & ~(n < VEC_MIN));
}

static inline float vec_max_lanes(vec_f x) {
    x = vec_max(x, __builtin_shufflevector(x, x, 2, 3, 0, 1));
    x = vec_max(x, __builtin_shufflevector(x, x, 1, 0, 3, 2));
    return x[0];
}

static inline float vec_sum16(const vec_f parts[4]) {
    vec_f x = (parts[0] + parts[2]) + (parts[1] + parts[3]);
    x += __builtin_shufflevector(x, x, 2, 3, 0, 1);
    return x[0] + x[1];
}

/* s[i][t] = vec_sum16 of acc[i][t] */
static inline __attribute__((always_inline)) void vec_sums(int rows, int keys, const vec_f acc[8], float *s,
                                                           int64_t lds) {
    (void)rows, (void)keys; /* 1, 2 */
    (void)lds;
    s[0] = vec_sum16(acc);
    s[1] = vec_sum16(acc + 4);
}

static inline vec_f vec_load_bf16(const uint16_t *p) {
    return (vec_f){tp__from_bf16(p[0]), tp__from_bf16(p[1]), tp__from_bf16(p[2]),
                   tp__from_bf16(p[3])};
}

static inline vec_f vec_load_f16(const uint16_t *p) {
    return (vec_f){tp__from_f16(p[0]), tp__from_f16(p[1]), tp__from_f16(p[2]), tp__from_f16(p[3])};
}

static inline void vec_store_bf16(uint16_t *p, vec_f x) {
    for (int i = 0; i < VEC_LANES; i++) p[i] = tp__to_bf16(x[i]);
}

static inline void vec_store_f16(uint16_t *p, vec_f x) {
    for (int i = 0; i < VEC_LANES; i++) p[i] = tp__to_f16(x[i]);
}

static inline vec_w vec_mul_low(vec_w a, vec_w b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
static inline vec_w vec_zip_even(vec_w a, vec_w b) { return __builtin_shufflevector(a, b, 0, 2); }
static inline vec_w vec_zip_odd(vec_w a, vec_w b) { return __builtin_shufflevector(a, b, 1, 3); }

/* In place, rows[i][j] becomes rows[j][i]. */
static inline void vec_transpose(vec_f rows[VEC_LANES]) {
    vec_f a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    vec_f b = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    vec_f c = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    vec_f d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    rows[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

#endif
