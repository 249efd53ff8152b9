/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX512-BF16: products of two bf16 pairs, added to a float. vec_dot of a lane with the pairs (a0, a1) and (b0, b1) is
 *
 *     c = fma(a1, b1, c);  c = fma(a0, b0, c)          each rounded to nearest even, the second element first,
 *
 * and whatever is subnormal, an element, c or the sum after either step, counts as 0 of its sign. So it equals two vec_fma where
 * nothing is: elements that are 0 or at least VEC_SMALL have products that are multiples of 2^-118, and with a weight, which is
 * at least 2^VEC_MIN, of 2^-126. Sums of such products are 0 or normal. The test dots holds this against the instruction.
 */
#ifndef TP_VEC_BF16_H
#define TP_VEC_BF16_H

#include <string.h>

#define VEC_SMALL      0x1p-52f
#define VEC_SMALL_BITS 0x25800000u /* as a float's bits; the upper half is bf16's */

#define VEC_TOGETHER 2 /* elements that meet in one step: K's of the head dim, and keys of V, are packed in so many */

/* Rows of a tile whose values are floats' multiply-adds. */
#define VEC_ORDERED_ROWS          12
#define VEC_UP_TO_ORDERED_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)

typedef uint16_t vec_h __attribute__((vector_size(64))); /* elements of bf16, two for each lane */
typedef vec_h vec_h_any __attribute__((aligned(2), may_alias));

#ifdef __AVX512BF16__
static inline vec_f vec_dot(vec_i a, vec_i b, vec_f c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
static inline vec_h vec_min16(vec_h a, vec_h b) {
    return (vec_h)_mm512_min_epu16((__m512i)a, (__m512i)b);
}
static inline vec_h vec_max16(vec_h a, vec_h b) {
    return (vec_h)_mm512_max_epu16((__m512i)a, (__m512i)b);
}

/* Both rounded to bf16, x first; what is subnormal becomes 0. */
static inline vec_h vec_round2(vec_f x, vec_f y) {
    return (vec_h)_mm512_cvtne2ps_pbh(y, x);
}
#else
static inline float vec_flushed(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

static inline vec_f vec_dot(vec_i a, vec_i b, vec_f c) {
    for (int i = 0; i < VEC_LANES; i++) {
        uint32_t x = (uint32_t)a[i], y = (uint32_t)b[i];
        float x1 = vec_flushed(tp__from_bf16((uint16_t)(x >> 16))), y1 = vec_flushed(tp__from_bf16((uint16_t)(y >> 16)));
        float x0 = vec_flushed(tp__from_bf16((uint16_t)x)), y0 = vec_flushed(tp__from_bf16((uint16_t)y));
        float sum = vec_flushed(fmaf(x1, y1, vec_flushed(c[i])));
        c[i] = vec_flushed(fmaf(x0, y0, sum));
    }
    return c;
}

static inline vec_h vec_round2(vec_f x, vec_f y) {
    vec_h both;
    for (int i = 0; i < VEC_LANES; i++) {
        both[i] = tp__to_bf16(vec_flushed(x[i]));
        both[VEC_LANES + i] = tp__to_bf16(vec_flushed(y[i]));
    }
    return both;
}

static inline vec_h vec_min16(vec_h a, vec_h b) {
    for (int i = 0; i < 2 * VEC_LANES; i++) a[i] = a[i] < b[i] ? a[i] : b[i];
    return a;
}

static inline vec_h vec_max16(vec_h a, vec_h b) {
    for (int i = 0; i < 2 * VEC_LANES; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
#endif

#define VEC_ZIP                                                                                                                  \
    0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

/* Pairs (x, y) of bf16, one for each lane. */
static inline vec_i vec_zip(vec_f x, vec_f y) {
    vec_h both = vec_round2(x, y);
    return (vec_i)__builtin_shufflevector(both, both, VEC_ZIP);
}

/* The first half. */
static inline void vec_store_lower(uint16_t *p, vec_h x) {
    memcpy(p, &x, VEC_LANES * sizeof *p);
}

#endif
