/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of codes as kernel functions meet them. An element is code * scale. Where groups of a row have scales of 16 bits, that
 * product is exact. Where a row has one float32 scale, packing rounds it once; few rows do without it: their scores are sums of
 * q * code, multiplied by the scale at the end, and their weights are multiplied by the scale before they meet the codes of a
 * value. A scale that is not finite makes its elements NaN.
 */
#ifndef TP_KERNELS_CODES_H
#define TP_KERNELS_CODES_H

#include "base/codes.h"
#include "kernels/function.h"
#include "kernels/vec/vec_codes.h"

/* Where a key's codes lie, and its scales, if they lie elsewhere. */
typedef struct code_row {
    const uint8_t *codes;
    const char *scales;
} code_row;

VEC_INLINE const char *scales_at(const tp__keys_in *keys, int64_t key) {
    return keys->row[key + keys->scales] + keys->scales_offset;
}

VEC_INLINE code_row code_row_at(const tp__keys_in *keys, int64_t key) {
    return (code_row){(const uint8_t *)keys->row[key] + keys->offset, keys->scales > 0 ? scales_at(keys, key) : NULL};
}

/* tp__ahead_turns. Of keys that it comes to, scales that lie apart are asked for, too: those of one head, beside which those of
   the others lie. */
VEC_INLINE tp__asked code_turns(const tp__keys_in *keys, int64_t n, int64_t turns, const void *here) {
    const char *const *row = keys->ahead->row;
    tp__asked asked = tp__ahead_turns(keys->ahead, n, turns, here);
    for (; keys->scales > 0 && row != keys->ahead->row; row++) tp__ask(row[keys->scales] + keys->scales_offset);
    return asked;
}

/* Infinity becomes NaN, everything else stays. */
VEC_INLINE float finite_scale(float scale) { return scale + scale * 0.0f; }

VEC_INLINE float row_scale(const code_row *row) { return finite_scale(*(const float *)row->scales); }

/* Of keys first..last-1; of those beside them, to whole groups of 16, 0. */
VEC_INLINE void row_scales(const tp__keys_in *keys, float scale[TP__FEW_KEYS]) {
    const int64_t first = keys->first / 16 * 16, last = (keys->last + 15) / 16 * 16;
    for (int64_t j = first; j < keys->first; j++) scale[j] = 0;
    int64_t key = keys->first;
    for (; key + 8 <= keys->last; key += 8)
        VEC_UNROLL for (int j = 0; j < 8; j++) scale[key + j] = *(const float *)scales_at(keys, key + j);
    for (; key < keys->last; key++) scale[key] = *(const float *)scales_at(keys, key);
    for (int64_t j = keys->last; j < last; j++) scale[j] = 0;
    for (int64_t j = first; j < last; j += VEC_LANES) {
        vec_f by = vec_load(scale + j);
        vec_store(scale + j, by + by * 0.0f); /* finite_scale */
    }
}

/* Of the group that element x belongs to. */
VEC_INLINE float group_scale_i4(const code_row *row, int64_t x) {
    return finite_scale(vec_one_f16(((const uint16_t *)row->scales)[x / TP__GROUP]));
}
VEC_INLINE const uint8_t *q8_0_block(const code_row *row, int64_t x) { return row->codes + x / TP__GROUP * TP__Q8_0_BYTES; }
VEC_INLINE float group_scale_q8_0(const code_row *row, int64_t x) {
    uint16_t scale;
    memcpy(&scale, q8_0_block(row, x), sizeof scale);
    return finite_scale(vec_one_f16(scale));
}
VEC_INLINE const uint8_t *q8_0_code(const code_row *row, int64_t x) { return q8_0_block(row, x) + 2 + x % TP__GROUP; }

/* Of all groups of a row that has them beside its codes: at `to` is room for GROUP_SCALES. */
#define GROUP_SCALES (TP_MAX_HEAD_DIM / TP__GROUP + 2) /* written four at a time */
VEC_INLINE void group_scales(const code_row *row, int64_t d, float *to) {
    const int64_t count = (d + TP__GROUP - 1) / TP__GROUP;
    for (int64_t g = 0; g < count; g += 4) {
        uint64_t halves = 0;
        if (g + 4 <= count) memcpy(&halves, row->scales + g * 2, 4 * sizeof(uint16_t));
        else memcpy(&halves, row->scales + g * 2, (size_t)(count - g) * sizeof(uint16_t));
        vec_four by = vec_four_f16(halves);
        by = by + by * 0.0f; /* finite_scale */
        memcpy(to + g, &by, sizeof by);
    }
}

#endif
