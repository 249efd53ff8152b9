/* SPDX-License-Identifier: Apache-2.0 */
#include "telemetry/locks.h"

void tp__locks_set(tp__locks *locks, int model, const tp_lock_state *state) {
    int slot = tp__model_slot(model);
    for (int i = 0; slot == 0 && i < TP__MODEL_SLOTS; i++) atomic_store(&locks->status[i], TP_LOCK_ABSENT);
    atomic_store(&locks->status[0], TP_LOCK_ABSENT);
    atomic_store(&locks->status[slot], state->status);
    if (slot == 0 || state->scratch_bytes > 0) atomic_store(&locks->scratch, state->scratch_bytes);
    if (slot == 0 || state->canary_success > 0) atomic_store(&locks->canary, state->canary_success);
}

/* The numbers of the states go from good to bad. */
tp_lock_status tp__locks_worst(const tp__locks *locks, const tp__counts *counts) {
    int worst = atomic_load_explicit(&locks->status[TP__MODEL_SLOTS - 1], memory_order_relaxed);
    for (int i = tp__counts_models(counts); i >= 0; i--) {
        int status = atomic_load_explicit(&locks->status[i], memory_order_relaxed);
        if (status > worst) worst = status;
    }
    return (tp_lock_status)worst;
}

tp_lock_status tp__locks_of(const tp__locks *locks, const tp__counts *counts, int model) {
    int own = atomic_load_explicit(&locks->status[tp__model_slot(model)], memory_order_relaxed);
    return own != TP_LOCK_ABSENT ? (tp_lock_status)own : tp__locks_worst(locks, counts);
}
