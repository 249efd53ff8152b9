/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing a lock. Entries keep their places, so that a diff shows what changed and nothing else. What is new is made
 * whole before the lock is touched: a call that fails, out of memory too, leaves the lock as it was.
 */
#include <stdio.h>
#include <string.h>

#include "lock.h"

static tp_status no_memory(tp_error *error) {
    return tp__proof_fail(error, TP_NO_MEMORY, "out of memory for a lock");
}

static int is_text(const char *text, size_t max) {
    return text && *text && strlen(text) <= max && tp__is_utf8(text, strlen(text));
}

/* The model's index in the list, or its size. */
static size_t find_model(const tp_lock *lock, const char *name) {
    size_t i;
    json_t *model;
    json_array_foreach(lock->models, i, model) {
        if (!strcmp(tp__json_text(model, "name"), name)) break;
    }
    return i;
}

/* The list's entry, or one more; the value is taken over. */
static tp_status put_at(json_t *list, size_t index, json_t *value, tp_error *error) {
    int failed = index < json_array_size(list) ? json_array_set_new(list, index, value)
                                               : json_array_append_new(list, value);
    return failed ? no_memory(error) : TP_OK;
}

tp_status tp_lock_put_model(tp_lock *lock, const char *name, const char *config_hash,
                            tp_error *error) {
    if (!lock || !is_text(name, 255) || !is_text(config_hash, 64))
        return tp__proof_fail(error, TP_INVALID,
                              "a model of a lock needs a name of 1..255 bytes and a config hash of 1..64, in UTF-8");
    json_t *model = json_pack("{s:s, s:s, s:[]}", "name", name, "config", config_hash, "groups");
    return put_at(lock->models, find_model(lock, name), model, error);
}

static size_t find_group(json_t *groups, const char *part, const char *layers) {
    size_t i;
    json_t *group;
    json_array_foreach(groups, i, group) {
        if (!strcmp(tp__json_text(group, "part"), part) &&
            !strcmp(tp__json_text(group, "layers"), layers))
            break;
    }
    return i;
}

tp_status tp_lock_put_use(tp_lock *lock, const char *model, const tp_layer_group *group,
                          const tp_cell *given, tp_error *error) {
    tp_cell whole, *cell = &whole;
    static const int max = 8 * TP_MODEL_MAX_LAYERS;
    char layers[8 * TP_MODEL_MAX_LAYERS];
    json_t *entry = lock && model ? json_array_get(lock->models, find_model(lock, model)) : NULL;
    TP_TRY(tp__take(&tp__cell_shape, given, cell, error));
    if (!entry || tp_layer_group_layers(group, layers, (size_t)max) != TP_OK || !is_text(cell->problem, 511))
        return tp__proof_fail(error, TP_INVALID, "a use needs a model that was put, a group and a cell");
    json_t *groups = json_object_get(entry, "groups");
    const char *part = tp_part_name((tp_part)group->part), *phase = tp_qualify_phase_name(cell->phase);
    json_t *found = json_array_get(groups, find_group(groups, part, layers));
    json_t *phases = json_object_get(found, "phases"), *list = json_object_get(phases, phase);
    if (list) return put_at(list, json_array_size(list), json_string(cell->problem), error);
    if (found)
        return json_object_set_new(phases, phase, json_pack("[s]", cell->problem)) ? no_memory(error) : TP_OK;
    found = json_pack("{s:s, s:s, s:{s:[s]}}", "part", part, "layers", layers, "phases", phase, cell->problem);
    return put_at(groups, json_array_size(groups), found, error);
}

tp_status tp_lock_put_cell(tp_lock *lock, const char *isa, const tp_cell *given, tp_error *error) {
    tp_cell whole, *cell = &whole;
    TP_TRY(tp__take(&tp__cell_shape, given, cell, error));
    if (!lock || !is_text(isa, 63) || !cell->problem[0])
        return tp__proof_fail(error, TP_INVALID, "a cell of a lock needs an ISA and a problem");
    tp_status status;
    TP_TRY(tp__record_check(tp__cell_fields, cell, 0, error));
    json_t *made = tp__record_make(tp__cell_fields, cell, 0, &status);
    json_t *record = tp__json_copy(made); /* what was read and what is put must compare equal */
    json_decref(made);
    if (!record) return no_memory(error);
    json_t *cells = tp__lock_cells(lock, isa);
    if (!cells) {
        json_t *entry = json_pack("{s:{}, s:[], s:[]}", "library", "hosts", "cells");
        int failed = json_array_append_new(json_object_get(entry, "cells"), record);
        if (failed) json_decref(entry);
        if (failed || json_object_set_new(lock->isas, isa, entry)) return no_memory(error);
        lock->added++;
        return TP_OK;
    }
    size_t index = tp__lock_index(cells, cell->problem);
    int64_t *count = index == json_array_size(cells)                        ? &lock->added
                     : json_equal(json_array_get(cells, index), record) ? &lock->same
                                                                            : &lock->changed;
    TP_TRY(put_at(cells, index, record, error));
    ++*count;
    return TP_OK;
}

/* The problems that a model asks for, as the keys of an object. */
static json_t *used_problems(const tp_lock *lock) {
    json_t *used = json_object();
    tp_lock_use use = TP_LOCK_USE_INIT;
    for (int64_t i = 0; used && tp_lock_use_at(lock, i, &use) == TP_OK; i++)
        if (json_object_set_new(used, use.problem, json_true())) {
            json_decref(used);
            return NULL;
        }
    return used;
}

/* The cells whose problem is used. */
static json_t *kept_cells(json_t *cells, json_t *used) {
    json_t *kept = json_array(), *cell;
    size_t i;
    json_array_foreach(cells, i, cell) {
        if (!kept || !json_object_get(used, tp__json_text(cell, "problem"))) continue;
        if (!json_array_append(kept, cell)) continue;
        json_decref(kept);
        return NULL;
    }
    return kept;
}

/* Hosts that saw the same cells with the same library, with this one among them. */
static json_t *joined_hosts(json_t *hosts, json_t *host) {
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

/* The entry of this process's ISA: its library, its hosts, the cells that are used. */
static json_t *made_isa(const tp_lock *lock, json_t *old, const tp_identity *identity, json_t *used,
                        tp_status *status) {
    json_t *library = tp__record_make(tp__library_fields, identity, 0, status), *entry = json_object();
    int same = json_equal(library, json_object_get(old, "library")) && !lock->added && !lock->changed;
    json_t *host = library ? tp__record_make(tp__host_fields, identity, 0, status) : NULL;
    /* where something is new other hosts have not seen it */
    json_t *hosts = host ? joined_hosts(same ? json_object_get(old, "hosts") : NULL, host) : NULL;
    json_decref(host);
    int failed = json_object_set_new(entry, "library", library);
    failed |= json_object_set_new(entry, "hosts", hosts);
    failed |= json_object_set_new(entry, "cells", kept_cells(json_object_get(old, "cells"), used));
    if (!failed) return entry;
    json_decref(entry);
    if (*status == TP_OK) *status = TP_NO_MEMORY;
    return NULL;
}

/* All ISAs, without cells that are used no more. */
static json_t *made_isas(const tp_lock *lock, const tp_identity *identity, tp_status *status) {
    json_t *used = used_problems(lock), *isas = json_object(), *old;
    const char *name;
    int failed = !used || !isas;
    *status = TP_OK;
    json_object_foreach(lock->isas, name, old) {
        json_t *entry = NULL;
        if (!failed && !strcmp(name, identity->isa))
            entry = made_isa(lock, old, identity, used, status);
        else if (!failed)
            entry = tp__json_with(old, "cells", kept_cells(json_object_get(old, "cells"), used));
        failed = failed || json_object_set_new(isas, name, entry);
    }
    if (!failed && !json_object_get(lock->isas, identity->isa))
        failed = json_object_set_new(isas, identity->isa, made_isa(lock, NULL, identity, used, status));
    json_decref(used);
    if (!failed) return isas;
    if (*status == TP_OK) *status = TP_NO_MEMORY;
    json_decref(isas);
    return NULL;
}

static json_t *made_history(const tp_lock *lock, const tp__history *past, tp_status *status) {
    json_t *record = tp__record_make(tp__history_fields, past, 0, status);
    if (!record) return NULL;
    json_t *history = json_copy(lock->history);
    if (history && json_array_size(history) == json_array_size(lock->history) &&
        !json_array_append(history, record)) {
        json_decref(record);
        return history;
    }
    json_decref(history);
    json_decref(record);
    *status = TP_NO_MEMORY;
    return NULL;
}

tp_status tp_lock_reason_check(const char *reason, tp_error *error) {
    if (!reason || strspn(reason, " \t\r\n") == strlen(reason) || strlen(reason) > 400)
        return tp__proof_fail(error, TP_INVALID, "reason has %zu bytes: an update needs one of 1..400, not blank",
                              reason ? strlen(reason) : (size_t)0);
    if (!tp__is_utf8(reason, strlen(reason)))
        return tp__proof_fail(error, TP_INVALID, "reason is not UTF-8: a lock is JSON, so its texts must be");
    return TP_OK;
}

tp_status tp_lock_finish(tp_lock *lock, const tp_identity *given, const char *date, const char *reason,
                         tp_error *error) {
    char cells[80];
    tp_status status;
    tp_identity whole, *identity = &whole;
    TP_TRY(tp__take(&tp__identity_shape, given, identity, error));
    if (!lock || !is_text(identity->isa, 63) || !is_text(date, 15))
        return tp__proof_fail(error, TP_INVALID,
                              "a lock needs an identity with an ISA of 1..63 bytes and a date of 1..15, in UTF-8");
    TP_TRY(tp_lock_reason_check(reason, error));
    TP_TRY(tp__record_check(tp__library_fields, identity, 0, error));
    TP_TRY(tp__record_check(tp__host_fields, identity, 0, error));
    snprintf(cells, sizeof cells, "%lld new, %lld changed, %lld same", (long long)lock->added, (long long)lock->changed,
             (long long)lock->same);
    tp__history past = {date, identity->isa, identity->build, cells, reason};
    json_t *isas = made_isas(lock, identity, &status);
    json_t *history = isas ? made_history(lock, &past, &status) : NULL;
    json_t *half = tp__json_with(lock->root, "isas", isas), *root = tp__json_with(half, "history", history);
    json_decref(half);
    if (!root) return no_memory(error);
    tp__lock_take(lock, root);
    lock->added = lock->changed = lock->same = 0;
    return TP_OK;
}
