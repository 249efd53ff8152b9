/* SPDX-License-Identifier: Apache-2.0 */
/* The command: every problem of the lists on every kernel and thread count asked for. */
#include "bench/bench.h"

#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KERNELS_ASKED = 16, MAX_THREADS_ASKED = 16, VERIFY_ROWS = 128 };
enum { MAX_STRATEGIES = 3, MAX_GROUP = MAX_STRATEGIES * MAX_KERNELS_ASKED * MAX_THREADS_ASKED };
static const double default_slice_ns = 20e6, max_slot_ns = 0.5e6;

struct bench {
    const struct options *options;
    struct limits limits;
    regex_t match;
    const char *kernels[MAX_KERNELS_ASKED]; /* NULL: the best */
    int threads[MAX_THREADS_ASKED];
    const char *strategies[MAX_STRATEGIES]; /* NULL: by rows */
    int kernel_count, thread_count, strategy_count;
    double slice_ns;
    struct bench_row *rows;
    size_t row_count;
    struct samples control; /* log ratios of A/A, of all groups */
    struct against against; /* --against */
    int code;
};

static int read_list(const char *option, const char *text, int max, struct list *list) {
    char reason[BENCH_WORDS];
    if (list_expand(list, text, reason, sizeof reason)) {
        complain("%s is '%s': %s", option, text, reason);
        return EXIT_USAGE;
    }
    if (list->count <= max) return EXIT_FINE;
    complain("%s has %d items: at most %d", option, list->count, max);
    return EXIT_USAGE;
}

static int read_kernels(struct bench *bench) {
    struct list list = {0};
    const char *text = bench->options->kernel ? bench->options->kernel : "best";
    int code = read_list("--kernel", text, MAX_KERNELS_ASKED, &list);
    for (int i = 0; !code && i < list.count; i++)
        code = bench_kernel(list.items[i], &bench->kernels[bench->kernel_count++]);
    list_free(&list);
    return code;
}

static int read_strategies(struct bench *bench) {
    static const char *const names[] = {"auto", "prefill", "decode"};
    struct list list = {0};
    const char *text = bench->options->strategy ? bench->options->strategy : "auto";
    int code = read_list("--strategy", text, MAX_STRATEGIES, &list);
    for (int i = 0; !code && i < list.count; i++) {
        int found = 0;
        while (found < 3 && strcmp(names[found], list.items[i])) found++;
        if (found == 3) {
            complain("--strategy has '%s': it must be auto, prefill or decode", list.items[i]);
            code = EXIT_USAGE;
        } else {
            bench->strategies[bench->strategy_count++] = found ? names[found] : NULL;
        }
    }
    list_free(&list);
    return code;
}

static int read_threads(struct bench *bench) {
    struct list list = {0};
    char *end;
    const char *text = bench->options->thread_list ? bench->options->thread_list : "1";
    int code = read_list("--threads", text, MAX_THREADS_ASKED, &list);
    for (int i = 0; !code && i < list.count; i++) {
        long number = strtol(list.items[i], &end, 10);
        if (*end || number < 1 || number > 1024) {
            complain("--threads has '%s': it must be in 1..1024", list.items[i]);
            code = EXIT_USAGE;
        }
        bench->threads[bench->thread_count++] = (int)number;
    }
    list_free(&list);
    return code;
}

static int read_seconds(struct bench *bench) {
    const struct options *options = bench->options;
    bench->slice_ns = default_slice_ns;
    if (!options->seconds) return EXIT_FINE;
    char *end;
    double seconds = strtod(options->seconds, &end);
    if (end == options->seconds || *end || !(seconds > 0 && seconds <= 86400)) {
        complain("--seconds is '%s': it must be above 0 and at most 86400", options->seconds);
        return EXIT_USAGE;
    }
    bench->slice_ns = seconds * 1e9 / (double)options->attempts;
    return EXIT_FINE;
}

/* One way to run a problem; number n of all that were asked for. */
struct way {
    const char *kernel, *strategy;
    int threads;
};

static int ways(const struct bench *bench) {
    return bench->kernel_count * bench->strategy_count * bench->thread_count;
}

static struct way way_at(const struct bench *bench, int n) {
    int t = n % bench->thread_count, rest = n / bench->thread_count;
    return (struct way){bench->kernels[rest / bench->strategy_count],
                        bench->strategies[rest % bench->strategy_count], bench->threads[t]};
}

static int selected(const struct bench *bench, const char *words, struct way way) {
    char text[BENCH_WORDS + 96];
    snprintf(text, sizeof text, "%s kernel=%s threads=%d strategy=%s", words,
             way.kernel ? way.kernel : "best", way.threads, way.strategy ? way.strategy : "auto");
    return !regexec(&bench->match, text, 0, NULL, 0);
}

/* A pair of turns of each case beside the limit that bounds it. */
static int measure_shares(struct bench *bench, const struct timed_case *cases, struct series *series,
                          struct share *shares, int count) {
    tp_error error = TP_ERROR_INIT;
    for (int i = 0; i < count; i++) {
        if (!shares[i].ratios.count) shares[i].limit = share_limit_of(&cases[i], &bench->limits);
        double amount = shares[i].limit == SHARE_OF_FMA ? cases[i].flops : cases[i].kv_bytes;
        if (share_measure(&shares[i], &cases[i], amount, &bench->limits, &series[i].calls, &error) != TP_OK)
            return complain_status(&error);
    }
    return EXIT_FINE;
}

/* Slots of all cases, forth and back, until each had its time in this attempt. The last case is the control. */
static int measure_group(struct bench *bench, struct timed_case *cases, struct series *series,
                         struct share *shares, int count) {
    tp_error error = TP_ERROR_INIT;
    int64_t rounds = bench->options->attempts;
    double slot_ns = bench->slice_ns < max_slot_ns ? bench->slice_ns : max_slot_ns;
    int pass = 0;
    limits_forget(&bench->limits);
    for (int64_t round = 0; round < rounds; round++) {
        double begin = now_ns();
        bench_progress("%s: round %lld of %lld", cases[0].workload->words, (long long)round + 1,
                       (long long)rounds);
        do {
            if (slots_pass(cases, series, count, pass++ % 2, slot_ns, &error) != TP_OK)
                return complain_status(&error);
        } while (now_ns() - begin < bench->slice_ns * count);
        limits_measure(&bench->limits, 0);
        int code = measure_shares(bench, cases, series, shares, count - 1);
        if (code) return code;
    }
    limits_measure(&bench->limits, 1);
    return EXIT_FINE;
}

static int report_group(struct bench *bench, struct timed_case *cases, struct series *series,
                        const struct share *shares, int count, double steal) {
    const struct options *options = bench->options;
    struct oracle oracle = {0};
    tp_error error = TP_ERROR_INIT;
    struct bench_row *rows =
        realloc(bench->rows, (bench->row_count + (size_t)count) * sizeof *rows);
    if (!rows) return EXIT_FAILED;
    bench->rows = rows;
    if (options->verify && cases[0].workload->tensors.problem.op == TP_FORWARD) {
        bench_progress("%s: the reference", cases[0].workload->words);
        if (oracle_create(&oracle, &cases[0].workload->tensors, VERIFY_ROWS, (uint64_t)options->seed,
                         &error) != TP_OK)
            return complain_status(&error);
    }
    for (int i = 0; i < count; i++) {
        double max_error = NAN;
        int wrong = options->verify ? bench_case_verify(&cases[i], &oracle, &max_error) : EXIT_FINE;
        if (wrong) bench->code = wrong;
        struct bench_row *row = &rows[bench->row_count++];
        bench_row_fill(row, &cases[i], &series[i], options, max_error);
        row->steal = steal;
        row->share = share_interval(&shares[i], (uint64_t)options->seed);
        row->share_of = shares[i].limit;
        row->fma_here = limits_here(&bench->limits, row->isa, row->threads);
    }
    oracle_destroy(&oracle);
    return EXIT_FINE;
}

/* The first case once more, as the last of the group, is the A/A control. */
static int measure_cases(struct bench *bench, struct timed_case *cases, int count) {
    struct series *series = calloc((size_t)count + 1, sizeof *series);
    struct share *shares = calloc((size_t)count + 1, sizeof *shares);
    struct ticks before = ticks_now();
    cases[count] = timed_case_copy(&cases[0]);
    int code = series && shares ? measure_group(bench, cases, series, shares, count + 1) : EXIT_FAILED;
    if (!code && slots_ratios(&series[0].wall, &series[count].wall, &bench->control))
        code = EXIT_FAILED;
    if (!code) code = report_group(bench, cases, series, shares, count, ticks_steal(before, ticks_now()));
    for (int i = 0; i <= count && series && shares; i++) {
        series_free(&series[i]);
        share_free(&shares[i]);
    }
    free(series);
    free(shares);
    return code;
}

/* One problem: its kernels and threads are the group whose runs are interleaved. */
static int run_group(struct bench *bench, const char *words) {
    struct workload problem;
    struct timed_case *cases = calloc(MAX_GROUP + 1, sizeof *cases);
    tp_error error = TP_ERROR_INIT;
    int count = 0, wanted = 0, code = EXIT_FINE;
    for (int i = 0; i < ways(bench); i++) wanted += selected(bench, words, way_at(bench, i));
    if (!wanted || !cases) {
        free(cases);
        return wanted ? EXIT_FAILED : EXIT_FINE;
    }
    bench_progress("%s", words);
    if (bench_problem_open(&problem, words, (uint64_t)bench->options->seed, &error) != TP_OK) {
        free(cases);
        return complain_status(&error);
    }
    for (int i = 0; i < ways(bench); i++) {
        struct way way = way_at(bench, i);
        if (!selected(bench, words, way)) continue;
        if (timed_case_open(&cases[count], &problem, way.kernel, way.strategy, NULL, way.threads,
                            &bench->limits, &error) == TP_OK) {
            if (!bench->options->against)
                limits_want(&bench->limits, cases[count].isa, cases[count].threads);
            count++;
            continue;
        }
        bench_progress(NULL);
        complain("%s on %s: not run here: %s", words, way.kernel ? way.kernel : "best", error.text);
    }
    if (count && !bench->options->against) code = measure_cases(bench, cases, count);
    for (int i = 0; i < count && bench->options->against && !code; i++)
        code = against_case(&bench->against, &cases[i], &bench->limits);
    for (int i = 0; i < count; i++) timed_case_close(&cases[i]);
    free(cases);
    workload_close(&problem);
    return code;
}

static int run_all(struct bench *bench, const struct list *problems, enum table_format format) {
    int max = 1, code = EXIT_FINE;
    tp_context *context;
    for (int i = 0; i < bench->thread_count; i++)
        if (bench->threads[i] > max) max = bench->threads[i];
    code = bench_context(max, &context);
    if (code) return code;
    bench_progress("limits");
    int against = bench->options->against != NULL; /* needs no limits */
    code = bench_limits(&bench->limits, context, against ? 0 : bench->options->read_mib);
    for (int k = 0; !code && !against && k < bench->kernel_count; k++) /* limits first */
        for (int t = 0; t < bench->thread_count; t++) {
            const char *kernel = bench->kernels[k] ? bench->kernels[k] : bench->limits.reader;
            if (kernel_runs(context, kernel_named(kernel)))
                limits_want(&bench->limits, limits_isa(&bench->limits, kernel), bench->threads[t]);
        }
    for (int i = 0; !code && i < problems->count; i++) code = run_group(bench, problems->items[i]);
    bench_progress(NULL);
    if (!code && !bench->row_count && !bench->against.trust.controls) {
        complain("nothing was measured: no row matches, or none runs here");
        code = EXIT_REFUSED;
    }
    if (!code && against) {
        code = against_report(&bench->against, format);
    } else if (!code) {
        code = bench_report(bench->rows, bench->row_count, &bench->limits,
                            interval_median(bench->control.values, bench->control.count, miss_share,
                                            (uint64_t)bench->options->seed),
                            format, bench->options);
        if (!code) code = bench->code;
    }
    for (size_t i = 0; i < bench->row_count; i++) series_free(&bench->rows[i].series);
    free(bench->rows);
    samples_free(&bench->control);
    limits_close(&bench->limits);
    tp_context_destroy(context);
    return code;
}

static int check_problems(const struct list *problems) {
    for (int i = 0; i < problems->count; i++) {
        tp_problem problem;
        tp_error error = TP_ERROR_INIT;
        if (bench_words_check(problems->items[i], &problem, &error) != TP_OK)
            return complain_status(&error);
    }
    return EXIT_FINE;
}

static int bench_rows(const struct options *options, enum table_format format) {
    struct bench *bench = calloc(1, sizeof *bench);
    struct list problems = {0};
    if (!bench) return EXIT_FAILED;
    bench->options = options;
    int code = read_kernels(bench);
    if (!code) code = read_strategies(bench);
    if (!code) code = read_threads(bench);
    if (!code && ways(bench) > MAX_GROUP) {
        complain("kernels, strategies and threads make %d rows a problem: at most %d", ways(bench),
                 MAX_GROUP);
        code = EXIT_USAGE;
    }
    if (!code) code = read_seconds(bench);
    if (!code) code = list_problems(options, &problems);
    if (!code) code = check_problems(&problems);
    if (!code && options->against)
        code = against_open(&bench->against, options,
                            options->seconds ? bench->slice_ns * (double)options->attempts : 0);
    if (!code) code = bench_regex(options->match, &bench->match);
    if (!code) {
        code = run_all(bench, &problems, format);
        regfree(&bench->match);
    }
    list_free(&problems);
    table_close(&bench->against.table);
    free(bench);
    return code;
}

int command_bench(const struct options *options) {
    enum table_format format;
    if (table_format_parse(options->format, &format)) {
        complain("--output is '%s': it must be md, csv, json or jsonl", options->format);
        return EXIT_USAGE;
    }
    if (options->attempts < 1 || options->attempts > 100000) {
        complain("--repeat is %lld: it must be in 1..100000", (long long)options->attempts);
        return EXIT_USAGE;
    }
    if (options->read_mib > 1 << 20) {
        complain("--read-mib is %lld: it must be in 0..%d", (long long)options->read_mib, 1 << 20);
        return EXIT_USAGE;
    }
    if (options->goals + options->cliffs + options->bytes + options->memory > 1) {
        complain(
            "--goals, --cliffs, --bytes and --memory are commands of their own: give one of them");
        return EXIT_USAGE;
    }
    if (options->cache_bytes && !options->bytes) {
        complain("--cache needs --bytes");
        return EXIT_USAGE;
    }
    if ((options->bytes || options->memory) && options->thread_list &&
        strcmp(options->thread_list, "1")) {
        complain("--threads is '%s': --bytes and --memory run on 1 thread", options->thread_list);
        return EXIT_USAGE;
    }
    if (options->against && (options->goals || options->cliffs || options->verify)) {
        complain("--against goes with neither --goals, --cliffs nor --verify");
        return EXIT_USAGE;
    }
    if (options->goals_file && !options->goals) {
        complain("--goals-file needs --goals");
        return EXIT_USAGE;
    }
    if (options->goals) return bench_goals(options, format);
    if (options->bytes) return bench_bytes(options, format);
    if (options->memory) return bench_memory(options, format);
    return options->cliffs ? bench_cliffs(options, format) : bench_rows(options, format);
}
