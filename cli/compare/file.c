/* SPDX-License-Identifier: Apache-2.0 */
/* A file of `bench -o jsonl`: one object a line. Fields that are not in the table are left alone.
 */
#include "compare/compare.h"
#include "harness/text_file.h"
#include "tool/files.h"
#include "tool/lines.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum field_kind { FIELD_TEXT, FIELD_THREADS, FIELD_POSITIVE_OR_NULL, FIELD_TIMES };
static const char *const rules[] = {"a text that is not empty", "a whole number in 1..1024",
                                    "a number above 0, or null",
                                    "an array of numbers above 0, one at least"};

#define AT(name) offsetof(struct record, name)
static const struct {
    const char *name;
    enum field_kind kind;
    size_t offset;
} fields[] = {
    {"problem", FIELD_TEXT, AT(problem)},
    {"phase", FIELD_TEXT, AT(phase)},
    {"kernel", FIELD_TEXT, AT(kernel)},
    {"kernel_asked", FIELD_TEXT, AT(asked)},
    {"isa", FIELD_TEXT, AT(isa)},
    {"machine", FIELD_TEXT, AT(machine)},
    {"threads", FIELD_THREADS, AT(threads)},
    {"fma_peak_gflops", FIELD_POSITIVE_OR_NULL, AT(peak)},
    {"fma_here_gflops", FIELD_POSITIVE_OR_NULL, AT(here)},
    {"read_gbps_limit", FIELD_POSITIVE_OR_NULL, AT(read)},
    {"aa_ratio", FIELD_POSITIVE_OR_NULL, AT(aa_ratio)},
    {"aa_low", FIELD_POSITIVE_OR_NULL, AT(aa_low)},
    {"aa_high", FIELD_POSITIVE_OR_NULL, AT(aa_high)},
    {"round_ns", FIELD_TIMES, AT(rounds)},
};
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

static int positive(const json_t *value, double *number) {
    *number = json_number_value(value);
    return json_is_number(value) && *number > 0 && isfinite(*number);
}

/* Nonzero when the value breaks the rule of its kind. */
static int store(enum field_kind kind, const json_t *value, void *field) {
    double number;
    switch (kind) {
    case FIELD_TEXT:
        if (!json_is_string(value) || !json_string_length(value)) return 1;
        return !(*(char **)field = strdup(json_string_value(value)));
    case FIELD_THREADS:
        *(int64_t *)field = json_integer_value(value);
        return !json_is_integer(value) || *(int64_t *)field < 1 || *(int64_t *)field > 1024;
    case FIELD_POSITIVE_OR_NULL:
        if (!json_is_null(value)) return !positive(value, field);
        *(double *)field = NAN;
        return 0;
    case FIELD_TIMES: break;
    }
    size_t i;
    json_t *one;
    json_array_foreach(value, i, one) {
        if (!positive(one, &number) || samples_add(field, number)) return 1;
    }
    return !json_array_size(value);
}

static int read_fields(const struct place *place, const json_t *object, struct record *record) {
    for (int i = 0; i < FIELD_COUNT; i++) {
        const json_t *value = json_object_get(object, fields[i].name);
        if (!value)
            return complain_at(place,
                         "field '%s' is missing: it must be %s, as `bench -o jsonl` "
                         "writes it",
                         fields[i].name, rules[fields[i].kind]);
        if (!store(fields[i].kind, value, (char *)record + fields[i].offset)) continue;
        char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        int code = complain_at(place, "field '%s' is %.60s: it must be %s", fields[i].name,
                         shown ? shown : "?", rules[fields[i].kind]);
        free(shown);
        return code;
    }
    if (record->aa_low > record->aa_high)
        return complain_at(place, "field 'aa_low' is %g: it must be at most aa_high, %g", record->aa_low,
                     record->aa_high);
    tp_error error = TP_ERROR_INIT;
    if (record_bucket(record, &error) != TP_OK)
        return complain_at(place, "field 'problem' is '%.200s': %s", record->problem, error.text);
    return EXIT_FINE;
}

static void record_free(struct record *record) {
    char *texts[] = {record->problem, record->phase, record->kernel,
                     record->asked,   record->isa,   record->machine};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) free(texts[i]);
    samples_free(&record->rounds);
}

static int read_line(const struct place *place, const char *line, size_t length,
                     struct recording *recording) {
    json_error_t broken;
    struct record *records = realloc(recording->records, (recording->count + 1) * sizeof *records);
    if (!records) return complain_at(place, "no memory");
    recording->records = records;
    struct record *record = &records[recording->count];
    json_t *object = json_loadb(line, length, JSON_REJECT_DUPLICATES, &broken);
    if (!object) return complain_at(place, "no JSON: %s", broken.text);
    *record = (struct record){0};
    int code = json_is_object(object) ? read_fields(place, object, record)
                                      : complain_at(place, "a row must be an object of JSON");
    json_decref(object);
    if (code)
        record_free(record);
    else
        recording->count++;
    return code;
}

int recording_read(struct recording *recording, const char *name) {
    struct place place = {name, 0};
    size_t size, length;
    int code = EXIT_FINE;
    *recording = (struct recording){.name = name};
    char *text = file_text(name, LINES_MAX_BYTES, &size), *at = text, *line;
    if (!text) return EXIT_USAGE;
    while (!code && (line = text_line(&at, text + size, &length))) {
        place.line++;
        if (strspn(line, " \t\r") < length) code = read_line(&place, line, length, recording);
    }
    free(text);
    if (!code && !recording->count) code = complain_at(&place, "the file holds no row");
    return code;
}

void recording_free(struct recording *recording) {
    for (size_t i = 0; i < recording->count; i++) record_free(&recording->records[i]);
    free(recording->records);
    *recording = (struct recording){0};
}
