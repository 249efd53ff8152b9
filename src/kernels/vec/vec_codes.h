/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of quantised caches as floats, which hold them exactly: VEC_LANES of them in order.
 *
 *     vec_load_i8                    from as many bytes
 *     vec_load_e4m3                  the same, each times 2^-8
 *     vec_load_i4_by                 from half as many, the first of two in the low half, each times a scale that vec_i4_by
 *                                    makes ready for it: a float of at most 11 significant bits, 2^-90 at least in size, 0 or NaN
 *
 *     vec_two_i8 ... vec_two_i4_by   two vectors at a time, which share what they can. Where VEC_I4_MIXED is 1, the lanes of
 *                                    vec_two_i4_by stand as vec_mix puts them, vec_unmix puts them back, and vec_sums_mixed is
 *                                    vec_sums of such lanes
 *     vec_scale_f16                  a scale of 16 bits in every lane, NaN if it is not finite; may read the 6 bytes behind it
 *
 *     vec_one_f16, vec_four_f16      numbers of 16 bits
 *
 * e4m3: exponent and fraction stand where f16 has them, 8 powers of two too low, and f16 has all that are below the normal ones,
 * too. Two bits then hold the sign: f16's own, and below it the exponent's highest, which must become 0, or 1 where the code is
 * NaN, 0x7f or 0xff. One more in the last place carries into it there and nowhere else, so it is what that changes.
 */
#ifndef TP_VEC_CODES_H
#define TP_VEC_CODES_H

#include "kernels/vec/vec.h"

typedef float vec_four __attribute__((vector_size(16)));

#if TP__ISA_NUMBER == TP__ISA_avx512
/* The order that two numbers of 64 bits have, one in each half, which one shift of 64 bits brings to their places. */
#define VEC_I4_MIXED 1
VEC_INLINE vec_f vec_mix(vec_f x) { return __builtin_shufflevector(x, x, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15); }
VEC_INLINE vec_f vec_unmix(vec_f x) {
    return __builtin_shufflevector(x, x, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
}
#else
#define VEC_I4_MIXED 0
#endif

#if TP__ISA_NUMBER == TP__ISA_avx512 && defined(__AVX512F__)

VEC_INLINE __m512i vec_bytes(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }

VEC_INLINE vec_f vec_load_i8(const uint8_t *p) { return _mm512_cvtepi32_ps(vec_bytes(p)); }

VEC_INLINE vec_f vec_load_e4m3(const uint8_t *p) {
    const __m256i bit = _mm256_set1_epi16(0x4000);
    __m256i code = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    __m256i more = _mm256_add_epi16(code, _mm256_set1_epi16(0x80));
    return _mm512_cvtph_ps(_mm256_ternarylogic_epi32(code, more, bit, 0x78)); /* code ^ (more & bit) */
}

VEC_INLINE void vec_two_e4m3(const uint8_t *p, vec_f v[2]) {
    const __m512i bit = _mm512_set1_epi16(0x4000);
    __m512i code = _mm512_slli_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)), 7);
    __m512i more = _mm512_add_epi16(code, _mm512_set1_epi16(0x80));
    __m512i half = _mm512_ternarylogic_epi32(code, more, bit, 0x78);
    v[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
    v[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
}

/* Every element that 4 bits can be. */
VEC_INLINE vec_f vec_i4_by(float scale) {
    return (vec_f){0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1} * vec_set1(scale);
}

VEC_INLINE __m128i vec_word(const uint8_t *p) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm_set_epi32(0, 0, 0, word);
}

/* Of a number of 32 bits, vpermps looks at the lowest four. */
VEC_INLINE vec_f vec_load_i4_by(const uint8_t *p, vec_f by) {
    const __m512i shift = _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
    __m512i both = _mm512_broadcastd_epi32(vec_word(p));
    both = _mm512_mask_broadcastd_epi32(both, 0xff00, vec_word(p + 4));
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(both, shift), by);
}

VEC_INLINE void vec_two_i4_by(const uint8_t *p, vec_f by, vec_f v[2]) {
    const __m512i shift = _mm512_set_epi64(28, 24, 20, 16, 12, 8, 4, 0);
    for (int i = 0; i < 2; i++) {
        int64_t codes;
        memcpy(&codes, p + 8 * i, sizeof codes);
        v[i] = _mm512_permutexvar_ps(_mm512_srlv_epi64(_mm512_set1_epi64(codes), shift), by);
    }
}

/* The tree of vec_sums, whose first pairs stand side by side. */
VEC_INLINE void vec_sums_mixed(int rows, int keys, const vec_f acc[16], float *s, int64_t lds) {
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++) { /* in an order that brings a row's sums into one quarter */
        __m512 x = acc[i % 4 * 4 + i / 4 * 2], y = acc[i % 4 * 4 + i / 4 * 2 + 1];
        a[i] = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
    }
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
    vec_store_sums(rows, keys, _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd)), s, lds);
}

VEC_INLINE float vec_one_f16(uint16_t half) { return _cvtsh_ss(half); }
VEC_INLINE vec_four vec_four_f16(uint64_t halves) { return _mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)halves)); }

/* finite_scale of the first of four. */
VEC_INLINE vec_f vec_scale_f16(const uint8_t *p) {
    __m128 by = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p));
    return _mm512_broadcastss_ps(_mm_fmadd_ps(by, _mm_setzero_ps(), by));
}

#elif TP__ISA_NUMBER == TP__ISA_avx2

VEC_INLINE __m256i vec_bytes(const uint8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

VEC_INLINE vec_f vec_load_i8(const uint8_t *p) { return _mm256_cvtepi32_ps(vec_bytes(p)); }

VEC_INLINE vec_f vec_load_e4m3(const uint8_t *p) {
    __m128i code = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
    __m128i more = _mm_add_epi16(code, _mm_set1_epi16(0x80));
    return _mm256_cvtph_ps(_mm_xor_si128(code, _mm_and_si128(more, _mm_set1_epi16(0x4000))));
}

VEC_INLINE void vec_two_e4m3(const uint8_t *p, vec_f v[2]) {
    __m256i code = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    __m256i more = _mm256_add_epi16(code, _mm256_set1_epi16(0x80));
    __m256i half = _mm256_xor_si256(code, _mm256_and_si256(more, _mm256_set1_epi16(0x4000)));
    v[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    v[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
}

/* Codes in the highest four bits: 2^28 of each. */
VEC_INLINE vec_f vec_i4_by(float scale) { return vec_set1(scale * 0x1p-28f); }

VEC_INLINE vec_f vec_load_i4_by(const uint8_t *p, vec_f by) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    __m256i high = _mm256_sllv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0));
    return _mm256_cvtepi32_ps(_mm256_and_si256(high, _mm256_set1_epi32((int32_t)0xf0000000))) * by;
}

VEC_INLINE float vec_one_f16(uint16_t half) { return _cvtsh_ss(half); }
VEC_INLINE vec_four vec_four_f16(uint64_t halves) { return _mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)halves)); }

/* finite_scale of the first of four. */
VEC_INLINE vec_f vec_scale_f16(const uint8_t *p) {
    __m128 by = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_broadcastss_ps(_mm_fmadd_ps(by, _mm_setzero_ps(), by));
}

#else

VEC_INLINE float vec_one_f16(uint16_t half) { return tp__from_f16(half); }
VEC_INLINE vec_four vec_four_f16(uint64_t halves) {
    vec_four x;
    for (int i = 0; i < 4; i++) x[i] = tp__from_f16((uint16_t)(halves >> 16 * i));
    return x;
}

VEC_INLINE vec_f vec_scale_f16(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    float by = tp__from_f16(half);
    return vec_set1(by + by * 0.0f);
}

VEC_INLINE vec_f vec_load_i8(const uint8_t *p) {
    vec_f x;
    for (int i = 0; i < VEC_LANES; i++) x[i] = (float)(int8_t)p[i];
    return x;
}

VEC_INLINE vec_f vec_load_e4m3(const uint8_t *p) {
    vec_f x;
    for (int i = 0; i < VEC_LANES; i++) x[i] = tp__from_e4m3(p[i]) * 0x1p-8f;
    return x;
}

VEC_INLINE vec_f vec_i4_by(float scale) { return vec_set1(scale); }

VEC_INLINE vec_f vec_load_i4_by(const uint8_t *p, vec_f by) {
    vec_f x;
    for (int i = 0; i < VEC_LANES; i++) x[i] = (float)tp__from_i4(p[i / 2] >> (i & 1) * 4);
    return x * by;
}

VEC_INLINE void vec_two_e4m3(const uint8_t *p, vec_f v[2]) {
    for (int i = 0; i < 2; i++) v[i] = vec_load_e4m3(p + i * VEC_LANES);
}

#if VEC_I4_MIXED
VEC_INLINE void vec_two_i4_by(const uint8_t *p, vec_f by, vec_f v[2]) {
    for (int i = 0; i < 2; i++) v[i] = vec_mix(vec_load_i4_by(p + i * VEC_LANES / 2, by));
}

VEC_INLINE void vec_sums_mixed(int rows, int keys, const vec_f acc[16], float *s, int64_t lds) {
    vec_f lanes[16];
    for (int i = 0; i < 16; i++) lanes[i] = vec_unmix(acc[i]);
    vec_sums(rows, keys, lanes, s, lds);
}
#endif

#endif

VEC_INLINE vec_f vec_load_i4(const uint8_t *p) { return vec_load_i4_by(p, vec_i4_by(1.0f)); }

VEC_INLINE void vec_two_i8(const uint8_t *p, vec_f v[2]) {
    for (int i = 0; i < 2; i++) v[i] = vec_load_i8(p + i * VEC_LANES);
}

VEC_INLINE void vec_two_i8_by(const uint8_t *p, vec_f by, vec_f v[2]) {
    for (int i = 0; i < 2; i++) v[i] = vec_load_i8(p + i * VEC_LANES) * by;
}

#if !VEC_I4_MIXED
VEC_INLINE vec_f vec_mix(vec_f x) { return x; }
VEC_INLINE vec_f vec_unmix(vec_f x) { return x; }
VEC_INLINE void vec_two_i4_by(const uint8_t *p, vec_f by, vec_f v[2]) {
    for (int i = 0; i < 2; i++) v[i] = vec_load_i4_by(p + i * VEC_LANES / 2, by);
}
#define vec_sums_mixed vec_sums
#endif
#endif
