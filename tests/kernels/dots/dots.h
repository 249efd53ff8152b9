/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_TESTS_KERNELS_DOTS_H
#define TP_TESTS_KERNELS_DOTS_H

#include <stdint.h>

/* c[i] = vec_dot of the pairs a[i] and b[i], sixteen at a time; y[i] = x[i] rounded to bf16. */
void dots_avx512_bf16(const uint32_t *a, const uint32_t *b, float *c, int64_t vectors);
void dots_avx512_bf16_emulated(const uint32_t *a, const uint32_t *b, float *c, int64_t vectors);
void rounds_avx512_bf16(const float *x, uint16_t *y, int64_t vectors);
void rounds_avx512_bf16_emulated(const float *x, uint16_t *y, int64_t vectors);

/* The first rows of c[16][16], each lane += a row of a[16][32] by a column of b[16][16 pairs], as TILE_DOT does it. */
void tiles_amx_bf16(const uint16_t *a, const uint16_t *b, float *c, int rows);
void tiles_amx_bf16_emulated(const uint16_t *a, const uint16_t *b, float *c, int rows);

#endif
