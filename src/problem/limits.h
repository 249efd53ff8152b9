/* SPDX-License-Identifier: Apache-2.0 */
/* The largest values a problem may hold; the checks and the parser name the same ones. */
#ifndef TP_PROBLEM_LIMITS_H
#define TP_PROBLEM_LIMITS_H

#include <stdint.h>

#define TP__LENGTH_MAX ((int64_t)1 << 40) /* batch, q_len, kv_len */
#define TP__HEADS_MAX  ((int64_t)1 << 20)
#define TP__DIM_MAX    ((int64_t)1 << 20)

/* Elements of one tensor, so that the bytes of four add up within int64; and row-key pairs. */
#define TP__ELEMENTS_LOG2 58
#define TP__PAIRS_LOG2    62

#endif
