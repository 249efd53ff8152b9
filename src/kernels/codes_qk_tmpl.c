/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores of few rows straight from codes: as qk_tmpl.c, in sixteen chains over the head dim. The scale of a whole row multiplies
 * the sum, that of a group its elements, which is exact.
 */
#include "kernels/codes.h"

#define PARTS (16 / VEC_LANES) /* vectors of the sixteen chains */
#define SUMS (VEC_DOT_ROWS * VEC_DOT_KEYS * PARTS)

#define BODY "kernels/codes_qk_body.inc"
#include "kernels/each_code.inc"
