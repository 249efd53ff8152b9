/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a lock and asking it. */
#include "lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "digest.h"

const char *tp__json_text(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

int tp__is_lock_text(const char *text, size_t max) {
    return text && *text && strlen(text) <= max && tp__is_utf8(text, strlen(text));
}

static tp_status no_memory(tp_error *error) {
    return tp__proof_fail(error, TP_NO_MEMORY, "out of memory for a lock");
}

tp_lock_revision tp__lock_head(const json_t *entry) {
    const json_t *revision = json_object_get(entry, "revision"), *engine = json_object_get(entry, "engine");
    return (tp_lock_revision){.struct_size = sizeof(tp_lock_revision),
                              .model = tp__json_text(revision, "model"),
                              .config_hash = tp__json_text(revision, "config"),
                              .date = tp__json_text(revision, "date"),
                              .engine = tp__json_text(engine, "name"),
                              .mode = tp__json_text(engine, "mode"),
                              .device = tp__json_text(engine, "device"),
                              .isa = tp__json_text(engine, "isa"),
                              .cache = tp__json_text(engine, "cache")};
}

int tp__lock_same_engine(const tp_lock_revision *a, const tp_lock_revision *b) {
    return !strcmp(a->engine, b->engine) && !strcmp(a->mode, b->mode) && !strcmp(a->device, b->device) &&
           !strcmp(a->isa, b->isa) && tp__lock_same_cache(a->cache, b->cache);
}

int tp__lock_same_cache(const char *a, const char *b) {
    return !strcmp(a, b) || !strcmp(a, "any") || !strcmp(b, "any");
}

static int64_t count_cells(const json_t *entry) {
    int64_t count = 0;
    size_t i;
    json_t *group;
    json_array_foreach(json_object_get(entry, "groups"), i, group) count +=
        (int64_t)json_array_size(json_object_get(group, "cells"));
    return count;
}

/* Is it new among those of its engine that were met? 1, 0, or -1: out of memory. */
static int is_first(json_t *met, const json_t *entry, const json_t *cell, int any_cache) {
    tp_lock_revision head = tp__lock_head(entry);
    char engine[512]; /* longer than what the rules of a lock's file allow */
    snprintf(engine, sizeof engine, "%s\n%s\n%s\n%s\n%s", head.engine, head.mode, head.device, head.isa,
             any_cache ? "any" : head.cache);
    json_t *problems = json_object_get(met, engine);
    if (!problems && json_object_set_new(met, engine, problems = json_object())) return -1;
    const char *problem = tp__json_text(cell, "problem");
    if (json_object_get(problems, problem)) return 0;
    return json_object_set_new(problems, problem, json_true()) ? -1 : 1;
}

/* Every cell and where it stands; problems of several revisions are listed for the last one. */
static tp__lock_place *make_places(json_t *revisions, int64_t *count) {
    json_t *met = json_object(), *entry, *group, *cell;
    int64_t at = 0;
    size_t i, j, k;
    *count = 0;
    json_array_foreach(revisions, i, entry) *count += count_cells(entry);
    tp__lock_place *places = calloc((size_t)*count + 1, sizeof *places);
    int failed = !met || !places;
    json_array_foreach(revisions, i, entry) json_array_foreach(json_object_get(entry, "groups"), j, group)
        json_array_foreach(json_object_get(group, "cells"), k, cell) {
        if (!failed) places[at++] = (tp__lock_place){group, cell, (int64_t)i, 0};
    }
    while (!failed && at-- > 0) {
        const json_t *of = json_array_get(revisions, (size_t)places[at].revision);
        int own = is_first(met, of, places[at].cell, 0), any = is_first(met, of, places[at].cell, 1);
        places[at].listed = (own == 1 ? LISTED_OF_CACHE : 0) | (any == 1 ? LISTED_OF_ANY : 0);
        failed = own < 0 || any < 0;
    }
    json_decref(met);
    if (!failed) return places;
    free(places);
    return NULL;
}

tp_status tp__lock_take(tp_lock *lock, json_t *root, tp_error *error) {
    int64_t count;
    tp__lock_place *places = root ? make_places(json_object_get(root, "revisions"), &count) : NULL;
    if (!places) {
        json_decref(root);
        return no_memory(error);
    }
    json_decref(lock->root);
    free(lock->places);
    lock->root = root;
    lock->revisions = json_object_get(root, "revisions");
    lock->history = json_object_get(root, "history");
    lock->places = places;
    lock->place_count = count;
    return TP_OK;
}

static tp_status adopt(json_t *root, tp_lock **lock, tp_error *error) {
    *lock = calloc(1, sizeof **lock);
    if (*lock) {
        (*lock)->put_models = json_array();
        (*lock)->put_cells = json_object();
    }
    if (*lock && (*lock)->put_models && (*lock)->put_cells && tp__lock_take(*lock, json_incref(root), error) == TP_OK) {
        json_decref(root);
        return TP_OK;
    }
    json_decref(root);
    tp_lock_destroy(*lock);
    *lock = NULL;
    return no_memory(error);
}

tp_status tp__lock_copy(const tp_lock *lock, tp_lock **copy, tp_error *error) {
    TP_TRY(adopt(tp__json_copy(lock->root), copy, error));
    json_t *cells = tp__json_copy(lock->put_cells), *wrapped = json_pack("{s:O}", "models", lock->put_models);
    json_t *models = tp__json_copy(wrapped); /* a copy is of an object */
    json_decref(wrapped);
    if (!cells || !models) {
        json_decref(cells);
        json_decref(models);
        tp_lock_destroy(*copy);
        *copy = NULL;
        return no_memory(error);
    }
    json_decref((*copy)->put_cells);
    json_decref((*copy)->put_models);
    (*copy)->put_cells = cells;
    (*copy)->put_models = json_incref(json_object_get(models, "models"));
    json_decref(models);
    return TP_OK;
}

void tp__lock_exchange(tp_lock *a, tp_lock *b) {
    tp_lock before = *a;
    *a = *b;
    *b = before;
}

tp_status tp_lock_create(tp_lock **lock, tp_error *error) {
    if (!lock) return tp__proof_fail(error, TP_INVALID, "lock is NULL");
    return adopt(json_pack("{s:s, s:s, s:[], s:[]}", "schema", TP_LOCK_SCHEMA, "checksum", "", "revisions", "history"), lock,
                 error);
}

void tp_lock_destroy(tp_lock *lock) {
    if (!lock) return;
    json_decref(lock->root);
    json_decref(lock->put_models);
    json_decref(lock->put_cells);
    free(lock->places);
    free(lock);
}

int tp__lock_checksum(const json_t *root, char text[65]) {
    tp__digest digest;
    tp__page page = {0};
    json_t *copy = tp__json_with((json_t *)(uintptr_t)root, "checksum", json_null());
    if (copy) json_object_del(copy, "checksum");
    tp__page_json(&page, copy, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
    json_decref(copy);
    int failed = page.failed;
    tp__digest_begin(&digest);
    tp__digest_add(&digest, tp__page_text(&page), failed ? 0 : page.used);
    tp__digest_end(&digest, text);
    tp__page_close(&page);
    return failed;
}

tp_status tp_lock_parse(const char *text, size_t size, const char *name, tp_lock **lock, tp_error *error) {
    TP__IN_DEFAULT_FENV;
    tp__file file = {text, name ? name : "lock", size, 0, error};
    if (!lock) return tp__proof_fail(error, TP_INVALID, "lock is NULL");
    *lock = NULL;
    if (!text) return tp__proof_fail(error, TP_INVALID, "text is NULL: it must be a lock");
    json_t *root;
    TP_TRY(tp__file_load(&file, TP_LOCK_MAX_BYTES, &root));
    tp_status status = tp__lock_check(&file, &root);
    if (status != TP_OK) {
        json_decref(root);
        return status;
    }
    return adopt(root, lock, error);
}

static tp_status read_record(json_t *record, const tp__field *fields, void *to) {
    TP__IN_DEFAULT_FENV; /* a number may be written as a whole one that no double is */
    tp__file file = {"", "lock", 0, 0, NULL};
    tp__path path = {.depth = 0};
    return tp__record_read(&file, &path, record, fields, to);
}

static tp_status give_cell(json_t *record, tp_cell *cell) {
    tp_cell read = TP_CELL_INIT;
    TP_TRY(read_record(record, tp__cell_fields, &read));
    return tp__give(&tp__cell_shape, &read, cell);
}

/* The index'th cell that is listed for an engine, under the ISA that stands for its own; problem: with this one. */
static tp_status give_listed(const tp_lock *lock, const tp_lock_revision *engine, const char *problem, int64_t index,
                             tp_cell *cell) {
    tp_lock_revision wanted = *engine;
    char isa[64];
    if (tp__lock_isa(lock, engine, isa)) return TP_INVALID;
    wanted.isa = isa;
    int64_t revision = -1;
    int same = 0, listed = strcmp(engine->cache, "any") ? LISTED_OF_CACHE : LISTED_OF_ANY;
    for (int64_t i = 0; i < lock->place_count; i++) {
        const tp__lock_place *place = &lock->places[i];
        if (place->revision != revision) { /* cells of one stand together */
            revision = place->revision;
            tp_lock_revision head = tp__lock_head(json_array_get(lock->revisions, (size_t)revision));
            same = tp__lock_same_engine(&head, &wanted);
        }
        if (!same || !(place->listed & listed) || (problem && strcmp(tp__json_text(place->cell, "problem"), problem))) continue;
        if (!index--) return give_cell(place->cell, cell);
    }
    return TP_INVALID;
}

/* This library on CPUs of an ISA. */
static tp_lock_revision engine_on(const char *isa) {
    tp_identity identity = {.struct_size = sizeof identity, .isa = isa, .cache = "any"};
    return tp__identity_engine(&identity);
}

tp_status tp_lock_cell_at(const tp_lock *lock, const char *isa, int64_t index, tp_cell *cell) {
    if (!lock || !isa || index < 0) return TP_INVALID;
    tp_lock_revision engine = engine_on(isa);
    return give_listed(lock, &engine, NULL, index, cell);
}

tp_status tp_lock_cell_find(const tp_lock *lock, const char *isa, const char *problem, tp_cell *cell) {
    if (!lock || !isa || !problem) return TP_INVALID;
    tp_lock_revision engine = engine_on(isa);
    return give_listed(lock, &engine, problem, 0, cell);
}

tp_status tp_lock_cell_of(const tp_lock *lock, const tp_identity *given, int64_t index, tp_cell *cell) {
    tp_identity now;
    if (!lock || index < 0 || tp__take(&tp__identity_shape, given, &now, NULL) != TP_OK) return TP_INVALID;
    tp_lock_revision engine = tp__identity_engine(&now);
    return give_listed(lock, &engine, NULL, index, cell);
}

tp_status tp_lock_cell_for(const tp_lock *lock, const tp_identity *given, const char *problem, tp_cell *cell) {
    tp_identity now;
    if (!lock || !problem || tp__take(&tp__identity_shape, given, &now, NULL) != TP_OK) return TP_INVALID;
    tp_lock_revision engine = tp__identity_engine(&now);
    return give_listed(lock, &engine, problem, 0, cell);
}

static tp_status give_use(const tp_lock *lock, const tp__lock_place *place, tp_lock_use *use) {
    tp_cell cell = TP_CELL_INIT;
    tp_lock_revision head = tp__lock_head(json_array_get(lock->revisions, (size_t)place->revision));
    TP_TRY(read_record(place->cell, tp__cell_fields, &cell));
    tp_lock_use found = {.struct_size = sizeof found,
                         .phase = cell.phase,
                         .model = head.model,
                         .config_hash = head.config_hash,
                         .part = tp__json_text(place->group, "part"),
                         .layers = tp__json_text(place->group, "layers"),
                         .problem = cell.problem,
                         .revision = place->revision};
    return tp__give(&tp__lock_use_shape, &found, use);
}

tp_status tp_lock_use_at(const tp_lock *lock, int64_t index, tp_lock_use *use) {
    return lock && index >= 0 && index < lock->place_count ? give_use(lock, &lock->places[index], use) : TP_INVALID;
}

/* The first cell of the revision, or the number of all places. */
static int64_t first_place(const tp_lock *lock, int64_t revision) {
    int64_t at = 0;
    while (at < lock->place_count && lock->places[at].revision != revision) at++;
    return at;
}

tp_status tp_lock_revision_cell(const tp_lock *lock, int64_t revision, int64_t index, tp_cell *cell, tp_lock_use *use) {
    if (!lock || index < 0 || revision < 0) return TP_INVALID;
    int64_t first = first_place(lock, revision);
    if (index >= lock->place_count - first || lock->places[first + index].revision != revision) return TP_INVALID;
    const tp__lock_place *place = &lock->places[first + index];
    if (cell) TP_TRY(give_cell(place->cell, cell));
    return use ? give_use(lock, place, use) : TP_OK;
}

tp_status tp_lock_revision_at(const tp_lock *lock, int64_t index, tp_lock_revision *revision) {
    if (!lock || index < 0 || index >= (int64_t)json_array_size(lock->revisions)) return TP_INVALID;
    tp_lock_revision found = tp__lock_head(json_array_get(lock->revisions, (size_t)index));
    found.status = TP_CELL_QUALIFIED;
    for (int64_t i = first_place(lock, index); i < lock->place_count && lock->places[i].revision == index; i++) {
        int32_t status;
        tp_cell_status_parse(tp__json_text(lock->places[i].cell, "status"), &status);
        if (tp_cell_status_rank((tp_cell_status)status) > tp_cell_status_rank((tp_cell_status)found.status))
            found.status = status;
        found.cell_count++;
    }
    if (!found.cell_count) found.status = TP_CELL_NOT_RUN;
    return tp__give(&tp__lock_revision_shape, &found, revision);
}

tp_status tp_lock_history_at(const tp_lock *lock, int64_t index, tp_lock_history *history) {
    tp_lock_history read = TP_LOCK_HISTORY_INIT;
    if (!lock || index < 0 || index >= (int64_t)json_array_size(lock->history)) return TP_INVALID;
    TP_TRY(read_record(json_array_get(lock->history, (size_t)index), tp__history_fields, &read));
    return tp__give(&tp__lock_history_shape, &read, history);
}
