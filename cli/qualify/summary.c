/* SPDX-License-Identifier: Apache-2.0 */
/* What a person at a terminal is told: what will be done and how long it takes, a short table, a verdict. */
#include "harness/places.h"
#include "qualify/qualify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "harness/oracle.h"
#include "harness/stats.h"

enum { PROBES = 8, MAX_MODELS = 8, MAX_THREADS = 16, KERNELS_WIDTH = 17 };
static const double line_every_ns = 30e9;

/* Seconds of a cell: what comes with every cell, the reference by its elements, the kernels by multiply-adds. Two
   threads of an AVX-512 Xeon were measured; host_factor says how this host differs. */
static double cell_seconds(const tp_cell *cell, int quick, int threads) {
    static const double each = 0.09, by_element = 7e-9, by_flop = 24e-12;
    tp_problem p;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    if (tp_problem_parse(cell->problem, &p, &lengths, NULL) != TP_OK) return 0;
    double keys = (double)p.kv_len * (double)(p.head_dim_qk + p.head_dim_v), rows = 0;
    for (int64_t i = 0; i < lengths.count; i++)
        rows += (double)lengths.seq[i].repeat * (double)lengths.seq[i].q_len;
    if (!lengths.count) rows = (double)p.batch * (double)p.q_len;
    double sampled = fmin((double)sample_limit(&p, quick), rows * (double)p.q_heads);
    return each + (sampled * keys * by_element + rows * keys * (double)p.q_heads * 2 * by_flop) / threads;
}

/* The reference of two rows here, over what it took where the figures above were taken. */
static double host_factor(void) {
    static const double there_ns = 6.3 * 2 * 1024 * 128.0;
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    struct tensors_style style = {.repeat = 1};
    struct tensors tensors;
    struct oracle oracle;
    tp_error error = TP_ERROR_INIT;
    if (tp_problem_parse("q2 k1024 d64 bf16", &problem, &lengths, NULL) != TP_OK) return 1;
    int failed = tensors_create(&tensors, &problem, &lengths, &style) || tensors_fill(&tensors, 1);
    double best = failed ? there_ns : there_ns * 100;
    for (int i = 0; i < PROBES && !failed; i++) {
        double start = now_ns();
        if (oracle_create(&oracle, &tensors, 2, 1, &error) != TP_OK) break;
        best = fmin(best, now_ns() - start);
        oracle_destroy(&oracle);
    }
    tensors_destroy(&tensors);
    return best / there_ns;
}

/* "40 s", "6 min" */
static const char *about(double seconds, char text[32]) {
    if (seconds < 100)
        snprintf(text, 32, "%.0f s", fmax(1, seconds));
    else
        snprintf(text, 32, "%.0f min", ceil(seconds / 60));
    return text;
}

void qualify_announce(struct qualification *all, const struct options *options, int threads) {
    char text[32];
    int64_t known = 0;
    double factor = host_factor();
    all->threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    for (int64_t i = 0; i < all->cell_count; i++) {
        const tp_cell *cell = tp_qualification_cell(all->q, i);
        int waits = cell->status == TP_CELL_NOT_RUN;
        if (waits) all->seconds_left += factor * cell_seconds(cell, options->quick, all->threads);
        known += !waits;
    }
    all->seconds_asked = all->seconds_left;
    all->host_factor = factor;
    if (options->format && strcmp(options->format, "md") && !isatty(STDERR_FILENO)) return;
    fprintf(stderr, "qualify: %d models, %lld cells, %lld different problems", all->model_count, (long long)all->use_count,
            (long long)all->cell_count);
    if (known) fprintf(stderr, ", %lld done", (long long)known);
    fprintf(stderr, "; about %s on %d threads\n", about(all->seconds_left, text), threads);
}

double qualify_left(struct qualification *all, const tp_cell *done, int quick, double elapsed) {
    all->seconds_left -= all->host_factor * cell_seconds(done, quick, all->threads);
    double gone = all->seconds_asked - all->seconds_left;
    /* after some cells the clock knows better than the estimate */
    return all->seconds_left * (gone > 0.03 * all->seconds_asked && gone > 1 ? elapsed / gone : 1);
}

void qualify_progress(int64_t done, int64_t count, double seconds_left, const tp_cell *cell) {
    static double last;
    char text[32], left[48] = "";
    if (seconds_left >= 0) snprintf(left, sizeof left, ", about %s left", about(seconds_left, text));
    bench_progress("%lld of %lld cells%s  %s  %.30s", (long long)done, (long long)count, left, tp_qualify_phase_name(cell->phase),
                   cell->problem);
    if (isatty(STDERR_FILENO)) return;
    if (!last) last = now_ns();
    if (now_ns() - last < line_every_ns) return;
    last = now_ns();
    fprintf(stderr, "%lld of %lld cells%s\n", (long long)done, (long long)count, left);
}

struct model_row {
    int model, status, cells;
    double share, gain; /* largest error over what was allowed; mean gain over math, geometric */
    char kernels[KERNELS_WIDTH + 1];
};

static int worse_row(const void *left, const void *right) {
    const struct model_row *a = left, *b = right;
    int order = cell_rank(b->status) - cell_rank(a->status);
    if (order) return order;
    if (a->share != b->share) return a->share < b->share ? 1 : -1;
    return a->model - b->model;
}

static void sum_model(const struct qualification *all, int model, struct model_row *row) {
    double logs = 0, timed = 0;
    *row = (struct model_row){.model = model, .status = TP_CELL_QUALIFIED};
    for (int64_t i = 0; i < all->use_count; i++) {
        tp_qualify_use use = qualification_use(all, i);
        const tp_cell *cell = tp_qualification_cell(all->q, use.cell);
        if (use.model != model) continue;
        row->cells++;
        if (cell_rank(cell->status) > cell_rank(row->status)) row->status = cell->status;
        if (cell->allowed > 0) row->share = fmax(row->share, cell->error / cell->allowed);
        if (cell->gain_over_math > 0) logs += log(cell->gain_over_math), timed++;
        add_name(row->kernels, sizeof row->kernels, cell->kernel);
    }
    if (timed > 0) row->gain = exp(logs / timed);
}

/* No layer of it is served, or none has the phases that were asked for. */
static const char *without_cells(const tp_model *model) {
    for (int i = 0; i < model->group_count; i++)
        if (!model->groups[i]->out_of_scope) return "no such cells";
    return "out of scope";
}

void qualify_summary(const struct qualification *all) {
    struct model_row *rows = calloc((size_t)all->model_count + 1, sizeof *rows);
    int shown = all->model_count <= MAX_MODELS + 1 ? all->model_count : MAX_MODELS;
    if (!rows) return;
    for (int i = 0; i < all->model_count; i++) sum_model(all, i, &rows[i]);
    qsort(rows, (size_t)all->model_count, sizeof *rows, worse_row);
    printf("%-24s %-18s %5s %-*s %5s %s\n", "model, worst first", "status", "cells", KERNELS_WIDTH, "kernels", "error",
           "x math");
    for (int i = 0; i < shown; i++) {
        const struct model_row *row = &rows[i];
        const char *name = all->models[row->model]->label;
        size_t length = strlen(name);
        if (length > 5 && !strcmp(name + length - 5, ".json")) length -= 5;
        printf("%-24.*s %-18s %5d %-*s", (int)(length < 24 ? length : 24), name,
               row->cells ? tp_cell_status_name((tp_cell_status)row->status) : without_cells(all->models[row->model]), row->cells,
               KERNELS_WIDTH, row->kernels[0] ? row->kernels : "none");
        if (row->share > 0) printf(" %4.0f%%", 100 * row->share);
        if (row->gain > 0) printf("%*s %5.1f", row->share > 0 ? 0 : 6, "", row->gain);
        printf("\n");
    }
    if (shown < all->model_count)
        printf("%d more, none worse: %s. All layer groups: -v or -o md\n", all->model_count - shown,
               tp_cell_status_name((tp_cell_status)rows[shown].status));
    printf("error: the largest, of what is allowed; x math: mean gain over math\n");
    free(rows);
}

/* What would serve the cells that are refused: a fallback, where one was refused by policy; else what the reasons say. */
static const char *for_refused(const struct qualification *all) {
    int fallback = 0, size = 0;
    for (int64_t i = 0; i < all->cell_count; i++) {
        const tp_cell *cell = tp_qualification_cell(all->q, i);
        if (cell->status != TP_CELL_UNSUPPORTED) continue;
        fallback |= strstr(cell->reason, "need policy permit") != NULL;
        size |= !strncmp(cell->reason, "not run: ", 9);
    }
    if (fallback) return "--fallback permit, or tileproof explain";
    return size ? "too large to be run: --phases without it" : "tileproof explain with its problem";
}

static const char *what_next(const struct qualification *all, int status, int code, const struct options *options) {
    static const char above[] = "the reasons above"; /* other commands would ask this library, not the engine */
    if (!all->use_count) return options->phases ? "other --phases" : "tileproof model";
    switch (status) {
        case TP_CELL_QUALIFIED:
        case TP_CELL_QUALIFIED_FALLBACK: break;
        case TP_CELL_UNSUPPORTED: return all->engine ? above : for_refused(all);
        case TP_CELL_MISTRUSTED: return "docs/qualify.md, \"Could it have failed?\"";
        case TP_CELL_STALE:
        case TP_CELL_NUMERICS_CHANGED: return "meant? then --update --reason TEXT";
        default: return all->engine ? above : "tileproof run --verify with its problem";
    }
    if (code == EXIT_LOCK) return "meant? then --update --reason TEXT";
    if (code) return "see above";
    return options->quick ? "the whole matrix, without --quick"
           : options->lock ? "tileproof canary with that lock"
                           : "keep it: --lock FILE --update --reason TEXT";
}

void qualify_verdict(const struct qualification *all, const struct options *options, int code) {
    int bad = 0, worst = TP_CELL_QUALIFIED;
    for (int64_t i = 0; i < all->use_count; i++) {
        int status = tp_qualification_cell(all->q, qualification_use(all, i).cell)->status;
        bad += cell_exit_code(status) != EXIT_FINE;
        if (cell_rank(status) > cell_rank(worst)) worst = status;
    }
    const char *verdict = !all->use_count ? "NOTHING CHECKED" : code ? "FAIL" : "PASS";
    printf("%s: %d models, ", verdict, all->model_count);
    if (bad) printf("%d of ", bad);
    printf("%lld cells, lock %s%s; next: %s\n", (long long)all->use_count, options->lock ? options->lock : "none",
           all->kept ? " not written" : "", what_next(all, worst, code, options));
}
