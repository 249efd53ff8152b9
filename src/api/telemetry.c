/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points to what a context has counted and recorded. */
#include "api/context.h"
#include "base/structs.h"
#include "problem/sequence.h"
#include "telemetry/metrics.h"

tp_status tp_context_counters_sized(const tp_context *context, tp_counters *counters, size_t size) {
    if (context == NULL || counters == NULL) return TP_INVALID;
    TP_REQUIRE_SIZE(tp_counters, size, NULL);
    TP_TRY(tp__context_here(context, NULL));
    const tp_counters found = {.calls = atomic_load(&context->calls),
                               .plans = atomic_load(&context->plans),
                               .cache_hits = atomic_load(&context->cache_hits),
                               .fallbacks = atomic_load(&context->fallbacks),
                               .refusals = atomic_load(&context->refusals),
                               .pairs_shared = atomic_load(&context->pairs_shared)};
    tp__struct_out(counters, size, &found, sizeof found);
    return TP_OK;
}

int tp_context_count_next_sized(const tp_context *context, int64_t *at, tp_count *count, size_t size) {
    tp_count found;
    if (context == NULL || at == NULL || count == NULL) return 0;
    if (tp__size_check("tp_count", size, TP__FIRST_tp_count, NULL) != TP_OK) return 0;
    if (tp__context_here(context, NULL) != TP_OK || !tp__counts_next(context->counts, at, &found)) return 0;
    tp__struct_out(count, size, &found, sizeof found);
    return 1;
}

const char *tp_lock_status_name(tp_lock_status status) {
    static const char *const names[TP__LOCK_STATUSES] = {"absent",        "matches", "stale",      "other-config",
                                                         "unknown-model", "refused", "unreadable", "failed"};
    return (unsigned)status < TP__LOCK_STATUSES ? names[status] : "lock?";
}

tp_status tp_context_lock_state(tp_context *context, const tp_lock_state *state, tp_error *error) {
    TP_REQUIRE(context != NULL, error, TP_INVALID, "context is NULL");
    TP_TRY(tp__context_here(context, error));
    TP_STRUCT_IN(tp_lock_state, state, error);
    TP_REQUIRE(state->status >= TP_LOCK_ABSENT && state->status < TP__LOCK_STATUSES, error, TP_INVALID,
               "lock status is %d: it must be in 0..%d, absent (0) to failed (7)", state->status, TP__LOCK_STATUSES - 1);
    TP_REQUIRE(state->scratch_bytes >= 0 && state->canary_success >= 0, error, TP_INVALID,
               "scratch_bytes is %lld and canary_success %lld: they must be >= 0",
               (long long)state->scratch_bytes, (long long)state->canary_success);
    TP_TRY(tp__tag_check("model", state->model, error));
    tp__locks_set(&context->locks, tp__counts_model(context->counts, state->model), state);
    return TP_OK;
}

tp_status tp_metrics_write(const tp_context *context, tp_write write, void *cookie) {
    if (context == NULL || write == NULL) return TP_INVALID;
    TP_TRY(tp__context_here(context, NULL));
    tp__metrics m = {.counts = context->counts,
                     .histograms = context->histograms,
                     .locks = &context->locks,
                     .workspace_bytes = atomic_load(&context->workspace_held),
                     .policy = context->policy,
                     .threads = context->threads,
                     .isa = context->machine.isa};
    tp_context_counters(context, &m.totals);
    return tp__metrics_text(&m, write, cookie);
}

tp_status tp_recorder_write(const tp_context *context, tp_write write, void *cookie) {
    if (context == NULL || write == NULL) return TP_INVALID;
    TP_TRY(tp__context_here(context, NULL));
    return tp__recorder_write(context->recorder, 0, write, cookie);
}

tp_status tp_context_permit(tp_context *context, const tp_permit *permits, int64_t count, tp_error *error) {
    TP_REQUIRE(context != NULL, error, TP_INVALID, "context is NULL");
    TP_TRY(tp__context_here(context, error));
    if (permits == NULL && count == 0)
        tp__permits_clear(context->permits);
    else
        TP_TRY(tp__permits_add(context->permits, permits, count, error));
    atomic_fetch_add(&context->permits_generation, 1); /* decisions of the cache are made anew */
    return TP_OK;
}
