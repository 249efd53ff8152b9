/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/table.h"

#include "cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum cell_kind { CELL_NOTHING, CELL_TEXT, CELL_INTEGER, CELL_NUMBER, CELL_FLAG, CELL_LIST };

struct cell {
    enum cell_kind kind;
    char *text;
    int64_t integer;
    double number;
};

int table_format_parse(const char *text, enum table_format *format) {
    static const char *const names[] = {"md", "csv", "json", "jsonl"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(text ? text : "md", names[i])) {
            *format = (enum table_format)i;
            return 0;
        }
    return 1;
}

void table_open(struct table *table, const struct column *columns, int count) {
    *table = (struct table){.columns = columns, .column_count = count};
}

void table_close(struct table *table) {
    for (size_t i = 0; i < table->count; i++) free(table->cells[i].text);
    free(table->cells);
    *table = (struct table){0};
}

static void add(struct table *table, struct cell cell) {
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? 2 * table->capacity : 256;
        struct cell *cells = realloc(table->cells, capacity * sizeof *cells);
        if (!cells) {
            free(cell.text);
            table->broken = 1;
            return;
        }
        table->cells = cells;
        table->capacity = capacity;
    }
    table->cells[table->count++] = cell;
}

void table_text(struct table *table, const char *text) {
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) table->broken = 1;
    add(table, (struct cell){.kind = copy ? CELL_TEXT : CELL_NOTHING, .text = copy});
}

void table_integer(struct table *table, int64_t value) {
    add(table, (struct cell){.kind = CELL_INTEGER, .integer = value});
}

void table_number(struct table *table, double value) {
    add(table,
        (struct cell){.kind = isfinite(value) ? CELL_NUMBER : CELL_NOTHING, .number = value});
}

void table_flag(struct table *table, int value) {
    add(table, (struct cell){.kind = CELL_FLAG, .integer = value});
}

/* Kept as the text it will be in JSON. */
void table_list(struct table *table, const double *values, size_t count) {
    enum { NUMBER = 24 };
    char *text = malloc(count * NUMBER + 3), *at = text;
    if (!text) {
        table->broken = 1;
        add(table, (struct cell){.kind = CELL_NOTHING});
        return;
    }
    *at++ = '[';
    for (size_t i = 0; i < count; i++)
        at += snprintf(at, NUMBER, "%s%.7g", i ? ", " : "", values[i]);
    strcpy(at, "]");
    add(table, (struct cell){.kind = CELL_LIST, .text = text});
}

static void print_json_cell(const struct cell *cell, FILE *out) {
    switch (cell->kind) {
    case CELL_NOTHING: fputs("null", out); break;
    case CELL_TEXT: print_json_text(out, cell->text); break;
    case CELL_INTEGER: fprintf(out, "%" PRId64, cell->integer); break;
    case CELL_NUMBER: fprintf(out, "%.7g", cell->number); break;
    case CELL_FLAG: fputs(cell->integer ? "true" : "false", out); break;
    case CELL_LIST: fputs(cell->text, out); break;
    }
}

static void print_csv_cell(const struct cell *cell, FILE *out) {
    if (cell->kind == CELL_NOTHING) return;
    if (cell->kind != CELL_TEXT && cell->kind != CELL_LIST) {
        print_json_cell(cell, out);
        return;
    }
    fputc('"', out);
    for (const char *c = cell->text; *c; c++) {
        if (*c == '"') fputc('"', out);
        fputc(*c, out);
    }
    fputc('"', out);
}

static void md_text(const struct column *column, const struct cell *cell, char *text, size_t size) {
    switch (cell->kind) {
    case CELL_NOTHING: snprintf(text, size, "-"); break;
    case CELL_TEXT:
    case CELL_LIST: snprintf(text, size, "%s", cell->text); break;
    case CELL_INTEGER:
        if (column->scale == 1)
            snprintf(text, size, "%" PRId64, cell->integer);
        else
            snprintf(text, size, "%.*f", column->decimals, (double)cell->integer * column->scale);
        break;
    case CELL_FLAG: snprintf(text, size, "%s", cell->integer ? "yes" : "no"); break;
    case CELL_NUMBER:
        if (column->decimals < 0)
            snprintf(text, size, "%.3g", cell->number * column->scale);
        else
            snprintf(text, size, "%.*f", column->decimals, cell->number * column->scale);
        break;
    }
}

static void print_md(const struct table *table, size_t rows, FILE *out) {
    enum { MAX = 96 };
    int width[MAX], right[MAX], columns = table->column_count < MAX ? table->column_count : MAX;
    char text[1024];
    for (int c = 0; c < columns; c++) {
        if (!table->columns[c].title) continue;
        width[c] = (int)strlen(table->columns[c].title);
        right[c] = 1;
        for (size_t r = 0; r < rows; r++) {
            const struct cell *cell = &table->cells[r * (size_t)table->column_count + (size_t)c];
            md_text(&table->columns[c], cell, text, sizeof text);
            if ((int)strlen(text) > width[c]) width[c] = (int)strlen(text);
            if (cell->kind == CELL_TEXT) right[c] = 0;
        }
    }
    for (size_t line = 0; line < rows + 2; line++) {
        for (int c = 0; c < columns; c++) {
            if (!table->columns[c].title) continue;
            if (line == 1) {
                memset(text, '-', sizeof text);
                fprintf(out, "|%.*s%c", width[c] + 1, text, right[c] ? ':' : '-');
                continue;
            }
            if (line == 0)
                snprintf(text, sizeof text, "%s", table->columns[c].title);
            else
                md_text(&table->columns[c],
                        &table->cells[(line - 2) * (size_t)table->column_count + (size_t)c], text,
                        sizeof text);
            fprintf(out, right[c] ? "| %*s " : "| %-*s ", width[c], text);
        }
        fputs("|\n", out);
    }
}

static void print_object(const struct table *table, size_t row, FILE *out) {
    for (int c = 0; c < table->column_count; c++) {
        fprintf(out, "%s\"%s\": ", c ? ", " : "{", table->columns[c].name);
        print_json_cell(&table->cells[row * (size_t)table->column_count + (size_t)c], out);
    }
    fputc('}', out);
}

static void print_csv(const struct table *table, size_t rows, FILE *out) {
    for (int c = 0; c < table->column_count; c++)
        fprintf(out, "%s%s", c ? "," : "", table->columns[c].name);
    fputc('\n', out);
    for (size_t i = 0; i < rows * (size_t)table->column_count; i++) {
        print_csv_cell(&table->cells[i], out);
        fputc((i + 1) % (size_t)table->column_count ? ',' : '\n', out);
    }
}

int table_print(const struct table *table, enum table_format format, FILE *out) {
    if (table->broken) {
        complain("no memory for the table");
        return EXIT_FAILED;
    }
    size_t rows = table->count / (size_t)table->column_count;
    if (format == FORMAT_MD) print_md(table, rows, out);
    if (format == FORMAT_CSV) print_csv(table, rows, out);
    if (format == FORMAT_JSON) fputc('[', out);
    for (size_t r = 0; r < rows && format >= FORMAT_JSON; r++) {
        if (format == FORMAT_JSON) fprintf(out, "%s\n  ", r ? "," : "");
        print_object(table, r, out);
        if (format == FORMAT_JSONL) fputc('\n', out);
    }
    if (format == FORMAT_JSON) fputs("\n]", out);
    return EXIT_FINE;
}
