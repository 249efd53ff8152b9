/* SPDX-License-Identifier: Apache-2.0 */
/* --memory: the high-water mark of resident memory, above the tensors, of one run in its own
 * process. */
#include "bench/isolated.h"
#include "bench/measure.h"

#include <string.h>

static const struct column columns[] = {
    ISOLATED_FIRST,
    {"kernel", "kernel", 1, 0},
    {"peak_bytes", "peak MiB", 1.0 / (1 << 20), 3},
    {"workspace_bytes", "workspace MiB", 1.0 / (1 << 20), 3},
    {"scores_bytes", "one score matrix MiB", 1.0 / (1 << 20), 3},
    {"scores_written", NULL, 1, 0},
    {"max_abs_err", "max error", 1, -1},
    {"repro", NULL, 1, 0},
    ISOLATED_LAST,
};
enum { COLUMN_COUNT = sizeof columns / sizeof *columns };

static void add_row(struct isolated *isolated, const char *words, const struct measurement *run) {
    struct table *table = &isolated->table;
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    char repro[2 * BENCH_WORDS];
    bench_words_check(words, &problem, &error); /* it was checked before */
    snprintf(repro, sizeof repro, "tileproof bench --memory -k %s --seed %lld '%s'", run->kernel,
             (long long)isolated->options->seed, isolated_begin(isolated, "memory", words, run->problem));
    table_text(table, run->kernel);
    table_integer(table, run->peak_bytes);
    table_integer(table, run->workspace_bytes);
    table_integer(table, problem.q_len * problem.kv_len * (int64_t)sizeof(float));
    table_integer(table, run->scores_written);
    table_number(table, run->max_error);
    table_text(table, repro);
    isolated_origin(isolated);
}

static int run_row(struct isolated *isolated, const char *words, const char *kernel, char *reason,
                   size_t size) {
    struct measurement run;
    measure_in_child(words, kernel, isolated->options, &run);
    if (!run.failed) {
        add_row(isolated, words, &run);
        return EXIT_FINE;
    }
    snprintf(reason, size, "%s", run.reason);
    return run.failed;
}

static void print_around(const struct isolated *isolated, int before) {
    const tp_machine *machine = tp_context_machine(isolated->context);
    if (before)
        printf("host: %s, %s; tileproof %s; %s\n\n", machine->name, machine->arch, tp_version(),
               isolated->date);
    else
        printf("\nPeak: highest resident memory during the run less that before it, one process a "
               "row, one thread; tensors\nwere touched before and do not count, the workspace was "
               "not. A run allocates nothing, so what it touches\nof its workspace is what it "
               "takes. A score matrix is that of one head in f32; math has two.\n");
}

int bench_memory(const struct options *options, enum table_format format) {
    static const struct options defaults = {.kernel = "best,math",
                                            .shapes = "q512-16k*2",
                                            .heads = "1/1",
                                            .head_dims = "64",
                                            .causals = "1"};
    struct options single = *options;
    struct isolated isolated = {.format = format, .row = run_row};
    single.threads = 1;
    int code = bench_context(1, &isolated.context);
    if (code) return code;
    code = bench_isolated(&isolated, &single, &defaults, columns, COLUMN_COUNT, print_around);
    tp_context_destroy(isolated.context);
    return code;
}
