/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a lock's file. Whatever passes them, the other files may take for granted. */
#include <stddef.h>
#include <string.h>

#include "lock.h"

/* max: bytes of a text */
#define PART(name, type, optional, max) {#name, type, optional, 0, offsetof(tp_identity, name), (max) + 1}
const tp__field tp__library_fields[] = {PART(version, TP__TEXT, 0, 63),    PART(build, TP__TEXT, 0, 64),
                                        PART(compiler, TP__TEXT, 0, 1023), PART(parser, TP__INT32, 0, 0),
                                        PART(declared, TP__TEXT, 1, 255),  {NULL, TP__TEXT, 0, 0, 0, 0}};
const tp__field tp__host_fields[] = {PART(cpu, TP__TEXT, 0, 255), PART(os, TP__TEXT, 0, 255), PART(libc, TP__TEXT, 0, 255),
                                     {NULL, TP__TEXT, 0, 0, 0, 0}};

#define PAST(name, max) {#name, TP__TEXT, 0, 0, offsetof(tp__history, name), (max) + 1}
const tp__field tp__history_fields[] = {PAST(date, 15),  PAST(isa, 63),     PAST(build, 64),
                                        PAST(cells, 79), PAST(reason, 400), {NULL, TP__TEXT, 0, 0, 0, 0}};

typedef tp_status entry_check(const tp__file *file, tp__path *path, json_t *value);

/* The object has these keys, "a b c", and no other. */
static tp_status keys(const tp__file *file, tp__path *path, json_t *object, const char *names) {
    const char *key;
    json_t *value;
    size_t count = 0;
    if (!json_is_object(object)) return tp__file_fail(file, path, NULL, "must be an object");
    for (const char *at = names; *at;) {
        char name[32];
        size_t length = strcspn(at, " ");
        memcpy(name, at, length);
        name[length] = 0;
        if (!json_object_get(object, name))
            return tp__file_fail(file, path, name, "is missing: it must be given");
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

static tp_status each(const tp__file *file, tp__path *path, json_t *object, const char *key,
                      entry_check *check) {
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

static tp_status text(const tp__file *file, tp__path *path, json_t *object, const char *key,
                      size_t max) {
    const char *value = json_string_value(json_object_get(object, key));
    if (value && *value && strlen(value) <= max) return TP_OK;
    return tp__file_fail(file, path, key, "must be a text of 1..%zu bytes", max);
}

static tp_status check_problem(const tp__file *file, tp__path *path, json_t *value) {
    const char *problem = json_string_value(value);
    return problem && *problem && strlen(problem) < 512
               ? TP_OK
               : tp__file_fail(file, path, NULL, "must be a text of 1..511 bytes");
}

static tp_status check_group(const tp__file *file, tp__path *path, json_t *group) {
    const char *name;
    json_t *list, *phases;
    TP_TRY(keys(file, path, group, "part layers phases"));
    TP_TRY(text(file, path, group, "part", 15));
    TP_TRY(text(file, path, group, "layers", 8 * TP_MODEL_MAX_LAYERS));
    phases = json_object_get(group, "phases");
    if (!json_is_object(phases)) return tp__file_fail(file, path, "phases", "must be an object");
    tp__path_key(path, "phases");
    json_object_foreach(phases, name, list) {
        uint32_t bit = 1;
        while (bit & TP_QUALIFY_ALL && strcmp(name, tp_qualify_phase_name(bit))) bit <<= 1;
        if (!(bit & TP_QUALIFY_ALL)) return tp__file_fail(file, path, name, "is no phase");
        TP_TRY(each(file, path, phases, name, check_problem));
    }
    tp__path_up(path);
    return TP_OK;
}

static tp_status check_model(const tp__file *file, tp__path *path, json_t *model) {
    TP_TRY(keys(file, path, model, "name config groups"));
    TP_TRY(text(file, path, model, "name", 255));
    TP_TRY(text(file, path, model, "config", 64));
    return each(file, path, model, "groups", check_group);
}

static tp_status check_cell(const tp__file *file, tp__path *path, json_t *record) {
    tp_cell cell = TP_CELL_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    TP_TRY(tp__record_read(file, path, record, tp__cell_fields, &cell));
    if (cell.status != TP_CELL_UNSUPPORTED &&
        tp_problem_parse(cell.problem, &problem, &lengths, &error) != TP_OK)
        return tp__file_fail(file, path, "problem", "cannot be read: %.160s", error.text);
    return TP_OK;
}

static tp_status check_host(const tp__file *file, tp__path *path, json_t *record) {
    tp_identity identity;
    return tp__record_read(file, path, record, tp__host_fields, &identity);
}

static tp_status check_history(const tp__file *file, tp__path *path, json_t *record) {
    tp__history history;
    return tp__record_read(file, path, record, tp__history_fields, &history);
}

static tp_status check_isa(const tp__file *file, tp__path *path, json_t *isa) {
    tp_identity identity;
    TP_TRY(keys(file, path, isa, "library hosts cells"));
    tp__path_key(path, "library");
    TP_TRY(tp__record_read(file, path, json_object_get(isa, "library"), tp__library_fields, &identity));
    tp__path_up(path);
    TP_TRY(each(file, path, isa, "hosts", check_host));
    if (!json_array_size(json_object_get(isa, "hosts")))
        return tp__file_fail(file, path, "hosts", "is empty: it must name a host");
    return each(file, path, isa, "cells", check_cell);
}

tp_status tp__lock_check(const tp__file *file, json_t *root) {
    tp__path path = {.depth = 0};
    const char *isa;
    json_t *value, *isas = json_object_get(root, "isas");
    char sum[65];
    const char *schema = tp__json_text(root, "schema");
    if (strcmp(schema, TP_LOCK_SCHEMA))
        return tp__file_fail(file, &path, "schema", "is \"%.60s\": it must be \"%s\"", schema,
                             TP_LOCK_SCHEMA);
    TP_TRY(keys(file, &path, root, "schema checksum models isas history"));
    TP_TRY(each(file, &path, root, "models", check_model));
    if (!json_is_object(isas)) return tp__file_fail(file, &path, "isas", "must be an object");
    tp__path_key(&path, "isas");
    json_object_foreach(isas, isa, value) {
        tp__path_key(&path, isa);
        TP_TRY(check_isa(file, &path, value));
        tp__path_up(&path);
    }
    tp__path_up(&path);
    TP_TRY(each(file, &path, root, "history", check_history));
    if (tp__lock_checksum(root, sum))
        return tp__proof_fail(file->error, TP_NO_MEMORY, "out of memory for a lock");
    if (strcmp(sum, tp__json_text(root, "checksum")))
        return tp__file_fail(file, &path, "checksum",
                             "is \"%.64s\", but the content gives %s: the file was edited; only "
                             "qualify --update may change it",
                             tp__json_text(root, "checksum"), sum);
    return TP_OK;
}
