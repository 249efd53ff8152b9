/* SPDX-License-Identifier: Apache-2.0 */
/* What a person at a terminal is told: what will be done and how long it takes, a verdict. */
#include "harness/places.h"
#include "qualify/qualify.h"
#include "tool/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "harness/oracle.h"
#include "harness/stats.h"

enum { PROBES = 8, MAX_THREADS = 16, COLUMNS = 80 };

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
    fprintf(stderr, "qualify: %d model%s, %lld cell%s, %lld different problem%s", all->model_count,
            all->model_count == 1 ? "" : "s", (long long)all->use_count, all->use_count == 1 ? "" : "s",
            (long long)all->cell_count, all->cell_count == 1 ? "" : "s");
    if (known) fprintf(stderr, ", %lld done", (long long)known);
    if (all->engine || device_backend()) /* figures of this host's kernels say nothing of theirs */
        fprintf(stderr, "; how long %s takes is not known\n", all->engine ? "that engine" : "a device");
    else
        fprintf(stderr, "; about %s on %d thread%s\n", about_time(all->seconds_left, text), threads, threads == 1 ? "" : "s");
}

double qualify_left(struct qualification *all, const tp_cell *done, int quick, double elapsed) {
    all->seconds_left -= all->host_factor * cell_seconds(done, quick, all->threads);
    double gone = all->seconds_asked - all->seconds_left;
    /* after some cells the clock knows better than the estimate */
    return all->seconds_left * (gone > 0.03 * all->seconds_asked && gone > 1 ? elapsed / gone : 1);
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
    const char *next = what_next(all, worst, code, options);
    int used = printf("%s: %d model%s, ", verdict, all->model_count, all->model_count == 1 ? "" : "s");
    if (bad) used += printf("%d of ", bad);
    used += printf("%lld cell%s, lock %s%s;", (long long)all->use_count, all->use_count == 1 ? "" : "s",
                   options->lock ? options->lock : "none", all->kept ? " not written" : "");
    printf("%snext: %s\n", used + strlen(" next: ") + strlen(next) > COLUMNS ? "\n" : " ", next);
}
