/* SPDX-License-Identifier: Apache-2.0 */
/* Changing a lock. Entries keep their places, so that a diff shows what changed and nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lock.h"

static tp_status no_memory(tp_error *error) {
    return tp__proof_fail(error, TP_NO_MEMORY, "out of memory for a lock");
}

static json_t *find_model(const tp_lock *lock, const char *name) {
    size_t i;
    json_t *model;
    json_array_foreach(lock->models, i, model) {
        if (!strcmp(tp__json_text(model, "name"), name)) return model;
    }
    return NULL;
}

tp_status tp_lock_put_model(tp_lock *lock, const char *name, const char *config_hash,
                            tp_error *error) {
    if (!lock || !name || !*name || strlen(name) > 255 || !config_hash || strlen(config_hash) > 64)
        return tp__proof_fail(error, TP_INVALID, "a model of a lock needs a name and a config hash");
    json_t *model = find_model(lock, name);
    if (!model) {
        model = json_object();
        if (!model || json_object_set_new(model, "name", json_string(name)) ||
            json_array_append_new(lock->models, model))
            return no_memory(error);
    }
    return json_object_set_new(model, "config", json_string(config_hash)) ||
                   json_object_set_new(model, "groups", json_array())
               ? no_memory(error)
               : TP_OK;
}

static json_t *find_group(json_t *groups, const char *part, const char *layers) {
    size_t i;
    json_t *group;
    json_array_foreach(groups, i, group) {
        if (!strcmp(tp__json_text(group, "part"), part) &&
            !strcmp(tp__json_text(group, "layers"), layers))
            return group;
    }
    group = json_pack("{s:s, s:s, s:{}}", "part", part, "layers", layers, "phases");
    return group && !json_array_append_new(groups, group) ? group : NULL;
}

tp_status tp_lock_put_use(tp_lock *lock, const char *model, const tp_layer_group *group,
                          const tp_cell *cell, tp_error *error) {
    static const int most = 8 * TP_MODEL_MAX_LAYERS;
    char layers[8 * TP_MODEL_MAX_LAYERS];
    json_t *entry = lock && model ? find_model(lock, model) : NULL;
    if (!entry || !cell || tp_layer_group_layers(group, layers, (size_t)most) != TP_OK)
        return tp__proof_fail(error, TP_INVALID, "a use needs a model that was put, a group and a cell");
    json_t *found = find_group(json_object_get(entry, "groups"),
                               tp_part_name((tp_part)group->part), layers);
    json_t *phases = json_object_get(found, "phases");
    const char *phase = tp_qualify_phase_name(cell->phase);
    if (phases && !json_object_get(phases, phase)) json_object_set_new(phases, phase, json_array());
    return json_array_append_new(json_object_get(phases, phase), json_string(cell->problem))
               ? no_memory(error)
               : TP_OK;
}

static json_t *isa_of(tp_lock *lock, const char *isa) {
    json_t *entry = json_object_get(lock->isas, isa);
    if (entry) return entry;
    entry = json_pack("{s:{}, s:[], s:[]}", "library", "hosts", "cells");
    return entry && !json_object_set_new(lock->isas, isa, entry) ? entry : NULL;
}

/* Numbers as a file has them: what was read and what is put must compare equal. */
static json_t *rounded(json_t *record) {
    char *text = record ? json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_t *again = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    json_decref(record);
    return again;
}

tp_status tp_lock_put_cell(tp_lock *lock, const char *isa, const tp_cell *cell, tp_error *error) {
    if (!lock || !isa || !*isa || strlen(isa) > 63 || !cell || !cell->problem[0])
        return tp__proof_fail(error, TP_INVALID, "a cell of a lock needs an ISA and a problem");
    json_t *cells = json_object_get(isa_of(lock, isa), "cells");
    json_t *record = rounded(tp__record_make(tp__cell_fields, cell, 0));
    if (!cells || !record) {
        json_decref(record);
        return no_memory(error);
    }
    size_t index = tp__lock_index(cells, cell->problem);
    if (index == json_array_size(cells)) {
        lock->added++;
        return json_array_append_new(cells, record) ? no_memory(error) : TP_OK;
    }
    int equal = json_equal(json_array_get(cells, index), record);
    lock->same += equal;
    lock->changed += !equal;
    return json_array_set_new(cells, index, record) ? no_memory(error) : TP_OK;
}

/* Cells whose problem no model asks for any more. */
static void drop_unused(tp_lock *lock) {
    json_t *used = json_object(), *isa;
    tp_lock_use use;
    const char *name;
    for (int64_t i = 0; used && tp_lock_use_at(lock, i, &use) == TP_OK; i++)
        json_object_set_new(used, use.problem, json_true());
    json_object_foreach(lock->isas, name, isa) {
        json_t *cells = json_object_get(isa, "cells");
        for (size_t i = json_array_size(cells); used && i-- > 0;)
            if (!json_object_get(used, tp__json_text(json_array_get(cells, i), "problem")))
                json_array_remove(cells, i);
    }
    json_decref(used);
}

static tp_status put_host(tp_lock *lock, json_t *isa, const tp_identity *identity) {
    json_t *library = tp__record_make(tp__library_fields, identity, 0), *hosts, *host, *one;
    size_t i;
    int same = library && json_equal(library, json_object_get(isa, "library"));
    if (!library || json_object_set_new(isa, "library", library)) return TP_NO_MEMORY;
    if (!same || lock->added || lock->changed) /* other hosts have not seen this */
        json_object_set_new(isa, "hosts", json_array());
    hosts = json_object_get(isa, "hosts");
    host = tp__record_make(tp__host_fields, identity, 0);
    json_array_foreach(hosts, i, one) {
        if (!json_equal(one, host)) continue;
        json_decref(host);
        return TP_OK;
    }
    return json_array_append_new(hosts, host) ? TP_NO_MEMORY : TP_OK;
}

tp_status tp_lock_finish(tp_lock *lock, const tp_identity *identity, const char *date,
                         const char *reason, tp_error *error) {
    tp__history past = {{0}, {0}, {0}, {0}, {0}};
    if (!lock || !identity || !date || strlen(date) >= sizeof past.date)
        return tp__proof_fail(error, TP_INVALID, "a lock needs an identity and a date");
    if (!reason || strspn(reason, " \t\r\n") == strlen(reason) || strlen(reason) > 400)
        return tp__proof_fail(error, TP_INVALID,
                              "reason has %zu bytes: an update needs one of 1..400, not blank",
                              reason ? strlen(reason) : (size_t)0);
    json_t *isa = isa_of(lock, identity->isa);
    if (!isa) return no_memory(error);
    drop_unused(lock);
    snprintf(past.date, sizeof past.date, "%s", date);
    snprintf(past.isa, sizeof past.isa, "%s", identity->isa);
    snprintf(past.build, sizeof past.build, "%s", identity->build);
    snprintf(past.cells, sizeof past.cells, "%lld new, %lld changed, %lld same", (long long)lock->added,
             (long long)lock->changed, (long long)lock->same);
    snprintf(past.reason, sizeof past.reason, "%s", reason);
    json_t *record = tp__record_make(tp__history_fields, &past, 0);
    if (put_host(lock, isa, identity) != TP_OK || !record ||
        json_array_append_new(lock->history, record))
        return no_memory(error);
    lock->added = lock->changed = lock->same = 0;
    return TP_OK;
}
