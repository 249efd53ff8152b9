/* SPDX-License-Identifier: Apache-2.0 */
/* What a candidate on a device can serve, as its backend says. */
#include "base/arena.h"
#include "plan/plan.h"

static void add(void *reasons, tp_reason_code code, int64_t have, int64_t need, const char *text) {
    const tp__why *why = reasons;
    int known = code >= TP_WHY_ISA && code <= TP_WHY_FEATURE;
    tp__refuse(why, known ? code : TP_WHY_FEATURE, have, need, "%.95s", text != NULL ? text : "the backend does not say why");
}

void tp__device_serves(const tp__option *option, const tp_problem *problem, const tp__rules *rules, const tp__why *why) {
    const tp_backend *backend = &option->device->backend;
    (void)rules;
    if (tp__device_unknown(option->device, problem, NULL) != NULL)
        tp__refuse(why, TP_WHY_FEATURE, 0, 0, "tp_problem has a field set that is newer than the backend");
    else
        backend->serves(backend->user, option->device_kernel, problem, add, (void *)(uintptr_t)why);
}

size_t tp__device_figures(const tp_problem *problem, const tp__option *option, tp_decision *decision) {
    const tp_backend *backend = &option->device->backend;
    tp_backend_figures f = {.struct_size = sizeof f};
    backend->figures(backend->user, option->device_kernel, problem, &f);
    f.numerics_id[sizeof f.numerics_id - 1] = '\0';
    decision->numerics_id = tp__decision_text(decision, "%s", f.numerics_id);
    decision->decode = f.decode;
    decision->chunk_keys = tp__max(f.chunk_keys, 0);
    if (f.chunk_keys > 0)
        decision->chunks = problem->kv_len / f.chunk_keys + (problem->kv_len % f.chunk_keys > 0);
    decision->workspace_bytes = tp__max(f.workspace_bytes, 0);
    return (size_t)decision->workspace_bytes;
}
