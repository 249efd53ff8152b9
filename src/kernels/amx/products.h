/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of tiles, S = Q K^T and P V, of one strip of rows or two: c = sum over steps of 32 elements, each as vec_amx.h says.
 * By vec_fma, for blocks with elements that the instruction would flush, they are the same chains, row by row: the same bits
 * wherever nothing is flushed, so which of the two a block takes changes nothing for rows that do not see such an element.
 */
#ifndef TP_KERNELS_AMX_PRODUCTS_H
#define TP_KERNELS_AMX_PRODUCTS_H

#include "kernels/bf16/ordered.h"

/* One operand of rows, the strips' first rows; and one of columns, each step `step` bytes behind the one before. */
typedef struct tile_rows_of {
    const char *strip[2];
    int64_t stride; /* bytes from row to row */
} tile_rows_of;
typedef struct tile_columns_of {
    const char *at;
    int64_t stride, step;
} tile_columns_of;

/* to[strip][row][0..16*nrv) = sum over the steps that are wanted, all where `wanted` is NULL */
VEC_INLINE void tile_sums(const int strips, const int nrv, int first, int second, const tile_rows_of *a, const tile_columns_of *b,
                          int64_t steps, const uint8_t *wanted, float *const to[2], int64_t ldo) {
    TILES(first, second);
    (void)first, (void)second;
    TILE_ZERO(0);
    if (nrv > 1) TILE_ZERO(1);
    if (strips > 1) TILE_ZERO(2);
    if (strips > 1 && nrv > 1) TILE_ZERO(3);
    for (int64_t x = 0; x < steps; x++) {
        const char *column = b->at + x * b->step;
        if (wanted != NULL && !wanted[x]) continue;
        TILE_LOAD(4, a->strip[0] + x * 64, a->stride);
        TILE_LOAD(6, column, b->stride);
        TILE_DOT(0, 4, 6);
        if (strips > 1) {
            TILE_LOAD(5, a->strip[1] + x * 64, a->stride);
            TILE_DOT(2, 5, 6);
        }
        if (nrv > 1) {
            TILE_LOAD(7, column + 64, b->stride);
            TILE_DOT(1, 4, 7);
            if (strips > 1) TILE_DOT(3, 5, 7);
        }
    }
    TILE_STORE(0, to[0], ldo * 4);
    if (nrv > 1) TILE_STORE(1, to[0] + VEC_LANES, ldo * 4);
    if (strips > 1) TILE_STORE(2, to[1], ldo * 4);
    if (strips > 1 && nrv > 1) TILE_STORE(3, to[1] + VEC_LANES, ldo * 4);
}

/* sum[0..nrv) of one row of floats, over elements 0..2*pairs-1 */
VEC_INLINE void chain_sums(const int nrv, const float *a, const void *b, int64_t stride, int64_t pairs, vec_f sum[VEC_NRV]) {
    VEC_UNROLL for (int j = 0; j < nrv; j++) sum[j] = (vec_f){0};
    for (int64_t x = 0; x < pairs; x += VEC_TOGETHER / 2) {
        vec_f part[2][VEC_NRV] = {{{0}}};
        for (int64_t i = x; i < pairs && i < x + VEC_TOGETHER / 2; i++) {
            VEC_UNROLL for (int j = 0; j < nrv; j++) {
                vec_i pair = load_pairs(b, i * stride + j * VEC_LANES);
                part[0][j] = vec_fma(vec_set1(a[2 * i]), vec_even_bf16(pair), part[0][j]);
                part[1][j] = vec_fma(vec_set1(a[2 * i + 1]), vec_odd_bf16(pair), part[1][j]);
            }
        }
        VEC_UNROLL for (int j = 0; j < nrv; j++) sum[j] += part[0][j] + part[1][j];
    }
}

#endif
