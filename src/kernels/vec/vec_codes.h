/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes of quantised caches as floats, which hold them exactly: VEC_LANES of them in order.
 *
 *     vec_load_i8, vec_load_e4m3     from as many bytes
 *     vec_load_i4                    from half as many, the first of two in the low half
 *
 * e4m3: exponent and fraction stand where a float has them, 120 powers of two too low (base/dtype.h); 0x7f and 0xff are NaN.
 */
#ifndef TP_VEC_CODES_H
#define TP_VEC_CODES_H

#include "kernels/vec/vec.h"

#if TP__ISA_NUMBER == TP__ISA_avx512 && defined(__AVX512F__)

VEC_INLINE __m512i vec_bytes(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }

VEC_INLINE vec_f vec_load_i8(const uint8_t *p) { return _mm512_cvtepi32_ps(vec_bytes(p)); }

VEC_INLINE vec_f vec_load_e4m3(const uint8_t *p) {
    __m512i code = vec_bytes(p), size = _mm512_set1_epi32(0x7f);
    __mmask16 finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(code, size), size);
    __m512i bits = _mm512_and_si512(_mm512_slli_epi32(code, 20), _mm512_set1_epi32((int32_t)0x87f00000));
    return _mm512_mask_mul_ps(_mm512_set1_ps(__builtin_nanf("")), finite, (__m512)bits, _mm512_set1_ps(0x1p120f));
}

/* Each byte in 64 bits; its upper half moves to the next lane. */
VEC_INLINE vec_f vec_load_i4(const uint8_t *p) {
    __m512i both = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)p));
    both = _mm512_or_si512(both, _mm512_slli_epi64(both, 28));
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(both, 28), 28));
}

#elif TP__ISA_NUMBER == TP__ISA_avx2

VEC_INLINE __m256i vec_bytes(const uint8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

VEC_INLINE vec_f vec_load_i8(const uint8_t *p) { return _mm256_cvtepi32_ps(vec_bytes(p)); }

VEC_INLINE vec_f vec_load_e4m3(const uint8_t *p) {
    __m256i code = vec_bytes(p), size = _mm256_set1_epi32(0x7f);
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi32(_mm256_and_si256(code, size), size), _mm256_set1_epi32(0x7fc00000));
    __m256i bits = _mm256_and_si256(_mm256_slli_epi32(code, 20), _mm256_set1_epi32((int32_t)0x87f00000));
    return _mm256_or_ps(_mm256_mul_ps((__m256)bits, _mm256_set1_ps(0x1p120f)), (__m256)nan);
}

VEC_INLINE vec_f vec_load_i4(const uint8_t *p) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    __m256i both = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(word));
    both = _mm256_or_si256(both, _mm256_slli_epi64(both, 28));
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(both, 28), 28));
}

#else

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
