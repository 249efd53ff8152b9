/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512 F, BW, VL and DQ: sixteen lanes, thirty-two registers. Where the compiler does not target it,
 * each operation has an emulation in plain vectors that gives the same bits, so that this source can be checked,
 * though not timed, on a host without the instructions: the build option TILEPROOF_EMULATED.
 */
#ifndef TP_VEC_AVX512_H
#define TP_VEC_AVX512_H

#include "base/dtype.h"

#define VEC_LANES 16
#define VEC_MR    12 /* 12x2 accumulators, 2 of K or V, 1 broadcast: 27 of 32 registers */
#define VEC_NRV   2
#define VEC_DOT_ROWS 4 /* 4x4 accumulators, 4 of K, 1 of Q: 21 of 32 registers; or 1x16 */
#define VEC_DOT_KEYS 4
#define VEC_TREE 1   /* vec_tree: a vector has as many lanes as a group has keys */
#define VEC_STRIPS 1 /* its scores stay in L1, and K and V come from L2 fast enough */
#define VEC_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)

#define VEC_EVEN  0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define VEC_ODD   1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define VEC_LOWER 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define VEC_UPPER 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

typedef float vec_f __attribute__((vector_size(64)));
typedef int32_t vec_i __attribute__((vector_size(64)));
typedef uint32_t vec_u __attribute__((vector_size(64))); /* of bits that are computed with: these wrap */
typedef uint64_t vec_w __attribute__((vector_size(64)));
typedef vec_f vec_f_any __attribute__((aligned(4), may_alias));

#ifdef __AVX512F__
#include <immintrin.h>

static inline vec_f vec_fma(vec_f a, vec_f b, vec_f c) { return _mm512_fmadd_ps(a, b, c); }

/* The second operand where either is NaN. */
static inline vec_f vec_max(vec_f a, vec_f b) { return _mm512_max_ps(a, b); }

/* p * 2^n where n >= VEC_MIN or n is NaN, otherwise +0; t = n + VEC_MAGIC. */
static inline vec_f vec_scale(vec_f p, vec_f t, vec_f n) {
    (void)t;
    __mmask16 keep = _mm512_cmp_ps_mask(n, _mm512_set1_ps(VEC_MIN), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(keep, p, n);
}

static inline float vec_max_lanes(vec_f x) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

static inline float vec_sum16(const vec_f parts[1]) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(parts[0]), _mm512_extractf32x8_ps(parts[0], 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline __attribute__((always_inline)) __m512 vec_join_two(__m512 a, __m512 b, int greatest) {
    return greatest ? _mm512_max_ps(a, b) : _mm512_add_ps(a, b);
}
/* Lane i: the sum of the lanes of x[i], or the greatest of them, all at once: halves, quarters, pairs, singles. Sums have the
   tree of vec_sum16. */
static inline __attribute__((always_inline)) vec_f vec_tree(const vec_f x[16], int greatest) {
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++) { /* in an order that brings x[0..3] into one quarter */
        __m512 left = x[i / 2 + i % 2 * 8], right = x[i / 2 + i % 2 * 8 + 4];
        a[i] = vec_join_two(_mm512_shuffle_f32x4(left, right, 0x44), _mm512_shuffle_f32x4(left, right, 0xee), greatest);
    }
    for (int i = 0; i < 4; i++)
        b[i] = vec_join_two(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                            _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd), greatest);
    for (int i = 0; i < 2; i++)
        c[i] = vec_join_two(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44), _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee),
                            greatest);
    return vec_join_two(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd), greatest);
}

/* s[i][t] of sums that are joined: a quarter holds four keys of a row, or all hold sixteen keys of the one row. */
static inline __attribute__((always_inline)) void vec_store_sums(int rows, int keys, __m512 all, float *s, int64_t lds) {
    if (keys == 16) {
        _mm512_storeu_ps(s, all);
        return;
    }
    __m128 quarter[4] = {_mm512_castps512_ps128(all), _mm512_extractf32x4_ps(all, 1),
                         _mm512_extractf32x4_ps(all, 2), _mm512_extractf32x4_ps(all, 3)};
    for (int i = 0; i < 4; i++) {
        if (i < rows) _mm_storeu_ps(s + i * lds, quarter[i]);
    }
}

/* s[i][t] = vec_sum16 of acc[i][t] */
static inline __attribute__((always_inline)) void vec_sums(int rows, int keys, const vec_f acc[16], float *s,
                                                           int64_t lds) {
    vec_store_sums(rows, keys, vec_tree(acc, 0), s, lds);
}

/* The first n lanes; of a load the others are 0. */
static inline vec_f vec_load_first(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
static inline void vec_store_first(float *p, vec_f x, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x); }

static inline vec_f vec_load_bf16(const uint16_t *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return (vec_f)_mm512_slli_epi32(wide, 16);
}

static inline vec_f vec_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* Round to nearest even; a NaN keeps its upper bits and becomes quiet. */
#ifdef __AVX512BF16__ /* where nothing subnormal is stored: the instruction flushes it */
static inline void vec_store_bf16(uint16_t *p, vec_f x) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x));
}
#else
static inline void vec_store_bf16(uint16_t *p, vec_f x) {
    __m512i u = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
#endif

static inline void vec_store_f16(uint16_t *p, vec_f x) {
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline vec_w vec_mul_low(vec_w a, vec_w b) {
    return (vec_w)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}
static inline vec_w vec_zip_even(vec_w a, vec_w b) {
    return (vec_w)_mm512_unpacklo_epi64((__m512i)a, (__m512i)b);
}
static inline vec_w vec_zip_odd(vec_w a, vec_w b) {
    return (vec_w)_mm512_unpackhi_epi64((__m512i)a, (__m512i)b);
}

/* In place, rows[i][j] becomes rows[j][i]: pairs, quads, then 128-bit lanes. */
static inline void vec_transpose(vec_f rows[VEC_LANES]) {
    __m512 t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        __m512 a = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88);
        __m512 b = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
        __m512 c = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
        __m512 d = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
        rows[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        rows[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        rows[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        rows[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

#else
#include <math.h>

static inline vec_f vec_fma(vec_f a, vec_f b, vec_f c) {
    for (int i = 0; i < VEC_LANES; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}

static inline vec_f vec_max(vec_f a, vec_f b) {
    for (int i = 0; i < VEC_LANES; i++) b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}

static inline vec_f vec_scale(vec_f p, vec_f t, vec_f n) {
    (void)t;
    for (int i = 0; i < VEC_LANES; i++) p[i] = n[i] < VEC_MIN ? 0.0f : p[i] * exp2f(n[i]);
    return p;
}

static inline float vec_max_lanes(vec_f x) {
    float m = x[0];
    for (int i = 1; i < VEC_LANES; i++) m = x[i] > m ? x[i] : m;
    return m;
}

static inline float vec_sum16(const vec_f parts[1]) {
    vec_f a = parts[0];
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++) a[i] += a[i + step];
    return a[0];
}

static inline vec_f vec_tree(const vec_f x[16], int greatest) {
    vec_f all;
    for (int i = 0; i < VEC_LANES; i++) all[i] = greatest ? vec_max_lanes(x[i]) : vec_sum16(&x[i]);
    return all;
}

static inline vec_f vec_load_first(const float *p, int n) {
    vec_f x = {0};
    for (int i = 0; i < n; i++) x[i] = p[i];
    return x;
}

static inline void vec_store_first(float *p, vec_f x, int n) {
    for (int i = 0; i < n; i++) p[i] = x[i];
}

static inline void vec_sums(int rows, int keys, const vec_f acc[16], float *s, int64_t lds) {
    for (int i = 0; i < rows; i++)
        for (int t = 0; t < keys; t++) s[i * lds + t] = vec_sum16(&acc[keys * i + t]);
}

static inline vec_f vec_load_bf16(const uint16_t *p) {
    vec_f x;
    for (int i = 0; i < VEC_LANES; i++) x[i] = tp__from_bf16(p[i]);
    return x;
}

static inline vec_f vec_load_f16(const uint16_t *p) {
    vec_f x;
    for (int i = 0; i < VEC_LANES; i++) x[i] = tp__from_f16(p[i]);
    return x;
}

static inline void vec_store_bf16(uint16_t *p, vec_f x) {
    for (int i = 0; i < VEC_LANES; i++) p[i] = tp__to_bf16(x[i]);
}

static inline void vec_store_f16(uint16_t *p, vec_f x) {
    for (int i = 0; i < VEC_LANES; i++) p[i] = tp__to_f16(x[i]);
}

static inline vec_w vec_mul_low(vec_w a, vec_w b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }

static inline vec_w vec_zip_even(vec_w a, vec_w b) {
    for (int i = 0; i < VEC_LANES / 2; i += 2) a[i + 1] = b[i];
    return a;
}

static inline vec_w vec_zip_odd(vec_w a, vec_w b) {
    for (int i = 0; i < VEC_LANES / 2; i += 2) b[i] = a[i + 1];
    return b;
}

static inline void vec_transpose(vec_f rows[VEC_LANES]) {
    for (int i = 0; i < VEC_LANES; i++) {
        for (int j = 0; j < i; j++) {
            float swap = rows[i][j];
            rows[i][j] = rows[j][i];
            rows[j][i] = swap;
        }
    }
}

#endif
#endif
