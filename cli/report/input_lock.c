/* SPDX-License-Identifier: Apache-2.0 */
#include "report/report.h"

#include <stdlib.h>
#include <string.h>

#include "lock/lock.h"

static int no_memory(void) {
    complain("out of memory");
    return EXIT_FAILED;
}

static int add_history(struct report *report, const struct report_file *file) {
    tp_lock_history past = TP_LOCK_HISTORY_INIT;
    int code = EXIT_FINE;
    for (int64_t i = 0; !code && tp_lock_history_at(file->lock, i, &past) == TP_OK; i++)
        code = report_add_from(report, ROWS_HISTORY, file,
                               json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "date", past.date, "reason", past.reason,
                                         "cells", past.cells, "revisions", past.revisions, "dropped", past.dropped, "engine",
                                         past.engine, "device", past.device, "isa", past.isa, "build", past.build));
    return code;
}

int report_read_lock(struct report *report, struct report_file *file, const char *text, size_t size) {
    tp_error error = TP_ERROR_INIT;
    if (tp_lock_parse(text, size, file->path, &file->lock, &error) != TP_OK) return complain_status(&error);
    file->what = "a lock";
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    while (tp_lock_revision_at(file->lock, (int64_t)file->rows, &one) == TP_OK) file->rows++;
    return add_history(report, file);
}

/* ---- cells, in the words of qualify ---- */

static json_t *cell_row(const tp_lock_revision *one, const tp_cell *cell, const tp_lock_use *use) {
    json_t *row = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:f,s:f}", "model", use->model, "config", use->config_hash,
                            "part", use->part, "layers", use->layers, "phase", tp_qualify_phase_name(use->phase), "purpose",
                            cell->purpose, "problem", cell->problem, "status", tp_cell_status_name((tp_cell_status)cell->status),
                            "kernel", cell->kernel, "reason", cell->reason, "error", cell->error, "allowed", cell->allowed);
    json_t *more = json_pack("{s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "bytes", (json_int_t)cell->bytes, "scratch",
                             (json_int_t)cell->scratch, "panels_full", (json_int_t)cell->panels_full, "panels_partial",
                             (json_int_t)cell->panels_partial, "panels_skipped", (json_int_t)cell->panels_skipped, "numerics_id",
                             cell->numerics_id, "output", cell->output, "engine", one->engine, "mode", one->mode, "device",
                             one->device, "isa", one->isa, "date", one->date);
    json_t *seen = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:s}", "rule", cell->rule, "observed", cell->observed,
                             "engine_reasons", cell->engine_reasons, "doubt", cell->doubt, "contained",
                             tp_kept_name((tp_kept)cell->contained), "deterministic", tp_kept_name((tp_kept)cell->deterministic),
                             "empty_rows", tp_kept_name((tp_kept)cell->empty_rows), "temporary", (json_int_t)cell->temporary,
                             "cache", one->cache);
    if (cell->loss > 0 && seen && json_object_set_new(seen, "loss", json_real(cell->loss))) {
        json_decref(seen);
        seen = NULL;
    }
    if (row && !json_object_update_new(row, more) && !json_object_update_new(row, seen)) return row;
    json_decref(row);
    return NULL;
}

static int add_cells(struct report *report, const struct report_file *file, int64_t revision) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    tp_cell cell = TP_CELL_INIT;
    tp_lock_use use = TP_LOCK_USE_INIT;
    int code = EXIT_FINE;
    tp_lock_revision_at(file->lock, revision, &one);
    for (int64_t i = 0; !code && tp_lock_revision_cell(file->lock, revision, i, &cell, &use) == TP_OK; i++)
        code = report_add_from(report, ROWS_CELL, file, cell_row(&one, &cell, &use));
    return code;
}

/* ---- what differs ---- */

/* The last revision of this one's model and engine in a lock; -1: none */
static int64_t last_like(const tp_lock *lock, const tp_lock_revision *mine) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    int64_t found = -1;
    for (int64_t i = 0; tp_lock_revision_at(lock, i, &one) == TP_OK; i++)
        if (!strcmp(one.model, mine->model) && revision_same_engine(&one, mine)) found = i;
    return found;
}

/* The same in the files behind one. */
static int64_t later_like(const struct report *report, int file, const tp_lock_revision *mine, const struct report_file **found) {
    for (int i = file + 1; i < report->file_count; i++) {
        int64_t at = report->files[i].lock ? last_like(report->files[i].lock, mine) : -1;
        *found = &report->files[i];
        if (at >= 0) return at;
    }
    return -1;
}

static void say_revision(const tp_lock_revision *one, char text[256]) {
    snprintf(text, 256, "%.12s, %.20s", one->config_hash, one->date);
}

static int add_change(struct report *report, const tp_lock_revision *from, const char *to, const json_t *change) {
    char before[256];
    say_revision(from, before);
    return report_add(report, ROWS_CHANGE,
                      json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s}", "model", from->model, "engine", from->engine, "earlier",
                                before, "later", to, "where", row_text(change, "where"), "phase", row_text(change, "phase"),
                                "what", row_text(change, "what"), "from", row_text(change, "from"), "to",
                                row_text(change, "to")));
}

/* Two revisions. */
static int add_diff(struct report *report, const tp_lock *old, int64_t from, const tp_lock *new, int64_t to) {
    tp_lock_revision before = TP_LOCK_REVISION_INIT, after = TP_LOCK_REVISION_INIT;
    char *text = NULL, later[256];
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (!memory) return no_memory();
    tp_lock_revision_at(old, from, &before);
    tp_lock_revision_at(new, to, &after);
    say_revision(&after, later);
    tp_status status = tp_lock_diff(old, from, new, to, TP_JSON, write_to_file, memory);
    int broken = fclose(memory) || status != TP_OK;
    json_t *diff = broken ? NULL : json_loadb(text, size, 0, NULL), *change;
    int code = diff ? EXIT_FINE : no_memory();
    size_t i;
    json_array_foreach(json_object_get(diff, "changes"), i, change) if (!code) code = add_change(report, &before, later, change);
    json_decref(diff);
    free(text);
    return code;
}

/* A cell of today as a lock would have it. */
static tp_cell cell_of(const json_t *row) {
    tp_cell cell = TP_CELL_INIT;
    tp_cell_status_parse(row_text(row, "status"), &cell.status);
    cell.kernel = row_text(row, "kernel");
    cell.numerics_id = row_text(row, "numerics_id");
    cell.output = row_text(row, "output");
    cell.reason = row_text(row, "reason");
    cell.problem = row_text(row, "problem");
    cell.error = json_number_value(json_object_get(row, "error"));
    cell.allowed = json_number_value(json_object_get(row, "allowed"));
    cell.loss = json_number_value(json_object_get(row, "loss"));
    struct {
        const char *name;
        int64_t *to;
    } whole[] = {{"panels_full", &cell.panels_full},
                 {"panels_partial", &cell.panels_partial},
                 {"panels_skipped", &cell.panels_skipped},
                 {"bytes", &cell.bytes},
                 {"scratch", &cell.scratch}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        *whole[i].to = (int64_t)json_integer_value(json_object_get(row, whole[i].name));
    return cell;
}

/* What a cell of qualify is beside the lock's last revision of its model and engine. */
static int compare_cell(struct report *report, const tp_lock *lock, int64_t revision, const json_t *row) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    tp_cell locked = TP_CELL_INIT, now = cell_of(row);
    tp_lock_use use = TP_LOCK_USE_INIT;
    char text[1024] = "", where[400];
    tp_lock_revision_at(lock, revision, &one);
    snprintf(where, sizeof where, "%.40s layers %.300s", row_text(row, "part"), row_text(row, "layers"));
    for (int64_t i = 0; tp_lock_revision_cell(lock, revision, i, &locked, &use) == TP_OK; i++) {
        if (strcmp(locked.problem, now.problem) || !row_is(row, "part", use.part) || !row_is(row, "layers", use.layers)) continue;
        tp_cell_status status = tp_cell_compare(&locked, &now, text, sizeof text);
        if (status == TP_CELL_QUALIFIED || !*text) return EXIT_FINE;
        json_t *change = json_pack("{s:s,s:s,s:s,s:s,s:s}", "where", where, "phase", row_text(row, "phase"), "what", now.problem,
                                   "from", *locked.kernel ? locked.kernel : "none", "to", text);
        int code = add_change(report, &one, tp_cell_status_name(status), change);
        json_decref(change);
        return code;
    }
    return EXIT_FINE;
}

static int compare_today(struct report *report, const tp_lock *lock) {
    tp_lock_revision one = TP_LOCK_REVISION_INIT;
    json_t *row;
    size_t i;
    int code = EXIT_FINE;
    json_array_foreach(report->rows[ROWS_CELL], i, row) {
        int64_t found = -1;
        for (int64_t at = 0; tp_lock_revision_at(lock, at, &one) == TP_OK; at++)
            if (row_is(row, "model", one.model) && row_is(row, "engine", one.engine) && row_is(row, "mode", one.mode) &&
                row_is(row, "device", one.device) && (!*one.isa || row_is(row, "isa", one.isa)) &&
                !strcmp(row_cache(row), one.cache))
                found = at;
        if (!code && found >= 0) code = compare_cell(report, lock, found, row);
    }
    return code;
}

int report_locks(struct report *report) {
    int today = report->rows[ROWS_CELL] != NULL, code = EXIT_FINE;
    const tp_lock *last = NULL;
    for (int f = 0; !code && f < report->file_count; f++) {
        struct report_file *file = &report->files[f];
        const struct report_file *other;
        tp_lock_revision one = TP_LOCK_REVISION_INIT;
        for (int64_t i = 0; file->lock && !code && tp_lock_revision_at(file->lock, i, &one) == TP_OK; i++) {
            int64_t next = revision_next(file->lock, i), later;
            if (next >= 0) {
                if (revision_next(file->lock, next) < 0) code = add_diff(report, file->lock, i, file->lock, next);
            } else if ((later = later_like(report, f, &one, &other)) >= 0) {
                code = add_diff(report, file->lock, i, other->lock, later);
            } else if (!today) {
                code = add_cells(report, file, i);
            }
        }
        if (file->lock) last = file->lock;
    }
    return !code && today && last ? compare_today(report, last) : code;
}
