/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What those who watch get to know of a call. Counting and recording happen where the call happens; the
 * caller's own functions are called at the very end, when no lock of the library is held, so that they cannot
 * make it wait for itself. Until then a watch keeps what they will be told.
 */
#ifndef TP_API_WATCH_H
#define TP_API_WATCH_H

#include "plan/plan.h"
#include "telemetry/record.h"
#include "tileproof.h"

typedef struct tp__watch {
    int listening;       /* someone may be told */
    int detail;          /* and will want decision and receipt */
    int told;            /* there is something to tell */
    int event;           /* tp_event_kind; 0: none */
    const tp_problem *problem; /* as asked */
    tp__record record;
    tp_decision *decision; /* when detail: held until the end */
    tp_receipt receipt;  /* of a run; its status is the call's */
} tp__watch;

/* What a run tells besides its receipt. */
typedef struct tp__ran {
    const char *kernel; /* "none": there were no pairs, or it failed */
    tp__amounts amounts;
} tp__ran;

/* Tags that outlive the caller's. */
typedef struct tp__own_tags {
    int given;
    tp_tags tags;
    char model[TP__TAG_SIZE], request[TP__TAG_SIZE];
} tp__own_tags;
void tp__tags_copy(tp__own_tags *own, const tp_tags *tags);
/* The tensors' tags; NULL as well for those that a run would not accept: a refused call's have not been looked at. */
const tp_tags *tp__tags_of(const tp_tensors *tensors);

/* Only the marks are set: the rest is large. */
void tp__watch_begin(tp__watch *watch, const tp_context *context);
/* Before a run of the plan: whether its receipt will be wanted. */
int tp__watch_wants_receipt(tp__watch *watch, const tp_plan *plan);
/* A decision that refused. */
void tp__watch_refused(tp__watch *watch, tp_context *context, const tp_problem *problem, const tp_tags *tags,
                       const tp_decision *decision);
/* A run that came to an end, well or not. */
void tp__watch_ran(tp__watch *watch, const tp_plan *plan, const tp_problem *problem, tp__labels labels, const tp_tags *tags,
                   const tp__ran *ran, tp_status status);
/* Calls the caller's functions: without any lock. Gives the status back. */
tp_status tp__watch_end(tp__watch *watch, tp_context *context, const tp_tags *tags, tp_status status);

#endif
