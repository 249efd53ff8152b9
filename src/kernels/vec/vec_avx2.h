/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2, FMA and F16C: eight lanes, sixteen registers. */
#ifndef TP_VEC_AVX2_H
#define TP_VEC_AVX2_H

#include <immintrin.h>

#include "base/dtype.h"

#define VEC_LANES 8
#define VEC_MR    6 /* 6x2 accumulators, 2 of K or V, 1 broadcast: 15 of 16 registers */
#define VEC_NRV   2
#define VEC_DOT_ROWS 2 /* 2x2x2 accumulators, 2 of K, 1 of Q: 11 of 16 registers */
#define VEC_DOT_KEYS 2
#define VEC_EIGHT_SUMS 1 /* vec_sums8, for 4x2, 2x4 or 1x8 accumulators of half of the chains */
#define VEC_HOLD(x) __asm__("" : "+x"(x))
#define VEC_PUT_AWAY(x) __asm__("" : "+m"(x)) /* to the stack, outside of loops: left to itself the compiler does it within */
#define VEC_STRIPS 16 /* as many as use a K panel while it is in L1 */
#define VEC_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)

#define VEC_EVEN  0, 2, 4, 6, 8, 10, 12, 14
#define VEC_ODD   1, 3, 5, 7, 9, 11, 13, 15
#define VEC_LOWER 0, 8, 1, 9, 2, 10, 3, 11
#define VEC_UPPER 4, 12, 5, 13, 6, 14, 7, 15

typedef float vec_f __attribute__((vector_size(32)));
typedef int32_t vec_i __attribute__((vector_size(32)));
typedef uint32_t vec_u __attribute__((vector_size(32))); /* of bits that are computed with: these wrap */
typedef uint64_t vec_w __attribute__((vector_size(32)));
typedef vec_f vec_f_any __attribute__((aligned(4), may_alias));

static inline vec_f vec_fma(vec_f a, vec_f b, vec_f c) { return _mm256_fmadd_ps(a, b, c); }

/* The second operand where either is NaN. */
static inline vec_f vec_max(vec_f a, vec_f b) { return _mm256_max_ps(a, b); }

/* p * 2^n where n >= VEC_MIN or n is NaN, otherwise +0; t = n + VEC_MAGIC. */
static inline vec_f vec_scale(vec_f p, vec_f t, vec_f n) {
    vec_f power = (vec_f)(((vec_u)t - (VEC_MAGIC_BITS - 127)) << 23);
    return _mm256_and_ps(p * power, _mm256_cmp_ps(n, _mm256_set1_ps(VEC_MIN), _CMP_NLT_UQ));
}

static inline float vec_max_lanes(vec_f x) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline float vec_sum16(const vec_f parts[2]) {
    vec_f x = parts[0] + parts[1];
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* s[i][t] = vec_sum16 of acc[i][t], all at once: halves, quarters, pairs, singles. */
static inline __attribute__((always_inline)) void vec_sums(int rows, int keys, const vec_f acc[8], float *s,
                                                           int64_t lds) {
    (void)keys; /* 2 */
    vec_f a = acc[0] + acc[1], b = acc[4] + acc[5], c = acc[2] + acc[3], d = acc[6] + acc[7];
    vec_f e = _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
    vec_f f = _mm256_permute2f128_ps(c, d, 0x20) + _mm256_permute2f128_ps(c, d, 0x31);
    vec_f g = _mm256_shuffle_ps(e, f, 0x44) + _mm256_shuffle_ps(e, f, 0xee);
    vec_f h = _mm256_shuffle_ps(g, g, 0x88) + _mm256_shuffle_ps(g, g, 0xdd);
    _mm_storel_pi((__m64 *)s, _mm256_castps256_ps128(h));
    if (rows > 1) _mm_storel_pi((__m64 *)(s + lds), _mm256_extractf128_ps(h, 1));
}

/* s[i][t], each the sum of the lanes of x[i][t], by the end of the tree of vec_sum16. rows x keys are 8, or 6. */
static inline __attribute__((always_inline)) void vec_sums8(int rows, int keys, const vec_f x[8], float *s, int64_t lds) {
    vec_f half[4], pair[2];
    for (int i = 0; i < 4; i++)
        half[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20) + _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    for (int i = 0; i < 2; i++)
        pair[i] = _mm256_shuffle_ps(half[2 * i], half[2 * i + 1], 0x44) + _mm256_shuffle_ps(half[2 * i], half[2 * i + 1], 0xee);
    vec_f sums = _mm256_shuffle_ps(pair[0], pair[1], 0x88) + _mm256_shuffle_ps(pair[0], pair[1], 0xdd);
    __m128 lower = _mm256_castps256_ps128(sums), upper = _mm256_extractf128_ps(sums, 1);
    if (keys == 8) _mm256_storeu_ps(s, sums);
    if (keys == 4) _mm_storeu_ps(s, lower);
    if (keys == 4) _mm_storeu_ps(s + lds, upper);
    if (keys == 2) _mm_storel_pi((__m64 *)s, lower);
    if (keys == 2) _mm_storeh_pi((__m64 *)(s + lds), lower);
    if (keys == 2) _mm_storel_pi((__m64 *)(s + 2 * lds), upper);
    if (keys == 2 && rows > 3) _mm_storeh_pi((__m64 *)(s + 3 * lds), upper);
}

static inline vec_f vec_load_bf16(const uint16_t *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return (vec_f)_mm256_slli_epi32(wide, 16);
}

static inline vec_f vec_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Round to nearest even; a NaN keeps its upper bits and becomes quiet. */
static inline void vec_store_bf16(uint16_t *p, vec_f x) {
    vec_u u = (vec_u)x, odd = (u >> 16) & 1;
    vec_u rounded = u + 0x7fff + odd, quiet = u | 0x400000, nan = (vec_u)(x != x);
    __m256i upper = (__m256i)(((rounded & ~nan) | (quiet & nan)) >> 16 & 0xffff);
    upper = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(upper));
}

static inline void vec_store_f16(uint16_t *p, vec_f x) {
    _mm_storeu_si128((__m128i *)p,
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vec_w vec_mul_low(vec_w a, vec_w b) {
    return (vec_w)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
static inline vec_w vec_zip_even(vec_w a, vec_w b) {
    return (vec_w)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b);
}
static inline vec_w vec_zip_odd(vec_w a, vec_w b) {
    return (vec_w)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b);
}

/* In place, rows[i][j] becomes rows[j][i]: pairs, then quads, then halves. */
static inline void vec_transpose(vec_f rows[VEC_LANES]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

#endif
