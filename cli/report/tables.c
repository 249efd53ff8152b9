/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are a table each, by one table of columns. The first field of a row opens all that its file says of it. */
#include "report/report.h"

#include <math.h>
#include <string.h>

struct shown_column {
    const char *title, *field;
    int form; /* of numbers: enum number_form; TEXT */
};
enum { TEXT = -1, COLUMNS = 12 };

/* Empty titles end the columns. */
static const struct shown_table {
    enum row_kind kind;
    const char *nav, *title, *about;
    struct shown_column columns[COLUMNS];
} tables[] = {
    {ROWS_CHANGE,
     "Changes",
     "What changed",
     "Between two revisions of a model in the locks, or from a lock's last revision to the cells of today.",
     {{"model", "model", TEXT},
      {"earlier", "earlier", TEXT},
      {"later", "later", TEXT},
      {"where", "where", TEXT},
      {"phase", "phase", TEXT},
      {"what", "what", TEXT},
      {"from", "from", TEXT},
      {"to", "to", TEXT}}},
    {ROWS_HISTORY,
     "History",
     "History of the locks",
     "Each update, and why it was made.",
     {{"date", "date", TEXT},
      {"reason", "reason", TEXT},
      {"cells", "cells", TEXT},
      {"revisions", "revisions", TEXT},
      {"dropped", "dropped", TEXT},
      {"engine", "engine", TEXT},
      {"isa", "isa", TEXT}}},
    {ROWS_RATE,
     "Rates",
     "Rates",
     "Useful flops over the best time; the share is of this host's limits, measured in the same run. Disturbed rows shared the "
     "CPU with others.",
     {{"problem", "problem", TEXT},
      {"kernel", "kernel", TEXT},
      {"threads", "threads", FORM_COUNT},
      {"best", "min_ns", FORM_NS},
      {"median", "med_ns", FORM_NS},
      {"p99", "p99_ns", FORM_NS},
      {"GFLOP/s", "gflops", FORM_PLAIN},
      {"of roofline", "roofline_pct", FORM_PERCENT},
      {"workspace", "workspace_bytes", FORM_BYTES},
      {"A/A", "aa", TEXT},
      {"disturbed", "disturbed", TEXT}}},
    {ROWS_BYTES,
     "Bytes",
     "Bytes of main memory",
     "Simulated with a cold cache and no prefetcher, beside what no algorithm can avoid.",
     {{"problem", "problem", TEXT},
      {"kernel", "kernel", TEXT},
      {"simulated", "sim_bytes", FORM_BYTES},
      {"must read", "compulsory_read", FORM_BYTES},
      {"must write", "compulsory_written", FORM_BYTES},
      {"over must", "over_compulsory", FORM_TIMES},
      {"cache", "cache_ll", FORM_BYTES},
      {"model holds", "model_holds", TEXT}}},
    {ROWS_MEMORY,
     "Peak",
     "Peak memory",
     "Temporary memory of one call, measured in a process of its own.",
     {{"problem", "problem", TEXT},
      {"kernel", "kernel", TEXT},
      {"peak", "peak_bytes", FORM_BYTES},
      {"workspace", "workspace_bytes", FORM_BYTES},
      {"one score matrix", "scores_bytes", FORM_BYTES},
      {"scores written", "scores_written", FORM_COUNT}}},
    {ROWS_REPLAY,
     "Replay",
     "Latencies of a replay",
     "Attention of all layers for a step, by model, phase and bucket of keys; of an observed log, times of the whole engine.",
     {{"model", "model", TEXT},
      {"phase", "phase", TEXT},
      {"bucket", "bucket", TEXT},
      {"kernel", "kernel", TEXT},
      {"cache", "cache", TEXT},
      {"fallback", "fallback", TEXT},
      {"steps", "n", FORM_COUNT},
      {"p50", "p50_ns", FORM_NS},
      {"p90", "p90_ns", FORM_NS},
      {"p99", "p99_ns", FORM_NS},
      {"mean", "mean_ns", FORM_NS}}},
    {ROWS_TRACE,
     "Trace",
     "Calls of a trace",
     "By class of problem. Quantiles are within 1.6 %; refused calls have no time.",
     {{"model", "model", TEXT},
      {"kernel", "kernel", TEXT},
      {"class", "class", TEXT},
      {"calls", "calls", FORM_COUNT},
      {"of time", "share_of_time", FORM_SHARE},
      {"p50", "p50_s", FORM_SECONDS},
      {"p90", "p90_s", FORM_SECONDS},
      {"p99", "p99_s", FORM_SECONDS},
      {"max", "max_s", FORM_SECONDS},
      {"fallbacks", "fallbacks", FORM_COUNT},
      {"refused", "refused", FORM_COUNT}}},
    {ROWS_WATCH,
     "Watched",
     "What a watched process ran",
     "Attention of a program under tileproof.watch: where it was called, by which kernel, and why not by another.",
     {{"model", "model", TEXT},
      {"where", "path", TEXT},
      {"engine", "engine", TEXT},
      {"kernel", "kernel", TEXT},
      {"fused", "fused", TEXT},
      {"problem", "problem", TEXT},
      {"calls", "calls", FORM_COUNT},
      {"time", "seconds", FORM_SECONDS},
      {"temporary", "peak_temporary_bytes", FORM_BYTES},
      {"drift", "drift", TEXT},
      {"reasons", "reasons", TEXT}}},
    {ROWS_PEER,
     "Peers",
     "Other libraries",
     "Time of the other library over ours: above 1 tileproof is faster. Medians of calls in turns in one process, with 99 % "
     "intervals; losses stand beside wins.",
     {{"problem", "row", TEXT},
      {"threads", "threads", FORM_COUNT},
      {"library", "peer", TEXT},
      {"its path", "variant", TEXT},
      {"verdict", "verdict", TEXT},
      {"ours", "ours_ns", FORM_NS},
      {"theirs", "peer_ns", FORM_NS},
      {"ratio", "ratio", FORM_TIMES},
      {"from", "ratio_lo", FORM_TIMES},
      {"to", "ratio_hi", FORM_TIMES},
      {"why", "why", TEXT}}},
    {ROWS_AGAINST,
     "Against",
     "A against B",
     "Two kernels in turns; the interval holds in 99 of 100 runs. A verdict needs an A/A control that is SAME.",
     {{"problem", "problem", TEXT},
      {"kernel", "kernel", TEXT},
      {"against", "against", TEXT},
      {"verdict", "verdict", TEXT},
      {"time ratio", "ratio", FORM_TIMES},
      {"from", "low", FORM_TIMES},
      {"to", "high", FORM_TIMES},
      {"A/A", "aa", TEXT},
      {"rounds", "rounds", FORM_COUNT},
      {"disturbed", "disturbed", TEXT}}},
    {ROWS_GOAL,
     "Goals",
     "Goals",
     "What this library promises of itself on this kind of host.",
     {{"goal", "name", TEXT},
      {"figure", "figure", FORM_PLAIN},
      {"floor", "floor", FORM_PLAIN},
      {"aim", "aim", FORM_PLAIN},
      {"floor is", "floor_met", TEXT},
      {"aim is", "aim_met", TEXT},
      {"attempts", "attempts", FORM_COUNT},
      {"metric", "metric", TEXT},
      {"measured", "detail", TEXT}}},
    {ROWS_CLIFF,
     "Cliffs",
     "Cliffs",
     "Lengths and dims that cost more by the flop than both of their neighbours.",
     {{"sweep", "sweep", TEXT},
      {"value", "value", FORM_COUNT},
      {"kernel", "kernel", TEXT},
      {"before, ps/flop", "ps_per_flop_before", FORM_PLAIN},
      {"here", "ps_per_flop", FORM_PLAIN},
      {"after", "ps_per_flop_after", FORM_PLAIN},
      {"lowest ratio", "ratio", FORM_TIMES},
      {"problem", "problem", TEXT}}},
    {ROWS_CAPACITY,
     "Capacity",
     "Capacity",
     "What serving takes: the cache of all sequences and the workspace; ceilings from this host's limits, where they were "
     "measured.",
     {{"model", "model", TEXT},
      {"context", "context", FORM_COUNT},
      {"sequences", "concurrency", FORM_COUNT},
      {"cache", "cache", TEXT},
      {"its size", "cache_bytes", FORM_BYTES},
      {"in all", "total_bytes", FORM_BYTES},
      {"limit", "limit_bytes", FORM_BYTES},
      {"fits", "fits", TEXT},
      {"longest context", "context_max", FORM_COUNT},
      {"most sequences", "concurrency_max", FORM_COUNT},
      {"prefill, tokens/s", "prefill_tokens_per_second_max", FORM_PLAIN},
      {"decode, tokens/s", "decode_tokens_per_second_max", FORM_PLAIN}}},
};

/* Words that a row is judged by, and their look. */
static const char *word_css(const char *text) {
    static const struct {
        const char *word, *css;
    } words[] = {{"ahead", "good"},   {"met", "good"},          {"SAME", "good"},      {"FAST", "good"}, {"even", "okay"},
                 {"behind", "bad"},   {"not met", "bad"},       {"wrong", "bad"},      {"SLOW", "bad"},  {"untrusted", "doubt"},
                 {"not run", "none"}, {"not run here", "none"}, {"AMBIGUOUS", "doubt"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, text)) return words[i].css;
    return NULL;
}

/* What people read of a value that is no number. */
static void put_text(const json_t *value, FILE *out) {
    const char *text = json_string_value(value), *css = text ? word_css(text) : NULL;
    size_t i;
    json_t *one;
    if (css)
        html_element(out, "span", css, text);
    else if (text)
        html_text(out, text);
    else if (json_is_boolean(value))
        fputs(json_is_true(value) ? "yes" : "no", out);
    else if (json_is_object(value)) /* a drift, a reason */
        html_text(out, row_text(value, "text"));
    json_array_foreach((json_t *)value, i, one) {
        if (i) fputs("; ", out);
        put_text(one, out);
    }
}

static void put_field(const struct shown_column *column, const json_t *row, int is_first, FILE *out) {
    const json_t *value = json_object_get(row, column->field);
    char text[48];
    if (is_first && (!value || json_is_null(value) || row_is(row, column->field, "") || row_is(row, column->field, "-"))) {
        fputs("not named", out); /* a button needs a text */
        return;
    }
    if (column->form == TEXT || !json_is_number(value)) {
        put_text(value, out);
        return;
    }
    number_text(json_number_value(value), (enum number_form)column->form, text);
    fputs(text, out);
}

/* Sentences get room: beside narrow columns they would be a word wide. */
static int is_long(const json_t *row, const struct shown_column *column) {
    const json_t *value = json_object_get(row, column->field);
    return json_is_object(value) || json_array_size(value) || strlen(row_text(row, column->field)) > 32;
}

static void put_row(const struct shown_table *table, size_t number, const json_t *row, FILE *out) {
    fputs("<tr>", out);
    for (int i = 0; i < COLUMNS && table->columns[i].title; i++) {
        const struct shown_column *column = &table->columns[i];
        double value = row_number(row, column->field);
        int is_number = column->form != TEXT;
        if (is_number)
            fprintf(out, isfinite(value) ? "<td class=\"n\" data-v=\"%.9g\">" : "<td class=\"n\">", value);
        else
            fputs(i && is_long(row, column) ? "<td class=\"long\">" : "<td>", out);
        if (!i) fprintf(out, "<button class=\"link\" data-set=\"%s\" data-row=\"%zu\">", row_kind_names[table->kind], number);
        put_field(column, row, !i, out);
        fputs(i ? "</td>" : "</button></td>", out);
    }
    fputs("</tr>\n", out);
}

int report_table(const struct report *report, enum row_kind kind, FILE *out) {
    const struct shown_table *table = tables;
    const char *id = row_kind_names[kind];
    json_t *row;
    size_t i;
    while (table->kind != kind) table++;
    if (!json_array_size(report->rows[kind])) return EXIT_FINE;
    fprintf(out,
            "<section id=\"%s\" data-nav=\"%s\"><h2>%s</h2><p>%s</p>\n<div class=\"tools\" hidden><label>Filter <input "
            "type=\"search\" data-filter=\"%s-table\"></label>"
            "<output data-shown=\"%s-table\"></output></div>\n<div class=\"scroll\"><table id=\"%s-table\"><thead><tr>",
            id, table->nav, table->title, table->about, id, id, id);
    for (int c = 0; c < COLUMNS && table->columns[c].title; c++)
        fprintf(out, "<th scope=\"col\"%s>%s</th>", table->columns[c].form == TEXT ? "" : " class=\"n\"",
                table->columns[c].title);
    fputs("</tr></thead><tbody>\n", out);
    json_array_foreach(report->rows[kind], i, row) put_row(table, i, row, out);
    fputs("</tbody></table></div></section>\n", out);
    return EXIT_FINE;
}
