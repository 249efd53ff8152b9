/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to series: rows that differ in nothing but the x axis are one. */
#include "plot/plot.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct plot_series *find_series(struct series_list *list, const char *name,
                                  enum series_look look) {
    for (int i = 0; i < list->count; i++)
        if (!strcmp(list->series[i].name, name)) return &list->series[i];
    if (list->count == MAX_SERIES) {
        list->left_out++;
        return NULL;
    }
    struct plot_series *series = &list->series[list->count++];
    *series = (struct plot_series){.look = look};
    snprintf(series->name, sizeof series->name, "%s", name);
    return series;
}

static int add_point(struct series_list *list, const char *name, enum series_look look,
                     struct point point) {
    struct plot_series *series = find_series(list, name, look);
    if (!series) return 0;
    struct point *points = realloc(series->points, (series->count + 1) * sizeof *points);
    if (!points) return 1;
    series->points = points;
    points[series->count++] = point;
    return 0;
}

static enum series_look look_of(const struct plot_row *row) {
    return strcmp(row->kernel, "math") ? LOOK_OURS : LOOK_MATH;
}

/* The words of a problem without the axis: the phase and b1 say nothing, words of the letters go.
 */
static void other_words(const struct plot_row *row, const char *letters, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (const char *at = row->problem; *(at += strspn(at, " ")); at += strcspn(at, " ")) {
        int length = (int)strcspn(at, " ");
        int numbered = isdigit((unsigned char)at[1]);
        if (!strncmp(at, "prefill", 7) || !strncmp(at, "decode", 6) || !strncmp(at, "mixed", 5) ||
            (length == 2 && !strncmp(at, "b1", 2)) || (numbered && strchr(letters, at[0])))
            continue;
        if (used < size)
            used +=
                (size_t)snprintf(text + used, size - used, "%s%.*s", used ? " " : "", length, at);
    }
}

/* Rows and keys grow together where they are as many; otherwise the rows stay in the name. */
static const char *length_letters(const struct plot_row *row) {
    return row->parsed.q_len == row->parsed.kv_len ? "qk" : "k";
}

static void name_series(const struct plot_row *row, const char *letters, int threads, char *name) {
    char words[BENCH_WORDS];
    other_words(row, letters, words, sizeof words);
    int used = snprintf(name, SERIES_NAME, "%s: %.120s", row->kernel, words);
    if (threads && row->threads > 1)
        snprintf(name + used, SERIES_NAME - (size_t)used, ", %.0f threads", row->threads);
}

int series_add_roofline(struct series_list *list, const struct plot_row *row) {
    char name[SERIES_NAME];
    double x = row->gflops * row->min_ns / row->bytes_model;
    if (!isfinite(row->fma_peak) || !isfinite(row->read_limit)) return 0;
    snprintf(name, sizeof name, "limit: %s, %.0f thread%s", row->isa, row->threads,
             row->threads > 1 ? "s" : "");
    /* y is the peak, lo the bandwidth; the script makes a roof of them */
    if (add_point(list, name, LOOK_LIMIT,
                  (struct point){.x = x, .y = row->fma_peak, .lo = row->read_limit}))
        return 1;
    snprintf(name, sizeof name, "%s, %s, %.0f thread%s", row->kernel, row->phase, row->threads,
             row->threads > 1 ? "s" : "");
    return add_point(list, name, look_of(row), (struct point){.x = x, .y = row->gflops});
}

int series_add_rate_length(struct series_list *list, const struct plot_row *row) {
    char name[SERIES_NAME];
    name_series(row, length_letters(row), 1, name);
    return add_point(list, name, look_of(row),
                     (struct point){.x = (double)row->parsed.kv_len, .y = row->gflops});
}

int series_add_rate_head_dim(struct series_list *list, const struct plot_row *row) {
    char name[SERIES_NAME];
    name_series(row, "d", 1, name);
    return add_point(list, name, look_of(row),
                     (struct point){.x = (double)row->parsed.head_dim_qk, .y = row->gflops});
}

int series_add_bytes(struct series_list *list, const struct plot_row *row) {
    char name[SERIES_NAME], words[BENCH_WORDS], cache[32];
    double x = (double)row->parsed.kv_len;
    name_series(row, length_letters(row), 0, name);
    size_t used = strlen(name);
    snprintf(name + used, sizeof name - used, ", cache %s", readable_bytes(row->cache_ll, cache));
    if (add_point(list, name, look_of(row), (struct point){.x = x, .y = row->sim_bytes / 1e6}))
        return 1;
    other_words(row, length_letters(row), words, sizeof words);
    snprintf(name, sizeof name, "compulsory: %.120s", words);
    return add_point(
        list, name, LOOK_MIN,
        (struct point){.x = x, .y = (row->compulsory_read + row->compulsory_written) / 1e6});
}

int series_add_memory(struct series_list *list, const struct plot_row *row) {
    char name[SERIES_NAME];
    name_series(row, length_letters(row), 0, name);
    return add_point(
        list, name, look_of(row),
        (struct point){.x = (double)row->parsed.kv_len, .y = row->peak_bytes / (1 << 20)});
}

int series_add_peer(struct series_list *list, const struct plot_row *row) {
    struct point point = {.x = row->ratio, .lo = row->ratio_lo, .hi = row->ratio_hi};
    size_t rows = 0;
    for (int i = 0; i < list->count; i++) rows += list->series[i].count;
    point.y = (double)rows;
    snprintf(point.label, sizeof point.label, "%s, %.0f thread%s", row->problem, row->threads,
             row->threads > 1 ? "s" : "");
    return add_point(list, row->peer, LOOK_OURS, point);
}

/* A line of the chart for each row: p50 has its label and reaches to p99. */
int series_add_latency(struct series_list *list, const struct plot_row *row) {
    double y = list->count ? (double)list->series[0].count : 0;
    struct point middle = {.x = row->p50, .y = y, .lo = row->p50, .hi = row->p99};
    struct point p90 = {.x = row->p90, .y = y, .lo = row->p90, .hi = row->p90};
    struct point p99 = {.x = row->p99, .y = y, .lo = row->p99, .hi = row->p99};
    snprintf(middle.label, sizeof middle.label, "%s", row->problem);
    return add_point(list, "p50", LOOK_OURS, middle) || add_point(list, "p90", LOOK_OURS, p90) ||
           add_point(list, "p99", LOOK_MATH, p99);
}

static int compare_points(const void *a, const void *b) {
    double x = ((const struct point *)a)->x, y = ((const struct point *)b)->x;
    return x < y ? -1 : x > y;
}

static size_t distinct(const struct plot_series *series) {
    size_t count = 0;
    for (size_t i = 0; i < series->count; i++)
        count += !i || series->points[i].x != series->points[i - 1].x;
    return count;
}

void series_settle(struct series_list *list, size_t min) {
    int kept = 0;
    for (int i = 0; i < list->count; i++) {
        struct plot_series *series = &list->series[i];
        if (min > 1) qsort(series->points, series->count, sizeof *series->points, compare_points);
        int shown = min <= 1 || distinct(series) >= min;
        if (shown && kept == SHOWN_SERIES) {
            list->left_out++;
            shown = 0;
        }
        if (shown)
            list->series[kept++] = *series;
        else
            free(series->points);
    }
    list->count = kept;
}

void plot_series_free(struct series_list *list) {
    for (int i = 0; i < list->count; i++) free(list->series[i].points);
    list->count = 0;
}
