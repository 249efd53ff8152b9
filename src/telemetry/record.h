/* SPDX-License-Identifier: Apache-2.0 */
/* One call in short, and the ring of the last of them: the flight recorder. */
#ifndef TP_TELEMETRY_RECORD_H
#define TP_TELEMETRY_RECORD_H

#include "base/reasons.h"
#include "telemetry/counts.h"
#include "telemetry/emit.h"

#define TP__TAG_SIZE 64 /* of a model's name and a request's, with the ending 0 */

/* Nothing in it points to what is the caller's, or a plan's. Small: every call fills in one. */
typedef struct tp__record {
    int64_t start_ns; /* of the monotonic clock */
    tp__amounts amounts;
    tp__labels labels;
    int32_t status;
    int32_t fallback;
    int32_t planned; /* the decision was made anew */
    int32_t lock;    /* tp_lock_status */
    int32_t layer;
    char model[TP__TAG_SIZE], request[TP__TAG_SIZE];
    tp__reasons why;
    const tp__kernel_names *names; /* the context's */
} tp__record;

/* Of the best tier's candidate: why it did not serve; 0: it did, or there is none. */
int tp__first_reason(const tp_decision *decision);

/* One line of JSON, handed over in one piece. The problem in words; with a decision reasons come in full.
   Nonzero: the sink asked to stop. */
int tp__record_send(const tp__record *record, const char *problem, const tp_decision *decision, tp_write write,
                    void *cookie);

/* The text form of the problem; where that is too long, a short text that says so. */
void tp__bounds_text(const tp_problem *problem, char text[512]);

typedef struct tp__recorder tp__recorder;
tp__recorder *tp__recorder_create(int max);
void tp__recorder_destroy(tp__recorder *recorder);
void tp__recorder_add(tp__recorder *recorder, const tp__record *record, const tp_problem *problem);
/* Those kept, oldest first; fresh: only what no such call has written yet. Holds no lock while it writes. */
tp_status tp__recorder_write(tp__recorder *recorder, int fresh, tp_write write, void *cookie);

#endif
