/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows against a block of keys, as attend, math and backward get them: which keys each row sees, by intervals or bits; what
 * changes scores; dropout. Keys that a row does not see may hold NaN, which must not reach it. The scores in double, and how
 * far a kernel's may be off.
 */
#ifndef TP_TESTS_KERNELS_TILE_H
#define TP_TESTS_KERNELS_TILE_H

#include "kernels/trial.h"

#define LOG2_E 1.4426950408889634

struct tile {
    int64_t rows, keys, block, d, dv, ldq; /* keys: in use of a block of so many */
    float *q;                              /* [rows][ldq], zeros behind d */
    float *k, *v;                          /* [keys][d], [keys][dv]: as they are packed */
    void *packed_k, *packed_v;
    float *v_scale;                        /* [block]; NULL: none */
    int k_found, v_found;
    double p_error; /* relative, of weights as they meet v */
    double min_weight; /* smaller weights may be 0 */
    int32_t *lo, *hi;
    uint64_t *bits; /* NULL: none */
    int64_t bit_words;
    tp__modify modify;
    int modifies;
    tp__drop drop;
    int drops;
    float unit;
};

/* Sizes, what rows see, and values. Rows see some key, unless `empty` rows are allowed. */
void tile_make(struct trial *t, struct tile *tile, int64_t max_rows, int64_t max_keys, int empty);
/* What q, k and v of a tile hold: f32, or what the set serves instead. */
tp_dtype tile_dtype(const struct trial *t);
/* Packs rows of floats by the set's own functions, as an input of the trial; returns what they found. */
int tile_pack(struct trial *t, struct tile *tile, const float *from, int64_t d, int as_values, void **packed);
tp__row_tile tile_of(const struct tile *tile);

int tile_sees(const struct tile *tile, int64_t row, int64_t key);
int tile_stays(const struct tile *tile, int64_t row, int64_t key);
/* A score before the maximum is taken, what it may be off by, and, if not NULL, the softcap's derivative. */
double tile_score(const struct tile *tile, int64_t row, int64_t key, double *error, double *bend);
/* |q_at - k_at| */
double tile_distance(const struct tile *tile, int64_t row, int64_t key);

/* What one row comes to, from a state on: l and o as they are relative to the maximum m that the kernel found. */
struct tile_row {
    double m, m_error;      /* the greatest score, and what it may be off by */
    double l, l_error;
    double o[160], o_error[160];
    int sees, spoilt;       /* how many keys; a score is NaN or +inf */
};
void tile_attend(const struct tile *tile, int64_t row, float m, float m_before, float l_before, const float *o_before,
                 struct tile_row *out);

#endif
