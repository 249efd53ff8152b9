/* SPDX-License-Identifier: Apache-2.0 */
/* The command: what a lock holds, and small changes of it. */
#include "lock/lock.h"

#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/table.h"
#include "qualify/qualify.h"
#include "tool/device.h"
#include "tool/guard.h"

static int is_json(const struct options *options) {
    return options->format && !strcmp(options->format, "json");
}

/* "tileproof cpu avx2,avx512", "torch compiled cuda:H100, cache e4m3" */
static const char *say_engine(const tp_lock_revision *r, char text[400]) {
    int plain = !strcmp(r->cache, "plain");
    snprintf(text, 400, "%.60s%s%.30s %.100s%s%.60s%s%.60s", r->engine, *r->mode ? " " : "", r->mode, r->device,
             *r->isa ? " " : "", r->isa, plain ? "" : ", cache ", plain ? "" : r->cache);
    return text;
}

/* ---- list ---- */

static const struct column list_columns[] = {
    {"model", "model", 1, 0},   {"config", "config", 1, 0}, {"date", "date", 1, 0},         {"engine", "engine", 1, 0},
    {"status", "status", 1, 0}, {"cells", "cells", 1, 0},   {"here", "on this host", 1, 0},
};

static int list_revisions(const struct options *options, const tp_lock *lock, const tp_identity *now, const char *cache) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    struct table table;
    char engine[400], config[13], why[1024];
    table_open(&table, list_columns, sizeof list_columns / sizeof *list_columns);
    for (int64_t i = 0; tp_lock_revision_at(lock, i, &one) == TP_OK; i++) {
        if (!revision_means(&one, (struct wanted){NULL, cache})) continue;
        int fresh = tp_lock_revision_fresh(lock, i, now, why, sizeof why) == TP_OK;
        snprintf(config, sizeof config, "%.12s", one.config_hash);
        table_text(&table, one.model);
        table_text(&table, is_json(options) ? one.config_hash : config);
        table_text(&table, one.date);
        table_text(&table, say_engine(&one, engine));
        table_text(&table, tp_cell_status_name((tp_cell_status)one.status));
        table_integer(&table, one.cell_count);
        int asked = !strcmp(one.engine, now->engine) && !strcmp(one.device, now->device) &&
                    strcmp(one.config_hash, TP_LOCK_WATCHED);
        table_text(&table, fresh ? "as qualified" : is_json(options) ? why : asked ? "STALE" : "not asked");
    }
    int code = table_print(&table, is_json(options) ? FORMAT_JSON : FORMAT_MD, stdout);
    if (is_json(options)) printf("\n");
    table_close(&table);
    return code;
}

static int lock_list(const struct options *options, const tp_lock *lock, const char *cache) {
    tp_identity *now;
    tp_error error = TP_ERROR_INIT;
    tp_lock_history past = TP_LOCK_HISTORY_INIT;
    if (tp_identity_detect(options->declare, &now, &error) != TP_OK) return complain_status(&error);
    tp_identity on;
    int code = device_open(options);
    device_identity(now, &on);
    on.cache = "any"; /* each revision with its own */
    if (!code) code = list_revisions(options, lock, &on, cache);
    tp_identity_destroy(now);
    for (int64_t i = 0; !is_json(options) && tp_lock_history_at(lock, i, &past) == TP_OK; i++)
        printf("%s%s: %s%s%s%s%s: %s\n", i ? "" : "\n", past.date, past.cells, *past.revisions ? ", " : "", past.revisions,
               *past.dropped ? ", dropped " : "", past.dropped, past.reason);
    return code;
}

/* ---- show ---- */

static const struct column show_columns[] = {
    {"model", NULL, 1, 0},        {"config", NULL, 1, 0},       {"engine", NULL, 1, 0},       {"part", "part", 1, 0},
    {"layers", "layers", 1, 0},   {"phase", "phase", 1, 0},     {"purpose", "lengths", 1, 0}, {"status", "status", 1, 0},
    {"kernel", "kernel", 1, 0},   {"error", "error", 1, 9},     {"allowed", "allowed", 1, 9}, {"loss", "loss", 1, 9},
    {"bytes", "bytes", 1, 0},     {"scratch", "scratch", 1, 0}, {"problem", "problem", 1, 0}, {"reason", "reason", 1, 0},
};

static void show_cells(struct table *table, const tp_lock *lock, int64_t revision) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    tp_cell cell = TP_CELL_INIT;
    tp_lock_use use = TP_LOCK_USE_INIT;
    char engine[400];
    tp_lock_revision_at(lock, revision, &one);
    for (int64_t i = 0; tp_lock_revision_cell(lock, revision, i, &cell, &use) == TP_OK; i++) {
        table_text(table, one.model);
        table_text(table, one.config_hash);
        table_text(table, say_engine(&one, engine));
        table_text(table, use.part);
        table_text(table, use.layers);
        table_text(table, tp_qualify_phase_name(use.phase));
        table_text(table, cell.purpose);
        table_text(table, tp_cell_status_name((tp_cell_status)cell.status));
        table_text(table, *cell.kernel ? cell.kernel : *cell.observed ? cell.observed : "none");
        table_number(table, cell.error);
        table_number(table, cell.allowed);
        table_number(table, cell.loss);
        table_integer(table, cell.bytes);
        table_integer(table, cell.scratch);
        table_text(table, cell.problem);
        table_text(table, cell.reason);
    }
}

static int lock_show(const struct options *options, const tp_lock *lock, const char *cache) {
    struct wanted wanted = {options->file_count > 2 ? options->files[2] : NULL, cache};
    struct table table;
    int64_t revision;
    char engine[400];
    int code = EXIT_FINE, json = is_json(options);
    if (revision_find(lock, wanted, 0) < 0) return complain_revision(options->files[1], lock, wanted);
    table_open(&table, show_columns, sizeof show_columns / sizeof *show_columns);
    for (int64_t i = 0; (revision = revision_find(lock, wanted, i)) >= 0 && !code; i++) {
        tp_lock_revision one = TP_LOCK_REVISION_INIT;
        tp_lock_revision_at(lock, revision, &one);
        show_cells(&table, lock, revision);
        if (json) continue;
        printf("%s%s %s (%s, %s): %s, %lld cells\n\n", i ? "\n" : "", one.model, one.config_hash, one.date,
               say_engine(&one, engine), tp_cell_status_name((tp_cell_status)one.status), (long long)one.cell_count);
        code = table_print(&table, FORMAT_MD, stdout);
        table_close(&table);
        table_open(&table, show_columns, sizeof show_columns / sizeof *show_columns);
    }
    if (json) code = table_print(&table, FORMAT_JSON, stdout);
    if (json) printf("\n");
    table_close(&table);
    return code;
}

/* ---- changes: read, changed and written under the guard ---- */

static int drop(const struct options *options, tp_lock *lock, const char *date, const char *cache) {
    struct wanted wanted = {options->files[2], cache};
    tp_error error = TP_ERROR_INIT;
    tp_lock_revision first = TP_LOCK_REVISION_INIT, one = TP_LOCK_REVISION_INIT;
    int64_t at = revision_find(lock, wanted, 0), next;
    if (at < 0) return complain_revision(options->files[1], lock, wanted);
    tp_lock_revision_at(lock, at, &first);
    for (int64_t i = 1; (next = revision_find(lock, wanted, i)) >= 0; i++) {
        tp_lock_revision_at(lock, next, &one);
        if (!strcmp(one.config_hash, first.config_hash)) continue;
        complain("'%s' means %s@%.12s and %s@%.12s: say which is to be dropped", wanted.word, first.model, first.config_hash,
                 one.model, one.config_hash);
        return EXIT_USAGE;
    }
    for (; at >= 0; at = revision_find(lock, wanted, 0))
        if (tp_lock_drop(lock, at, date, options->reason, &error) != TP_OK) return complain_status(&error);
    return EXIT_FINE;
}

static int merge(const struct options *options, tp_lock *lock, const char *date, const char *cache) {
    (void)cache;
    tp_error error = TP_ERROR_INIT;
    for (int i = 2; i < options->file_count; i++) {
        tp_lock *other;
        int code = lock_read_file(options->files[i], &other);
        if (code) return code;
        tp_status status = tp_lock_merge(lock, other, date, options->reason, &error);
        tp_lock_destroy(other);
        if (status == TP_OK) continue;
        complain("%s into %s: %s", options->files[i], options->files[1], error.text);
        return exit_code_of(status);
    }
    return EXIT_FINE;
}

static int change(const struct options *options, const char *cache,
                  int (*how)(const struct options *options, tp_lock *lock, const char *date, const char *cache)) {
    struct guard guard = {0};
    tp_error error = TP_ERROR_INIT;
    tp_lock *lock = NULL;
    double seconds;
    char date[32];
    if (tp_lock_reason_check(options->reason, &error) != TP_OK) return complain_status(&error);
    int code = lock_wait_seconds(options, &seconds);
    if (!code) code = guard_take(&guard, options->files[1], seconds);
    if (!code) code = lock_read_file(options->files[1], &lock);
    int64_t before = lock_changes(lock);
    bench_date(date);
    date[10] = 0;
    if (!code) code = how(options, lock, date, cache);
    if (!code) code = lock_write_file(options->files[1], lock);
    for (int64_t i = before; !code && i < lock_changes(lock); i++) lock_say_change(options->files[1], lock, i);
    tp_lock_destroy(lock);
    guard_release(&guard);
    return code;
}

int command_lock(const struct options *options) {
    static const struct {
        const char *name, *words;
        int min, max, changes;
    } verbs[] = {{"list", "FILE", 2, 2, 0},
                 {"show", "FILE [REVISION]", 2, 3, 0},
                 {"diff", "FILE A B, or FILE FILE", 2, 5, 0},
                 {"drop", "FILE REVISION --reason TEXT", 3, 3, 1},
                 {"merge", "FILE OTHER... --reason TEXT", 3, 1000, 1}};
    const char *verb = options->file_count ? options->files[0] : "";
    size_t which = 0, count = sizeof verbs / sizeof *verbs;
    tp_lock *lock;
    while (which < count && strcmp(verbs[which].name, verb)) which++;
    if (which == count) {
        complain("lock '%s': it must be list, show, diff, drop or merge, then the lock", verb);
        return EXIT_USAGE;
    }
    if (options->file_count < verbs[which].min || options->file_count > verbs[which].max) {
        complain("%d words given: lock %s takes %s", options->file_count - 1, verb, verbs[which].words);
        return EXIT_USAGE;
    }
    if (options->format && !is_json(options) && strcmp(options->format, "text")) {
        complain("--output is '%s': it must be text or json", options->format);
        return EXIT_USAGE;
    }
    if (!verbs[which].changes && options->reason) {
        complain("--reason is for lock drop and lock merge");
        return EXIT_USAGE;
    }
    if (which == 4 && options->kv_cache) {
        complain("--kv-cache is for lock list, show, diff and drop: merge takes every revision of the other lock");
        return EXIT_USAGE;
    }
    char format[64];
    int code = options_cache(options, format);
    const char *cache = options->kv_cache ? format : NULL;
    if (code) return code;
    if (which == 2) return lock_diff(options, cache);
    if (verbs[which].changes) return change(options, cache, which == 3 ? drop : merge);
    code = lock_read_file(options->files[1], &lock);
    if (code) return code;
    code = which == 0 ? lock_list(options, lock, cache) : lock_show(options, lock, cache);
    tp_lock_destroy(lock);
    return code;
}
