/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks of the schema tileproof.lock/1: what they must be, and how they become what is kept now.
 *
 *     models   [{name, config, groups [{part, layers, phases {prefill [problem ...] ...}}]}]
 *     isas     {ISA {library {...}, hosts [{cpu, os, libc}], cells [...]}}
 *     history  [{date, isa, build, cells, reason}]
 *
 * There, models named problems and an ISA had the cells. Each model becomes a revision on each ISA that has a cell of it. A
 * problem without a cell there becomes one that was not run: a model that is half qualified stays so.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "lock.h"

#define PART(name, type, optional, max)                                                                                          \
    { #name, type, optional, 0, offsetof(tp_identity, name), (max) + 1 }
static const tp__field library_fields[] = {PART(version, TP__TEXT, 0, 63),    PART(build, TP__TEXT, 0, 64),
                                           PART(compiler, TP__TEXT, 0, 1023), PART(parser, TP__INT32, 0, 0),
                                           PART(declared, TP__TEXT, 1, 255),  {NULL, TP__TEXT, 0, 0, 0, 0}};
static const tp__field host_fields[] = {
    PART(cpu, TP__TEXT, 0, 255), PART(os, TP__TEXT, 0, 255), PART(libc, TP__TEXT, 0, 255), {NULL, TP__TEXT, 0, 0, 0, 0}};

/* ---- rules ---- */

static tp_status check_problem(const tp__file *file, tp__path *path, json_t *value) {
    const char *problem = json_string_value(value);
    return problem && *problem && strlen(problem) < 512 ? TP_OK
                                                        : tp__file_fail(file, path, NULL, "must be a text of 1..511 bytes");
}

static tp_status check_group(const tp__file *file, tp__path *path, json_t *group) {
    const char *name;
    json_t *list, *phases;
    TP_TRY(tp__lock_keys(file, path, group, "part layers phases"));
    TP_TRY(tp__lock_text(file, path, group, "part", 15));
    TP_TRY(tp__lock_text(file, path, group, "layers", 8 * TP_MODEL_MAX_LAYERS));
    phases = json_object_get(group, "phases");
    if (!json_is_object(phases)) return tp__file_fail(file, path, "phases", "must be an object");
    tp__path_key(path, "phases");
    json_object_foreach(phases, name, list) {
        uint32_t bit = 1;
        while (bit & TP_QUALIFY_ALL && strcmp(name, tp_qualify_phase_name(bit))) bit <<= 1;
        if (!(bit & TP_QUALIFY_ALL)) return tp__file_fail(file, path, name, "is no phase");
        TP_TRY(tp__lock_each(file, path, phases, name, check_problem));
    }
    tp__path_up(path);
    return TP_OK;
}

static tp_status check_model(const tp__file *file, tp__path *path, json_t *model) {
    TP_TRY(tp__lock_keys(file, path, model, "name config groups"));
    TP_TRY(tp__lock_text(file, path, model, "name", 255));
    TP_TRY(tp__lock_text(file, path, model, "config", 64));
    return tp__lock_each(file, path, model, "groups", check_group);
}

static tp_status check_host(const tp__file *file, tp__path *path, json_t *record) {
    tp_identity identity;
    return tp__record_read(file, path, record, host_fields, &identity);
}

static tp_status check_isa(const tp__file *file, tp__path *path, json_t *isa) {
    tp_identity identity;
    TP_TRY(tp__lock_keys(file, path, isa, "library hosts cells"));
    tp__path_key(path, "library");
    TP_TRY(tp__record_read(file, path, json_object_get(isa, "library"), library_fields, &identity));
    tp__path_up(path);
    TP_TRY(tp__lock_each(file, path, isa, "hosts", check_host));
    if (!json_array_size(json_object_get(isa, "hosts")))
        return tp__file_fail(file, path, "hosts", "is empty: it must name a host");
    return tp__lock_each(file, path, isa, "cells", tp__lock_check_cell);
}

tp_status tp__lock_check_old(const tp__file *file, json_t *root) {
    tp__path path = {.depth = 0};
    const char *isa;
    json_t *value, *isas = json_object_get(root, "isas");
    TP_TRY(tp__lock_keys(file, &path, root, "schema checksum models isas history"));
    TP_TRY(tp__lock_each(file, &path, root, "models", check_model));
    if (!json_is_object(isas)) return tp__file_fail(file, &path, "isas", "must be an object");
    tp__path_key(&path, "isas");
    json_object_foreach(isas, isa, value) {
        tp__path_key(&path, isa);
        if (!*isa || strlen(isa) > 63) return tp__file_fail(file, &path, NULL, "must have a name of 1..63 bytes");
        TP_TRY(check_isa(file, &path, value));
        tp__path_up(&path);
    }
    tp__path_up(&path);
    TP_TRY(tp__lock_each(file, &path, root, "history", tp__lock_check_history));
    return tp__lock_check_sum(file, root);
}

/* ---- as revisions. NULL: out of memory. ---- */

/* The record with texts alone, and without those that are "". */
static json_t *map_of(json_t *record) {
    json_t *map = json_object(), *value;
    const char *key;
    int failed = !map;
    json_object_foreach(record, key, value) {
        char number[32];
        const char *text = json_string_value(value);
        if (!text) snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value)), text = number;
        if (*text) failed = failed || json_object_set_new(map, key, json_string(text));
    }
    if (!failed) return map;
    json_decref(map);
    return NULL;
}

static json_t *hosts_of(json_t *hosts) {
    json_t *list = json_array(), *host;
    size_t i;
    int failed = !list;
    json_array_foreach(hosts, i, host) failed = failed || json_array_append_new(list, map_of(host));
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

/* The cells of an ISA by their problems. */
static json_t *cells_by_problem(json_t *cells) {
    json_t *found = json_object(), *cell;
    size_t i;
    int failed = !found;
    json_array_foreach(cells, i, cell) {
        const char *problem = tp__json_text(cell, "problem");
        if (!json_object_get(found, problem)) failed = failed || json_object_set(found, problem, cell);
    }
    if (!failed) return found;
    json_decref(found);
    return NULL;
}

static json_t *cell_for(json_t *cells, const char *problem, const char *phase, int *met) {
    json_t *cell = json_object_get(cells, problem);
    *met |= cell != NULL;
    if (cell) return tp__json_with(cell, "phase", json_string(phase));
    return json_pack("{s:s, s:s, s:s, s:f, s:s, s:s}", "problem", problem, "phase", phase, "purpose", "", "gain", 1.0, "status",
                     "NOT_RUN", "reason", "no cell on this ISA");
}

static json_t *group_of(json_t *group, json_t *cells, int *met) {
    json_t *list = json_array(), *problems, *problem;
    const char *phase;
    size_t i;
    int failed = !list;
    json_object_foreach(json_object_get(group, "phases"), phase, problems) json_array_foreach(problems, i, problem) failed =
        failed || json_array_append_new(list, cell_for(cells, json_string_value(problem), phase, met));
    if (!failed)
        return json_pack("{s:O, s:O, s:o}", "part", json_object_get(group, "part"), "layers", json_object_get(group, "layers"),
                         "cells", list);
    json_decref(list);
    return NULL;
}

/* *met: the ISA has a cell of it. */
static json_t *groups_of(json_t *groups, json_t *cells, int *met) {
    json_t *list = json_array(), *group;
    size_t i;
    int failed = !list;
    *met = 0;
    json_array_foreach(groups, i, group) failed = failed || json_array_append_new(list, group_of(group, cells, met));
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

/* Of the last update on the ISA. */
static const char *date_of(json_t *history, const char *isa) {
    const char *date = "";
    json_t *past;
    size_t i;
    json_array_foreach(history, i, past) if (!strcmp(tp__json_text(past, "isa"), isa)) date = tp__json_text(past, "date");
    return date;
}

static json_t *entry_of(json_t *model, const char *isa, json_t *old, const char *date, json_t *groups) {
    json_t *revision =
        json_pack("{s:O, s:O}", "model", json_object_get(model, "name"), "config", json_object_get(model, "config"));
    json_t *engine = json_pack("{s:s, s:s, s:s, s:s}", "name", "tileproof", "device", "cpu", "isa", isa, "cache", "plain");
    json_t *entry = json_object();
    int failed = !revision || !engine || !entry;
    if (*date) failed = failed || json_object_set_new(revision, "date", json_string(date));
    failed |= json_object_set_new(entry, "revision", revision);
    failed |= json_object_set_new(entry, "engine", engine);
    failed |= json_object_set_new(entry, "versions", map_of(json_object_get(old, "library")));
    failed |= json_object_set_new(entry, "hosts", hosts_of(json_object_get(old, "hosts")));
    failed |= json_object_set_new(entry, "groups", groups);
    if (!failed) return entry;
    json_decref(entry);
    return NULL;
}

/* The models as revisions on one ISA, behind those that there are. Nonzero: out of memory. */
static int add_isa(json_t *revisions, json_t *root, const char *isa, json_t *old) {
    json_t *cells = cells_by_problem(json_object_get(old, "cells")), *model;
    const char *date = date_of(json_object_get(root, "history"), isa);
    size_t i;
    int failed = !cells, met;
    json_array_foreach(json_object_get(root, "models"), i, model) {
        json_t *groups = failed ? NULL : groups_of(json_object_get(model, "groups"), cells, &met);
        failed = failed || !groups;
        if (!failed && met) {
            json_t *entry = entry_of(model, isa, old, date, groups);
            tp_lock_revision head = tp__lock_head(entry);
            if (entry && tp__lock_find(revisions, &head) < json_array_size(revisions))
                json_decref(entry); /* the file has the model twice: it said the same of both */
            else
                failed = json_array_append_new(revisions, entry);
        } else {
            json_decref(groups);
        }
    }
    json_decref(cells);
    return failed;
}

json_t *tp__lock_from_old(json_t *root) {
    json_t *revisions = json_array(), *value;
    const char *isa;
    int failed = !revisions;
    json_object_foreach(json_object_get(root, "isas"), isa, value) failed = failed || add_isa(revisions, root, isa, value);
    if (!failed)
        return json_pack("{s:s, s:s, s:o, s:O}", "schema", TP_LOCK_SCHEMA, "checksum", "", "revisions", revisions, "history",
                         json_object_get(root, "history"));
    json_decref(revisions);
    return NULL;
}
