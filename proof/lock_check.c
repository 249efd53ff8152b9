/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a lock's file. Whatever passes them, the other files may take for granted. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lock.h"

/* max: bytes of a text */
#define HEAD(word, field, optional, max)                                                                                         \
    { word, TP__TEXT, optional, 0, offsetof(tp_lock_revision, field), (max) + 1 }
const tp__field tp__revision_fields[] = {
    HEAD("model", model, 0, 255), HEAD("config", config_hash, 0, 64), HEAD("date", date, 1, 15), {NULL, TP__TEXT, 0, 0, 0, 0}};
const tp__field tp__engine_fields[] = {HEAD("name", engine, 0, 63), HEAD("mode", mode, 1, 31),   HEAD("device", device, 0, 127),
                                       HEAD("isa", isa, 1, 63),     HEAD("cache", cache, 0, 63), {NULL, TP__TEXT, 0, 0, 0, 0}};

#define PAST(name, optional, max)                                                                                                \
    { #name, TP__TEXT, optional, 0, offsetof(tp_lock_history, name), (max) + 1 }
const tp__field tp__history_fields[] = {
    PAST(date, 0, 15),       PAST(engine, 1, 63),    PAST(device, 1, 127), PAST(isa, 1, 63),     PAST(build, 1, 64),
    PAST(revisions, 1, 511), PAST(dropped, 1, 1023), PAST(cells, 0, 79),   PAST(reason, 0, 400), {NULL, TP__TEXT, 0, 0, 0, 0}};

tp_status tp__lock_keys(const tp__file *file, tp__path *path, json_t *object, const char *names) {
    const char *key;
    json_t *value;
    size_t count = 0;
    if (!json_is_object(object)) return tp__file_fail(file, path, NULL, "must be an object");
    for (const char *at = names; *at;) {
        char name[32];
        size_t length = strcspn(at, " ");
        memcpy(name, at, length);
        name[length] = 0;
        if (!json_object_get(object, name)) return tp__file_fail(file, path, name, "is missing: it must be given");
        count++;
        at += length + (at[length] == ' ');
    }
    if (count == json_object_size(object)) return TP_OK;
    json_object_foreach(object, key, value) {
        const char *at = strstr(names, key);
        size_t length = strlen(key);
        if (!at || (at > names && at[-1] != ' ') || (at[length] && at[length] != ' '))
            return tp__file_fail(file, path, key, "is not known here");
    }
    return TP_OK;
}

tp_status tp__lock_each(const tp__file *file, tp__path *path, json_t *object, const char *key, tp__lock_entry_check *check) {
    json_t *list = json_object_get(object, key), *value;
    size_t i;
    tp_status status = TP_OK;
    if (!json_is_array(list)) return tp__file_fail(file, path, key, "must be a list");
    tp__path_key(path, key);
    json_array_foreach(list, i, value) {
        tp__path_index(path, i);
        status = check(file, path, value);
        tp__path_up(path);
        if (status != TP_OK) break;
    }
    tp__path_up(path);
    return status;
}

tp_status tp__lock_text(const tp__file *file, tp__path *path, json_t *object, const char *key, size_t max) {
    const char *value = json_string_value(json_object_get(object, key));
    if (value && *value && strlen(value) <= max) return TP_OK;
    return tp__file_fail(file, path, key, "must be a text of 1..%zu bytes", max);
}

tp_status tp__lock_check_cell(const tp__file *file, tp__path *path, json_t *record) {
    tp_cell cell = TP_CELL_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    TP_TRY(tp__record_read(file, path, record, tp__cell_fields, &cell));
    TP_TRY(tp__lock_text(file, path, record, "problem", 511));
    if (cell.status != TP_CELL_UNSUPPORTED && cell.status != TP_CELL_NOT_RUN &&
        tp_problem_parse(cell.problem, &problem, &lengths, &error) != TP_OK)
        return tp__file_fail(file, path, "problem", "cannot be read: %.160s", error.text);
    return TP_OK;
}

tp_status tp__lock_check_history(const tp__file *file, tp__path *path, json_t *record) {
    tp_lock_history history;
    return tp__record_read(file, path, record, tp__history_fields, &history);
}

static tp_status check_group(const tp__file *file, tp__path *path, json_t *group) {
    TP_TRY(tp__lock_keys(file, path, group, "part layers cells"));
    TP_TRY(tp__lock_text(file, path, group, "part", 15));
    TP_TRY(tp__lock_text(file, path, group, "layers", 8 * TP_MODEL_MAX_LAYERS));
    return tp__lock_each(file, path, group, "cells", tp__lock_check_cell);
}

/* {name: value}, all texts. */
static tp_status check_map(const tp__file *file, tp__path *path, json_t *map) {
    const char *key;
    json_t *value;
    if (!json_is_object(map)) return tp__file_fail(file, path, NULL, "must be an object");
    json_object_foreach(map, key, value) {
        if (!*key || strlen(key) > 63) return tp__file_fail(file, path, key, "must have a name of 1..63 bytes");
        TP_TRY(tp__lock_text(file, path, map, key, 1023));
    }
    return TP_OK;
}

static tp_status check_part(const tp__file *file, tp__path *path, json_t *entry, const char *key, const tp__field *fields) {
    tp_lock_revision head = TP_LOCK_REVISION_INIT;
    tp__path_key(path, key);
    json_t *part = json_object_get(entry, key);
    TP_TRY(fields ? tp__record_read(file, path, part, fields, &head) : check_map(file, path, part));
    for (const tp__field *field = fields; field && field->name; field++)
        if (!field->optional) TP_TRY(tp__lock_text(file, path, part, field->name, field->size - 1));
    tp__path_up(path);
    return TP_OK;
}

static tp_status check_revision(const tp__file *file, tp__path *path, json_t *entry) {
    TP_TRY(tp__lock_keys(file, path, entry, "revision engine versions hosts groups"));
    TP_TRY(check_part(file, path, entry, "revision", tp__revision_fields));
    TP_TRY(check_part(file, path, entry, "engine", tp__engine_fields));
    TP_TRY(check_part(file, path, entry, "versions", NULL));
    TP_TRY(tp__lock_each(file, path, entry, "hosts", check_map));
    if (!json_array_size(json_object_get(entry, "hosts")))
        return tp__file_fail(file, path, "hosts", "is empty: it must name a host");
    return tp__lock_each(file, path, entry, "groups", check_group);
}

/* No two entries of one model, config and engine: which of them would hold? */
static tp_status check_clashes(const tp__file *file, tp__path *path, json_t *root) {
    json_t *list = json_object_get(root, "revisions"), *entry;
    size_t i;
    json_array_foreach(list, i, entry) {
        tp_lock_revision head = tp__lock_head(entry);
        size_t first = tp__lock_find(list, &head);
        if (first == i) continue;
        tp__path_key(path, "revisions");
        tp__path_index(path, i);
        return tp__file_fail(file, path, NULL, "is %.60s %.12s once more: entry #%zu has it for the same engine and device",
                             head.model, head.config_hash, first);
    }
    return TP_OK;
}

tp_status tp__lock_check_sum(const tp__file *file, json_t *root) {
    char sum[65];
    if (tp__lock_checksum(root, sum)) return tp__proof_fail(file->error, TP_NO_MEMORY, "out of memory for a lock");
    if (strcmp(sum, tp__json_text(root, "checksum")))
        return tp__file_fail(file, NULL, "checksum",
                             "is \"%.64s\", but the content gives %s: the file was edited; only "
                             "qualify --update may change it",
                             tp__json_text(root, "checksum"), sum);
    return TP_OK;
}

static tp_status check_new(const tp__file *file, json_t *root) {
    tp__path path = {.depth = 0};
    TP_TRY(tp__lock_keys(file, &path, root, "schema checksum revisions history"));
    TP_TRY(tp__lock_each(file, &path, root, "revisions", check_revision));
    TP_TRY(check_clashes(file, &path, root));
    TP_TRY(tp__lock_each(file, &path, root, "history", tp__lock_check_history));
    return tp__lock_check_sum(file, root);
}

/* A name of ours with a number beyond this one. */
static int is_newer(const char *schema) {
    static const char name[] = "tileproof.lock/", ours[] = TP_LOCK_SCHEMA;
    const size_t length = sizeof name - 1;
    return !strncmp(schema, name, length) && atoi(schema + length) > atoi(&ours[length]);
}

tp_status tp__lock_check(const tp__file *file, json_t **root) {
    const char *schema = tp__json_text(*root, "schema");
    if (!strcmp(schema, TP_LOCK_SCHEMA)) return check_new(file, *root);
    if (is_newer(schema))
        return tp__file_fail(file, NULL, "schema", "is \"%.60s\": tileproof %s reads up to \"%s\"; a newer one wrote this file",
                             schema, tp_version(), TP_LOCK_SCHEMA);
    if (strcmp(schema, "tileproof.lock/1"))
        return tp__file_fail(file, NULL, "schema", "is \"%.60s\": it must be \"%s\" or \"tileproof.lock/1\"", schema,
                             TP_LOCK_SCHEMA);
    TP_TRY(tp__lock_check_old(file, *root));
    json_t *made = tp__lock_from_old(*root);
    if (!made) return tp__proof_fail(file->error, TP_NO_MEMORY, "out of memory for a lock");
    json_decref(*root);
    *root = made;
    return TP_OK;
}
