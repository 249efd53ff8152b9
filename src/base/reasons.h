/* SPDX-License-Identifier: Apache-2.0 */
/* Why candidates were not taken, in a few bytes that a record can keep. */
#ifndef TP_BASE_REASONS_H
#define TP_BASE_REASONS_H

#include "tileproof.h"

/* tp_reason_code of each candidate; 0: no more. */
typedef struct tp__reasons {
    uint8_t code[TP_MAX_CANDIDATES][TP_MAX_REASONS];
} tp__reasons;

#endif
