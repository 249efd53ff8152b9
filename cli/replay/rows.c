/* SPDX-License-Identifier: Apache-2.0 */
/* Steps by model, phase and bucket; and the bucket in which the tail of the fleet lies. */
#include "replay/replay.h"
#include "harness/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const phase_names[PHASES] = {"prefill", "decode"};

static int same_row(const struct row *row, const struct step *step) {
    return row->model == step->model && row->phase == step->phase && !strcmp(row->bucket, step->bucket) &&
           !strcmp(row->kernel, step->kernel);
}

static int row_of(const struct rows *rows, const struct step *step) {
    size_t i = 0;
    while (i < rows->count && !same_row(&rows->row[i], step)) i++;
    return (int)i;
}

static void widen(struct row *row, const struct step *step) {
    if (!row->n || step->q_len < row->q_low) row->q_low = step->q_len;
    if (!row->n || step->q_len > row->q_high) row->q_high = step->q_len;
    if (!row->n || step->kv_len < row->k_low) row->k_low = step->kv_len;
    if (!row->n || step->kv_len > row->k_high) row->k_high = step->kv_len;
    row->fallback |= step->fallback;
    row->mean += step->ns; /* the sum, as yet */
    row->n++;
}

static void collect(struct rows *rows, const struct steps *steps) {
    for (size_t i = 0; i < steps->count; i++) {
        const struct step *step = &steps->step[i];
        size_t at = (size_t)row_of(rows, step);
        if (at == rows->count)
            rows->row[rows->count++] = (struct row){
                .model = step->model, .phase = step->phase, .bucket = step->bucket, .kernel = step->kernel};
        widen(&rows->row[at], step);
    }
}

/* The steps of a row (-1: of any) and phase, sorted. */
static size_t sorted(const struct rows *rows, const struct steps *steps, int row, enum phase phase,
                     double *values) {
    size_t n = 0;
    for (size_t i = 0; i < steps->count; i++)
        if (steps->step[i].phase == phase && (row < 0 || row_of(rows, &steps->step[i]) == row))
            values[n++] = steps->step[i].ns;
    if (n) sort_values(values, n);
    return n;
}

/* Which row holds most of the steps at or above the p99 of all steps of the phase. */
static void find_owner(struct rows *rows, const struct steps *steps, enum phase phase, size_t *held) {
    rows->owner[phase] = -1;
    memset(held, 0, (rows->count + 1) * sizeof *held);
    for (size_t i = 0; i < steps->count; i++)
        if (steps->step[i].phase == phase && steps->step[i].ns >= rows->p99[phase]) {
            held[row_of(rows, &steps->step[i])]++;
            rows->above[phase]++;
        }
    for (size_t i = 0; i < rows->count; i++)
        if (held[i] > rows->owned[phase]) {
            rows->owned[phase] = held[i];
            rows->owner[phase] = (int)i;
        }
}

/* Prefill steps with their queue: its part in the tail. values is scratch. */
static void count_queue(struct rows *rows, const struct steps *steps, double *values) {
    double waiting = 0, all = 0;
    size_t n = 0;
    for (size_t i = 0; i < steps->count; i++)
        if (steps->step[i].phase == PREFILL) values[n++] = steps->step[i].ns + steps->step[i].queue_ns;
    if (n) sort_values(values, n);
    rows->ttft_p99 = n ? sorted_quantile(values, n, 0.99) : NAN;
    for (size_t i = 0; i < steps->count; i++) {
        const struct step *step = &steps->step[i];
        if (step->phase != PREFILL || step->ns + step->queue_ns < rows->ttft_p99) continue;
        waiting += step->queue_ns;
        all += step->ns + step->queue_ns;
    }
    rows->queue_share = all > 0 ? waiting / all : 0;
}

static double fleet_mean(const struct replay *replay) {
    double sum = 0;
    for (size_t i = 0; i < replay->requests->count; i++)
        if (!isnan(replay->request_ns[i])) sum += replay->request_ns[i];
    return replay->requests_run ? sum / (double)replay->requests_run : NAN;
}

static int by_name(const void *left, const void *right) {
    const struct row *a = left, *b = right;
    if (a->model != b->model) return a->model - b->model;
    if (a->phase != b->phase) return (int)a->phase - (int)b->phase;
    int order = strcmp(a->bucket, b->bucket);
    return order ? order : strcmp(a->kernel, b->kernel);
}

int rows_make(struct rows *rows, const struct replay *replay) {
    const struct steps *steps = &replay->steps;
    *rows = (struct rows){.row = calloc(steps->count + 1, sizeof *rows->row)};
    double *values = malloc((steps->count + 1) * sizeof *values);
    size_t *held = calloc(steps->count + 1, sizeof *held);
    int failed = !rows->row || !values || !held;
    if (!failed) {
        collect(rows, steps);
        qsort(rows->row, rows->count, sizeof *rows->row, by_name);
        for (size_t i = 0; i < rows->count; i++) {
            struct row *row = &rows->row[i];
            size_t n = sorted(rows, steps, (int)i, row->phase, values);
            row->p50 = sorted_quantile(values, n, 0.5);
            row->p90 = sorted_quantile(values, n, 0.9);
            row->p99 = sorted_quantile(values, n, 0.99);
            row->mean /= (double)n;
        }
        for (int phase = 0; phase < PHASES; phase++) {
            size_t n = sorted(rows, steps, -1, (enum phase)phase, values);
            rows->p99[phase] = n ? sorted_quantile(values, n, 0.99) : NAN;
            find_owner(rows, steps, (enum phase)phase, held);
        }
        count_queue(rows, steps, values);
        rows->fleet_mean = fleet_mean(replay);
    }
    free(values);
    free(held);
    return failed;
}

void rows_free(struct rows *rows) { free(rows->row); }
