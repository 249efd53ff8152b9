/* SPDX-License-Identifier: Apache-2.0 */
/* bench --against: each row beside another kernel, or another problem, with an A/A control. */
#include "harness/ab_test.h"
#include "bench/bench.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static const double default_budget_ns = 20e9;

static const struct column columns[] = {
    {"problem", "problem", 1, 0},
    {"kernel", "kernel", 1, 0},
    {"kernel_asked", NULL, 1, 0},
    {"threads", "threads", 1, 0},
    {"against", "against", 1, 0},
    {"against_kernel", NULL, 1, 0},
    {"verdict", "verdict", 1, 0},
    {"ratio", "time ratio", 1, 3},
    {"low", "99 % from", 1, 3},
    {"high", "to", 1, 3},
    {"cpu_ratio", "CPU ratio", 1, 3},
    {"cpu_low", "from", 1, 3},
    {"cpu_high", "to", 1, 3},
    {"wall_ns", "median ms", 1e-6, 3},
    {"against_wall_ns", "against ms", 1e-6, 3},
    {"cpu_ns", NULL, 1, 0},
    {"against_cpu_ns", NULL, 1, 0},
    {"aa", "A/A", 1, 0},
    {"aa_ratio", NULL, 1, 0},
    {"aa_low", "from", 1, 3},
    {"aa_high", "to", 1, 3},
    {"rounds", "rounds", 1, 0},
    {"switches", NULL, 1, 0},
    {"steal", NULL, 1, 0},
    {"disturbed", "disturbed", 1, 0},
    {"seed", NULL, 1, 0},
    {"version", NULL, 1, 0},
    {"date", NULL, 1, 0},
    {"repro", NULL, 1, 0},
    {"host", NULL, 1, 0},
    {"build", NULL, 1, 0},
};

int against_open(struct against *against, const struct options *options, double budget_ns) {
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    const char *text = options->against;
    *against = (struct against){.seed = options->seed, .budget_ns = budget_ns};
    if (!(budget_ns > 0)) against->budget_ns = default_budget_ns;
    table_open(&against->table, columns, sizeof columns / sizeof *columns);
    const tp_kernel_info *kernel = kernel_named(text);
    if (kernel) against->kernel = kernel->name;
    against->by_kernel = kernel || !strcmp(text, "best");
    if (against->by_kernel) return EXIT_FINE;
    if (strlen(text) < sizeof against->words &&
        bench_words_check(text, &problem, &error) == TP_OK) {
        strcpy(against->words, text);
        return EXIT_FINE;
    }
    complain("--against is '%s': it must be best, a kernel of `tileproof info`, or a problem (%s)",
             text, error.text[0] ? error.text : "this one is too long");
    return EXIT_USAGE;
}

static double slot_median(const struct samples *slots) {
    return interval_median(slots->values, slots->count, 0, 0).middle;
}

static void add_interval(struct table *table, struct interval interval) {
    int known = isfinite(interval.low);
    table_number(table, exp(interval.middle));
    table_number(table, known ? exp(interval.low) : NAN);
    table_number(table, known ? exp(interval.high) : NAN);
}

static void add_row(struct against *against, const struct ab_test *ab_test, const tp_context *context) {
    struct table *table = &against->table;
    const struct timed_case *row = &ab_test->cases[AB_TEST_ROW], *first = &ab_test->cases[AB_TEST_FIRST];
    const struct series *series = ab_test->series;
    const char *other = against->by_kernel ? bench_asked(first) : bench_label(first);
    enum speed verdict = speed_judge(ab_test->wall, ab_test->control);
    char flags[32], date[32], repro[2 * BENCH_WORDS + 128];
    struct series all = series[AB_TEST_ROW]; /* flags speak of both */
    all.switches += series[AB_TEST_FIRST].switches;
    all.cpu_sum += series[AB_TEST_FIRST].cpu_sum;
    all.wall_sum += series[AB_TEST_FIRST].wall_sum;
    against->verdicts[verdict]++;
    trust_add(&against->trust, ab_test->control);
    bench_date(date);
    snprintf(repro, sizeof repro, "tileproof bench -k %s -j %d --seed %lld --against '%s' '%s'",
             bench_asked(row), row->threads, (long long)against->seed, other, bench_label(row));
    table_text(table, bench_label(row));
    table_text(table, row->ran);
    table_text(table, bench_asked(row));
    table_integer(table, row->threads);
    table_text(table, other);
    table_text(table, first->ran);
    table_text(table, speed_words[verdict]);
    add_interval(table, ab_test->wall);
    add_interval(table, ab_test->cpu);
    table_number(table, slot_median(&series[AB_TEST_ROW].wall));
    table_number(table, slot_median(&series[AB_TEST_FIRST].wall));
    table_number(table, slot_median(&series[AB_TEST_ROW].cpu));
    table_number(table, slot_median(&series[AB_TEST_FIRST].cpu));
    table_text(table, speed_words[speed_of(ab_test->control)]);
    add_interval(table, ab_test->control);
    table_integer(table, (int64_t)ab_test->rounds);
    table_integer(table, all.switches);
    table_number(table, ab_test->steal);
    table_text(table, series_flags(&all, ab_test->steal, flags));
    table_integer(table, against->seed);
    table_text(table, tp_version());
    table_text(table, date);
    table_text(table, repro);
    table_text(table, tp_context_machine(context)->name);
    table_text(table, tp_build_hash());
}

int against_case(struct against *against, const struct timed_case *row, struct limits *limits) {
    struct ab_test ab_test = {.cases = {{0}}};
    struct workload problem, *other = row->workload;
    struct timed_case *cases = ab_test.cases;
    tp_error error = TP_ERROR_INIT;
    tp_status status = TP_OK;
    progress_next(0, "%s on %s against %s", row->workload->words, row->ran,
                   against->by_kernel ? "another kernel" : against->words);
    if (!against->by_kernel) {
        status = bench_problem_open(&problem, against->words, (uint64_t)against->seed, &error);
        if (status != TP_OK) return complain_status(&error);
        other = &problem;
    }
    cases[AB_TEST_ROW] = timed_case_copy(row);
    status =
        timed_case_open(&cases[AB_TEST_FIRST], other, against->by_kernel ? against->kernel : row->kernel,
                        row->strategy, NULL, row->threads, limits, &error);
    struct workspace own = cases[AB_TEST_FIRST].workspace; /* all use one: where it lies changes times */
    if (own.bytes > row->workspace.bytes)
        cases[AB_TEST_ROW].workspace = own;
    else
        cases[AB_TEST_FIRST].workspace = row->workspace;
    cases[AB_TEST_CONTROL] = timed_case_copy(&cases[AB_TEST_FIRST]);
    if (status == TP_OK) status = ab_test_run(&ab_test, against->budget_ns, against->seed, &error);
    if (status == TP_OK) add_row(against, &ab_test, limits->context);
    cases[AB_TEST_FIRST].workspace = own;
    timed_case_close(&cases[AB_TEST_FIRST]);
    ab_test_free(&ab_test);
    if (!against->by_kernel) workload_close(&problem);
    progress_next(1, "%s", row->workload->words);
    return status == TP_OK ? EXIT_FINE : complain_status(&error);
}

int verdicts_exit(const int verdicts[]) {
    return verdicts[SPEED_SLOW]        ? EXIT_FAILED
           : verdicts[SPEED_AMBIGUOUS] ? EXIT_AMBIGUOUS
                                       : EXIT_FINE;
}

int against_report(struct against *against, enum table_format format) {
    char trusted[128];
    int code = table_print(&against->table, format, stdout);
    trust_line(&against->trust, trusted, sizeof trusted);
    if (format == FORMAT_JSON) fputc('\n', stdout);
    if (format == FORMAT_MD)
        printf("\nTime of the row over that of the other; SAME: 99 %% within %.2f..%.2f, FAST and "
               "SLOW: beyond.\n%s\n",
               1 / (1 + same_share), 1 + same_share, trusted);
    return code ? code : verdicts_exit(against->verdicts);
}
