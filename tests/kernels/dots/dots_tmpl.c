/* SPDX-License-Identifier: Apache-2.0 */
/* vec_dot and vec_store_bf16 over arrays, and TILE_DOT, each compiled once with the instructions and once without: dots.h. */
#include <string.h>

#include "kernels/dots/dots.h"
#include "kernels/vec/vec.h"

#if TP__ISA_NUMBER == TP__ISA_amx_bf16
void TP__CAT(tiles_, TP_ISA)(const uint16_t *a, const uint16_t *b, float *c, int rows) {
    tiles_shape(rows, rows);
    TILES(rows, rows);
    TILE_LOAD(0, c, 64);
    TILE_LOAD(4, a, 64);
    TILE_LOAD(6, b, 64);
    TILE_DOT(0, 4, 6);
    TILE_STORE(0, c, 64);
    TILES_DONE();
}
#else
typedef vec_i vec_i_any __attribute__((aligned(4), may_alias));

void TP__CAT(dots_, TP_ISA)(const uint32_t *a, const uint32_t *b, float *c, int64_t vectors) {
    for (int64_t i = 0; i < vectors * VEC_LANES; i += VEC_LANES)
        vec_store(c + i, vec_dot(*(const vec_i_any *)(a + i), *(const vec_i_any *)(b + i), vec_load(c + i)));
}

void TP__CAT(rounds_, TP_ISA)(const float *x, uint16_t *y, int64_t vectors) {
    for (int64_t i = 0; i < vectors * VEC_LANES; i += VEC_LANES) vec_store_bf16(y + i, vec_load(x + i));
}
#endif
