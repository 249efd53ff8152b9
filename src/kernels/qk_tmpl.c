/* SPDX-License-Identifier: Apache-2.0 */
/*
 * qk: scores of few rows straight from the keys as they lie in memory. A decode row meets each key once,
 * so packing would cost more than it saves. VEC_DOT_ROWS rows by VEC_DOT_KEYS keys at a time; each score is
 * sixteen chains over the head dim, whatever the ISA, joined by the tree of vec_sum16. Where those of a tile would not
 * fit the registers (VEC_EIGHT_SUMS), eight chains of each score are summed first, then the other eight.
 */
#include "kernels/function.h"

#define PARTS (16 / VEC_LANES) /* vectors of the sixteen chains */
#define ASKED(keys) ((keys) * 16 * (int)sizeof(ELEMENT) / TP__LINE) /* lines of sixteen elements of each */
#define PAIRS_COMPUTED (rows * ((keys->last - first + VEC_DOT_KEYS - 1) / VEC_DOT_KEYS * VEC_DOT_KEYS))
#define STEP (PAIRS ? 32 : 16)
#ifndef VEC_EIGHT_SUMS
#define VEC_EIGHT_SUMS 0
#endif
#define MOST_KEYS (VEC_EIGHT_SUMS ? 8 : VEC_DOT_KEYS)
#define SUMS (VEC_DOT_ROWS * VEC_DOT_KEYS * PARTS)

#define BODY "kernels/qk_body.inc"
#include "kernels/each_dtype.inc"
