/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus text, version 0.0.4: one table of families by label, one of plain ones; histograms; the state of the lock. */
#include "telemetry/metrics.h"

#include <stddef.h>
#include <stdio.h>

#include "telemetry/emit.h"

/* Digit by digit: no locale's comma. */
#define SECONDS_SIZE 32
static const char *seconds(int64_t ns, char text[SECONDS_SIZE]) {
    snprintf(text, SECONDS_SIZE, "%lld.%09lld", (long long)(ns / 1000000000), (long long)(ns % 1000000000));
    return text;
}

typedef struct family {
    const char *name, *type, *help;
    int32_t kind;   /* of the counts it is made of */
    size_t offset;  /* of the figure */
    int nano;       /* the figure counts billionths of the metric's unit */
} family;

#define FIGURE(field) offsetof(tp_count, field)
static const family families[] = {
    {"tileproof_calls_total", "counter", "Completed calls, by the kernel that computed the scores.",
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
    if (c->kind != TP_COUNT_REFUSALS) tp__emit_label(e, "kernel", c->kernel);
    tp__emit_label(e, "device", c->device);
    tp__emit_label(e, "phase", c->phase);
    tp__emit_label(e, "dtype", c->dtype);
    tp__emit_label(e, "bucket", c->bucket);
    if (c->kind != TP_COUNT_CALLS) tp__emit_label(e, "reason", c->reason);
    if (c->model[0] != '\0') tp__emit_label(e, "model", c->model);
    int64_t figure = *(const int64_t *)((const char *)c + f->offset);
    char text[SECONDS_SIZE];
    if (!f->nano)
        tp__emit_text(e, "} %lld\n", (long long)figure);
    else
        tp__emit_text(e, "} %s\n", seconds(figure, text));
}

static void put_family(tp__emit *e, const family *f, const tp__counts *counts) {
    tp_count count;
    tp__emit_head(e, f->name, f->type, f->help);
    for (int64_t at = 0; tp__counts_next(counts, &at, &count);)
        if (count.kind == f->kind) put_sample(e, f, &count);
}

static void put_histogram(tp__emit *e, const tp__metrics *m, const tp__histogram *h, const char *part, const char *bound) {
    const char *model = tp__counts_model_name(m->counts, h->labels.model);
    tp__emit_text(e, "tileproof_call_seconds_%s{", part);
    e->comma = 0;
    tp__emit_label(e, "phase", tp__phase_name(h->labels.phase));
    tp__emit_label(e, "bucket", tp__bucket_name(h->labels.bucket));
    if (model[0] != '\0') tp__emit_label(e, "model", model);
    if (bound != NULL) tp__emit_label(e, "le", bound);
    tp__emit_text(e, "} ");
}

static void put_histograms(tp__emit *e, const tp__metrics *m) {
    tp__histogram h;
    char text[SECONDS_SIZE];
    tp__emit_head(e, "tileproof_call_seconds", "histogram", "Wall time of completed calls.");
    for (int64_t at = 0; m->histograms != NULL && tp__histograms_next(m->histograms, &at, &h);) {
        for (int b = 0; b < TP__BOUNDS; b++) {
            put_histogram(e, m, &h, "bucket", seconds(INT64_C(1) << (TP__BOUND_FIRST + b), text));
            tp__emit_text(e, "%lld\n", (long long)h.within[b]);
        }
        put_histogram(e, m, &h, "bucket", "+Inf");
        tp__emit_text(e, "%lld\n", (long long)h.count);
        put_histogram(e, m, &h, "sum", NULL);
        tp__emit_text(e, "%s\n", seconds(h.sum_ns, text));
        put_histogram(e, m, &h, "count", NULL);
        tp__emit_text(e, "%lld\n", (long long)h.count);
    }
}

/* Each state has a series, so that one that ends goes to 0. */
static void put_lock(tp__emit *e, const tp__metrics *m, tp_lock_status worst) {
    tp__emit_head(e, "tileproof_lock_state", "gauge", "1 for the state that the lock is in for a model, 0 for the others.");
    for (int slot = 0; slot < TP__MODEL_SLOTS; slot++) {
        int now = atomic_load(&m->locks->status[slot]);
        const char *model = tp__counts_model_name(m->counts, tp__slot_model(slot));
        if (now == TP_LOCK_ABSENT && (slot > 0 || worst != TP_LOCK_ABSENT)) continue;
        for (int state = 0; state < TP__LOCK_STATUSES; state++) {
            tp__emit_text(e, "tileproof_lock_state{");
            e->comma = 0;
            if (model[0] != '\0') tp__emit_label(e, "model", model);
            tp__emit_label(e, "state", tp_lock_status_name((tp_lock_status)state));
            tp__emit_text(e, "} %d\n", state == now);
        }
    }
}

static void put_info(tp__emit *e, const tp__metrics *m) {
    char isa[64];
    static const char *const policies[] = {"refuse", "permit", "serve", "locked"};
    tp__emit_head(e, "tileproof_build_info", "gauge", "1; its labels say which library runs where, and how.");
    tp__emit_text(e, "tileproof_build_info{");
    e->comma = 0;
    tp__emit_label(e, "version", tp_version());
    tp__emit_label(e, "compiler", __VERSION__);
    tp_isa_print(m->isa, isa, sizeof isa);
    tp__emit_label(e, "isa", isa);
    tp__emit_label(e, "policy", policies[m->policy]);
    tp__emit_text(e, "} 1\n");
}

static void put_plain(tp__emit *e, const tp__metrics *m, tp_lock_status worst) {
    const int64_t canary = atomic_load(&m->locks->canary);
    const struct {
        const char *name, *type, *help;
        int64_t value;
        int unknown; /* then it is left out */
    } plain[] = {
        {"tileproof_plans_total", "counter", "Decisions made.", m->totals.plans, 0},
        {"tileproof_plan_cache_hits_total", "counter", "Decisions found in the cache.", m->totals.cache_hits, 0},
        {"tileproof_pairs_shared_total", "counter", "Row-key pairs of keys that were read once for several sequences.",
         m->totals.pairs_shared, 0},
        {"tileproof_workspace_bytes", "gauge", "Workspace that the context holds.", m->workspace_bytes, 0},
        {"tileproof_threads", "gauge", "Threads of the context.", m->threads, 0},
        {"tileproof_lock_loaded", "gauge", "1 when a lock was loaded.",
         worst != TP_LOCK_ABSENT && worst != TP_LOCK_UNREADABLE, 0},
        {"tileproof_lock_stale", "gauge", "1 when the lock does not vouch for this host, library and every model.",
         worst > TP_LOCK_MATCHES, 0},
        {"tileproof_lock_scratch_bytes", "gauge", "Most workspace that a cell of the lock used; 0: not known.",
         atomic_load(&m->locks->scratch), 0},
        {"tileproof_canary_last_success_timestamp_seconds", "gauge", "When the canary last passed, in Unix time.",
         canary, canary == 0},
    };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        tp__emit_head(e, plain[i].name, plain[i].type, plain[i].help);
        if (!plain[i].unknown) tp__emit_text(e, "%s %lld\n", plain[i].name, (long long)plain[i].value);
    }
}

tp_status tp__metrics_text(const tp__metrics *metrics, tp_write write, void *cookie) {
    tp__emit e = {write, cookie, 0, 0};
    const tp_lock_status worst = tp__locks_worst(metrics->locks, metrics->counts);
    put_info(&e, metrics);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) put_family(&e, &families[i], metrics->counts);
    put_histograms(&e, metrics);
    put_lock(&e, metrics, worst);
    put_plain(&e, metrics, worst);
    return e.failed ? TP_INVALID : TP_OK;
}
