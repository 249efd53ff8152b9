/* SPDX-License-Identifier: Apache-2.0 */
/* What the instruction on bf16 pairs would lose or spread, noted while elements pass by. */
#ifndef TP_KERNELS_BF16_FOUND_H
#define TP_KERNELS_BF16_FOUND_H

#include "base/arena.h"
#include "kernels/vec/vec.h"

/* Of elements of K or V: bits of what pack_k and pack_v return. */
enum { FOUND_SMALL = 1, FOUND_NOT_FINITE = 2 };

typedef struct found {
    vec_h min, max; /* of magnitudes; 0 counts as the largest in `min` */
} found;

VEC_INLINE found found_nothing(void) {
    return (found){~(vec_h){0}, {0}};
}

VEC_INLINE void look_at(found *f, vec_h x) {
    vec_h size = x & 0x7fff;
    f->min = vec_min16(f->min, size - 1);
    f->max = vec_max16(f->max, size);
}

static inline int found_bits(const found *f) {
    int bits = 0;
    for (int i = 0; i < 2 * VEC_LANES; i++) {
        if (f->min[i] < (VEC_SMALL_BITS >> 16) - 1) bits |= FOUND_SMALL;
        if (f->max[i] >= 0x7f80) bits |= FOUND_NOT_FINITE;
    }
    return bits;
}

/* Rows of floats that are bf16 elements, d each, as pairs; returns whether one is below VEC_SMALL, and so perhaps no bf16
   element. Beyond d, up to the next multiple of the lanes, rows hold zeros; so do the pairs, up to ld_to. */
static inline int rows_to_pairs(const float *rows, int64_t ld, int64_t count, int64_t d, uint16_t *to, int64_t ld_to) {
    vec_i small = {0};
    for (int64_t i = 0; i < count; i++) {
        int64_t x = 0;
        for (; x < d; x += VEC_LANES) {
            vec_f value = vec_load(rows + i * ld + x);
            small |= (vec_i)(((vec_u)value & 0x7fffffffu) - 1 < VEC_SMALL_BITS - 1);
            vec_store_bf16(to + i * ld_to + x, value);
        }
        for (; x < ld_to; x += VEC_LANES) vec_store_bf16(to + i * ld_to + x, (vec_f){0});
    }
    for (int i = 0; i < VEC_LANES; i++)
        if (small[i]) return 1;
    return 0;
}

#endif
