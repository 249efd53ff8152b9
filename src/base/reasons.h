/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates, and why they were not taken, in a few bytes that a record can keep. */
#ifndef TP_BASE_REASONS_H
#define TP_BASE_REASONS_H

#include "tileproof.h"

#define TP__CANDIDATES_MAX 20 /* of one decision */

/* Of each candidate: bits 1u << tp_reason_code. */
typedef struct tp__reasons {
    uint32_t codes[TP__CANDIDATES_MAX];
} tp__reasons;

/* Reasons that say what a candidate cannot do for a problem on a host. The others say what people forbid, or prefer. */
#define TP__UNABLE                                                                                     \
    (1u << TP_WHY_ISA | 1u << TP_WHY_HEAD_DIM | 1u << TP_WHY_MEMORY | 1u << TP_WHY_OP | 1u << TP_WHY_DTYPE | \
     1u << TP_WHY_DEVICE | 1u << TP_WHY_ABSENT | 1u << TP_WHY_FEATURE)

/* The candidates of a context by their index: the CPU's, then its device's. */
typedef struct tp__kernel_names {
    const char *device; /* NULL: there is none */
    int count;
    const char *name[TP__CANDIDATES_MAX];
} tp__kernel_names;

#endif
