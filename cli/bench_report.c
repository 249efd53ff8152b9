/* SPDX-License-Identifier: Apache-2.0 */
/* What a row says. Rates are those of the best time; shares are of the highest limit seen. */
#include "bench.h"

#include <string.h>

static const struct column columns[] = {
    {"problem", "problem", 1, 0},
    {"phase", NULL, 1, 0},
    {"kernel", "kernel", 1, 0},
    {"isa", NULL, 1, 0},
    {"threads", "threads", 1, 0},
    {"tasks", NULL, 1, 0},
    {"fallback", "fallback", 1, 0},
    {"min_ns", "best ms", 1e-6, 3},
    {"med_ns", "median ms", 1e-6, 3},
    {"p50_ns", NULL, 1, 0},
    {"p99_ns", "p99 ms", 1e-6, 3},
    {"n", "runs", 1, 0},
    {"gflops", "GFLOP/s", 1, 1},
    {"med_gflops", "median", 1, 1},
    {"fma_peak_gflops", NULL, 1, 0},
    {"pct_of_fma_peak", "% of FMA", 1, 1},
    {"gbps", "GB/s", 1, 2},
    {"read_gbps_limit", NULL, 1, 0},
    {"pct_of_read_limit", "% of read", 1, 1},
    {"pairs_visible", NULL, 1, 0},
    {"pairs_computed", NULL, 1, 0},
    {"bytes_compulsory", NULL, 1, 0},
    {"bytes_model", NULL, 1, 0},
    {"workspace_bytes", NULL, 1, 0},
    {"max_abs_err", "max error", 1, -1},
    {"repro", NULL, 1, 0},
    {"version", NULL, 1, 0},
    {"kind", NULL, 1, 0},
    {"host", NULL, 1, 0},
    {"date", NULL, 1, 0},
};
enum { COLUMN_COUNT = sizeof columns / sizeof *columns };

/* The text form of what ran; the words as given when that form cannot be replayed. */
static const char *label(const struct bench_case *one) {
    return strstr(one->receipt.problem, "seqs=#") ? one->problem->words : one->receipt.problem;
}

void bench_row_fill(struct bench_row *row, const struct bench_case *one, struct samples *times,
                    const struct options *options, double max_error) {
    const tp_receipt *receipt = &one->receipt;
    *row = (struct bench_row){
        .kernel = one->ran,
        .isa = one->isa,
        .threads = one->threads,
        .fallback = receipt->fallback,
        .times = samples_summary(times),
        .n = times->count,
        .flops = one->flops,
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
    char seconds[48] = "";
    if (options->seconds) snprintf(seconds, sizeof seconds, " --seconds %.20s", options->seconds);
    snprintf(row->repro, sizeof row->repro,
             "tileproof bench -k %s -j %d -r %lld%s --seed %lld%s '%s'", one->ran, one->threads,
             (long long)options->attempts, seconds, (long long)options->seed,
             options->verify ? " --verify" : "", label(one));
}

static void add_row(struct table *table, const struct bench_row *row, const struct limits *limits) {
    double gflops = row->flops / row->times.min;
    double gbps = (double)row->bytes_compulsory / row->times.min;
    double peak = limits_fma(limits, row->isa, row->threads);
    double read = limits_read(limits, row->threads);
    table_text(table, row->problem);
    table_text(table, row->phase);
    table_text(table, row->kernel);
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
    table_integer(table, row->pairs_visible);
    table_integer(table, row->pairs_computed);
    table_integer(table, row->bytes_compulsory);
    table_integer(table, row->bytes_model);
    table_integer(table, row->workspace_bytes);
    table_number(table, row->max_error);
    table_text(table, row->repro);
    table_text(table, tp_version());
    table_text(table, "rate");
    table_text(table, tp_context_machine(limits->context)->name);
    char date[16];
    table_text(table, bench_date(date));
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

int bench_report(const struct bench_row *rows, size_t count, const struct limits *limits,
                 enum table_format format, int verified) {
    struct table table;
    struct column shown[COLUMN_COUNT];
    memcpy(shown, columns, sizeof shown);
    for (int i = 0; i < COLUMN_COUNT; i++)
        if (!verified && !strcmp(shown[i].name, "max_abs_err")) shown[i].title = NULL;
    table_open(&table, shown, COLUMN_COUNT);
    for (size_t i = 0; i < count; i++) add_row(&table, &rows[i], limits);
    if (format == FORMAT_MD) bench_print_host(limits, stdout);
    if (format == FORMAT_JSON) print_json_limits(limits, stdout);
    int code = table_print(&table, format, stdout);
    if (format == FORMAT_JSON) fputs("}\n", stdout);
    if (format == FORMAT_MD)
        printf(
            "\nUseful flops and compulsory bytes over the best time; shares of the highest limit "
            "seen in this run.\n");
    table_close(&table);
    return code;
}
