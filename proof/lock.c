/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a lock, asking it, writing it. Changing one is lock_update.c, the rules of a file lock_check.c. */
#include "lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digest.h"

const char *tp__json_text(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static tp_status adopt(json_t *root, tp_lock **lock, tp_error *error) {
    *lock = calloc(1, sizeof **lock);
    if (!*lock || !root) {
        free(*lock);
        *lock = NULL;
        json_decref(root);
        return tp__proof_fail(error, TP_NO_MEMORY, "out of memory for a lock");
    }
    tp__lock_take(*lock, root);
    return TP_OK;
}

void tp__lock_take(tp_lock *lock, json_t *root) {
    json_decref(lock->root);
    lock->root = root;
    lock->models = json_object_get(root, "models");
    lock->isas = json_object_get(root, "isas");
    lock->history = json_object_get(root, "history");
}

tp_status tp__lock_copy(const tp_lock *lock, tp_lock **copy, tp_error *error) {
    TP_TRY(adopt(tp__json_copy(lock->root), copy, error));
    (*copy)->added = lock->added, (*copy)->changed = lock->changed, (*copy)->same = lock->same;
    return TP_OK;
}

void tp__lock_exchange(tp_lock *a, tp_lock *b) {
    tp_lock before = *a;
    *a = *b;
    *b = before;
}

tp_status tp_lock_create(tp_lock **lock, tp_error *error) {
    if (!lock) return tp__proof_fail(error, TP_INVALID, "lock is NULL");
    return adopt(json_pack("{s:s, s:s, s:[], s:{}, s:[]}", "schema", TP_LOCK_SCHEMA, "checksum", "",
                           "models", "isas", "history"),
                 lock, error);
}

void tp_lock_destroy(tp_lock *lock) {
    if (!lock) return;
    json_decref(lock->root);
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

tp_status tp_lock_parse(const char *text, size_t size, const char *name, tp_lock **lock,
                        tp_error *error) {
    tp__file file = {text, name ? name : "lock", size, 0, error};
    if (!lock) return tp__proof_fail(error, TP_INVALID, "lock is NULL");
    *lock = NULL;
    if (!text) return tp__proof_fail(error, TP_INVALID, "text is NULL: it must be a lock");
    json_t *root;
    TP_TRY(tp__file_load(&file, TP_LOCK_MAX_BYTES, &root));
    tp_status status = tp__lock_check(&file, root);
    if (status != TP_OK) {
        json_decref(root);
        return status;
    }
    return adopt(root, lock, error);
}

json_t *tp__lock_cells(const tp_lock *lock, const char *isa) {
    return json_object_get(json_object_get(lock->isas, isa), "cells");
}

/* Whether the last name of a key is one that came after the first locks. */
static int is_later(const char *key, size_t length) {
    static const char *const first[] = {"avx2", "avx512", "none"};
    size_t name = 0;
    while (name < length && key[length - name - 1] != ',') name++;
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if (strlen(first[i]) == name && !memcmp(key + length - name, first[i], name)) return 0;
    return 1;
}

json_t *tp__lock_entry(const tp_lock *lock, const char *isa, const char **name) {
    char key[64];
    size_t length = strlen(isa);
    json_t *entry = json_object_get(lock->isas, isa);
    if (length >= sizeof key) return NULL;
    memcpy(key, isa, length + 1);
    while (!entry && is_later(key, length)) {
        while (length && key[length - 1] != ',') length--;
        if (length) length--;
        key[length] = 0;
        if (!length) length = strlen(strcpy(key, "none"));
        entry = json_object_get(lock->isas, key);
    }
    if (entry && name) *name = json_object_iter_key(json_object_iter_at(lock->isas, key));
    return entry;
}

static json_t *cells_for(const tp_lock *lock, const char *isa) {
    return json_object_get(tp__lock_entry(lock, isa, NULL), "cells");
}

size_t tp__lock_index(const json_t *cells, const char *problem) {
    size_t i, count = json_array_size(cells);
    for (i = 0; i < count; i++)
        if (!strcmp(tp__json_text(json_array_get(cells, i), "problem"), problem)) break;
    return i;
}

static tp_status give_cell(json_t *record, tp_cell *cell) {
    tp__file file = {"", "lock", 0, 0, NULL};
    tp__path path = {.depth = 0};
    tp_cell read = TP_CELL_INIT;
    if (!record) return TP_INVALID;
    TP_TRY(tp__record_read(&file, &path, record, tp__cell_fields, &read));
    return tp__give(&tp__cell_shape, &read, cell);
}

tp_status tp_lock_cell_at(const tp_lock *lock, const char *isa, int64_t index, tp_cell *cell) {
    if (!lock || !isa || index < 0) return TP_INVALID;
    return give_cell(json_array_get(cells_for(lock, isa), (size_t)index), cell);
}

tp_status tp_lock_cell_find(const tp_lock *lock, const char *isa, const char *problem,
                            tp_cell *cell) {
    if (!lock || !isa || !problem) return TP_INVALID;
    const json_t *cells = cells_for(lock, isa);
    return give_cell(json_array_get(cells, tp__lock_index(cells, problem)), cell);
}

/* Counts down through models, groups, phases and problems. */
tp_status tp_lock_use_at(const tp_lock *lock, int64_t index, tp_lock_use *use) {
    size_t i, j, k;
    json_t *model, *group, *problem;
    if (!lock || index < 0) return TP_INVALID;
    json_array_foreach(lock->models, i, model) json_array_foreach(json_object_get(model, "groups"), j, group)
        for (uint32_t phase = 1; phase & TP_QUALIFY_ALL; phase <<= 1) {
            json_t *list = json_object_get(json_object_get(group, "phases"), tp_qualify_phase_name(phase));
            if ((int64_t)json_array_size(list) <= index) {
                index -= (int64_t)json_array_size(list);
                continue;
            }
            k = (size_t)index;
            problem = json_array_get(list, k);
            tp_lock_use found = {.struct_size = sizeof found,
                                 .phase = phase,
                                 .model = tp__json_text(model, "name"),
                                 .config_hash = tp__json_text(model, "config"),
                                 .part = tp__json_text(group, "part"),
                                 .layers = tp__json_text(group, "layers"),
                                 .problem = json_string_value(problem)};
            return tp__give(&tp__lock_use_shape, &found, use);
        }
    return TP_INVALID;
}

static void add_difference(char *text, size_t size, const char *what, const char *locked,
                           const char *here) {
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s: lock has %.150s, here %.150s", used ? "; " : "", what,
             *locked ? locked : "none", *here ? here : "none");
}

/* How many of the record's fields differ, each named in the text. */
static int differences(const json_t *record, const tp_identity *now, const tp__field *fields,
                       const char *what, char *text, size_t size) {
    int count = 0;
    for (const tp__field *field = fields; field->name; field++) {
        char name[64], locked[32], here[32];
        const void *at = (const char *)now + field->offset;
        const char *a = locked, *b = here;
        if (field->type == TP__INT32) {
            snprintf(locked, sizeof locked, "%d",
                     (int)json_integer_value(json_object_get(record, field->name)));
            snprintf(here, sizeof here, "%d", (int)*(const int32_t *)at);
        } else {
            a = tp__json_text(record, field->name), b = *(const char *const *)at;
        }
        if (!strcmp(a, b)) continue;
        snprintf(name, sizeof name, "%s %s", what, field->name);
        add_difference(text, size, name, a, b);
        count++;
    }
    return count;
}

tp_status tp_lock_fresh(const tp_lock *lock, const tp_identity *given, char *text, size_t size) {
    size_t i;
    tp_identity whole, *now = &whole;
    json_t *host, *last = NULL;
    const char *name;
    if (!lock || !text || !size) return TP_INVALID;
    text[0] = 0;
    TP_TRY(tp__take(&tp__identity_shape, given, &whole, NULL));
    json_t *isa = tp__lock_entry(lock, now->isa, &name);
    if (!isa) {
        char names[256] = "";
        json_object_foreach(lock->isas, name, host) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", used ? " and " : "", name);
        }
        add_difference(text, size, "ISA", names, now->isa);
        return TP_UNSUPPORTED;
    }
    int count = strcmp(name, now->isa) != 0;
    if (count) add_difference(text, size, "ISA", name, now->isa);
    count += differences(json_object_get(isa, "library"), now, tp__library_fields, "library", text, size);
    json_array_foreach(json_object_get(isa, "hosts"), i, host) {
        char unused[1024] = "";
        last = host;
        if (!differences(host, now, tp__host_fields, "host", unused, sizeof unused))
            return count ? TP_UNSUPPORTED : TP_OK;
    }
    differences(last, now, tp__host_fields, "host", text, size);
    return TP_UNSUPPORTED;
}
