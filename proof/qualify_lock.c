/* SPDX-License-Identifier: Apache-2.0 */
/* What was seen, compared with a lock or written into it: all of it, or nothing. */
#include "qualify.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "lock.h"

enum { TEXT_SIZE = 1024 };

static void note_number(char *text, size_t size, const char *what, int64_t locked, int64_t now) {
    size_t used = strlen(text);
    if (locked == now) return;
    snprintf(text + used, size - used, "%s%s: lock has %lld, here %lld", used ? "; " : "", what, (long long)locked,
             (long long)now);
}

static void note_kept(char *text, size_t size, const char *what, int locked, int now) {
    size_t used = strlen(text);
    if (locked == now) return;
    snprintf(text + used, size - used, "%s%s: lock has %s, here %s", used ? "; " : "", what,
             locked ? tp_kept_name((tp_kept)locked) : "none", now ? tp_kept_name((tp_kept)now) : "none");
}

static int is_served(const tp_cell *cell) {
    return tp_cell_status_rank((tp_cell_status)cell->status) <= 1;
}

static tp_cell_status compare(const tp_cell *locked, const tp_cell *now, char *text, size_t size) {
    text[0] = 0;
    if (!is_served(now)) {
        if (now->status == locked->status) return TP_CELL_QUALIFIED; /* as bad as the lock says */
        snprintf(text, size, "%s", now->reason);
        return (tp_cell_status)now->status;
    }
    if (strcmp(locked->kernel, now->kernel) || locked->status != now->status) {
        snprintf(text, size, "lock has %s %s, here %s %s", locked->kernel, tp_cell_status_name((tp_cell_status)locked->status),
                 now->kernel, tp_cell_status_name((tp_cell_status)now->status));
        /* a fallback that the lock does not know is as good as unqualified */
        return now->status == TP_CELL_QUALIFIED_FALLBACK ? TP_CELL_UNSUPPORTED : TP_CELL_STALE;
    }
    note_number(text, size, "panels full", locked->panels_full, now->panels_full);
    note_number(text, size, "panels partial", locked->panels_partial, now->panels_partial);
    note_number(text, size, "panels skipped", locked->panels_skipped, now->panels_skipped);
    note_number(text, size, "bytes", locked->bytes, now->bytes);
    note_number(text, size, "scratch", locked->scratch, now->scratch);
    note_kept(text, size, "contained", locked->contained, now->contained);
    note_kept(text, size, "deterministic", locked->deterministic, now->deterministic);
    note_kept(text, size, "empty rows", locked->empty_rows, now->empty_rows);
    if (text[0]) return TP_CELL_STALE;
    int varies = now->deterministic == TP_KEPT_VARIES; /* then other bits say nothing */
    if (!varies && (strcmp(locked->output, now->output) || strcmp(locked->numerics_id, now->numerics_id))) {
        snprintf(text, size, "other bits, within the rule: error %.3g, lock has %.3g; numerics %s, lock has %s", now->error,
                 locked->error, now->numerics_id, locked->numerics_id);
        size_t used = strlen(text);
        if (locked->loss > 0 || now->loss > 0)
            snprintf(text + used, size - used, "; loss %.3g, lock has %.3g", now->loss, locked->loss);
        return TP_CELL_NUMERICS_CHANGED;
    }
    return TP_CELL_QUALIFIED;
}

tp_cell_status tp_cell_compare(const tp_cell *locked, const tp_cell *now, char *text, size_t size) {
    TP__IN_DEFAULT_FENV;
    char unused[TEXT_SIZE];
    tp_cell a, b;
    if (!text || !size) text = unused, size = sizeof unused;
    if (tp__take(&tp__cell_shape, locked, &a, NULL) == TP_OK && tp__take(&tp__cell_shape, now, &b, NULL) == TP_OK)
        return compare(&a, &b, text, size);
    snprintf(text, size, "two cells must be given, from TP_CELL_INIT");
    return TP_CELL_STALE;
}

/* Whose cells these are: with the cache that they read. */
static tp_status take_identity(const tp_qualification *q, const tp_identity *given, tp_identity *identity, tp_error *error) {
    TP_TRY(tp__take(&tp__identity_shape, given, identity, error));
    if (!strcmp(q->cache, "plain")) return TP_OK; /* an engine may have a cache of its own */
    if (*identity->cache && strcmp(identity->cache, "plain") && strcmp(identity->cache, q->cache))
        return tp__proof_fail(error, TP_INVALID, "cache is '%.60s': these cells were made for %s", identity->cache, q->cache);
    identity->cache = q->cache;
    return TP_OK;
}

/* ---- compare ---- */

/* What a comparison found, before any of it is the qualification's. */
struct findings {
    char **notes; /* NULL ends them */
    int note_count;
    char **reasons; /* by cell; NULL: as the lock says */
    int32_t *statuses;
};

static void findings_free(const tp_qualification *q, struct findings *f) {
    tp__notes_free(f->notes);
    for (int64_t i = 0; f->reasons && i < q->slot_count; i++) free(f->reasons[i]);
    free(f->reasons);
    free(f->statuses);
}

static tp_status no_memory(tp_error *error) {
    return tp__proof_fail(error, TP_NO_MEMORY, "out of memory for a comparison");
}

static tp_status add_note(struct findings *f, tp_error *error, const char *format, ...) __attribute__((format(printf, 3, 4)));
static tp_status add_note(struct findings *f, tp_error *error, const char *format, ...) {
    char text[TEXT_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    f->notes[f->note_count] = strdup(text);
    return f->notes[f->note_count++] ? TP_OK : no_memory(error);
}

/* A config that changed, even where no cell did: the lock speaks of other revisions. It has the last of them. So it does of a
   config that it has with another cache alone. */
static tp_status compare_config(const tp_model *model, const tp_lock *lock, const tp_identity *now, struct findings *f,
                                tp_error *error) {
    tp_lock_revision revision = TP_LOCK_REVISION_INIT;
    const char *last = "none", *cache = NULL, *wanted = tp__identity_engine(now).cache;
    for (int64_t i = 0; tp_lock_revision_at(lock, i, &revision) == TP_OK; i++) {
        if (strcmp(revision.model, model->label)) continue;
        last = revision.config_hash;
        if (strcmp(revision.config_hash, model->config_hash)) continue;
        if (tp__lock_same_cache(revision.cache, wanted)) return TP_OK;
        cache = revision.cache;
    }
    if (cache) return add_note(f, error, "cache of %s: lock has %s, here %s", model->name, cache, wanted);
    return add_note(f, error, "config of %s: lock has %s, here %s", model->name, last, model->config_hash);
}

static tp_status compare_cell(const tp_cell *seen, const tp_lock *lock, const tp_identity *now, int32_t *status, char **reason,
                              tp_error *error) {
    char text[TEXT_SIZE] = "the lock has no such cell";
    tp_cell locked = TP_CELL_INIT;
    *status = TP_CELL_STALE;
    if (seen->status == TP_CELL_NOT_RUN)
        return tp__proof_fail(error, TP_INVALID, "a cell has no result: tp_qualify_run must have run it: %.300s", seen->problem);
    if (tp_lock_cell_for(lock, now, seen->problem, &locked) == TP_OK)
        *status = (int32_t)compare(&locked, seen, text, sizeof text);
    else if (!is_served(seen)) /* that it is refused says more than that it is new */
        *status = seen->status, snprintf(text, sizeof text, "%s", seen->reason);
    if (*status == TP_CELL_QUALIFIED) return TP_OK;
    *reason = strdup(text);
    return *reason ? TP_OK : no_memory(error);
}

static tp_status look(const tp_qualification *q, const tp_lock *lock, const tp_identity *now, struct findings *f,
                      tp_error *error) {
    char stale[TEXT_SIZE];
    f->notes = calloc((size_t)q->model_count + 2, sizeof *f->notes);
    f->reasons = calloc((size_t)q->slot_count + 1, sizeof *f->reasons);
    f->statuses = calloc((size_t)q->slot_count + 1, sizeof *f->statuses);
    if (!f->notes || !f->reasons || !f->statuses) return no_memory(error);
    if (tp_lock_fresh(lock, now, stale, sizeof stale) != TP_OK) TP_TRY(add_note(f, error, "%s", stale));
    for (int i = 0; i < q->model_count; i++) TP_TRY(compare_config(q->models[i], lock, now, f, error));
    for (int64_t i = 0; i < q->slot_count; i++)
        TP_TRY(compare_cell(q->slots[i].seen, lock, now, &f->statuses[i], &f->reasons[i], error));
    return TP_OK;
}

tp_status tp_qualify_compare(tp_qualification *q, const tp_lock *lock, const tp_identity *given, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    struct findings f = {.note_count = 0};
    tp_identity now;
    if (!q || !lock) return tp__proof_fail(error, TP_INVALID, "q and lock must be given");
    TP_TRY(take_identity(q, given, &now, error));
    tp_status status = look(q, lock, &now, &f, error);
    if (status == TP_OK) {
        char **before = q->notes;
        q->notes = f.notes, f.notes = before;
        if (f.note_count) status = tp__proof_fail(error, TP_NOT_LOCKED, "the lock is stale: %.450s", q->notes[0]);
    }
    for (int64_t i = 0; i < q->slot_count && (status == TP_OK || status == TP_NOT_LOCKED); i++) {
        tp__slot *slot = &q->slots[i];
        tp__slot_reset(slot);
        if (!f.reasons[i]) continue;
        slot->cell.status = f.statuses[i];
        slot->cell.reason = slot->note = f.reasons[i];
        f.reasons[i] = NULL;
        if (status == TP_OK)
            status = tp__proof_fail(error, TP_NOT_LOCKED, "%s: %.200s: %.250s",
                                    tp_cell_status_name((tp_cell_status)slot->cell.status), slot->cell.problem, slot->note);
    }
    findings_free(q, &f);
    return status;
}

const char *tp_qualification_note(const tp_qualification *q, int index) {
    for (int i = 0; q && q->notes && q->notes[i] && i <= index; i++)
        if (i == index) return q->notes[i];
    return NULL;
}

/* ---- update ---- */

static tp_status may_update(const tp_qualification *q, const tp_lock_update *update, tp_error *error) {
    if (!q->slot_count) return tp__proof_fail(error, TP_UNSUPPORTED, "nothing was checked: no layer of the models has a cell");
    for (int64_t i = 0; i < q->slot_count; i++)
        if (q->slots[i].seen->status == TP_CELL_NOT_RUN)
            return tp__proof_fail(error, TP_INVALID, "a cell has no result: tp_qualify_run must have run it: %.300s",
                                  q->slots[i].seen->problem);
    for (int64_t i = 0; update->served_only && i < q->slot_count; i++)
        if (q->slots[i].seen->status == TP_CELL_UNSUPPORTED)
            return tp__proof_fail(error, TP_UNSUPPORTED,
                                  "a cell is refused, and the update is for what is served: %.200s: %.250s",
                                  q->slots[i].seen->problem, q->slots[i].seen->reason);
    for (int i = 0; i < q->model_count; i++)
        for (int j = 0; j < i; j++)
            if (!strcmp(q->models[i]->label, q->models[j]->label))
                return tp__proof_fail(error, TP_INVALID,
                                      "%.200s and %.200s: a lock knows both as %.60s: update it with one at a time",
                                      q->models[j]->name, q->models[i]->name, q->models[i]->label);
    return TP_OK;
}

static tp_status put_all(const tp_qualification *q, tp_lock *lock, const tp_identity *identity, const tp_lock_update *update,
                         tp_error *error) {
    for (int i = 0; i < q->model_count; i++)
        TP_TRY(tp_lock_put_model(lock, q->models[i]->label, q->models[i]->config_hash, error));
    for (int64_t i = 0; i < q->use_count; i++) {
        const tp_qualify_use *use = &q->uses[i];
        const tp_model *model = q->models[use->model];
        TP_TRY(tp_lock_put_use(lock, model->label, model->groups[use->group], q->slots[use->cell].seen, error));
    }
    for (int64_t i = 0; i < q->slot_count; i++) TP_TRY(tp_lock_put_cell(lock, identity->isa, q->slots[i].seen, error));
    return tp__lock_finish(lock, identity, update, error);
}

tp_status tp_qualify_update(const tp_qualification *q, tp_lock *lock, const tp_identity *given,
                            const tp_lock_update *given_update, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_identity identity;
    tp_lock_update update;
    tp_lock *copy;
    if (!q || !lock) return tp__proof_fail(error, TP_INVALID, "q and lock must be given");
    TP_TRY(take_identity(q, given, &identity, error));
    TP_TRY(tp__take(&tp__update_shape, given_update, &update, error));
    if (update.keep < 0)
        return tp__proof_fail(error, TP_INVALID, "keep is %d: it must be at least 1, or 0 for %d", update.keep, TP_LOCK_KEEP);
    TP_TRY(may_update(q, &update, error));
    TP_TRY(tp__lock_copy(lock, &copy, error));
    tp_status status = put_all(q, copy, &identity, &update, error);
    if (status == TP_OK) tp__lock_exchange(lock, copy);
    tp_lock_destroy(copy);
    return status;
}
