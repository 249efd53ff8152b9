/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/lines.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int line_wrong(char reason[LINES_REASON], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, LINES_REASON, format, arguments);
    va_end(arguments);
    return 1;
}

static int printable(const char *text, size_t size, int64_t max) {
    if (size < 1 || size > (size_t)max) return 0;
    for (size_t i = 0; i < size; i++)
        if (text[i] < ' ' || text[i] > '~') return 0;
    return 1;
}

/* Nonzero when the value breaks the field's rule. */
static int store(const struct line_field *field, const json_t *value, void *to) {
    switch (field->kind) {
    case LINE_TEXT:
        *(const char **)to = json_string_value(value);
        return !json_is_string(value) ||
               !printable(json_string_value(value), json_string_length(value), field->max);
    case LINE_WHOLE:
        *(int64_t *)to = json_integer_value(value);
        return !json_is_integer(value) || *(int64_t *)to < field->min || *(int64_t *)to > field->max;
    case LINE_REAL:
        *(double *)to = json_number_value(value);
        return !json_is_number(value) || !(*(double *)to >= (double)field->min) ||
               !(*(double *)to <= (double)field->max);
    case LINE_FLAG: *(int *)to = json_is_true(value); return !json_is_boolean(value);
    case LINE_ARRAY: *(const json_t **)to = value; return !json_is_array(value);
    }
    return 1;
}

static void write_rule(const struct line_field *field, char rule[128]) {
    long long min = (long long)field->min, max = (long long)field->max;
    switch (field->kind) {
    case LINE_TEXT: snprintf(rule, 128, "a text of 1..%lld printable ASCII characters", max); break;
    case LINE_WHOLE: snprintf(rule, 128, "a whole number in %lld..%lld", min, max); break;
    case LINE_REAL: snprintf(rule, 128, "a number in %lld..%lld", min, max); break;
    case LINE_FLAG: strcpy(rule, "true or false"); break;
    case LINE_ARRAY: strcpy(rule, "an array"); break;
    }
}

int line_fields(const struct line_field *fields, int count, const json_t *object, void *record,
                char reason[LINES_REASON]) {
    char rule[128];
    for (int i = 0; i < count; i++) {
        const json_t *value = json_object_get(object, fields[i].name);
        if (!value && fields[i].optional) continue;
        if (value && !store(&fields[i], value, (char *)record + fields[i].offset)) continue;
        write_rule(&fields[i], rule);
        if (!value) return line_wrong(reason, "field '%s' is missing: it must be %s", fields[i].name, rule);
        char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
        line_wrong(reason, "field '%s' is %.60s: it must be %s", fields[i].name, shown ? shown : "?", rule);
        free(shown);
        return 1;
    }
    return 0;
}

int line_read(const char *line, size_t length, line_function one, void *user, int number, char reason[LINES_REASON]) {
    json_error_t broken;
    if (length > LINES_MAX_LINE)
        return line_wrong(reason, "the line has %zu bytes: it must have at most %u", length, LINES_MAX_LINE);
    json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, &broken);
    if (!object) return line_wrong(reason, "no JSON: %s", broken.text);
    int wrong = json_is_object(object) ? one(user, object, number, reason)
                                       : line_wrong(reason, "a line must be an object of JSON");
    json_decref(object);
    return wrong;
}

int line_blank(const char *line, size_t length) {
    size_t i = 0;
    while (i < length && strchr(" \t\r", line[i]) && line[i]) i++;
    return i == length;
}

int lines_read(const char *text, size_t size, const char *name, line_function one, void *user,
               char reason[LINES_REASON]) {
    char inner[LINES_REASON] = "";
    int number = 0, found = 0, wrong = 0;
    for (size_t at = 0; at < size && !wrong;) {
        const char *line = text + at, *end = memchr(line, '\n', size - at);
        size_t length = end ? (size_t)(end - line) : size - at;
        number++;
        at += length + 1;
        if (line_blank(line, length)) continue;
        found = 1;
        wrong = line_read(line, length, one, user, number, inner);
    }
    if (!wrong && !found) wrong = line_wrong(inner, "the file holds no line");
    /* cut rather than overflow: the name may be long */
    if (wrong) snprintf(reason, LINES_REASON, "%.200s:%d: %.800s", name, number, inner);
    return wrong;
}
