/* SPDX-License-Identifier: Apache-2.0 */
/* What a row says. Rates are those of the best time; shares are of the highest limit seen. */
#include "bench.h"

#include <string.h>

/* Prefill, decode and mixed calls have different limits, so each has a table of its own in md. */
enum phase { PREFILL = 1, DECODE = 2, MIXED = 4, EACH = 7 };
static const char *const phase_names[] = {"prefill", "decode", "mixed"};

enum { COLUMN_COUNT = 32 };
static const struct report_column {
    struct column column;
    unsigned phases; /* in whose md table it stands */
} columns[COLUMN_COUNT] = {
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
    {{"gflops", "GFLOP/s", 1, 1}, PREFILL | MIXED},
    {{"med_gflops", "median", 1, 1}, PREFILL},
    {{"fma_peak_gflops", NULL, 1, 0}, 0},
    {{"pct_of_fma_peak", "% of FMA", 1, 1}, PREFILL | MIXED},
    {{"gbps", "GB/s", 1, 2}, PREFILL},
    {{"read_gbps_limit", NULL, 1, 0}, 0},
    {{"pct_of_read_limit", "% of read", 1, 1}, PREFILL},
    {{"kv_bytes", NULL, 1, 0}, 0},
    {{"kv_gbps", "KV GB/s", 1, 2}, DECODE | MIXED},
    {{"med_kv_gbps", "median", 1, 2}, DECODE},
    {{"roofline_pct", "% of roofline", 1, 1}, DECODE | MIXED},
    {{"pairs_visible", NULL, 1, 0}, 0},
    {{"pairs_computed", NULL, 1, 0}, 0},
    {{"bytes_compulsory", NULL, 1, 0}, 0},
    {{"bytes_model", NULL, 1, 0}, 0},
    {{"workspace_bytes", NULL, 1, 0}, 0},
    {{"max_abs_err", "max error", 1, -1}, EACH},
    {{"repro", NULL, 1, 0}, 0},
    {{"version", NULL, 1, 0}, 0},
};

/* The text form of what ran; the words as given when that form cannot be replayed. */
static const char *label(const struct bench_case *one) {
    return strstr(one->receipt.problem, "seqs=#") ? one->problem->words : one->receipt.problem;
}

void bench_row_fill(struct bench_row *row, const struct bench_case *one, struct samples *times,
                    const struct options *options, double max_error) {
    const tp_receipt *receipt = &one->receipt;
    *row = (struct bench_row){
        .kernel = one->ran,
        .strategy = one->strategy ? one->strategy : "auto",
        .isa = one->isa,
        .threads = one->threads,
        .fallback = receipt->fallback,
        .times = samples_summary(times),
        .n = times->count,
        .flops = one->flops,
        .kv_bytes = one->kv_bytes,
        .max_error = max_error,
        .pairs_visible = receipt->pairs_visible,
        .pairs_computed = receipt->pairs_computed,
        .bytes_compulsory = receipt->bytes_compulsory,
        .bytes_model = receipt->bytes_model,
        .workspace_bytes = receipt->workspace_bytes,
        .tasks = receipt->threads,
    };
    snprintf(row->problem, sizeof row->problem, "%s", label(one));
    snprintf(row->phase, sizeof row->phase, "%.*s", (int)strcspn(receipt->problem, " "),
             receipt->problem);
    char seconds[48] = "", strategy[24] = "";
    if (one->strategy) snprintf(strategy, sizeof strategy, " -S %s", one->strategy);
    if (options->seconds) snprintf(seconds, sizeof seconds, " --seconds %.20s", options->seconds);
    snprintf(row->repro, sizeof row->repro,
             "tileproof bench -k %s%s -j %d -r %lld%s --seed %lld%s '%s'", one->ran, strategy,
             one->threads, (long long)options->attempts, seconds, (long long)options->seed,
             options->verify ? " --verify" : "", label(one));
}

static void add_row(struct table *table, const struct bench_row *row, const struct limits *limits) {
    double gflops = row->flops / row->times.min;
    double gbps = (double)row->bytes_compulsory / row->times.min;
    double peak = limits_fma(limits, row->isa, row->threads);
    double read = limits_read(limits, row->threads);
    double least = bench_roofline(limits, row->isa, row->threads, row->flops, row->kv_bytes);
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
    table_number(table, 100 * least / row->times.min);
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
    isa_words(machine->isa, isa);
    fprintf(out, "host: %s, %s, isa %s, %d threads; tileproof %s\n\n", machine->name, machine->arch,
            isa, machine->threads, tp_version());
    for (int i = 0; i < limits->fma_count; i++)
        fprintf(out, "limit: FMA %s, %d thread%s: %.1f GFLOP/s (best of %d)\n", limits->fma[i].isa,
                limits->fma[i].threads, limits->fma[i].threads > 1 ? "s" : "",
                limits->fma[i].gflops, limits->fma[i].attempts);
    for (int i = 0; i < limits->read_count; i++)
        fprintf(
            out, "limit: read, %d thread%s: %.2f GB/s over %zu MiB in %d streams (best of %d)\n",
            limits->read[i].threads, limits->read[i].threads > 1 ? "s" : "", limits->read[i].gbps,
            limits->bytes >> 20, limits->read[i].streams, limits->read[i].attempts);
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
                limits->read[i].streams, limits->bytes);
    fputs("\n],\n\"rows\": ", out);
}

/* Rows of these phases, or of all when the columns of none are asked for. */
static int print_table(const struct bench_row *rows, size_t count, const struct limits *limits,
                       enum table_format format, int verified, int phase) {
    struct table table;
    struct column shown[COLUMN_COUNT];
    for (int i = 0; i < COLUMN_COUNT; i++) {
        shown[i] = columns[i].column;
        int hidden = phase >= 0 && !(columns[i].phases >> phase & 1);
        if (hidden || (!verified && !strcmp(shown[i].name, "max_abs_err"))) shown[i].title = NULL;
    }
    table_open(&table, shown, COLUMN_COUNT);
    for (size_t i = 0; i < count; i++)
        if (phase < 0 || !strcmp(rows[i].phase, phase_names[phase]))
            add_row(&table, &rows[i], limits);
    if (phase >= 0 && table.count) printf("%s\n\n", phase_names[phase]);
    int code = table.count ? table_print(&table, format, stdout) : EXIT_FINE;
    if (phase >= 0 && table.count) printf("\n");
    table_close(&table);
    return code;
}

int bench_report(const struct bench_row *rows, size_t count, const struct limits *limits,
                 enum table_format format, int verified) {
    int code = EXIT_FINE;
    if (format == FORMAT_JSON) print_json_limits(limits, stdout);
    if (format != FORMAT_MD) {
        code = print_table(rows, count, limits, format, verified, -1);
        if (format == FORMAT_JSON) fputs("}\n", stdout);
        return code;
    }
    bench_print_host(limits, stdout);
    for (int phase = 0; !code && phase < 3; phase++)
        code = print_table(rows, count, limits, format, verified, phase);
    printf(
        "Useful flops and compulsory bytes over the best time; shares of the highest limit seen in "
        "this run.\nKV GB/s counts k and v once; the roofline is the slower of reading them and "
        "of the multiply-adds.\n");
    return code;
}
