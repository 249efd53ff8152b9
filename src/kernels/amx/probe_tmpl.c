/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction's own peak: a limit beside which figures of tiles are stated. */
#include <string.h>

#include "kernels/function.h"

/* As peak in kernels/probe_tmpl.c, a strip of rows by a panel of keys a round, either half of the tiles in turn; returns the
   flops done. */
double TP_FUNCTION_NAME(peak_f32)(int64_t rounds, float *out) {
    float one[16][16] __attribute__((aligned(64)));
    memset(one, 0, sizeof one);
    one[0][0] = out[0];
    tiles_shape(16, 16);
    TILES(16, 16);
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    TILE_LOAD(4, one, 64);
    TILE_LOAD(5, one, 64);
    TILE_LOAD(6, one, 64);
    TILE_LOAD(7, one, 64);
    for (int64_t r = 0; r < rounds; r++) {
        if (r % 2 == 0) {
            TILE_DOT(0, 4, 6);
            TILE_DOT(1, 4, 7);
        } else {
            TILE_DOT(2, 5, 6);
            TILE_DOT(3, 5, 7);
        }
    }
    TILE_STORE(0, one, 64);
    out[0] = one[0][0];
    TILES_DONE();
    return 2.0 * 2.0 * 16 * 16 * 32 * (double)rounds;
}
