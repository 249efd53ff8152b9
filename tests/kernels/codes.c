/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a quantised cache: codes of every value, scales of both signs, and what is not finite. */
#include "base/codes.h"
#include "kernels/trial.h"

/* 1 and more: sums of codes do not overflow where those of elements do not. */
static float any_scale(struct trial *t) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0};
    if (t->content == WITH_NAN && one_in(t, 12)) return odd[roll_below(t, 4)];
    float scale = 1 + fabsf(ordinary(t));
    return one_in(t, 3) ? -scale : scale;
}

static void put_f16(char *to, float value) {
    uint16_t half = tp__to_f16(value);
    memcpy(to, &half, sizeof half);
}

static float get_f16(const char *from) {
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return tp__from_f16(half);
}

/* Code x of a row, by the formats' definition. */
static float code_at(int dtype, const uint8_t *row, int64_t x) {
    if (dtype == TP_I4) return (float)((int)(row[x / 2] >> (x % 2 ? 4 : 0) & 15) - (row[x / 2] >> (x % 2 ? 7 : 3) & 1) * 16);
    if (dtype == TP_I8) return (float)(int8_t)row[x];
    if (dtype == TP__Q8_0) return (float)(int8_t)row[x / TP__GROUP * TP__Q8_0_BYTES + 2 + x % TP__GROUP];
    int exponent = row[x] >> 3 & 15, fraction = row[x] & 7;
    float size = exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    return (row[x] & 0x7f) == 0x7f ? NAN : row[x] & 0x80 ? -size : size;
}

void codes_make(struct trial *t, struct keys *keys, int dtype, int64_t count, int64_t first, int64_t last, int64_t d) {
    const int blocks = dtype == TP__Q8_0, groups = dtype == TP_I4, n = (int)(last - first);
    const int64_t bytes = blocks ? d / TP__GROUP * TP__Q8_0_BYTES : groups ? d / 2 : d, offset = roll_below(t, 5);
    const int64_t stride = offset + bytes + roll_below(t, 3), scales = groups ? (d + TP__GROUP - 1) / TP__GROUP : 1;
    const int64_t unit = groups ? 2 : 4, skipped = roll_below(t, 3), step = skipped + scales + roll_below(t, 3);
    char *codes = input(t, n > 0 ? (n - 1) * stride + offset + bytes : 0, 1);
    char *scale = input(t, n > 0 && !blocks ? (n - 1) * step + skipped + scales : 0, (size_t)unit);
    keys->row = input(t, 2 * count, sizeof *keys->row);
    keys->value = input(t, count * d, sizeof *keys->value);
    keys->count = count;
    keys->d = d;
    for (int64_t j = 0; j < count; j++) {
        const int inside = j >= first && j < last;
        char *row = codes + (last - 1 - j) * stride + offset, *own = scale + ((last - 1 - j) * step + skipped) * unit;
        /* in any order: the last key first */
        keys->row[j] = inside ? row - offset : (const char *)(uintptr_t)64;
        keys->row[count + j] = inside && !blocks ? own - skipped * unit : (const char *)(uintptr_t)64;
        for (int64_t x = 0; x < d; x++) keys->value[j * d + x] = 0;
        if (!inside) continue;
        for (int64_t i = 0; i < bytes; i++) {
            row[i] = (char)roll_below(t, 256);
            if (dtype == TP_E4M3 && (row[i] & 0x7f) == 0x7f && !(t->content == WITH_NAN && one_in(t, 4))) row[i] = 0x31;
        }
        for (int64_t i = 0; i < d / TP__GROUP && blocks; i++) put_f16(row + i * TP__Q8_0_BYTES, any_scale(t));
        for (int64_t i = 0; i < scales && groups; i++) put_f16(own + 2 * i, any_scale(t));
        if (!blocks && !groups) *(float *)(void *)own = any_scale(t);
        for (int64_t x = 0; x < d; x++) {
            float by = blocks   ? get_f16(row + x / TP__GROUP * TP__Q8_0_BYTES)
                       : groups ? get_f16(own + 2 * (x / TP__GROUP))
                                : *(const float *)(const void *)own;
            keys->value[j * d + x] = isfinite(by) ? code_at(dtype, (const uint8_t *)row, x) * by : NAN;
        }
    }
    keys->ahead = (tp__ahead){.row = keys->row + first, .end = keys->row + last, .offset = offset, .lines = (bytes + 63) / 64};
    keys->in = (tp__keys_in){keys->row, offset, first, last, &keys->ahead, blocks ? 0 : count, blocks ? 0 : skipped * unit, NULL};
}
