/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Old library against new, in one process, in turns, with an A/A control of the old one: the A/B test of
 * bench --against, on one thread. Without --against the old library is this tool's own, for drills.
 */
#include "qualify/canary.h"

#include <math.h>
#include <string.h>

#include "bench/bench.h"
#include "harness/ab_test.h"

static const double cell_budget_ns = 3e9, min_budget_ns = 0.3e9, max_budget_ns = 20e9;

struct side {
    const struct library *library;
    tp_context *context;
};

static int open_side(struct side *side, const struct library *library) {
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    side->library = library;
    wanted.threads = 1;
    wanted.policy = TP_PERMIT;
    return library->context_create(&wanted, &side->context, &error) == TP_OK ? EXIT_FINE
                                                                             : complain_status(&error);
}

/* Plans of one problem in both libraries; they use one workspace, since where it lies changes times. */
static tp_status open_cases(struct ab_test *ab_test, struct workload *workload,
                            const struct side sides[2], const struct drill *drill, tp_error *error) {
    struct timed_case *cases = ab_test->cases;
    for (int i = 0; i < 2; i++) {
        cases[i] = (struct timed_case){
            .workload = workload, .threads = 1, .library = sides[i].library};
        tp_status status = timed_case_start(&cases[i], sides[i].context, error);
        if (status != TP_OK) return status;
    }
    struct workspace *large = cases[0].workspace.bytes > cases[1].workspace.bytes ? &cases[0].workspace
                                                                                 : &cases[1].workspace;
    struct workspace one = *large;
    workspace_free(large == &cases[0].workspace ? &cases[1].workspace : &cases[0].workspace);
    cases[0].workspace = cases[1].workspace = one;
    const char *ran = cases[AB_TEST_ROW].receipt.kernel;
    if (drill->slowed > 0 && ran && !strcmp(ran, drill->kernel)) cases[AB_TEST_ROW].slowed = drill->slowed;
    cases[AB_TEST_CONTROL] = timed_case_copy(&cases[AB_TEST_FIRST]);
    return TP_OK;
}

static void close_cases(struct ab_test *ab_test) {
    struct timed_case *cases = ab_test->cases;
    if (cases[0].workspace.memory == cases[1].workspace.memory)
        cases[1].workspace = (struct workspace){0};
    for (int i = 0; i < 2; i++)
        if (cases[i].library) timed_case_close(&cases[i]);
    ab_test_free(ab_test);
}

static void note_verdict(struct canary *c, const struct ab_test *ab_test, const char *problem) {
    enum speed verdict = speed_judge(ab_test->wall, ab_test->control);
    const struct interval *wall = &ab_test->wall, *control = &ab_test->control;
    trust_add(&c->trust, *control);
    snprintf(c->text, sizeof c->text,
             "new over old %.3f (99 %% %.3f..%.3f), CPU %.3f, A/A %s %.3f..%.3f, %zu rounds%s",
             exp(wall->middle), exp(wall->low), exp(wall->high), exp(ab_test->cpu.middle),
             speed_words[speed_of(*control)], exp(control->low), exp(control->high), ab_test->rounds,
             ab_test->cases[AB_TEST_ROW].slowed > 0 ? ", slowed by a drill" : "");
    canary_note(c, "speed", speed_words[verdict], problem, c->text);
    c->code = worse_exit(c->code, verdict == SPEED_SLOW        ? EXIT_FAILED
                                  : verdict == SPEED_AMBIGUOUS ? EXIT_AMBIGUOUS
                                                               : EXIT_FINE);
}

static int race(struct canary *c, const struct side sides[2], const tp_cell *cell, double budget_ns,
                int64_t seed) {
    struct ab_test ab_test = {.cases = {{0}}};
    struct workload workload;
    tp_error error = TP_ERROR_INIT;
    progress_next(0, "%s", cell->problem);
    tp_status status = bench_problem_open(&workload, cell->problem, (uint64_t)seed, &error);
    if (status != TP_OK) return complain_status(&error);
    status = open_cases(&ab_test, &workload, sides, &c->drill, &error);
    if (status == TP_OK) status = ab_test_run(&ab_test, budget_ns, seed, &error);
    if (status == TP_OK) note_verdict(c, &ab_test, cell->problem);
    close_cases(&ab_test);
    workload_close(&workload);
    return status == TP_OK ? EXIT_FINE : complain_status(&error);
}

enum { MAX_BUCKETS = 64 };

struct bucket {
    char name[320];
};

/* Phase, kernel and class of head dim, as tileproof compare has them: one cell of each goes first. */
static int is_first(struct bucket *buckets, int *count, const tp_cell *cell) {
    static const int64_t dims[] = {64, 128, 256, TP_MAX_HEAD_DIM};
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    int64_t dim = 0, max = TP_MAX_HEAD_DIM;
    char name[320];
    if (tp_problem_parse(cell->problem, &problem, &lengths, NULL) == TP_OK)
        dim = problem.head_dim_qk > problem.head_dim_v ? problem.head_dim_qk : problem.head_dim_v;
    for (int i = 3; i >= 0; i--)
        if (dim <= dims[i]) max = dims[i];
    snprintf(name, sizeof name, "%s %s %d", tp_qualify_phase_name(cell->phase), cell->kernel, (int)max);
    for (int i = 0; i < *count; i++)
        if (!strcmp(buckets[i].name, name)) return 0;
    if (*count < MAX_BUCKETS) strcpy(buckets[(*count)++].name, name);
    return 1;
}

/* first: one of each bucket, and all of them; otherwise the others, as long as time is left. */
static int race_all(struct canary *c, const struct side sides[2], int first, int64_t seed) {
    struct bucket buckets[MAX_BUCKETS];
    int seen = 0, waiting = 0, code = EXIT_FINE, met;
    tp_cell cell = TP_CELL_INIT;
    for (int64_t i = 0; (met = canary_cell_at(c, i, &cell)); i++)
        waiting += met > 0 && cell.timed && cell.output[0] && is_first(buckets, &seen, &cell) == first;
    seen = 0;
    progress_begin("canary --against", waiting, "cells");
    for (int64_t i = 0; !code && (met = canary_cell_at(c, i, &cell)); i++) {
        if (met < 0 || !cell.timed || !cell.output[0] || is_first(buckets, &seen, &cell) != first) continue;
        double left = c->budget_ns > 0 ? c->budget_ns - (now_ns() - c->begin) : cell_budget_ns * waiting;
        if (stop_asked() || (!first && left < cell_budget_ns)) {
            c->not_raced++;
        } else {
            code = race(c, sides, &cell, fmax(fmin(max_budget_ns, left / waiting), min_budget_ns), seed);
            c->raced++;
            progress_next(1, "%s", cell.problem);
        }
        waiting--;
    }
    return code;
}

int canary_speed(struct canary *c, const struct options *options) {
    struct library old = {.handle = NULL};
    struct side sides[2] = {{NULL, NULL}, {NULL, NULL}};
    tp_error error = TP_ERROR_INIT;
    if (options->against && library_open(&old, options->against, &error) != TP_OK) {
        complain("--against: %s", error.text);
        return EXIT_USAGE;
    }
    int code = open_side(&sides[AB_TEST_FIRST], options->against ? &old : library_linked());
    if (!code) code = open_side(&sides[AB_TEST_ROW], library_linked());
    if (!code) code = race_all(c, sides, 1, options->seed);
    if (!code) code = race_all(c, sides, 0, options->seed);
    progress_end();
    for (int i = 0; i < 2; i++)
        if (sides[i].context) sides[i].library->context_destroy(sides[i].context);
    library_close(&old);
    return code;
}
