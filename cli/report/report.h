/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof report: files of evidence, speed, memory and history as one HTML page.
 *
 *     report.c       the command: reads, orders, writes the page whole or not at all
 *     input.c        what a file is, by its content; its rows
 *     input_lock.c   the cells of locks; what differs between their revisions, or from cells of today
 *     cells.c        cells in the order of the matrix
 *     html.c         text that becomes part of a page; numbers
 *     data.c         every row once, as JSON in the page: what a click shows
 *     verdict.c      the first screen
 *     matrix.c       models by phases; engines side by side
 *     heat.c         length by head dim
 *     charts.c       gnuplot's SVG, made fit for a page
 *     tables.c       rows that are a table each: goals, peers, latencies, capacity, ...
 *     environment.c  hosts, builds, dates, seeds; the files
 *     page/          the page's frame, its style and its script
 *
 * All texts come from files that anybody may have written: they reach the page through html_text and data.c alone.
 */
#ifndef TILEPROOF_CLI_REPORT_REPORT_H
#define TILEPROOF_CLI_REPORT_REPORT_H

#include <jansson.h>

#include "plot/plot.h"

/* Kinds of rows; input.c has their names. */
enum row_kind {
    ROWS_CELL,     /* of qualify, or of a lock */
    ROWS_RATE,     /* of bench */
    ROWS_BYTES,    /* of bench --bytes */
    ROWS_MEMORY,   /* of bench --memory */
    ROWS_GOAL,     /* of bench --goals */
    ROWS_CLIFF,    /* of bench --cliffs */
    ROWS_AGAINST,  /* of bench --against */
    ROWS_PEER,     /* of bench/peers */
    ROWS_REPLAY,   /* of replay -o */
    ROWS_TRACE,    /* of trace summary -o json */
    ROWS_WATCH,    /* of python -m tileproof.watch --json */
    ROWS_CAPACITY, /* of capacity -o json */
    ROWS_CHANGE,   /* made here: between revisions */
    ROWS_HISTORY,  /* of a lock */
    ROW_KINDS
};
extern const char *const row_kind_names[ROW_KINDS];

struct report_file {
    const char *path, *what; /* "rows of bench" */
    size_t rows;
    tp_lock *lock; /* or NULL */
};

/* A cell where the matrix has it. Numbers are in the order of appearance; models, the worst first. */
struct report_cell {
    const json_t *row;
    int status, rank;
    int model, engine, group, phase;
};

struct report {
    struct report_file *files;
    int file_count;
    json_t *rows[ROW_KINDS]; /* arrays of objects. Of cells: in the order of the matrix, once report_order ran */
    struct plot_rows drawn;  /* those of bench and of peers */
    struct report_cell *cells;
    size_t cell_count;
    int model_count, engine_count;
    unsigned engine_apart; /* bits: by which fields of engine_text the engines differ */
    int no_gnuplot;
};

/* input.c. Exit codes, reasons printed. */
int report_read_file(struct report *report, struct report_file *file);
/* Its text, with a 0 behind it, which is cut into lines. */
int report_read_text(struct report *report, struct report_file *file, char *text, size_t size);
/* Both take over the object; NULL: memory ran out. The second notes which file it is from. */
int report_add(struct report *report, enum row_kind kind, json_t *object);
int report_add_from(struct report *report, enum row_kind kind, const struct report_file *file, json_t *object);
void report_free(struct report *report);

/* input_lock.c */
int report_read_lock(struct report *report, struct report_file *file, const char *text, size_t size);
/* Once all files are read: cells of locks where no file of qualify has cells; the changes. */
int report_locks(struct report *report);

/* cells.c. What an engine goes by: cells that agree in all of these are of one. */
enum { ENGINE_FIELDS = 5 };
const char *engine_text(const json_t *row, int field); /* from 0 */
int report_order(struct report *report);

/* Fields of rows. */
const char *row_text(const json_t *row, const char *field); /* "": there is none */
double row_number(const json_t *row, const char *field);    /* NAN: there is none */
const char *row_cache(const json_t *row); /* of a cell: its cache; plain where a file of an earlier version does not say */
int row_is(const json_t *row, const char *field, const char *text);

/* html.c. Text and attributes, in quotes, of a page: nothing in it is markup; bytes that are no UTF-8 and control characters are
   shown as U+FFFD. */
void html_text(FILE *out, const char *text);
/* The name may have attributes behind it. css NULL: no class. */
void html_element(FILE *out, const char *name, const char *css, const char *text);
enum number_form {
    FORM_PLAIN, /* 3 significant digits */
    FORM_COUNT, /* 1,234 */
    FORM_BYTES, /* 4 MiB */
    FORM_NS,    /* 1.2 ms; the number is in ns */
    FORM_SECONDS,
    FORM_SHARE,   /* 12 %; of 1 */
    FORM_PERCENT, /* 12 %; of 100 */
    FORM_TIMES    /* x1.2 */
};
void number_text(double value, enum number_form form, char text[48]); /* "" of NAN */
struct status_look {
    const char *letter, *word, *css;
};
struct status_look status_look(int status); /* a tp_cell_status */
/* The letter and the word, coloured. */
void html_status(FILE *out, int status);

/* data.c */
int report_write_data(const struct report *report, FILE *out);

/* The parts of the page, in their order. Exit codes, reasons printed. */
int report_verdict(const struct report *report, FILE *out);
int report_matrix(const struct report *report, FILE *out);
int report_engines(const struct report *report, FILE *out);
int report_heat(const struct report *report, FILE *out);
int report_charts(struct report *report, FILE *out);
int report_environment(const struct report *report, FILE *out);
/* The tables of a kind of rows. */
int report_table(const struct report *report, enum row_kind kind, FILE *out);

#endif
