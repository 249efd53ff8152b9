/* SPDX-License-Identifier: Apache-2.0 */
/* One element of each dtype, in portable C. Vector code has its own in kernels/vec. */
#ifndef TP_BASE_DTYPE_H
#define TP_BASE_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "tileproof.h"

static inline uint32_t tp__bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float tp__float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float tp__from_bf16(uint16_t h) { return tp__float((uint32_t)h << 16); }

static inline uint16_t tp__to_bf16(float x) {
    uint32_t u = tp__bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40); /* quiet NaN */
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static inline float tp__from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, fraction = h & 1023;
    uint32_t high = (exponent + 112 + (exponent == 31) * 112u) << 23 | fraction << 13;
    /* zero and subnormals: fraction * 2^-24, exact in float. No branch, so that loops over elements are vectors. */
    uint32_t low = tp__bits((float)(int32_t)fraction * 0x1p-24f), is_low = 0u - (exponent == 0);
    return tp__float(sign | (low & is_low) | (high & ~is_low));
}

static inline uint16_t tp__to_f16(float x) {
    uint32_t u = tp__bits(x), sign = (u >> 16) & 0x8000, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* rounds to 65536 or more */
    if (a < 0x38800000u) {
        /* below the least normal 2^-14: a multiple of 2^-24, rounded to nearest even in whole numbers, which no
           caller's rounding mode changes */
        uint32_t shift = 126 - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;
        if (shift > 24) return (uint16_t)sign;
        return (uint16_t)(sign | ((m + (1u << (shift - 1)) - 1 + (m >> shift & 1)) >> shift));
    }
    a += 0xfff + ((a >> 13) & 1); /* round to nearest even at bit 13 */
    return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
}

static inline float tp__load(tp_dtype dtype, const void *base, int64_t index) {
    switch (dtype) {
    case TP_F16: return tp__from_f16(((const uint16_t *)base)[index]);
    case TP_BF16: return tp__from_bf16(((const uint16_t *)base)[index]);
    default: return ((const float *)base)[index];
    }
}

/* e4m3, of which 0x7f and 0xff are NaN; there is no infinity. The bits of exponent and fraction stand where a float has
   them, 120 powers of two too low: one product, exact, brings zero, subnormals and the others where they belong. */
static inline float tp__from_e4m3(uint8_t code) {
    uint32_t size = code & 0x7fu, is_nan = 0u - (size == 0x7f);
    float value = tp__float(size << 20) * 0x1p120f;
    return tp__float((uint32_t)(code & 0x80) << 24 | tp__bits(value) | (0x7fc00000u & is_nan));
}

/* The low four bits. */
static inline int tp__from_i4(int code) { return ((code & 15) ^ 8) - 8; }

/* f32, f16, bf16: what stands for itself, without scales. */
static inline int tp__dtype_is_float(int dtype) {
    return dtype == TP_F32 || dtype == TP_F16 || dtype == TP_BF16;
}

#endif
