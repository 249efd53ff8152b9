/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decision while it is made, and who holds it. It owns its candidates, reasons and texts, as many as there are. Once
 * made it never changes, so that a plan, the cache and a watch can hold the same one; the last to let go frees it.
 */
#ifndef TP_PLAN_DECISION_H
#define TP_PLAN_DECISION_H

#include "base/reasons.h"
#include "tileproof.h"

/* With one holder, and candidates that are yet to be filled in. NULL: no memory. */
tp_decision *tp__decision_create(int candidates);
tp_decision *tp__decision_hold(const tp_decision *decision); /* lets go by tp_decision_destroy */

/* Whether memory ran out for anything below; what is missing then is an empty text or no reason. */
int tp__decision_failed(const tp_decision *decision);

/* A text that lives as long as the decision. */
const char *tp__decision_text(tp_decision *decision, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

tp_candidate *tp__decision_at(tp_decision *decision, int index);

/* One more reason why a candidate is not taken. */
typedef struct tp__why {
    tp_decision *decision;
    int index; /* of the candidate */
} tp__why;
void tp__refuse(const tp__why *why, tp_reason_code code, int64_t have, int64_t need, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Bits 1u << code of a candidate's reasons so far. */
uint32_t tp__decision_codes(const tp_decision *decision, int index);
/* The decision's reasons in short. */
tp__reasons tp__reasons_of(const tp_decision *decision);

#endif
