/* SPDX-License-Identifier: Apache-2.0 */
#include "plot/plot.h"
#include "harness/text_file.h"
#include "tool/files.h"
#include "tool/lines.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

const char *const plot_kind_names[KIND_LINES] = {"rate", "bytes", "memory", "peer"};

enum field_type { TEXT, POSITIVE, POSITIVE_OR_NULL, OPTIONAL_TEXT };

#define KIND(name) (1u << KIND_##name)
enum {
    TIMED = KIND(RATE),
    SIZED = KIND(RATE) | KIND(BYTES) | KIND(MEMORY),
    ANY = SIZED | KIND(PEER)
};
#define FIELD(name) offsetof(struct plot_row, name), sizeof(((struct plot_row *)0)->name)

static const struct field {
    const char *name;
    enum field_type type;
    unsigned kinds;
    size_t offset, size;
} fields[] = {
    {"problem", TEXT, SIZED, FIELD(problem)},
    {"row", TEXT, KIND(PEER), FIELD(problem)},
    {"kernel", TEXT, ANY, FIELD(kernel)},
    {"phase", TEXT, ANY, FIELD(phase)},
    {"host", OPTIONAL_TEXT, ANY, FIELD(host)},
    {"date", OPTIONAL_TEXT, ANY, FIELD(date)},
    {"isa", TEXT, TIMED, FIELD(isa)},
    {"threads", POSITIVE, TIMED | KIND(PEER), FIELD(threads)},
    {"gflops", POSITIVE, TIMED, FIELD(gflops)},
    {"min_ns", POSITIVE, TIMED, FIELD(min_ns)},
    {"bytes_model", POSITIVE, TIMED, FIELD(bytes_model)},
    {"fma_peak_gflops", POSITIVE_OR_NULL, TIMED, FIELD(fma_peak)},
    {"read_gbps_limit", POSITIVE_OR_NULL, TIMED, FIELD(read_limit)},
    {"sim_bytes", POSITIVE, KIND(BYTES), FIELD(sim_bytes)},
    {"compulsory_read", POSITIVE, KIND(BYTES), FIELD(compulsory_read)},
    {"compulsory_written", POSITIVE, KIND(BYTES), FIELD(compulsory_written)},
    {"cache_ll", POSITIVE, KIND(BYTES), FIELD(cache_ll)},
    {"peak_bytes", POSITIVE, KIND(MEMORY), FIELD(peak_bytes)},
    {"peer", TEXT, KIND(PEER), FIELD(peer)},
    {"ratio", POSITIVE, KIND(PEER), FIELD(ratio)},
    {"ratio_lo", POSITIVE, KIND(PEER), FIELD(ratio_lo)},
    {"ratio_hi", POSITIVE, KIND(PEER), FIELD(ratio_hi)},
};
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

static int wrong(const struct place *at, const char *field, const char *rule) {
    return complain_at(at, "field '%s': %s", field, rule);
}

static int read_field(const struct place *at, const json_t *object, const struct field *field,
                      struct plot_row *row) {
    const json_t *value = json_object_get(object, field->name);
    void *to = (char *)row + field->offset;
    char rule[96];
    switch (field->type) {
    case OPTIONAL_TEXT:
        if (!value) return EXIT_FINE;
        /* fall through */
    case TEXT:
        snprintf(rule, sizeof rule, "it must be a text of 1 to %zu bytes", field->size - 1);
        if (!json_string_length(value) || json_string_length(value) >= field->size ||
            strlen(json_string_value(value)) != json_string_length(value))
            return wrong(at, field->name, rule);
        memcpy(to, json_string_value(value), json_string_length(value) + 1);
        return EXIT_FINE;
    case POSITIVE_OR_NULL:
        *(double *)to = NAN;
        if (json_is_null(value)) return EXIT_FINE;
        /* fall through */
    case POSITIVE:
        if (!(json_number_value(value) > 0))
            return wrong(at, field->name,
                         field->type == POSITIVE ? "it must be a number above 0"
                                                 : "it must be a number above 0, or null");
        *(double *)to = json_number_value(value);
    }
    return EXIT_FINE;
}

/* A row without a kind is one of plain bench. */
static int read_kind(const struct place *at, const json_t *object, struct plot_row *row) {
    const json_t *kind = json_object_get(object, "kind");
    for (int i = 0; i < KIND_LINES; i++)
        if (!kind ||
            (json_is_string(kind) && !strcmp(json_string_value(kind), plot_kind_names[i]))) {
            row->kind = (enum plot_kind)i;
            return EXIT_FINE;
        }
    return wrong(at, "kind", "it must be rate, bytes, memory or peer");
}

static int read_row(const struct place *at, const json_t *object, struct plot_row *row) {
    tp_error error = TP_ERROR_INIT;
    int code = read_kind(at, object, row);
    for (int i = 0; !code && i < FIELD_COUNT; i++)
        if (fields[i].kinds & 1u << row->kind) code = read_field(at, object, &fields[i], row);
    if (code) return code;
    row->date[strcspn(row->date, "T")] = 0; /* the day */
    if (bench_words_check(row->problem, &row->parsed, &error) != TP_OK)
        return wrong(at, row->kind == KIND_PEER ? "row" : "problem", error.text);
    if (row->kind == KIND_PEER && !(row->ratio_lo <= row->ratio && row->ratio <= row->ratio_hi))
        return wrong(at, "ratio", "it must lie in ratio_lo..ratio_hi");
    return EXIT_FINE;
}

int plot_add_row(struct plot_rows *rows, const struct plot_row *row) {
    if (rows->count == rows->capacity) {
        size_t capacity = rows->capacity ? 2 * rows->capacity : 64;
        struct plot_row *more = realloc(rows->row, capacity * sizeof *more);
        if (!more) {
            complain("no memory for the rows");
            return EXIT_FAILED;
        }
        rows->row = more;
        rows->capacity = capacity;
    }
    rows->row[rows->count++] = *row;
    return EXIT_FINE;
}

int plot_read_object(struct plot_rows *rows, const struct place *at, const json_t *object) {
    struct plot_row row;
    memset(&row, 0, sizeof row);
    /* a peer that was wrong or did not run has a line, and no ratio to draw */
    const json_t *kind = json_object_get(object, "kind");
    if (json_is_string(kind) && !strcmp(json_string_value(kind), "peer") && json_is_null(json_object_get(object, "ratio")))
        return EXIT_FINE;
    int code = read_row(at, object, &row);
    return code ? code : plot_add_row(rows, &row);
}

static int read_line(struct plot_rows *rows, const struct place *at, const char *line, size_t length) {
    json_error_t error;
    json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, &error);
    int code = EXIT_USAGE;
    if (json_is_object(object))
        code = plot_read_object(rows, at, object);
    else
        complain("%s:%d: a line must be a JSON object%s%s", at->file, at->line, object ? "" : ": ", object ? "" : error.text);
    json_decref(object);
    return code;
}

int plot_read(struct plot_rows *rows, const char *file) {
    size_t size, length;
    int code = EXIT_FINE;
    char *text = file_text(file, LINES_MAX_BYTES, &size), *from = text, *line;
    if (!text) return EXIT_USAGE;
    for (struct place at = {file, 1}; !code && (line = text_line(&from, text + size, &length)); at.line++)
        if (strspn(line, " \t\r") < length) code = read_line(rows, &at, line, length);
    free(text);
    return code;
}
