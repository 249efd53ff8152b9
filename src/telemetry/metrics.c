/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus text, version 0.0.4: one table of families by label, one of plain ones. */
#include "telemetry/metrics.h"

#include <stddef.h>

#include "telemetry/emit.h"

/* Inside quotes: \ " and newline have an escape; other bytes stand for themselves. */
static void put_label(tp__emit *e, const char *name, const char *value) {
    tp__emit_text(e, "%s%s=\"", e->comma ? "," : "", name);
    e->comma = 1;
    for (; *value != '\0'; value++) {
        if (*value == '\n')
            tp__emit_text(e, "\\n");
        else
            tp__emit_text(e, *value == '\\' || *value == '"' ? "\\%c" : "%c", *value);
    }
    tp__emit_text(e, "\"");
}

static void put_head(tp__emit *e, const char *name, const char *type, const char *help) {
    tp__emit_text(e, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

typedef struct family {
    const char *name, *type, *help;
    int32_t kind;   /* of the counts it is made of */
    size_t offset;  /* of the figure */
    int nano;       /* the figure counts billionths of the metric's unit */
} family;

#define FIGURE(field) offsetof(tp_count, field)
static const family families[] = {
    {"tileproof_calls_total", "counter", "Completed calls, by the kernel whose leaf did the scores.",
     TP_COUNT_CALLS, FIGURE(count), 0},
    {"tileproof_call_seconds_total", "counter", "Wall time of completed calls.", TP_COUNT_CALLS,
     FIGURE(time_ns), 1},
    {"tileproof_call_bytes_total", "counter", "Modelled main-memory bytes of completed calls.", TP_COUNT_CALLS,
     FIGURE(bytes_model), 0},
    {"tileproof_scratch_peak_bytes", "gauge", "Most workspace that one completed call used.", TP_COUNT_CALLS,
     FIGURE(workspace_max), 0},
    {"tileproof_fallbacks_total", "counter",
     "Completed calls that a lower tier served, by why the best tier did not.", TP_COUNT_FALLBACKS,
     FIGURE(count), 0},
    {"tileproof_refusals_total", "counter", "Requests that were refused, by why the best tier did not serve.",
     TP_COUNT_REFUSALS, FIGURE(count), 0},
};

static void put_sample(tp__emit *e, const family *f, const tp_count *c) {
    tp__emit_text(e, "%s{", f->name);
    e->comma = 0;
    if (c->kind != TP_COUNT_REFUSALS) put_label(e, "kernel", c->kernel);
    put_label(e, "device", c->device);
    put_label(e, "phase", c->phase);
    put_label(e, "dtype", c->dtype);
    put_label(e, "bucket", c->bucket);
    if (c->kind != TP_COUNT_CALLS) put_label(e, "reason", c->reason);
    if (c->model[0] != '\0') put_label(e, "model", c->model);
    int64_t figure = *(const int64_t *)((const char *)c + f->offset);
    if (!f->nano)
        tp__emit_text(e, "} %lld\n", (long long)figure);
    else /* digit by digit: no locale's comma */
        tp__emit_text(e, "} %lld.%09lld\n", (long long)(figure / 1000000000), (long long)(figure % 1000000000));
}

static void put_family(tp__emit *e, const family *f, const tp__counts *counts) {
    tp_count count;
    put_head(e, f->name, f->type, f->help);
    for (int64_t at = 0; tp__counts_next(counts, &at, &count);)
        if (count.kind == f->kind) put_sample(e, f, &count);
}

static void put_info(tp__emit *e, const tp__metrics *m) {
    char isa[64];
    static const char *const policies[] = {"refuse", "permit", "serve", "locked"};
    put_head(e, "tileproof_build_info", "gauge", "1; its labels say which library runs where, and how.");
    tp__emit_text(e, "tileproof_build_info{");
    e->comma = 0;
    put_label(e, "version", tp_version());
    put_label(e, "compiler", __VERSION__);
    tp_isa_print(m->isa, isa, sizeof isa);
    put_label(e, "isa", isa);
    put_label(e, "policy", policies[m->policy]);
    tp__emit_text(e, "} 1\n");
}

static void put_plain(tp__emit *e, const tp__metrics *m) {
    const struct {
        const char *name, *type, *help;
        int64_t value;
    } plain[] = {
        {"tileproof_plans_total", "counter", "Decisions made.", m->totals.plans},
        {"tileproof_plan_cache_hits_total", "counter", "Decisions found in the cache.", m->totals.cache_hits},
        {"tileproof_workspace_bytes", "gauge", "Workspace that the context holds.", m->workspace_bytes},
        {"tileproof_threads", "gauge", "Threads of the context.", m->threads},
        {"tileproof_lock_loaded", "gauge", "1 when a lock was loaded.", m->lock.status != TP_LOCK_ABSENT},
        {"tileproof_lock_stale", "gauge", "1 when the lock does not fit this host or library.",
         m->lock.status == TP_LOCK_STALE},
        {"tileproof_lock_scratch_bytes", "gauge", "Most workspace that a cell of the lock used; 0: not known.",
         m->lock.scratch_bytes},
        {"tileproof_canary_last_success_timestamp_seconds", "gauge",
         "When the canary last passed, in Unix time; 0: never.", m->lock.canary_success},
    };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        put_head(e, plain[i].name, plain[i].type, plain[i].help);
        tp__emit_text(e, "%s %lld\n", plain[i].name, (long long)plain[i].value);
    }
}

tp_status tp__metrics_text(const tp__metrics *metrics, tp_write write, void *cookie) {
    tp__emit e = {write, cookie, 0, 0};
    put_info(&e, metrics);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) put_family(&e, &families[i], metrics->counts);
    put_plain(&e, metrics);
    return e.failed ? TP_INVALID : TP_OK;
}
