/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores of few rows straight from codes: as qk_tmpl.c, in sixteen chains over the head dim. The scale of a whole row multiplies
 * the sum, that of a group its elements, which is exact.
 */
#include "kernels/codes.h"

#define PARTS (16 / VEC_LANES) /* vectors of the sixteen chains */
/* Lines of a group of each key, which are asked for beside it; 0: no whole number. */
#define GROUP_BYTES (VEC_DOT_KEYS * (int)BYTES(TP__GROUP))
#define ASKED (GROUP_BYTES % TP__LINE == 0 ? GROUP_BYTES / TP__LINE : 0)
#define SUMS (VEC_DOT_ROWS * VEC_DOT_KEYS * PARTS)

#define BODY "kernels/codes_qk_body.inc"
#include "kernels/each_code.inc"
