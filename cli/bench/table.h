/* SPDX-License-Identifier: Apache-2.0 */
/* One table, four ways to write it. Cells are added from left to right, row after row. */
#ifndef TILEPROOF_CLI_BENCH_TABLE_H
#define TILEPROOF_CLI_BENCH_TABLE_H

#include <stdint.h>
#include <stdio.h>

enum table_format { FORMAT_MD, FORMAT_CSV, FORMAT_JSON, FORMAT_JSONL };

struct column {
    const char *name;  /* of the field, for programs */
    const char *title; /* in md; NULL: not shown there */
    double scale;      /* numbers are multiplied by it in md */
    int decimals;      /* in md */
};

struct cell;

struct table {
    const struct column *columns;
    int column_count;
    struct cell *cells;
    size_t count, capacity;
    int broken; /* memory ran out */
};

/* 0, or nonzero when text names no format. NULL names md. */
int table_format_parse(const char *text, enum table_format *format);

void table_open(struct table *table, const struct column *columns, int count);
void table_close(struct table *table);
void table_text(struct table *table, const char *text); /* NULL: no value */
void table_integer(struct table *table, int64_t value);
void table_number(struct table *table, double value); /* NAN: no value */
void table_flag(struct table *table, int value);
void table_list(struct table *table, const double *values, size_t count);
/* json: an array without a newline behind it. Nonzero when memory had run out. */
int table_print(const struct table *table, enum table_format format, FILE *out);

#endif
