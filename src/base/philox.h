/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which probabilities dropout drops: a function of where a pair stands, and of nothing else.
 *
 *     philox(c, k)   Philox4x32-10 of a counter of four words and a key of two: four words
 *     lo, hi         the low and the high 32 bits of a number
 *
 *     r = philox({lo(row), hi(row) + 256*head, lo(sequence), hi(sequence)}, {lo(seed), hi(seed)})
 *     w = philox({lo(key/4), hi(key/4), lo(offset), hi(offset)}, {r[0], r[1]})
 *     the pair stays when w[key % 4] >= floor(p * 2^32)
 *
 * with the query head, and row and key counted from the first of their sequence. Lengths are at
 * most 2^40 and heads 2^20, so the first counter is another one for every row of every head. One
 * call of the second kind serves four neighbouring keys, and loops over them change one word only.
 */
#ifndef TP_BASE_PHILOX_H
#define TP_BASE_PHILOX_H

#include <stdint.h>

#define TP__PHILOX_A      0xd2511f53u
#define TP__PHILOX_B      0xcd9e8d57u
#define TP__PHILOX_STEP_A 0x9e3779b9u
#define TP__PHILOX_STEP_B 0xbb67ae85u

/* x[0..3] is the counter and becomes the words. */
static inline __attribute__((always_inline)) void tp__philox(uint32_t x[4], uint32_t k0,
                                                             uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)x[0] * TP__PHILOX_A, b = (uint64_t)x[2] * TP__PHILOX_B;
        uint32_t x0 = (uint32_t)(b >> 32) ^ x[1] ^ k0, x2 = (uint32_t)(a >> 32) ^ x[3] ^ k1;
        x[0] = x0, x[1] = (uint32_t)b, x[2] = x2, x[3] = (uint32_t)a;
        k0 += TP__PHILOX_STEP_A;
        k1 += TP__PHILOX_STEP_B;
    }
}

/* What all keys of one row of one query head share. */
typedef struct tp__dropout_row {
    uint32_t key[2];
} tp__dropout_row;

static inline tp__dropout_row tp__dropout_row_of(uint64_t seed, int64_t sequence, int64_t head,
                                                 int64_t row) {
    uint32_t x[4] = {(uint32_t)row, (uint32_t)((uint64_t)row >> 32) + ((uint32_t)head << 8),
                     (uint32_t)sequence, (uint32_t)((uint64_t)sequence >> 32)};
    tp__philox(x, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (tp__dropout_row){{x[0], x[1]}};
}

static inline uint32_t tp__dropout_word(const tp__dropout_row *row, uint64_t offset, int64_t key) {
    uint64_t four = (uint64_t)key / 4;
    uint32_t x[4] = {(uint32_t)four, (uint32_t)(four >> 32), (uint32_t)offset,
                     (uint32_t)(offset >> 32)};
    tp__philox(x, row->key[0], row->key[1]);
    return x[key % 4];
}

/* A word below is dropped: 0 drops nothing. */
static inline uint32_t tp__dropout_threshold(float p) {
    return (uint32_t)((double)p * 0x1p32);
}

#endif
