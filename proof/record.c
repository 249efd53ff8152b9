/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void tp__path_key(tp__path *path, const char *key) {
    if (path->depth < 10) snprintf(path->part[path->depth++], sizeof path->part[0], "%.60s", key);
}

void tp__path_index(tp__path *path, size_t index) {
    if (path->depth < 10) snprintf(path->part[path->depth++], sizeof path->part[0], "#%zu", index);
}

void tp__path_up(tp__path *path) {
    if (path->depth > 0) path->depth--;
}

tp_status tp__file_fail(const tp__file *file, const tp__path *path, const char *key,
                        const char *format, ...) {
    char where[320] = "", what[256];
    tp__path full = {.depth = 0};
    va_list arguments;
    if (path) full = *path;
    if (key) tp__path_key(&full, key);
    for (int i = 0; i < full.depth; i++) {
        size_t used = strlen(where);
        snprintf(where + used, sizeof where - used, "%s%s", i ? "." : "", full.part[i]);
    }
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    int line = tp__path_line(file, &full);
    if (!line && key) { /* a missing key is missing from its object */
        tp__path_up(&full);
        line = tp__path_line(file, &full);
    }
    return tp__proof_fail(file->error, TP_INVALID, "%s:%d: %.180s%s%s", file->name,
                          file->line + (line ? line : 1), where, *where ? " " : "", what);
}

tp_status tp__file_load(const tp__file *file, size_t max, json_t **root) {
    tp_status status;
    *root = NULL;
    if (file->size > max)
        return tp__proof_fail(file->error, TP_INVALID, "%s has %zu bytes: at most %zu", file->name, file->size, max);
    *root = tp__json_load(file->text, file->size, file->name, file->line, file->error, &status);
    return status;
}

static json_t *make_value(const tp__field *field, const void *at) {
    switch (field->type) {
    case TP__TEXT: return json_string(*(const char *const *)at);
    case TP__INT32: return json_integer(*(const int32_t *)at);
    case TP__INT64: return json_integer(*(const int64_t *)at);
    case TP__REAL: return json_real(*(const double *)at);
    case TP__PHASE: return json_string(tp_qualify_phase_name(*(const uint32_t *)at));
    case TP__STATUS: return json_string(tp_cell_status_name((tp_cell_status) * (const int32_t *)at));
    case TP__KEPT: return json_string(tp_kept_name((tp_kept) * (const int32_t *)at));
    }
    return NULL;
}

static int is_empty(const tp__field *field, const void *at) {
    switch (field->type) {
    case TP__TEXT: return !**(const char *const *)at;
    case TP__KEPT:
    case TP__INT32: return !*(const int32_t *)at;
    case TP__INT64: return !*(const int64_t *)at;
    case TP__REAL: return *(const double *)at == 0;
    default: return 0;
    }
}

static int is_left_out(const tp__field *field, const void *at, int measured) {
    return (field->measured && !measured) || (field->optional && is_empty(field, at));
}

tp_status tp__record_check(const tp__field *fields, const void *from, int measured, tp_error *error) {
    for (const tp__field *field = fields; field->name; field++) {
        const void *at = (const char *)from + field->offset;
        if (is_left_out(field, at, measured)) continue;
        if (field->type == TP__REAL && !isfinite(*(const double *)at))
            return tp__proof_fail(error, TP_INVALID, "%s is %g: a number is not finite", field->name,
                                  *(const double *)at);
        if (field->type == TP__KEPT && (unsigned)*(const int32_t *)at > TP_KEPT_VARIES)
            return tp__proof_fail(error, TP_INVALID, "%s is %d: it must be a tp_kept", field->name, (int)*(const int32_t *)at);
        const char *text = field->type == TP__TEXT ? *(const char *const *)at : NULL;
        if (text && strlen(text) >= field->size)
            return tp__proof_fail(error, TP_INVALID, "%s has %zu bytes: at most %zu", field->name, strlen(text), field->size - 1);
        if (text && !tp__is_utf8(text, strlen(text)))
            return tp__proof_fail(error, TP_INVALID, "%s is not UTF-8", field->name);
    }
    return TP_OK;
}

json_t *tp__record_make(const tp__field *fields, const void *from, int measured) {
    json_t *object = json_object();
    for (const tp__field *field = fields; object && field->name; field++) {
        const void *at = (const char *)from + field->offset;
        if (is_left_out(field, at, measured)) continue;
        if (!json_object_set_new(object, field->name, make_value(field, at))) continue;
        json_decref(object);
        return NULL;
    }
    return object;
}

/* NULL when the value is stored; otherwise the rule that it breaks. */
static const char *read_value(const tp__field *field, json_t *value, void *at) {
    const char *text = json_string_value(value);
    if (field->type == TP__REAL) {
        if (!json_is_number(value) || !isfinite(json_number_value(value)) || json_number_value(value) < 0)
            return "a finite number of at least 0";
        *(double *)at = json_number_value(value);
        return NULL;
    }
    if (field->type == TP__INT32 || field->type == TP__INT64) {
        json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 0 || (field->type == TP__INT32 && number > INT32_MAX))
            return "a whole number of at least 0";
        if (field->type == TP__INT32)
            *(int32_t *)at = (int32_t)number;
        else
            *(int64_t *)at = number;
        return NULL;
    }
    if (!text) return "a text";
    if (field->type == TP__STATUS)
        return tp_cell_status_parse(text, at) ? "a status of docs/qualify.md" : NULL;
    if (field->type == TP__KEPT) {
        for (int32_t kept = TP_KEPT_YES; kept <= TP_KEPT_VARIES; kept++)
            if (!strcmp(text, tp_kept_name((tp_kept)kept))) {
                *(int32_t *)at = kept;
                return NULL;
            }
        return "kept, leaks or varies";
    }
    if (field->type == TP__PHASE) {
        for (uint32_t bit = 1; bit & TP_QUALIFY_ALL; bit <<= 1)
            if (!strcmp(text, tp_qualify_phase_name(bit))) {
                *(uint32_t *)at = bit;
                return NULL;
            }
        return "prefill, decode, varlen, mixed or multimodal";
    }
    if (strlen(text) >= field->size) return "a shorter text";
    *(const char **)at = text;
    return NULL;
}

tp_status tp__record_read(const tp__file *file, tp__path *path, json_t *object,
                          const tp__field *fields, void *to) {
    const char *key;
    json_t *value;
    size_t known = 0;
    if (!json_is_object(object)) return tp__file_fail(file, path, NULL, "must be an object");
    for (const tp__field *field = fields; field->name; field++) {
        value = json_object_get(object, field->name);
        if (!value && field->optional) continue;
        if (!value) return tp__file_fail(file, path, field->name, "is missing: it must be given");
        const char *rule = read_value(field, value, (char *)to + field->offset);
        if (rule) {
            tp__page shown = {0};
            tp__page_json(&shown, value, JSON_COMPACT | JSON_ENCODE_ANY);
            tp_status status = tp__file_fail(file, path, field->name, "is %.80s: it must be %s",
                                             shown.failed ? "?" : tp__page_text(&shown), rule);
            tp__page_close(&shown);
            return status;
        }
        known++;
    }
    if (known == json_object_size(object)) return TP_OK;
    json_object_foreach(object, key, value) {
        const tp__field *field = fields;
        while (field->name && strcmp(field->name, key)) field++;
        if (!field->name) return tp__file_fail(file, path, key, "is not known here");
    }
    return TP_OK;
}
