/* SPDX-License-Identifier: Apache-2.0 */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/text_file.h"
#include "tool/files.h"
#include "tool/lines.h"

const char *const row_kind_names[ROW_KINDS] = {"cell", "rate",   "bytes", "memory", "goal",     "cliff",  "against",
                                               "peer", "replay", "trace", "watch",  "capacity", "change", "history"};

const char *row_text(const json_t *row, const char *field) {
    const char *text = json_string_value(json_object_get(row, field));
    return text ? text : "";
}

double row_number(const json_t *row, const char *field) {
    const json_t *value = json_object_get(row, field);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

int row_is(const json_t *row, const char *field, const char *text) {
    return !strcmp(row_text(row, field), text);
}

const char *row_cache(const json_t *row) {
    const char *cache = row_text(row, "cache");
    return *cache ? cache : "plain";
}

/* What an object of a list of rows is: the first row whose fields it all has. */
static const struct {
    const char *kind; /* the field `kind`; NULL: any, or none */
    const char *fields[3];
    enum row_kind is;
    const char *what;
} shapes[] = {
    {"rate", {"problem", "gflops", "kernel"}, ROWS_RATE, "rows of bench"},
    {"bytes", {"problem", "sim_bytes", "kernel"}, ROWS_BYTES, "rows of bench --bytes"},
    {"memory", {"problem", "peak_bytes", "kernel"}, ROWS_MEMORY, "rows of bench --memory"},
    {"peer", {"row", "peer", "verdict"}, ROWS_PEER, "rows of bench/peers"},
    {NULL, {"status", "phase", "problem"}, ROWS_CELL, "cells of qualify"},
    {NULL, {"floor", "aim", "figure"}, ROWS_GOAL, "rows of bench --goals"},
    {NULL, {"sweep", "ps_per_flop", "ratio"}, ROWS_CLIFF, "rows of bench --cliffs"},
    {NULL, {"against", "verdict", "ratio"}, ROWS_AGAINST, "rows of bench --against"},
    {NULL, {"problem", "gflops", "kernel"}, ROWS_RATE, "rows of bench"},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int shape_of(const json_t *object) {
    for (int i = 0; i < SHAPES; i++) {
        int fits = !shapes[i].kind || row_is(object, "kind", shapes[i].kind);
        for (int j = 0; j < 3; j++) fits = fits && json_object_get(object, shapes[i].fields[j]);
        if (fits) return i;
    }
    return -1;
}

static const char reads[] =
    "report reads files of qualify --save, lock, bench -o jsonl, bench/peers, replay -o, trace summary -o json, "
    "tileproof.watch --json and capacity -o json";

/* "an object with the fields a, b, c": what was found instead. */
static void describe(const json_t *value, char *text, size_t size) {
    static const char *const types[] = {"an object", "a list", "a text", "a whole number", "a number", "true", "false", "null"};
    const char *key;
    json_t *ignored;
    int shown = 0;
    snprintf(text, size, "%s", types[json_typeof(value)]);
    json_object_foreach((json_t *)value, key, ignored) {
        size_t used = strlen(text);
        if (shown == 4 || used + 48 > size) break;
        snprintf(text + used, size - used, "%s%.32s", shown++ ? ", " : " with the fields ", key);
    }
}

static int complain_unknown(const struct place *at, const json_t *value) {
    char found[256];
    describe(value, found, sizeof found);
    return complain_at(at, "%s is nothing that report knows: %s", found, reads);
}

int report_add(struct report *report, enum row_kind kind, json_t *object) {
    if (!report->rows[kind]) report->rows[kind] = json_array();
    if (object && !json_array_append_new(report->rows[kind], object)) return EXIT_FINE;
    complain("out of memory");
    return EXIT_FAILED;
}

int report_add_from(struct report *report, enum row_kind kind, const struct report_file *file, json_t *object) {
    json_t *path = json_string(file->path); /* a path that is no UTF-8 is left out */
    if (object && path) json_object_set_new(object, "file", path);
    return report_add(report, kind, object);
}

/* A status that is none would be shown as one that is. */
static int check_cell(const struct place *at, const json_t *row) {
    static const char *const texts[] = {"model", "part", "layers", "phase", "problem", "status"};
    int32_t status;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!*row_text(row, texts[i])) return complain_at(at, "field '%s': it must be a text", texts[i]);
    if (tp_cell_status_parse(row_text(row, "status"), &status))
        return complain_at(at, "field 'status' is '%.40s': it must be a status of docs/qualify.md, such as QUALIFIED",
                           row_text(row, "status"));
    return EXIT_FINE;
}

static int read_row(struct report *report, struct report_file *file, const struct place *at, json_t *object) {
    int shape = json_is_object(object) ? shape_of(object) : -1;
    if (shape < 0) return complain_unknown(at, object);
    enum row_kind kind = shapes[shape].is;
    int code = kind == ROWS_CELL ? check_cell(at, object) : EXIT_FINE;
    if (!code && (kind == ROWS_RATE || kind == ROWS_BYTES || kind == ROWS_MEMORY || kind == ROWS_PEER))
        code = plot_read_object(&report->drawn, at, object);
    if (code) return code;
    file->what = file->rows && strcmp(file->what, shapes[shape].what) ? "rows of several kinds" : shapes[shape].what;
    file->rows++;
    return report_add_from(report, kind, file, json_incref(object));
}

static int read_rows(struct report *report, struct report_file *file, const json_t *list) {
    int code = EXIT_FINE;
    for (size_t i = 0; !code && i < json_array_size(list); i++)
        code = read_row(report, file, &(struct place){file->path, (int)i + 1}, json_array_get(list, i));
    if (code || file->rows) return code;
    complain("%s: it holds no rows", file->path);
    return EXIT_USAGE;
}

/* Rows that stand in a list of an object, each with what the object says of all of them. */
static int read_nested(struct report *report, struct report_file *file, enum row_kind kind, const json_t *whole,
                       const char *field) {
    json_t *list = json_object_get(whole, field), *value;
    const char *key;
    int code = EXIT_FINE;
    if (!json_is_array(list)) return complain_at(&(struct place){file->path, 1}, "field '%s': it must be a list", field);
    for (size_t i = 0; !code && i < json_array_size(list); i++) {
        json_t *row = json_array_get(list, i), *made = json_object();
        if (!json_is_object(row)) {
            json_decref(made);
            return complain_at(&(struct place){file->path, (int)i + 1}, "field '%s': it must be a list of objects", field);
        }
        json_object_update(made, row);
        json_object_foreach((json_t *)whole, key, value) if (!json_is_array(value) && !json_object_get(made, key))
            json_object_set(made, key, value);
        code = report_add_from(report, kind, file, made);
        file->rows += !code;
    }
    return code;
}

static int read_replay(struct report *report, struct report_file *file, json_t *whole) {
    return read_nested(report, file, ROWS_REPLAY, whole, "rows");
}
static int read_trace(struct report *report, struct report_file *file, json_t *whole) {
    return read_nested(report, file, ROWS_TRACE, whole, "by_class");
}
/* Its identity as the fields that rows of other files have: the host, and versions as "name=value" on one line. */
static int read_watch(struct report *report, struct report_file *file, json_t *whole) {
    char versions[400] = "";
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(whole, "identity"), name, value) {
        size_t used = strlen(versions);
        if (!json_is_string(value)) continue;
        if (!strcmp(name, "cpu"))
            json_object_set(whole, "host", value);
        else
            snprintf(versions + used, sizeof versions - used, "%s%s=%s", used ? " " : "", name, json_string_value(value));
    }
    if (*versions) json_object_set_new(whole, "versions", json_string(versions));
    return read_nested(report, file, ROWS_WATCH, whole, "rows");
}

/* bench -o json: rows, with the host's limits before them. */
static int read_bench(struct report *report, struct report_file *file, json_t *whole) {
    const json_t *rows = json_object_get(whole, "rows");
    if (!json_is_array(rows)) return complain_at(&(struct place){file->path, 1}, "field 'rows': it must be a list");
    return read_rows(report, file, rows);
}

/* One row: what is needed as the cache is kept, and the ceilings. */
static int read_capacity(struct report *report, struct report_file *file, json_t *whole) {
    static const struct {
        const char *object, *field, *name;
    } parts[] = {{"kept", "bytes", "cache_bytes"},
                 {"kept", "total_bytes", "total_bytes"},
                 {"kept", "fits", "fits"},
                 {"kept", "context_max", "context_max"},
                 {"kept", "concurrency_max", "concurrency_max"},
                 {"evicted", "bytes", "cache_bytes_evicted"},
                 {"prefill", "tokens_per_second_max", "prefill_tokens_per_second_max"},
                 {"decode", "tokens_per_second_max", "decode_tokens_per_second_max"},
                 {"decode", "bound", "decode_bound"}};
    json_t *row = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)whole, key, value) if (!json_is_object(value) && !json_is_array(value))
        json_object_set(row, key, value);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        value = json_object_get(json_object_get(whole, parts[i].object), parts[i].field);
        if (value) json_object_set(row, parts[i].name, value);
    }
    file->rows = 1;
    return report_add_from(report, ROWS_CAPACITY, file, row);
}

/* Objects that are a whole file. */
static const struct {
    const char *field, *begins; /* begins NULL: the field is enough */
    int (*read)(struct report *report, struct report_file *file, json_t *whole);
    const char *what;
} wholes[] = {
    {"format", "tileproof.replay/", read_replay, "a report of replay"},
    {"format", "tileproof.capacity/", read_capacity, "a report of capacity"},
    {"schema", "tileproof.watch/", read_watch, "what tileproof.watch saw"},
    {"by_class", NULL, read_trace, "a summary of a trace"},
    {"limits", NULL, read_bench, "rows of bench"},
};

static int read_object(struct report *report, struct report_file *file, json_t *whole) {
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++) {
        const char *begins = wholes[i].begins;
        if (!json_object_get(whole, wholes[i].field)) continue;
        if (begins && strncmp(row_text(whole, wholes[i].field), begins, strlen(begins))) continue;
        file->what = wholes[i].what;
        return wholes[i].read(report, file, whole);
    }
    return read_row(report, file, &(struct place){file->path, 1}, whole);
}

/* whole: why the file is no JSON as a whole, which is what to say where its first line is none either. */
static int read_lines(struct report *report, struct report_file *file, char *text, size_t size, const json_error_t *whole) {
    size_t length;
    int code = EXIT_FINE;
    char *from = text, *line;
    for (struct place at = {file->path, 1}; !code && (line = text_line(&from, text + size, &length)); at.line++) {
        json_error_t error;
        if (line_blank(line, length)) continue;
        json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, &error);
        if (!object && !file->rows) at.line = whole->line;
        code = object ? read_row(report, file, &at, object)
                      : complain_at(&at, "no JSON: %s; %s", file->rows ? error.text : whole->text, reads);
        json_decref(object);
    }
    if (code || file->rows) return code;
    complain("%s: it holds no rows; %s", file->path, reads);
    return EXIT_USAGE;
}

int report_read_text(struct report *report, struct report_file *file, char *text, size_t size) {
    json_error_t error;
    json_t *whole = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    int code;
    if (json_is_array(whole))
        code = read_rows(report, file, whole);
    else if (json_is_object(whole) && !strncmp(row_text(whole, "schema"), "tileproof.lock/", 15))
        code = report_read_lock(report, file, text, size);
    else if (json_is_object(whole))
        code = read_object(report, file, whole);
    else
        code = read_lines(report, file, text, size, &error);
    json_decref(whole);
    return code;
}

int report_read_file(struct report *report, struct report_file *file) {
    size_t size;
    char *text = file_text(file->path, LINES_MAX_BYTES, &size);
    int code = text ? report_read_text(report, file, text, size) : EXIT_USAGE;
    free(text);
    return code;
}

void report_free(struct report *report) {
    for (int i = 0; i < ROW_KINDS; i++) json_decref(report->rows[i]);
    for (int i = 0; i < report->file_count; i++) tp_lock_destroy(report->files[i].lock);
    free(report->files);
    free(report->cells);
    free(report->drawn.row);
}
