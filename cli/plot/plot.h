/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof plot: what bench wrote as jsonl, drawn by gnuplot.
 *
 *     plot.c         the command: the table of plots, files whole or not at all
 *     plot_read.c    lines of JSON to rows; errors name file, line, field and rule
 *     plot_series.c  rows to series of points
 *     plot_script.c  series to a script for gnuplot, and gnuplot itself
 */
#ifndef TILEPROOF_CLI_PLOT_PLOT_H
#define TILEPROOF_CLI_PLOT_PLOT_H

#include "bench/bench.h"

enum plot_kind { KIND_RATE, KIND_BYTES, KIND_MEMORY, KIND_PEER, KIND_COUNT };
extern const char *const plot_kind_names[KIND_COUNT];

struct plot_row {
    enum plot_kind kind;
    char problem[BENCH_WORDS], kernel[64], isa[64], peer[64], phase[16], host[128], date[32];
    tp_problem parsed;
    double threads, gflops, min_ns, bytes_model, fma_peak, read_limit; /* limits: NAN for none */
    double sim_bytes, compulsory_read, compulsory_written, cache_ll, peak_bytes;
    double ratio, ratio_lo, ratio_hi;
};

struct plot_rows {
    struct plot_row *row;
    size_t count, capacity;
};

/* Exit code, reason printed. */
int plot_read(struct plot_rows *rows, const char *file);

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
    size_t min;              /* points that a series needs to be drawn */
    const char *lacking;       /* what it says when nothing is left */
    const char *more;          /* gnuplot: more settings */
    const char *with;          /* gnuplot: style of the points */
};

/* plot_series.c */
int series_add_roofline(struct series_list *list, const struct plot_row *row);
int series_add_rate_length(struct series_list *list, const struct plot_row *row);
int series_add_rate_head_dim(struct series_list *list, const struct plot_row *row);
int series_add_bytes(struct series_list *list, const struct plot_row *row);
int series_add_memory(struct series_list *list, const struct plot_row *row);
int series_add_peer(struct series_list *list, const struct plot_row *row);
/* Sorts points by x, drops series of fewer than `least` distinct x and what is too much to show. */
void series_settle(struct series_list *list, size_t min);
void plot_series_free(struct series_list *list);

/* plot_script.c: writes DIR/NAME.svg and DIR/NAME.png. Exit code, reason printed. */
int plot_draw(const struct plot *plot, const struct series_list *list, const char *origin,
              const char *folder);

#endif
