/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing a lock: models, uses and cells are put, and finish makes revisions of them. What is new is made whole before the
 * lock is touched: a call that fails, out of memory too, leaves the lock as it was.
 */
#include <stdio.h>
#include <string.h>

#include "lock.h"
#include "control.h"

static tp_status no_memory(tp_error *error) {
    return tp__proof_fail(error, TP_NO_MEMORY, "out of memory for a lock");
}

/* The list's entry, or one more; the value is taken over. */
static tp_status put_at(json_t *list, size_t index, json_t *value, tp_error *error) {
    int failed = index < json_array_size(list) ? json_array_set_new(list, index, value) : json_array_append_new(list, value);
    return failed ? no_memory(error) : TP_OK;
}

/* The model's index among those that were put, or their number. */
static size_t find_model(const tp_lock *lock, const char *name) {
    size_t i;
    json_t *model;
    json_array_foreach(lock->put_models, i, model) {
        if (!strcmp(tp__json_text(model, "model"), name)) break;
    }
    return i;
}

tp_status tp_lock_put_model(tp_lock *lock, const char *name, const char *config_hash, tp_error *error) {
    if (!lock || !tp__is_lock_text(name, 255) || !tp__is_lock_text(config_hash, 64))
        return tp__proof_fail(error, TP_INVALID,
                              "a model of a lock needs a name of 1..255 bytes and a config hash of 1..64, in UTF-8");
    json_t *model = json_pack("{s:s, s:s, s:[]}", "model", name, "config", config_hash, "groups");
    return put_at(lock->put_models, find_model(lock, name), model, error);
}

static size_t find_group(json_t *groups, const char *part, const char *layers) {
    size_t i;
    json_t *group;
    json_array_foreach(groups, i, group) {
        if (!strcmp(tp__json_text(group, "part"), part) && !strcmp(tp__json_text(group, "layers"), layers)) break;
    }
    return i;
}

tp_status tp_lock_put_use(tp_lock *lock, const char *model, const tp_layer_group *group, const tp_cell *given, tp_error *error) {
    tp_cell whole, *cell = &whole;
    static const int max = 8 * TP_MODEL_MAX_LAYERS;
    char layers[8 * TP_MODEL_MAX_LAYERS];
    json_t *entry = lock && model ? json_array_get(lock->put_models, find_model(lock, model)) : NULL;
    TP_TRY(tp__take(&tp__cell_shape, given, cell, error));
    if (!entry || tp_layer_group_layers(group, layers, (size_t)max) != TP_OK || !tp__is_lock_text(cell->problem, 511))
        return tp__proof_fail(error, TP_INVALID, "a use needs a model that was put, a group and a cell");
    json_t *groups = json_object_get(entry, "groups");
    const char *part = tp_part_name((tp_part)group->part), *phase = tp_qualify_phase_name(cell->phase);
    json_t *found = json_array_get(groups, find_group(groups, part, layers)), *cells = json_object_get(found, "cells");
    json_t *use = json_pack("{s:s, s:s}", "phase", phase, "problem", cell->problem);
    if (!use) return no_memory(error);
    if (cells) return put_at(cells, json_array_size(cells), use, error);
    found = json_pack("{s:s, s:s, s:[o]}", "part", part, "layers", layers, "cells", use);
    return put_at(groups, json_array_size(groups), found, error);
}

tp_status tp_lock_put_cell(tp_lock *lock, const char *isa, const tp_cell *given, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_cell whole, *cell = &whole;
    TP_TRY(tp__take(&tp__cell_shape, given, cell, error));
    if (!lock || !isa || strlen(isa) > 63 || !tp__is_utf8(isa, strlen(isa)) || !cell->problem[0])
        return tp__proof_fail(error, TP_INVALID, "a cell of a lock needs an ISA and a problem");
    TP_TRY(tp__record_check(tp__cell_fields, cell, 0, error));
    json_t *made = tp__record_make(tp__cell_fields, cell, 0);
    json_t *record = tp__json_copy(made); /* what was read and what is put must compare equal */
    json_decref(made);
    json_t *cells = json_object_get(lock->put_cells, isa);
    int failed = cells ? json_object_set(cells, cell->problem, record)
                       : json_object_set_new(lock->put_cells, isa, json_pack("{s:O}", cell->problem, record));
    json_decref(record);
    return failed ? no_memory(error) : TP_OK;
}

/* ---- revisions of what was put ---- */

typedef struct finish {
    const tp_lock *lock;
    tp_lock_revision engine;
    const char *date;
    json_t *versions, *host;      /* of the identity */
    int64_t added, changed, same; /* cells, against the revision of the same config that there was */
    tp__page names, dropped;
} finish;

/* The cell of the same problem and phase in an entry, or NULL. */
static json_t *find_cell(const json_t *entry, const json_t *wanted) {
    json_t *group, *cell;
    size_t i, j;
    json_array_foreach(json_object_get(entry, "groups"), i, group)
        json_array_foreach(json_object_get(group, "cells"), j,
                           cell) if (json_equal(json_object_get(cell, "problem"), json_object_get(wanted, "problem")) &&
                                     json_equal(json_object_get(cell, "phase"), json_object_get(wanted, "phase"))) return cell;
    return NULL;
}

static void count_cell(finish *f, const json_t *old, json_t *cell) {
    json_t *before = find_cell(old, cell);
    int64_t *count = !before ? &f->added : json_equal(before, cell) ? &f->same : &f->changed;
    ++*count;
}

/* What was seen of the uses of a group. NULL: TP_NO_MEMORY, or TP_INVALID for a use without a cell. */
static json_t *made_group(finish *f, const json_t *put, const json_t *old, tp_error *error, tp_status *status) {
    json_t *known = json_object_get(f->lock->put_cells, f->engine.isa), *cells = json_array(), *use;
    size_t i;
    json_array_foreach(json_object_get(put, "cells"), i, use) {
        const char *problem = tp__json_text(use, "problem");
        json_t *seen = json_object_get(known, problem);
        json_t *cell = tp__json_with(seen, "phase", json_incref(json_object_get(use, "phase")));
        if (cells && cell) count_cell(f, old, cell);
        if (!json_array_append_new(cells, cell)) continue;
        *status =
            seen ? no_memory(error)
                 : tp__proof_fail(error, TP_INVALID, "a use has no cell: tp_lock_put_cell must give one for '%.300s'", problem);
        json_decref(cells);
        return NULL;
    }
    json_t *group = cells ? json_pack("{s:O, s:O, s:o}", "part", json_object_get(put, "part"), "layers",
                                      json_object_get(put, "layers"), "cells", cells)
                          : NULL;
    if (!group) *status = no_memory(error);
    return group;
}

static json_t *made_groups(finish *f, const json_t *put, const json_t *old, tp_error *error, tp_status *status) {
    json_t *groups = json_array(), *one;
    size_t i;
    *status = groups ? TP_OK : no_memory(error);
    json_array_foreach(json_object_get(put, "groups"), i, one) {
        json_t *group = *status == TP_OK ? made_group(f, one, old, error, status) : NULL;
        if (*status == TP_OK && json_array_append(groups, group)) *status = no_memory(error);
        json_decref(group);
    }
    if (*status == TP_OK) return groups;
    json_decref(groups);
    return NULL;
}

/* Hosts that saw the same cells with the same versions, with this one among them. */
static json_t *joined_hosts(const json_t *hosts, json_t *host) {
    json_t *all = json_array(), *one;
    size_t i;
    int failed = !all, met = 0;
    json_array_foreach(hosts, i, one) {
        failed = failed || json_array_append(all, one);
        met |= json_equal(one, host);
    }
    if (!met && !failed) failed = json_array_append(all, host);
    if (!failed) return all;
    json_decref(all);
    return NULL;
}

/* The engine's record, which has no "" where it may lack one. */
static json_t *made_head(const finish *f, const json_t *put, const tp__field *fields) {
    tp_lock_revision head = f->engine;
    head.model = tp__json_text(put, "model");
    head.config_hash = tp__json_text(put, "config");
    head.date = f->date;
    return tp__record_make(fields, &head, 0);
}

/* The entry of one model. Groups are taken over. NULL: out of memory. */
static json_t *made_entry(const finish *f, const json_t *put, const json_t *old, json_t *groups) {
    int same = json_equal(f->versions, json_object_get(old, "versions")) && json_equal(groups, json_object_get(old, "groups"));
    json_t *entry = json_object();
    /* where something is new, other hosts have not seen it */
    int failed = json_object_set_new(entry, "revision", made_head(f, put, tp__revision_fields));
    failed |= json_object_set_new(entry, "engine", made_head(f, put, tp__engine_fields));
    failed |= json_object_set(entry, "versions", f->versions);
    failed |= json_object_set_new(entry, "hosts", joined_hosts(same ? json_object_get(old, "hosts") : NULL, f->host));
    failed |= json_object_set_new(entry, "groups", groups);
    if (!failed) return entry;
    json_decref(entry);
    return NULL;
}

/* The list with the model's revision; takes the list over. */
static tp_status add_model(finish *f, json_t **list, const json_t *put, int keep, tp_error *error) {
    tp_lock_revision head = f->engine;
    tp_status status;
    head.model = tp__json_text(put, "model");
    head.config_hash = tp__json_text(put, "config");
    json_t *old = json_array_get(*list, tp__lock_find(*list, &head));
    json_t *groups = made_groups(f, put, old, error, &status);
    if (!groups) return status;
    json_t *entry = made_entry(f, put, old, groups);
    json_t *next = entry ? tp__lock_placed(*list, entry, keep, &f->dropped) : NULL;
    if (entry) tp__lock_name(&f->names, entry);
    json_decref(entry);
    if (!next) return no_memory(error);
    json_decref(*list);
    *list = next;
    return TP_OK;
}

static tp_status commit(finish *f, tp_lock *lock, json_t *list, const tp_identity *identity, const char *reason,
                        tp_error *error) {
    char cells[80];
    json_t *models = json_array(), *put = json_object();
    snprintf(cells, sizeof cells, "%lld new, %lld changed, %lld same", (long long)f->added, (long long)f->changed,
             (long long)f->same);
    tp_lock_history past = {sizeof past,
                            0,
                            f->date,
                            f->engine.engine,
                            f->engine.device,
                            f->engine.isa,
                            identity->build,
                            tp__page_text(&f->names),
                            tp__page_text(&f->dropped),
                            cells,
                            reason};
    tp_status status = models && put && !f->names.failed && !f->dropped.failed
                           ? tp__lock_commit(lock, json_incref(list), &past, error)
                           : no_memory(error);
    if (status == TP_OK) { /* nothing is put any more */
        json_t *before[] = {lock->put_models, lock->put_cells};
        lock->put_models = models, lock->put_cells = put;
        models = before[0], put = before[1];
    }
    json_decref(models);
    json_decref(put);
    return status;
}

tp_status tp__lock_finish(tp_lock *lock, const tp_identity *identity, const tp_lock_update *update, tp_error *error) {
    TP_TRY(tp__identity_check(identity, error));
    TP_TRY(tp__lock_when_check(update->date, update->reason, error));
    finish f = {.lock = lock,
                .engine = tp__identity_engine(identity),
                .date = update->date,
                .versions = tp__identity_versions(identity),
                .host = tp__identity_host(identity)};
    tp_status status = f.versions && f.host ? TP_OK : no_memory(error);
    json_t *list = json_incref(lock->revisions), *put;
    size_t i;
    json_array_foreach(lock->put_models, i, put) if (status == TP_OK) status =
        add_model(&f, &list, put, update->keep ? update->keep : TP_LOCK_KEEP, error);
    tp__lock_shorten(&f.names, 511);
    tp__lock_shorten(&f.dropped, 1023);
    if (status == TP_OK) status = commit(&f, lock, list, identity, update->reason, error);
    json_decref(list);
    json_decref(f.versions);
    json_decref(f.host);
    tp__page_close(&f.names);
    tp__page_close(&f.dropped);
    return status;
}

tp_status tp_lock_reason_check(const char *reason, tp_error *error) {
    if (!reason || strspn(reason, " \t\r\n") == strlen(reason) || strlen(reason) > 400)
        return tp__proof_fail(error, TP_INVALID, "reason has %zu bytes: an update needs one of 1..400, not blank",
                              reason ? strlen(reason) : (size_t)0);
    if (!tp__is_utf8(reason, strlen(reason)))
        return tp__proof_fail(error, TP_INVALID, "reason is not UTF-8: a lock is JSON, so its texts must be");
    return TP_OK;
}

tp_status tp__lock_when_check(const char *date, const char *reason, tp_error *error) {
    if (!tp__is_lock_text(date, 15))
        return tp__proof_fail(error, TP_INVALID, "a change of a lock needs a date of 1..15 bytes, in UTF-8");
    return tp_lock_reason_check(reason, error);
}

tp_status tp_lock_finish(tp_lock *lock, const tp_identity *given, const char *date, const char *reason, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp_identity identity;
    tp_lock_update update = TP_LOCK_UPDATE_INIT;
    if (!lock) return tp__proof_fail(error, TP_INVALID, "lock is NULL");
    TP_TRY(tp__take(&tp__identity_shape, given, &identity, error));
    update.date = date, update.reason = reason;
    return tp__lock_finish(lock, &identity, &update, error);
}
