/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of K and V as pairs of bf16, L = VEC_LANES and NR = VEC_NR lanes of four bytes:
 *
 *     K   [keys/NR][d/2][NR]    a lane holds elements 2x and 2x+1 of a key; d rounded up to what meets in one step
 *     V   panels of NR columns, [panel][keys/2][NR]: a lane holds keys 2j and 2j+1 of a column; the last panel may be L wide
 *
 * What meets an element in one step (VEC_TOGETHER) and has none is 0: the keys beside the first and the last, what lies behind d.
 */
#include <string.h>

#include "kernels/bf16/found.h"
#include "kernels/function.h"

/* n elements, zero beyond; reads nothing behind the n-th. */
VEC_INLINE vec_h load_elements(const uint16_t *p, int64_t n) {
    if (n >= 2 * VEC_LANES) return *(const vec_h_any *)p;
    vec_h x = {0};
    if (n > 0) memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
}

VEC_INLINE const uint16_t *row_of(const tp__keys_in *keys, int64_t key) {
    return (const uint16_t *)(const void *)(keys->row[key] + keys->offset);
}

int TP_FUNCTION_NAME(pack_k_bf16)(tp__trace *trace, void *packed, const tp__keys_in *keys, int64_t block, int64_t d) {
    enum { LINES = VEC_LANES * 2 * VEC_LANES * (int)sizeof(uint16_t) / TP__LINE };
    int64_t pairs = tp__round_up(d, VEC_TOGETHER) / 2;
    found seen = found_nothing();
    (void)block;
    trace->calls[TP_FUNCTION_ID(pack_k_bf16)]++;
    for (int64_t key = keys->first / VEC_LANES * VEC_LANES; key < keys->last; key += VEC_LANES) {
        float *to = (float *)packed + key / VEC_NR * VEC_NR * pairs + key % VEC_NR;
        for (int64_t x = 0; x < pairs; x += VEC_LANES) {
            vec_f square[VEC_LANES]; /* of pairs, which are moved as they are */
            tp__ahead_step(keys->ahead, LINES);
            for (int j = 0; j < VEC_LANES; j++) {
                int there = key + j >= keys->first && key + j < keys->last;
                vec_h row = there ? load_elements(row_of(keys, key + j) + 2 * x, d - 2 * x) : (vec_h){0};
                look_at(&seen, row);
                square[j] = (vec_f)row;
            }
            vec_transpose(square);
            int64_t n = pairs - x < VEC_LANES ? pairs - x : VEC_LANES;
            for (int64_t j = 0; j < n; j++) vec_store(to + (x + j) * VEC_NR, square[j]);
        }
    }
    return found_bits(&seen);
}

#define ZIP_LOWER                                                                                                                \
    0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47
#define ZIP_UPPER                                                                                                                \
    16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63

int TP_FUNCTION_NAME(pack_v_bf16)(tp__trace *trace, void *packed, const tp__keys_in *keys, int64_t block, int64_t d) {
    trace->calls[TP_FUNCTION_ID(pack_v_bf16)]++;
    int64_t wide = (d + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    int64_t lines = (d * (int64_t)sizeof(uint16_t) + TP__LINE - 1) / TP__LINE;
    found seen = found_nothing();
    int64_t end = tp__round_up(keys->last, VEC_TOGETHER);
    for (int64_t key = keys->first / VEC_TOGETHER * VEC_TOGETHER; key < end; key += 2) {
        const uint16_t *even = key >= keys->first && key < keys->last ? row_of(keys, key) : NULL;
        const uint16_t *odd = key + 1 >= keys->first && key + 1 < keys->last ? row_of(keys, key + 1) : NULL;
        if (even != NULL || odd != NULL) tp__ahead_step(keys->ahead, 2 * lines);
        for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
            int64_t width = wide - panel < VEC_NR ? wide - panel : VEC_NR;
            float *to = (float *)packed + panel * block / 2 + key / 2 * width;
            vec_h a = even != NULL ? load_elements(even + panel, d - panel) : (vec_h){0};
            vec_h b = odd != NULL ? load_elements(odd + panel, d - panel) : (vec_h){0};
            look_at(&seen, a);
            look_at(&seen, b);
            vec_store(to, (vec_f)__builtin_shufflevector(a, b, ZIP_LOWER));
            if (width == VEC_NR) vec_store(to + VEC_LANES, (vec_f)__builtin_shufflevector(a, b, ZIP_UPPER));
        }
    }
    return found_bits(&seen);
}
