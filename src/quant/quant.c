/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows to codes and back. Elements that share a scale s, with a their greatest |value|:
 *
 *     s = a / limit, rounded to the scale's type; the next one up if a would then be beyond the codes
 *     code = value / s, rounded to nearest even
 *
 * so that |value - code*s| <= s/2 for whole numbers, and max(|value| / 16, s / 1024) for e4m3, beside the rounding of one
 * division in double. Whole numbers have no infinity: where a value is not finite, s is NaN and so is every element that
 * shares it. e4m3 has NaN: such a value becomes that, and the others stay as they are.
 */
#include "quant/quant.h"

#include <math.h>

#include "base/dtype.h"

/* Codes of a dtype: the greatest, how far beyond it a value may be and still become it, and the scales they go with,
   the default first. */
static const struct {
    double limit, margin;
    tp_scales kind[2];
    const char *kinds;
} codes_of[] = {
    [TP_E4M3] = {448, 16, {TP_SCALES_TENSOR, TP_SCALES_TOKEN}, "tensor or token"},
    [TP_I8] = {127, 0.5, {TP_SCALES_TOKEN, TP_SCALES_Q8_0}, "token or q8_0"},
    [TP_I4] = {7, 0.5, {TP_SCALES_GROUP, TP_SCALES_GROUP}, "group"},
};

int tp__scales_fit(int32_t dtype, int32_t kind) {
    return tp__is_code(dtype) && ((int32_t)codes_of[dtype].kind[0] == kind || (int32_t)codes_of[dtype].kind[1] == kind);
}

const char *tp__scales_for(int32_t dtype) { return tp__is_code(dtype) ? codes_of[dtype].kinds : "none"; }

tp_scales tp__scales_default(int32_t dtype) { return tp__is_code(dtype) ? codes_of[dtype].kind[0] : TP_SCALES_NONE; }

/* x is below 2^51. */
static double nearest(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

/* The greatest |value|, and whether any is not finite, which is not counted. */
static double greatest(const float *row, int64_t n, int *not_finite) {
    float max = 0;
    uint32_t beyond = 0;
    for (int64_t x = 0; x < n; x++) {
        uint32_t bits = tp__bits(row[x]) & 0x7fffffffu, out = 0u - (bits >= 0x7f800000u);
        float size = tp__float(bits & ~out);
        beyond |= out;
        max = size > max ? size : max;
    }
    *not_finite = beyond != 0;
    return max;
}

/* The scale of elements of which `max` is the greatest; 0 for zeros. */
static float scale_f32(tp_dtype dtype, double max) {
    double limit = codes_of[dtype].limit;
    float scale = (float)(max / limit);
    return max > (limit + codes_of[dtype].margin) * (double)scale ? tp__float(tp__bits(scale) + 1) : scale;
}

static uint16_t scale_f16(tp_dtype dtype, double max) {
    enum { GREATEST = 0x7bff };
    double limit = codes_of[dtype].limit;
    uint16_t scale = tp__to_f16((float)(max / limit));
    if (scale > GREATEST) return GREATEST; /* values beyond limit * 65504 become that */
    return max > (limit + codes_of[dtype].margin) * (double)tp__from_f16(scale) && scale < GREATEST ? scale + 1 : scale;
}

static uint8_t to_e4m3(double value) {
    uint8_t sign = signbit(value) ? 0x80 : 0;
    double size = fabs(value);
    if (!(size < INFINITY)) return sign | 0x7f;
    if (size >= 448) return sign | 0x7e;
    if (size < 0x1p-6) return (uint8_t)(sign | (int)nearest(size * 0x1p9));
    int exponent = ilogb(size);
    return (uint8_t)(sign | (((exponent + 7) << 3) + (int)nearest(ldexp(size, 3 - exponent)) - 8));
}

/* A whole number within +-limit. */
static int whole(double value, double limit) {
    double code = nearest(value < -limit ? -limit : value > limit ? limit : value);
    return (int)code;
}

/* n elements with one scale, from element `at` of the row's codes on; at is even. scale 0 or NaN: codes of 0, but NaN of
   e4m3. */
static void write_codes(tp_dtype dtype, const float *value, int64_t n, double scale, uint8_t *codes, int64_t at) {
    double limit = codes_of[dtype].limit;
    int plain = scale > 0;
    for (int64_t x = 0; x < n; x++) {
        double quotient = plain ? (double)value[x] / scale : 0;
        if (dtype == TP_E4M3)
            codes[at + x] = to_e4m3(isfinite(value[x]) ? quotient : (double)NAN);
        else if (dtype == TP_I8)
            codes[at + x] = (uint8_t)(int8_t)whole(quotient, limit);
        else if ((x & 1) == 0)
            codes[(at + x) / 2] = (uint8_t)(whole(quotient, limit) & 15);
        else
            codes[(at + x) / 2] |= (uint8_t)((whole(quotient, limit) & 15) << 4);
    }
}

/* A group with a scale of 16 bits, which it returns. */
static uint16_t quantise_group(tp_dtype dtype, const float *value, int64_t n, uint8_t *codes, int64_t at) {
    int not_finite;
    double max = greatest(value, n, &not_finite);
    uint16_t scale = not_finite ? 0x7e00 : scale_f16(dtype, max);
    write_codes(dtype, value, n, (double)tp__from_f16(scale), codes, at);
    return scale;
}

static double row_loss(tp_dtype dtype, tp_scales kind, int64_t dim, const float *row, const void *codes,
                       const void *scales) {
    int not_finite;
    double max = greatest(row, dim, &not_finite), loss = 0;
    if (not_finite) return INFINITY;
    for (int64_t x = 0; x < dim; x++) loss = fmax(loss, fabs((double)row[x] - tp__stored(dtype, kind, codes, scales, x)));
    return max > 0 ? loss / max : 0;
}

void tp__quantise_row(tp_dtype dtype, tp_scales kind, int64_t dim, const float *row, float tensor_scale, void *codes,
                      void *scales, double *loss) {
    if (kind == TP_SCALES_TENSOR) {
        write_codes(dtype, row, dim, (double)tensor_scale, codes, 0);
        scales = &tensor_scale;
    } else if (kind == TP_SCALES_TOKEN) {
        int not_finite;
        double max = greatest(row, dim, &not_finite);
        float scale = not_finite && dtype != TP_E4M3 ? NAN : scale_f32(dtype, max);
        write_codes(dtype, row, dim, (double)scale, codes, 0);
        *(float *)scales = scale;
    } else {
        for (int64_t x = 0; x < dim; x += TP__GROUP) {
            int64_t n = dim - x < TP__GROUP ? dim - x : TP__GROUP, group = x / TP__GROUP;
            if (kind == TP_SCALES_GROUP) {
                ((uint16_t *)scales)[group] = quantise_group(dtype, row + x, n, codes, x);
            } else {
                uint8_t *block = (uint8_t *)codes + group * TP__Q8_0_BYTES;
                uint16_t scale = quantise_group(dtype, row + x, n, block + sizeof scale, 0);
                memcpy(block, &scale, sizeof scale);
            }
        }
    }
    if (loss != NULL) *loss = row_loss(dtype, kind, dim, row, codes, scales);
}

/* Infinity becomes NaN. */
static double no_infinity(double scale) { return scale + scale * 0; }

double tp__stored(int32_t dtype, int32_t kind, const void *codes, const void *scales, int64_t x) {
    const uint8_t *code = codes;
    if (kind == TP_SCALES_Q8_0) {
        const uint8_t *block = code + x / TP__GROUP * TP__Q8_0_BYTES;
        uint16_t scale;
        memcpy(&scale, block, sizeof scale);
        return (double)(int8_t)block[sizeof scale + (size_t)(x % TP__GROUP)] * no_infinity((double)tp__from_f16(scale));
    }
    double scale = kind == TP_SCALES_GROUP ? (double)tp__from_f16(((const uint16_t *)scales)[x / TP__GROUP])
                                           : (double)*(const float *)scales;
    scale = no_infinity(scale);
    switch (dtype) {
    case TP_I8: return (double)(int8_t)code[x] * scale;
    case TP_I4: return (double)tp__from_i4(code[x / 2] >> (x & 1) * 4) * scale;
    default: return (double)tp__from_e4m3(code[x]) * scale;
    }
}
