/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every row of the page once, for what a click shows:
 *
 *     {"texts": ["llama", ...],
 *      "sets": {"cell": {"count": 2, "fields": {"model": 0, "error": [1e-7, 2e-7], "kernel": {"t": [0, 1]}}}}}
 *
 * Texts that stand in many rows are written once. A field is a column: a number alone is a text that every row has, a list
 * has a number for each row or null, and an object with "t" the numbers of their texts.
 */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A text of JSON inside a script element. */
static void data_text(FILE *out, const char *text) {
    fputc('"', out);
    for (int size; *text; text += size ? size : 1) {
        size = utf8_size(text);
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < ' ' || c == '<' || c == '>' || c == '&' || c == 127) /* nothing that could end the script element */
            fprintf(out, "\\u%04x", c);
        else if (!size)
            fputs("\\ufffd", out);
        else if (size == 3 && (!strncmp(text, "\xE2\x80\xA8", 3) || !strncmp(text, "\xE2\x80\xA9", 3)))
            fprintf(out, "\\u%04x", text[2] == '\xA8' ? 0x2028 : 0x2029);
        else
            fwrite(text, 1, (size_t)size, out);
    }
    fputc('"', out);
}

struct data {
    json_t *numbers; /* of texts */
    json_t *texts;   /* in their order */
    FILE *out;
    int failed;
};

/* Its text's number; -1 for "". */
static long long text_number(struct data *data, const char *text) {
    if (!*text) return -1;
    json_t *known = json_object_get(data->numbers, text);
    if (known) return json_integer_value(known);
    long long number = (long long)json_array_size(data->texts);
    data->failed |=
        json_object_set_new(data->numbers, text, json_integer(number)) || json_array_append_new(data->texts, json_string(text));
    return number;
}

/* What is neither a text nor a number is shown as JSON. */
static long long value_number(struct data *data, const json_t *value) {
    if (!value || json_is_null(value)) return -1;
    if (json_is_string(value)) return text_number(data, json_string_value(value));
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    long long number = text ? text_number(data, text) : -1;
    data->failed |= !text;
    free(text);
    return number;
}

static void put_number(FILE *out, const json_t *value) {
    if (json_is_integer(value))
        fprintf(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        fprintf(out, "%.6g", json_real_value(value));
    else
        fputs("null", out);
}

/* A column of numbers, of texts, or one text. */
static void put_field(struct data *data, const json_t *rows, const char *field) {
    size_t i;
    json_t *row;
    int numbers = 0, others = 0, same = 1;
    const json_t *first = json_object_get(json_array_get(rows, 0), field);
    json_array_foreach((json_t *)rows, i, row) {
        const json_t *value = json_object_get(row, field);
        numbers += json_is_number(value);
        others += value && !json_is_null(value) && !json_is_number(value);
        same = same && value && first && json_equal(value, first);
    }
    int columns = others || !numbers;
    if (columns && same) {
        fprintf(data->out, "%lld", value_number(data, first));
        return;
    }
    fputs(columns ? "{\"t\":[" : "[", data->out);
    json_array_foreach((json_t *)rows, i, row) {
        const json_t *value = json_object_get(row, field);
        if (i) fputc(',', data->out);
        if (columns)
            fprintf(data->out, "%lld", value_number(data, value));
        else
            put_number(data->out, value);
    }
    fputs(columns ? "]}" : "]", data->out);
}

/* Long lists that nobody reads, and what the page says elsewhere. */
static int left_out(const char *field) {
    static const char *const fields[] = {"round_ns", "round_cpu_ns", "kind", "format", "schema", "identity", "p99_owner"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(fields[i], field)) return 1;
    return 0;
}

static void put_set(struct data *data, enum row_kind kind, const json_t *rows) {
    json_t *fields = json_object(), *row, *value;
    const char *field;
    size_t i;
    int first = 1;
    data->failed |= !fields;
    json_array_foreach((json_t *)rows, i, row) json_object_foreach(row, field, value) if (!left_out(field)) data->failed |=
        json_object_set(fields, field, json_null());
    fprintf(data->out, "\"%s\":{\"count\":%zu,\"fields\":{", row_kind_names[kind], json_array_size(rows));
    json_object_foreach(fields, field, value) {
        if (!first) fputc(',', data->out);
        first = 0;
        data_text(data->out, field);
        fputc(':', data->out);
        put_field(data, rows, field);
    }
    fputs("}}", data->out);
    json_decref(fields);
}

int report_write_data(const struct report *report, FILE *out) {
    struct data data = {json_object(), json_array(), out, 0};
    json_t *text;
    size_t i;
    int first = 1;
    data.failed = !data.numbers || !data.texts;
    fputs("{\"sets\":{", out);
    for (int kind = 0; !data.failed && kind < ROW_KINDS; kind++) {
        if (!json_array_size(report->rows[kind])) continue;
        if (!first) fputs(",\n", out);
        first = 0;
        put_set(&data, (enum row_kind)kind, report->rows[kind]);
    }
    fputs("},\n\"texts\":[", out);
    json_array_foreach(data.texts, i, text) {
        if (i) fputs(",\n", out);
        data_text(out, json_string_value(text));
    }
    fputs("]}", out);
    json_decref(data.numbers);
    json_decref(data.texts);
    if (data.failed) complain("out of memory");
    return data.failed ? EXIT_FAILED : EXIT_FINE;
}
