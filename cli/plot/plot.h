/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof plot: what bench wrote as jsonl, drawn by gnuplot.
 *
 *     plot.c    the command: files whole or not at all
 *     plots.c   the table of plots
 *     read.c    lines of JSON to rows; errors name file, line, field and rule
 *     series.c  rows to series of points
 *     script.c  series to a script for gnuplot, and gnuplot itself
 *
 * tileproof report draws the same plots, and those of KIND_LATENCY, into its page.
 */
#ifndef TILEPROOF_CLI_PLOT_PLOT_H
#define TILEPROOF_CLI_PLOT_PLOT_H

#include <jansson.h>

#include "bench/bench.h"

enum plot_kind { KIND_RATE, KIND_BYTES, KIND_MEMORY, KIND_PEER, KIND_LINES, KIND_LATENCY = KIND_LINES };
extern const char *const plot_kind_names[KIND_LINES]; /* those that lines of a file have */

struct plot_row {
    enum plot_kind kind;
    char problem[BENCH_WORDS], kernel[64], isa[64], peer[64], phase[16], host[128], date[32];
    tp_problem parsed;
    double threads, gflops, min_ns, bytes_model, fma_peak, read_limit; /* limits: NAN for none */
    double sim_bytes, compulsory_read, compulsory_written, cache_ll, peak_bytes;
    double ratio, ratio_lo, ratio_hi;
    double p50, p90, p99; /* ms */
};

struct plot_rows {
    struct plot_row *row;
    size_t count, capacity;
};

/* read.c. Exit codes, reasons printed. */
int plot_read(struct plot_rows *rows, const char *file);
/* One object; a peer without a ratio has nothing to draw and adds no row. */
int plot_read_object(struct plot_rows *rows, const struct place *at, const json_t *object);
int plot_add_row(struct plot_rows *rows, const struct plot_row *row);

enum { MAX_SERIES = 256, SHOWN_SERIES = 14, SERIES_NAME = 192 };

struct point {
    double x, y, lo, hi;
    char label[BENCH_WORDS + 64]; /* peers: beside the axis */
};

enum series_look { LOOK_OURS, LOOK_MATH, LOOK_MIN, LOOK_LIMIT };

struct plot_series {
    char name[SERIES_NAME];
    enum series_look look;
    struct point *points;
    size_t count;
};

struct series_list {
    struct plot_series series[MAX_SERIES];
    int count, left_out; /* more than are shown */
};

struct plot {
    const char *name, *title, *x_label, *y_label;
    enum plot_kind kind;
    /* Adds what a row gives. Nonzero when memory ran out. */
    int (*add)(struct series_list *list, const struct plot_row *row);
    int log_x, log_y, lengths; /* lengths: x is one, in powers of two */
    int labels;                /* y is a place in a list, and points have labels */
    size_t min;              /* points that a series needs to be drawn */
    const char *lacking;       /* what it says when nothing is left */
    const char *more;          /* gnuplot: more settings */
    const char *with;          /* gnuplot: style of the points */
};

/* plots.c */
const struct plot *plot_at(int index); /* NULL: no more */
/* The rows of the plot's kind as series that can be drawn; any: there were such rows. Nonzero when memory ran out. */
int plot_collect(const struct plot *plot, const struct plot_rows *rows, struct series_list *list, int *any);
/* Which host and day: those of the rows of a kind, when they agree. Fit to stand in a script. */
void plot_origin(const struct plot_rows *rows, enum plot_kind kind, char *text, size_t size);

/* series.c */
int series_add_roofline(struct series_list *list, const struct plot_row *row);
int series_add_rate_length(struct series_list *list, const struct plot_row *row);
int series_add_rate_head_dim(struct series_list *list, const struct plot_row *row);
int series_add_bytes(struct series_list *list, const struct plot_row *row);
int series_add_memory(struct series_list *list, const struct plot_row *row);
int series_add_peer(struct series_list *list, const struct plot_row *row);
int series_add_latency(struct series_list *list, const struct plot_row *row);
/* Sorts points by x, drops series of fewer than `min` distinct x and what is too much to show. */
void series_settle(struct series_list *list, size_t min);
void plot_series_free(struct series_list *list);

/* script.c. Writes DIR/NAME.svg and DIR/NAME.png; or one SVG. Exit codes, reasons printed; EXIT_REFUSED: no gnuplot here. */
int plot_draw(const struct plot *plot, const struct series_list *list, const char *origin,
              const char *folder);
int plot_draw_svg(const struct plot *plot, const struct series_list *list, const char *origin, const char *svg);

#endif
