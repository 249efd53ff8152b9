/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropout on a row of probabilities: base/philox.h over lanes. A lane of 64 bits holds one word of
 * one counter, whose upper half is never looked at, so that a round is two products, two shifts and
 * four xors.
 */
#ifndef TP_KERNELS_DROP_H
#define TP_KERNELS_DROP_H

#include "kernels/kernel.h"
#include "kernels/vec/vec.h"

#define DROP_KEYS (2 * VEC_LANES) /* of one step: four for each lane */

VEC_INLINE vec_w words_of(uint64_t x) { return x + (vec_w){0}; }

/* The keys of the rounds, of one row: loaded for each step, where computing them would cost more. */
typedef struct drop_keys {
    uint64_t a[10], b[10];
} drop_keys;

VEC_INLINE drop_keys drop_keys_of(const tp__drop *drop, int64_t row) {
    drop_keys keys;
    uint32_t a = drop->row[row].key[0], b = drop->row[row].key[1];
    for (int round = 0; round < 10; round++) {
        keys.a[round] = a + (uint32_t)round * TP__PHILOX_STEP_A;
        keys.b[round] = b + (uint32_t)round * TP__PHILOX_STEP_B;
    }
    return keys;
}

/* All bits where a pair stays, of the row's keys key..key+DROP_KEYS-1 of the block; key is a multiple of 4. */
VEC_INLINE void drop_stays(const tp__drop *drop, const drop_keys *keys, int64_t key, vec_i stays[2]) {
    vec_w step; /* even lanes hold the first half of the counters: zipping then gives neighbours */
    VEC_UNROLL for (int i = 0; i < VEC_LANES / 2; i++) step[i] = (uint64_t)(i % 2 * (VEC_LANES / 4) + i / 2);
    vec_w x0 = words_of((uint64_t)(drop->key + key) / 4) + step, x1 = x0 >> 32;
    vec_w x2 = words_of(drop->offset), x3 = words_of(drop->offset >> 32);
    VEC_UNROLL for (int round = 0; round < 10; round++) {
        vec_w a = vec_mul_low(x0, words_of(TP__PHILOX_A)), b = vec_mul_low(x2, words_of(TP__PHILOX_B));
        x0 = (b >> 32) ^ x1 ^ words_of(keys->a[round]);
        x2 = (a >> 32) ^ x3 ^ words_of(keys->b[round]);
        x1 = b;
        x3 = a;
    }
    vec_w low = (x0 & 0xffffffffu) | x1 << 32, high = (x2 & 0xffffffffu) | x3 << 32;
    const int32_t sign = INT32_MIN; /* so that unsigned words compare as signed ones */
    vec_i min = ((int32_t)drop->threshold ^ sign) + (vec_i){0};
    stays[0] = ((vec_i)vec_zip_even(low, high) ^ sign) >= min;
    stays[1] = ((vec_i)vec_zip_odd(low, high) ^ sign) >= min;
}

/* 0 for what is dropped of p[from..to), both multiples of 16. A function of its own: calls without dropout do not pay for it. */
static __attribute__((noinline)) void drop_row(const tp__drop *drop, int64_t row, float *p, int64_t from,
                                               int64_t to) {
    drop_keys keys = drop_keys_of(drop, row);
    for (int64_t j = from; j < to; j += DROP_KEYS) {
        vec_i stays[2];
        drop_stays(drop, &keys, j, stays);
        vec_store(p + j, (vec_f)((vec_i)vec_load(p + j) & stays[0]));
        if (j + VEC_LANES >= to) break;
        vec_store(p + j + VEC_LANES, (vec_f)((vec_i)vec_load(p + j + VEC_LANES) & stays[1]));
    }
}

#endif
