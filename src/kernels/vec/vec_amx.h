/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMX-BF16: tiles of sixteen rows by sixteen lanes of sums. TILE_DOT(c, a, b) adds to each lane of c the products of 32
 * elements of a row of a and of a column of b, in sixteen pairs:
 *
 *     even = fma(a[2x], b[2x], even);  odd = fma(a[2x+1], b[2x+1], odd)      x ascending, both from 0 on
 *     c = c + (even + odd)
 *
 * each rounded to nearest even, and what is subnormal, an element, c or any of these sums, counts as 0 of its sign. Nothing is
 * where the elements are as vec_bf16.h says. The test dots holds this against the instruction.
 *
 * A function that uses tiles says so with TILES. Tiles 0 to 3 are sums; 4 and 5 rows of a, which 0 and 1, and 2 and 3, take
 * theirs from; 6 and 7 columns of b. Nothing of them crosses a call.
 */
#ifndef TP_VEC_AMX_H
#define TP_VEC_AMX_H

#undef VEC_MR
#undef VEC_STRIPS
#undef VEC_ROWS
#undef VEC_TOGETHER
#define VEC_MR       16 /* two strips by two vectors of keys: four tiles of sums */
#define VEC_STRIPS   2  /* one product of tiles; two of them drive scores out of L1 */
#define VEC_ROWS(X)  X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
#define VEC_TOGETHER 32

#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* gcc; clang before 16 */
/* How many rows the strips of a product have; columns are whole. */
static inline void tiles_shape(int first, int second) {
    const uint8_t a = (uint8_t)first, b = (uint8_t)second;
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {a, a, b, b, a, b, 16, 16}};
    __asm__ volatile("" : : "r"(&shape) : "memory"); /* it is in memory now */
    _tile_loadconfig(&shape);
}
#define TILES(first, second)       __asm__ volatile("" : : : "memory") /* so is what tiles are loaded from */
#define TILES_DONE()               _tile_release()
#define TILE_ZERO(n)               _tile_zero(n)
#define TILE_LOAD(n, from, stride) _tile_loadd(n, from, stride)
#define TILE_DOT(c, a, b)          _tile_dpbf16ps(c, a, b)
#define TILE_STORE(n, to, stride)  _tile_stored(n, to, stride)
#else
typedef union emulated_tile {
    float sum[16][16];
    uint16_t element[16][32];
} emulated_tile;

static inline void tiles_shape(int first, int second) { (void)first, (void)second; }

static inline int tile_rows(int n, int first, int second) {
    static const int of_second[8] = {0, 0, 1, 1, 0, 1, 2, 2};
    return of_second[n] == 2 ? 16 : of_second[n] ? second : first;
}

static inline void tile_dot(emulated_tile *c, const emulated_tile *a, const emulated_tile *b, int rows) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < 16; j++) {
            float part[2] = {0, 0};
            for (int x = 0; x < 32; x++) {
                float left = vec_flushed(tp__from_bf16(a->element[i][x]));
                float right = vec_flushed(tp__from_bf16(b->element[x / 2][2 * j + x % 2]));
                part[x % 2] = vec_flushed(fmaf(left, right, part[x % 2]));
            }
            c->sum[i][j] = vec_flushed(vec_flushed(c->sum[i][j]) + vec_flushed(part[0] + part[1]));
        }
}
#define TILES(first, second)                                                                                                     \
    emulated_tile emulated[8];                                                                                                   \
    const int shape[2] = {first, second}
#define TILES_DONE() ((void)0)
#define TILE_ZERO(n) memset(&emulated[n], 0, sizeof emulated[n])
#define TILE_LOAD(n, from, stride)                                                                                               \
    for (int row = 0; row < tile_rows(n, shape[0], shape[1]); row++)                                                             \
    memcpy(emulated[n].sum[row], (const char *)(from) + row * (int64_t)(stride), sizeof emulated[n].sum[row])
#define TILE_DOT(c, a, b) tile_dot(&emulated[c], &emulated[a], &emulated[b], tile_rows(c, shape[0], shape[1]))
#define TILE_STORE(n, to, stride)                                                                                                \
    for (int row = 0; row < tile_rows(n, shape[0], shape[1]); row++)                                                             \
    memcpy((char *)(to) + row * (int64_t)(stride), emulated[n].sum[row], sizeof emulated[n].sum[row])
#endif

#endif
