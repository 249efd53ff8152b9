/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of quantised caches as floats, which hold them exactly: VEC_LANES of them in order.
 *
 *     vec_load_i8                    from as many bytes
 *     vec_load_e4m3                  the same, each times 2^-8
 *     vec_load_i4_by                 from half as many, the first of two in the low half, each times a scale that vec_i4_by
 *                                    makes ready for it: a float of at most 11 significant bits, 2^-90 at least in size, 0 or NaN
 *
 *     vec_one_f16                    one number of 16 bits
 *
 * e4m3: exponent and fraction stand where f16 has them, 8 powers of two too low, and f16 has all that are below the normal ones,
 * too. 0x7f and 0xff are NaN: one more in the last place carries into the exponent's highest bit, which makes them f16's.
 */
#ifndef TP_VEC_CODES_H
#define TP_VEC_CODES_H

#include "kernels/vec/vec.h"

#if TP__ISA_NUMBER == TP__ISA_avx512 && defined(__AVX512F__)

VEC_INLINE __m512i vec_bytes(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }

VEC_INLINE vec_f vec_load_i8(const uint8_t *p) { return _mm512_cvtepi32_ps(vec_bytes(p)); }

VEC_INLINE vec_f vec_load_e4m3(const uint8_t *p) {
    __m256i code = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    __m256i half = _mm256_and_si256(code, _mm256_set1_epi16((int16_t)0xbf80));
    __m256i nan = _mm256_and_si256(_mm256_add_epi16(half, _mm256_set1_epi16(0x80)), _mm256_set1_epi16(0x4000));
    return _mm512_cvtph_ps(_mm256_or_si256(half, nan));
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

VEC_INLINE float vec_one_f16(uint16_t half) { return _cvtsh_ss(half); }

#elif TP__ISA_NUMBER == TP__ISA_avx2

VEC_INLINE __m256i vec_bytes(const uint8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

VEC_INLINE vec_f vec_load_i8(const uint8_t *p) { return _mm256_cvtepi32_ps(vec_bytes(p)); }

VEC_INLINE vec_f vec_load_e4m3(const uint8_t *p) {
    __m128i code = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
    __m128i half = _mm_and_si128(code, _mm_set1_epi16((int16_t)0xbf80));
    __m128i nan = _mm_and_si128(_mm_add_epi16(half, _mm_set1_epi16(0x80)), _mm_set1_epi16(0x4000));
    return _mm256_cvtph_ps(_mm_or_si128(half, nan));
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

#else

VEC_INLINE float vec_one_f16(uint16_t half) { return tp__from_f16(half); }

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

#endif
#endif
