/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores of few rows straight from codes: as qk_tmpl.c, in sixteen chains over the head dim. The scale of a whole row multiplies
 * the sum, that of a group its elements, which is exact.
 */
#include "kernels/codes.h"

#define PARTS (16 / VEC_LANES) /* vectors of the sixteen chains */
#define ASKED (VEC_DOT_KEYS * (int)BYTES(TP__GROUP) / TP__LINE) /* whole lines of a group of each key: asked for beside it */
#define SUMS (VEC_DOT_ROWS * VEC_DOT_KEYS * PARTS)
#if VEC_DOT_ROWS == 4
#define DOT_ROWS(X) X(1) X(2) X(3) X(4)
#elif VEC_DOT_ROWS == 2
#define DOT_ROWS(X) X(1) X(2)
#else
#define DOT_ROWS(X) X(1)
#endif
#define JOIN(...) (MIXED ? vec_sums_mixed(__VA_ARGS__) : vec_sums(__VA_ARGS__))

/* A few rows of q against the keys, which they may ask for ahead. */
typedef void codes_rows_fn(const float *q, int64_t ldq, const tp__keys_in *keys, int64_t d, int asks, float *s, int64_t lds);

#define BODY "kernels/codes_qk_body.inc"
#include "kernels/each_code.inc"
