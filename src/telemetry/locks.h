/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of the lock, for each model or for all of them. */
#ifndef TP_TELEMETRY_LOCKS_H
#define TP_TELEMETRY_LOCKS_H

#include <stdatomic.h>

#include "telemetry/counts.h"

enum { TP__LOCK_STATUSES = TP_LOCK_FAILED + 1 };

typedef struct tp__locks {
    atomic_int status[TP__MODEL_SLOTS]; /* by slot; 0 is that of all models */
    atomic_llong scratch, canary;
} tp__locks;

/* A model's state replaces the one state of all models, and the other way round. Times and bytes that the new state does not
   know keep their values. */
void tp__locks_set(tp__locks *locks, int model, const tp_lock_state *state);
/* That of the model or, where it has none, the worst that there is. */
tp_lock_status tp__locks_of(const tp__locks *locks, const tp__counts *counts, int model);
tp_lock_status tp__locks_worst(const tp__locks *locks, const tp__counts *counts);

#endif
