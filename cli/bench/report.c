/* SPDX-License-Identifier: Apache-2.0 */
/* What a row says. Rates are those of the best time, beside the highest limit seen; the share is of probes in turns. */
#include "bench/bench.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* Prefill, decode and mixed calls have different limits, so each has a table of its own in md. */
enum phase { PREFILL = 1, DECODE = 2, MIXED = 4, BACKWARD = 8, EACH = 15 };
enum { PHASES = 4 };
static const char *const phase_names[PHASES] = {"prefill", "decode", "mixed", "backward"};

static const struct report_column {
    struct column column;
    unsigned phases; /* in whose md table it stands */
} columns[] = {
    {{"problem", "problem", 1, 0}, EACH},
    {{"phase", NULL, 1, 0}, 0},
    {{"kernel", "kernel", 1, 0}, EACH},
    {{"strategy", "strategy", 1, 0}, EACH},
    {{"isa", NULL, 1, 0}, 0},
    {{"threads", "threads", 1, 0}, EACH},
    {{"tasks", NULL, 1, 0}, 0},
    {{"fallback", "fallback", 1, 0}, EACH},
    {{"min_ns", "best ms", 1e-6, 3}, EACH},
    {{"med_ns", "median ms", 1e-6, 3}, EACH},
    {{"p50_ns", NULL, 1, 0}, 0},
    {{"p99_ns", "p99 ms", 1e-6, 3}, EACH},
    {{"n", "runs", 1, 0}, EACH},
    {{"gflops", "GFLOP/s", 1, 1}, PREFILL | MIXED | BACKWARD},
    {{"med_gflops", "median", 1, 1}, PREFILL | BACKWARD},
    {{"fma_peak_gflops", NULL, 1, 0}, 0},
    {{"pct_of_fma_peak", "% of FMA", 1, 1}, PREFILL | MIXED | BACKWARD},
    {{"gbps", "GB/s", 1, 2}, PREFILL | BACKWARD},
    {{"read_gbps_limit", NULL, 1, 0}, 0},
    {{"pct_of_read_limit", "% of read", 1, 1}, PREFILL | BACKWARD},
    {{"kv_bytes", NULL, 1, 0}, 0},
    {{"kv_gbps", "KV GB/s", 1, 2}, DECODE | MIXED},
    {{"med_kv_gbps", "median", 1, 2}, DECODE},
    {{"roofline_pct", "% of roofline", 1, 1}, DECODE | MIXED},
    {{"share_pct", "share %", 1, 1}, EACH},
    {{"share_low", "from", 1, 1}, EACH},
    {{"share_high", "to", 1, 1}, EACH},
    {{"share_of", "of", 1, 0}, EACH},
    {{"pairs_visible", NULL, 1, 0}, 0},
    {{"pairs_computed", NULL, 1, 0}, 0},
    {{"bytes_compulsory", NULL, 1, 0}, 0},
    {{"bytes_model", NULL, 1, 0}, 0},
    {{"workspace_bytes", NULL, 1, 0}, 0},
    {{"max_abs_err", "max error", 1, -1}, EACH},
    {{"repro", NULL, 1, 0}, 0},
    {{"version", NULL, 1, 0}, 0},
    /* what tileproof compare reads, and what it can be trusted with */
    {{"kernel_asked", NULL, 1, 0}, 0},
    {{"wall_ns", NULL, 1, 0}, 0},
    {{"cpu_ns", NULL, 1, 0}, 0},
    {{"cpu_per_wall", NULL, 1, 0}, 0},
    {{"switches", NULL, 1, 0}, 0},
    {{"steal", NULL, 1, 0}, 0},
    {{"disturbed", "disturbed", 1, 0}, EACH},
    {{"aa", NULL, 1, 0}, 0},
    {{"aa_ratio", NULL, 1, 0}, 0},
    {{"aa_low", NULL, 1, 0}, 0},
    {{"aa_high", NULL, 1, 0}, 0},
    {{"fma_here_gflops", NULL, 1, 0}, 0},
    {{"round_ns", NULL, 1, 0}, 0},
    {{"round_cpu_ns", NULL, 1, 0}, 0},
    {{"seed", NULL, 1, 0}, 0},
    {{"host", NULL, 1, 0}, 0},
    {{"machine", NULL, 1, 0}, 0},
    {{"kind", NULL, 1, 0}, 0},
    {{"date", NULL, 1, 0}, 0},
    {{"build", NULL, 1, 0}, 0},
};
enum { COLUMN_COUNT = sizeof columns / sizeof *columns };

const char *bench_asked(const struct timed_case *one) {
    return one->kernel ? one->kernel : "best";
}

const char *bench_label(const struct timed_case *one) {
    int plain = !strstr(one->receipt.problem, "seqs=#") && !strchr(one->workload->words, '@');
    return plain ? one->receipt.problem : one->workload->words;
}

void bench_row_fill(struct bench_row *row, const struct timed_case *one, struct series *series,
                    const struct options *options, double max_error) {
    const tp_receipt *receipt = &one->receipt;
    *row = (struct bench_row){
        .kernel = one->ran,
        .asked = bench_asked(one),
        .strategy = one->strategy ? one->strategy : "auto",
        .isa = one->isa,
        .threads = one->threads,
        .fallback = receipt->fallback,
        .times = samples_summary(&series->calls),
        .n = series->calls.count,
        .series = *series,
        .flops = one->flops,
        .kv_bytes = one->kv_bytes,
        .max_error = max_error,
        .pairs_visible = receipt->pairs_visible,
        .pairs_computed = receipt->pairs_computed,
        .bytes_compulsory = receipt->bytes_compulsory,
        .bytes_model = receipt->bytes_model,
        .workspace_bytes = receipt->workspace_bytes,
        .tasks = receipt->tasks,
    };
    row->series.calls = (struct samples){0};
    samples_free(&series->calls);
    *series = (struct series){0};
    snprintf(row->problem, sizeof row->problem, "%s", bench_label(one));
    snprintf(row->phase, sizeof row->phase, "%.*s", (int)strcspn(receipt->problem, " "),
             receipt->problem);
    char seconds[48] = "", strategy[24] = "";
    if (one->strategy) snprintf(strategy, sizeof strategy, " -S %s", one->strategy);
    if (options->seconds) snprintf(seconds, sizeof seconds, " --seconds %.20s", options->seconds);
    snprintf(row->repro, sizeof row->repro,
             "tileproof bench -k %s%s -j %d -r %lld%s --seed %lld%s '%s'", one->ran, strategy,
             one->threads, (long long)options->attempts, seconds, (long long)options->seed,
             options->verify ? " --verify" : "", bench_label(one));
}

void bench_date(char text[32]) {
    time_t now = time(NULL);
    struct tm utc;
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
}

static double median_of(const struct samples *samples) {
    return interval_median(samples->values, samples->count, 0, 0).middle;
}

void bench_add_host(struct table *table, const struct limits *limits, const char *kind) {
    char machine[512] = "", date[32];
    if (tp_machine_print(tp_context_machine(limits->context), machine, sizeof machine) != TP_OK)
        machine[0] = 0;
    bench_date(date);
    table_text(table, tp_context_machine(limits->context)->name);
    table_text(table, machine);
    table_text(table, kind);
    table_text(table, date);
    table_text(table, tp_build_hash());
}

static void add_evidence(struct table *table, const struct bench_row *row, struct interval control,
                         int64_t seed) {
    const struct series *series = &row->series;
    char flags[32];
    int known = isfinite(control.low);
    table_text(table, row->asked);
    table_number(table, median_of(&series->wall));
    table_number(table, median_of(&series->cpu));
    table_number(table, series->cpu_sum / series->wall_sum);
    table_integer(table, series->switches);
    table_number(table, row->steal);
    table_text(table, series_flags(series, row->steal, flags));
    table_text(table, speed_words[speed_of(control)]);
    table_number(table, exp(control.middle));
    table_number(table, known ? exp(control.low) : NAN);
    table_number(table, known ? exp(control.high) : NAN);
    table_number(table, row->fma_here);
    table_list(table, series->wall.values, series->wall.count);
    table_list(table, series->cpu.values, series->cpu.count);
    table_integer(table, seed);
}

static void add_row(struct table *table, const struct bench_row *row, const struct limits *limits) {
    double gflops = row->flops / row->times.min;
    double gbps = (double)row->bytes_compulsory / row->times.min;
    double peak = limits_fma(limits, row->isa, row->threads);
    double read = limits_read(limits, row->threads);
    double min = limits_roofline(limits, row->isa, row->threads, row->flops, row->kv_bytes);
    table_text(table, row->problem);
    table_text(table, row->phase);
    table_text(table, row->kernel);
    table_text(table, row->strategy);
    table_text(table, row->isa);
    table_integer(table, row->threads);
    table_integer(table, row->tasks);
    table_flag(table, row->fallback);
    table_number(table, row->times.min);
    table_number(table, row->times.median);
    table_number(table, row->times.median);
    table_number(table, row->times.p99);
    table_integer(table, (int64_t)row->n);
    table_number(table, gflops);
    table_number(table, row->flops / row->times.median);
    table_number(table, peak);
    table_number(table, 100 * gflops / peak);
    table_number(table, gbps);
    table_number(table, read);
    table_number(table, 100 * gbps / read);
    table_number(table, row->kv_bytes);
    table_number(table, row->kv_bytes / row->times.min);
    table_number(table, row->kv_bytes / row->times.median);
    table_number(table, 100 * min / row->times.min);
    table_number(table, 100 * row->share.middle);
    table_number(table, row->share.low > 0 ? 100 * row->share.low : NAN);
    table_number(table, 100 * row->share.high); /* infinite: nothing is said */
    table_text(table, row->share_of == SHARE_OF_FMA ? "FMA" : "read");
    table_integer(table, row->pairs_visible);
    table_integer(table, row->pairs_computed);
    table_integer(table, row->bytes_compulsory);
    table_integer(table, row->bytes_model);
    table_integer(table, row->workspace_bytes);
    table_number(table, row->max_error);
    table_text(table, row->repro);
    table_text(table, tp_version());
}

void bench_print_host(const struct limits *limits, FILE *out) {
    const tp_machine *machine = tp_context_machine(limits->context);
    char isa[64];
    tp_isa_print(machine->isa, isa, sizeof isa);
    fprintf(out, "host: %s, %s, isa %s, %d thread%s; tileproof %s\n\n", machine->name, machine->arch,
            isa, machine->threads, machine->threads > 1 ? "s" : "", tp_version());
    for (int i = 0; i < limits->fma_count; i++)
        fprintf(out, "limit: FMA %s, %d thread%s: %.1f GFLOP/s (best of %d)\n", limits->fma[i].isa,
                limits->fma[i].threads, limits->fma[i].threads > 1 ? "s" : "",
                limits->fma[i].gflops, limits->fma[i].attempts);
    for (int i = 0; i < limits->read_count; i++)
        fprintf(
            out, "limit: read, %d thread%s: %.2f GB/s over %zu MiB in %d streams (best of %d)\n",
            limits->read[i].threads, limits->read[i].threads > 1 ? "s" : "", limits->read[i].gbps,
            limits->read[i].bytes >> 20, limits->read[i].streams, limits->read[i].attempts);
    fputc('\n', out);
}

/* The object around the rows, for a program that wants the limits by themselves. */
static void print_json_limits(const struct limits *limits, FILE *out) {
    char machine[512];
    if (tp_machine_print(tp_context_machine(limits->context), machine, sizeof machine) != TP_OK)
        machine[0] = 0;
    fputs("{\"machine\": ", out);
    print_json_text(out, machine);
    fputs(",\n\"limits\": [", out);
    for (int i = 0; i < limits->fma_count; i++)
        fprintf(out,
                "%s\n  {\"limit\": \"fma\", \"isa\": \"%s\", \"threads\": %d, \"gflops\": %.7g}",
                i ? "," : "", limits->fma[i].isa, limits->fma[i].threads, limits->fma[i].gflops);
    for (int i = 0; i < limits->read_count; i++)
        fprintf(out,
                "%s\n  {\"limit\": \"read\", \"threads\": %d, \"gbps\": %.7g, \"streams\": %d, "
                "\"bytes\": %zu}",
                i || limits->fma_count ? "," : "", limits->read[i].threads, limits->read[i].gbps,
                limits->read[i].streams, limits->read[i].bytes);
    fputs("\n],\n\"rows\": ", out);
}

/* All rows, or in md those of one phase. */
struct report {
    const struct bench_row *rows;
    size_t count;
    const struct limits *limits;
    struct interval control;
    const struct options *options;
};

static int print_table(const struct report *report, enum table_format format, int phase) {
    struct table table;
    struct column shown[COLUMN_COUNT];
    for (int i = 0; i < COLUMN_COUNT; i++) {
        shown[i] = columns[i].column;
        int hidden = phase >= 0 && !(columns[i].phases >> phase & 1);
        if (hidden || (!report->options->verify && !strcmp(shown[i].name, "max_abs_err")))
            shown[i].title = NULL;
    }
    table_open(&table, shown, COLUMN_COUNT);
    for (size_t i = 0; i < report->count; i++) {
        const struct bench_row *row = &report->rows[i];
        if (phase >= 0 && strcmp(row->phase, phase_names[phase])) continue;
        add_row(&table, row, report->limits);
        add_evidence(&table, row, report->control, report->options->seed);
        bench_add_host(&table, report->limits, "rate");
    }
    if (phase >= 0 && table.count) printf("%s\n\n", phase_names[phase]);
    int code = table.count ? table_print(&table, format, stdout) : EXIT_FINE;
    if (phase >= 0 && table.count) printf("\n");
    table_close(&table);
    return code;
}

int bench_report(const struct bench_row *rows, size_t count, const struct limits *limits,
                 struct interval control, enum table_format format, const struct options *options) {
    struct report report = {rows, count, limits, control, options};
    struct trust trust = {0};
    char trusted[128];
    int code = EXIT_FINE;
    trust_add(&trust, control);
    trust_line(&trust, trusted, sizeof trusted);
    if (format == FORMAT_JSON) print_json_limits(limits, stdout);
    if (format != FORMAT_MD) {
        code = print_table(&report, format, -1);
        if (format == FORMAT_JSON) printf(",\n\"trust\": \"%s\"}\n", trusted);
        return code;
    }
    bench_print_host(limits, stdout);
    for (int phase = 0; !code && phase < PHASES; phase++) code = print_table(&report, format, phase);
    printf(
        "Useful flops and compulsory bytes over the best time, in %% of the highest limit seen in "
        "this run.\nKV GB/s counts k and v once; the roofline is the slower of reading them and "
        "of the multiply-adds.\nThe share is the median of calls beside probes of that limit, as long as they, in turns; "
        "from and to its 99 %% interval.\n%s\n",
        trusted);
    return code;
}
