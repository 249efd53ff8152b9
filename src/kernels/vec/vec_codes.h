/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of quantised caches as floats, which hold them exactly: VEC_LANES of them in order.
 *
 *     vec_load_i8, vec_load_e4m3     from as many bytes
 *     vec_load_i4                    from half as many, the first of two in the low half
 *
 *     vec_one_f16                    one number of 16 bits
 *
 * e4m3: exponent and fraction stand where f16 has them, 8 powers of two too low, and f16 has all that are below the normal ones,
 * too; 0x7f and 0xff are NaN.
 */
#ifndef TP_VEC_CODES_H
#define TP_VEC_CODES_H

#include "kernels/vec/vec.h"

#if TP__ISA_NUMBER == TP__ISA_avx512 && defined(__AVX512F__)

VEC_INLINE __m512i vec_bytes(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }

VEC_INLINE vec_f vec_load_i8(const uint8_t *p) { return _mm512_cvtepi32_ps(vec_bytes(p)); }

VEC_INLINE vec_f vec_load_e4m3(const uint8_t *p) {
    __m256i code = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), size = _mm256_set1_epi16(0x7f);
    __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(code, size), size);
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(code, 7), _mm256_set1_epi16((int16_t)0xbf80));
    return _mm512_cvtph_ps(_mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00))) * 256.0f;
}

/* Each byte in 64 bits; its upper half moves to the next lane. */
VEC_INLINE vec_f vec_load_i4(const uint8_t *p) {
    __m512i both = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)p));
    both = _mm512_or_si512(both, _mm512_slli_epi64(both, 28));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(both, 28), 28));
}

VEC_INLINE float vec_one_f16(uint16_t half) { return _cvtsh_ss(half); }

#elif TP__ISA_NUMBER == TP__ISA_avx2

VEC_INLINE __m256i vec_bytes(const uint8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

VEC_INLINE vec_f vec_load_i8(const uint8_t *p) { return _mm256_cvtepi32_ps(vec_bytes(p)); }

VEC_INLINE vec_f vec_load_e4m3(const uint8_t *p) {
    __m128i code = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), size = _mm_set1_epi16(0x7f);
    __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(_mm_and_si128(code, size), size), _mm_set1_epi16(0x7e00));
    __m128i half = _mm_and_si128(_mm_slli_epi16(code, 7), _mm_set1_epi16((int16_t)0xbf80));
    return _mm256_cvtph_ps(_mm_or_si128(half, nan)) * 256.0f;
}

VEC_INLINE vec_f vec_load_i4(const uint8_t *p) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    __m256i both = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(word));
    both = _mm256_or_si256(both, _mm256_slli_epi64(both, 28));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(both, 28), 28));
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
    for (int i = 0; i < VEC_LANES; i++) x[i] = tp__from_e4m3(p[i]);
    return x;
}

VEC_INLINE vec_f vec_load_i4(const uint8_t *p) {
    vec_f x;
    for (int i = 0; i < VEC_LANES; i++) x[i] = (float)tp__from_i4(p[i / 2] >> (i & 1) * 4);
    return x;
}

#endif
#endif
