/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench --cliffs: head dim, q_len and kv_len in steps of 1 around the borders of tiles, blocks,
 * chunks and of the selection. A point is a cliff when its cost per useful flop is more than 1.15
 * times that of both neighbours. Noise makes such points, too: a suspect and its neighbours are
 * measured again, interleaved and several times over, and it must be one every time.
 */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_POINTS = 512, ROUNDS = 5, AGAIN = 3, AGAIN_ROUNDS = 7 };
static const double cliff = 1.15, slice_ns = 1e6, again_slice_ns = 3e6;

enum scanned { SCAN_DIM, SCAN_ROWS, SCAN_KEYS };

/* The format has one %lld, for the value that is scanned. */
static const struct sweep {
    const char *name, *format;
    enum scanned scanned;
    int64_t dim; /* of the format, which sets the block of keys */
    int quick;
} sweeps[] = {
    {"head dim", "q256 k512 h1/1 d%lld f32", SCAN_DIM, 0, 1},
    {"head dim, bf16", "q256 k512 h1/1 d%lld bf16", SCAN_DIM, 0, 0},
    {"head dim, 1 row", "q1 k1024 h8/2 d%lld bf16", SCAN_DIM, 0, 0},
    {"rows, d64", "q%lld k512 h4/4 d64 f32", SCAN_ROWS, 64, 1},
    {"rows, d128 causal", "q%lld k2560 h1/1 d128 f32 causal", SCAN_ROWS, 128, 0},
    {"rows, d128 group of 4", "q%lld k512 h4/1 d128 bf16", SCAN_ROWS, 128, 0},
    {"keys, d64", "q64 k%lld h4/4 d64 f32", SCAN_KEYS, 64, 1},
    {"keys, d128", "q48 k%lld h2/2 d128 f32", SCAN_KEYS, 128, 0},
    {"keys, 1 row", "q1 k%lld h8/2 d128 bf16 causal", SCAN_KEYS, 128, 0},
};
enum { SWEEP_COUNT = sizeof sweeps / sizeof *sweeps };

struct point {
    int64_t value;
    struct workload problem;
    struct timed_case one;
    struct samples times;
};

struct cliffs {
    const struct options *options;
    const char *kernel;
    const tp_kernel_info *info; /* of the kernel, or of the best one */
    struct limits limits;
    struct table table;
    int64_t points, suspects, found;
};

static int by_value(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

struct values {
    int64_t value[MAX_POINTS];
    int count;
};

/* Border and the two values on either side: each of border-1, border, border+1 has neighbours. */
static void around(struct values *values, int64_t border, int64_t max) {
    for (int64_t v = border - 2; v <= border + 2; v++)
        if (v >= 1 && v <= max && values->count < MAX_POINTS) values->value[values->count++] = v;
}

static void choose_values(const struct cliffs *cliffs, const struct sweep *sweep,
                          struct values *values) {
    int quick = cliffs->options->quick, mr = cliffs->info->mr, nr = cliffs->info->nr;
    int64_t max = sweep->scanned == SCAN_DIM
                       ? (cliffs->info->max_head_dim ? cliffs->info->max_head_dim : TP_MAX_HEAD_DIM)
                   : sweep->scanned == SCAN_ROWS ? 2560
                                                 : 16384;
    values->count = 0;
    static const int64_t dims[] = {64, 128, 256, 192, 320, 384, 512, TP_MAX_HEAD_DIM};
    static const int64_t rows[] = {64, 128, 48, 96, 256, 512, 1024, 2048};
    const int64_t *borders = sweep->scanned == SCAN_DIM ? dims : rows;
    if (sweep->scanned != SCAN_KEYS)
        for (int i = 0; i < (quick ? 3 : 8); i++) around(values, borders[i], max);
    /* every small value, or those at multiples of 16 and of the tile */
    for (int64_t v = 3; v <= (sweep->scanned == SCAN_DIM ? 128 : 32) && !quick; v += 5)
        around(values, v, max);
    for (int64_t v = 16; v <= 32; v += 16) around(values, v, max);
    int tile = sweep->scanned == SCAN_KEYS ? nr : mr;
    for (int i = 1; tile && i <= (quick ? 2 : 4); i++) around(values, (int64_t)i * tile, max);
    if (sweep->scanned == SCAN_KEYS) {
        int64_t block = tp_block_keys(sweep->dim);
        const int64_t keys[] = {block,
                                TP_CHUNK_KEYS,
                                64,
                                128,
                                2 * block,
                                2 * TP_CHUNK_KEYS,
                                tp_decode_block_keys(sweep->dim, TP_F32),
                                TP_DECODE_CHUNK_KEYS};
        for (int i = 0; i < (quick ? 2 : 8); i++) around(values, keys[i], max);
    }
    qsort(values->value, (size_t)values->count, sizeof *values->value, by_value);
    int kept = 0;
    for (int i = 0; i < values->count; i++)
        if (!kept || values->value[kept - 1] != values->value[i])
            values->value[kept++] = values->value[i];
    values->count = kept;
}

static double cost(struct point *point) { /* picoseconds a useful flop */
    return 1e3 * samples_summary(&point->times).min / point->one.flops;
}

static int is_cliff(struct point *middle) {
    if (middle[-1].value != middle->value - 1 || middle[1].value != middle->value + 1) return 0;
    double here = cost(middle);
    return here > cliff * cost(middle - 1) && here > cliff * cost(middle + 1);
}

static int measure(struct point *points, int count, int rounds, double slice) {
    tp_error error = TP_ERROR_INIT;
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < count; i++) {
            struct point *point = &points[round % 2 ? count - 1 - i : i];
            if (stop_asked()) return EXIT_FINE;
            if (timed_case_burst(&point->one, slice, 1, &point->times, &error) != TP_OK)
                return complain_status(&error);
            progress_next(count > 3, "%s", point->problem.words);
        }
    return EXIT_FINE;
}

static int confirm(struct cliffs *cliffs, const struct sweep *sweep, struct point *middle) {
    double low_ratio = 0;
    cliffs->suspects++;
    for (int again = 0; again < AGAIN; again++) {
        progress_next(0, "%s: measuring %lld again", sweep->name, (long long)middle->value);
        for (int i = -1; i <= 1; i++) middle[i].times.count = 0;
        int code = measure(middle - 1, 3, AGAIN_ROUNDS, again_slice_ns);
        if (code || stop_asked() || !is_cliff(middle)) return code;
        double left = cost(middle - 1), right = cost(middle + 1);
        double ratio = cost(middle) / (left > right ? left : right);
        if (!again || ratio < low_ratio) low_ratio = ratio;
    }
    struct table *table = &cliffs->table;
    char repro[BENCH_WORDS + 64];
    snprintf(repro, sizeof repro, "tileproof bench -k %s '%s'", middle->one.ran,
             middle->problem.words);
    cliffs->found++;
    table_text(table, sweep->name);
    table_integer(table, middle->value);
    table_text(table, middle->one.ran);
    table_number(table, cost(middle - 1));
    table_number(table, cost(middle));
    table_number(table, cost(middle + 1));
    table_number(table, low_ratio);
    table_text(table, middle->problem.words);
    table_text(table, repro);
    bench_add_origin(table, cliffs->limits.context, cliffs->options->seed);
    return EXIT_FINE;
}

static int scan(struct cliffs *cliffs, const struct sweep *sweep, struct point *points, int count) {
    progress_begin("bench --cliffs", (double)count * ROUNDS, "measurements");
    int code = measure(points, count, ROUNDS, slice_ns);
    if (!stop_asked()) cliffs->points += count;
    for (int i = 1; i + 1 < count && !code && !stop_asked(); i++)
        if (is_cliff(&points[i])) code = confirm(cliffs, sweep, &points[i]);
    return code;
}

static int run_sweep(struct cliffs *cliffs, const struct sweep *sweep) {
    struct values values;
    tp_error error = TP_ERROR_INIT;
    int opened = 0, code = EXIT_FINE;
    choose_values(cliffs, sweep, &values);
    struct point *points = calloc((size_t)values.count + 1, sizeof *points);
    if (!points) return EXIT_FAILED;
    for (; opened < values.count && !code; opened++) {
        struct point *point = &points[opened];
        char words[BENCH_WORDS];
        point->value = values.value[opened];
        snprintf(words, sizeof words, sweep->format, (long long)point->value);
        if (bench_problem_open(&point->problem, words, (uint64_t)cliffs->options->seed, &error) !=
                TP_OK ||
            timed_case_open(&point->one, &point->problem, cliffs->kernel, NULL, NULL, 1,
                            &cliffs->limits, &error) != TP_OK)
            code = complain_status(&error);
    }
    if (!code) code = scan(cliffs, sweep, points, opened);
    for (int i = 0; i < opened; i++) {
        samples_free(&points[i].times);
        timed_case_close(&points[i].one);
        workload_close(&points[i].problem);
    }
    free(points);
    return code;
}

static const struct column columns[] = {
    {"sweep", "sweep", 1, 0},        {"value", "value", 1, 0},
    {"kernel", "kernel", 1, 0},      {"ps_per_flop_before", "before, ps/flop", 1, 3},
    {"ps_per_flop", "here", 1, 3},   {"ps_per_flop_after", "after", 1, 3},
    {"ratio", "lowest ratio", 1, 3}, {"problem", "problem", 1, 0},
    {"repro", NULL, 1, 0},           BENCH_ORIGIN,
};

static int report(const struct cliffs *cliffs, enum table_format format) {
    int code = EXIT_FINE;
    if (format != FORMAT_MD || cliffs->found) code = table_print(&cliffs->table, format, stdout);
    if (format == FORMAT_JSON) fputc('\n', stdout);
    if (format == FORMAT_MD)
        printf(
            "%s%lld points on %s, %lld looked like a cliff at first, %lld cliffs: more than %.2f "
            "times the cost per useful flop of both neighbours, %d times over\n",
            cliffs->found ? "\n" : "", (long long)cliffs->points, cliffs->info->name,
            (long long)cliffs->suspects, (long long)cliffs->found, cliff, AGAIN);
    return code ? code : cliffs->found ? EXIT_FAILED : EXIT_FINE;
}

int bench_cliffs(const struct options *options, enum table_format format) {
    struct cliffs cliffs = {.options = options};
    tp_context *context;
    if (options->problem[0]) {
        complain("--cliffs takes no problem: '%s' is one too many", options->problem);
        return EXIT_USAGE;
    }
    int code = bench_kernel(options->kernel, &cliffs.kernel);
    if (!code) code = bench_context(1, &context);
    if (code) return code;
    code = bench_limits(&cliffs.limits, context, 0);
    if (!code) {
        cliffs.info = kernel_named(cliffs.kernel ? cliffs.kernel : cliffs.limits.reader);
        if (!kernel_runs(context, cliffs.info)) {
            complain("%s: not run here: this host lacks its instructions", cliffs.info->name);
            code = EXIT_REFUSED;
        }
    }
    table_open(&cliffs.table, columns, sizeof columns / sizeof *columns);
    stop_watch();
    for (int i = 0; i < SWEEP_COUNT && !code && !stop_asked(); i++)
        if (sweeps[i].quick || !options->quick) code = run_sweep(&cliffs, &sweeps[i]);
    progress_end();
    if (!code) code = report(&cliffs, format);
    if (!code && stop_asked()) code = stop_say("", "%lld points are measured whole", (long long)cliffs.points);
    table_close(&cliffs.table);
    limits_close(&cliffs.limits);
    tp_context_destroy(context);
    return code;
}
