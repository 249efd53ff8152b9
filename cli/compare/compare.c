/* SPDX-License-Identifier: Apache-2.0 */
/* Rows are the same by problem, kernel asked for and threads. */
#include "compare/compare.h"
#include "terminal/terminal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ENOUGH = 5 }; /* recordings of a row */
static const double process_allowance = 1.5;

static const struct column columns[] = {
    {"kind", "kind", 1, 0},      {"what", "problem or bucket", 1, 0},
    {"kernel", "kernel", 1, 0},  {"threads", "threads", 1, 0},
    {"rows", "rows", 1, 0},      {"verdict", "verdict", 1, 0},
    {"ratio", "time B/A", 1, 3}, {"low", "from", 1, 3},
    {"high", "to", 1, 3},        {"a_ns", "A ms", 1e-6, 3},
    {"b_ns", "B ms", 1e-6, 3},   {"host_change", "host B/A", 1, 3},
    {"note", "note", 1, 0},
};

struct bucket {
    const char *name;
    struct interval sum;
    int rows;
};

struct compare {
    struct recording a, b;
    struct table table;
    struct bucket *buckets;
    size_t bucket_count;
    int rows[4], bucket_verdicts[4], unmatched[2];
    struct trust trust[2];
};

static double median_ns(const struct record *record) {
    return interval_median(record->rounds.values, record->rounds.count, 0, 0).middle;
}

static void add_line(struct compare *compare, const char *kind, const char *what,
                     const struct record *a, const struct record *b, int rows,
                     const struct comparison *comparison) {
    struct table *table = &compare->table;
    const struct record *any = a ? a : b;
    struct interval ratio = comparison ? comparison->ratio : (struct interval){NAN, NAN, NAN};
    char kernel[128] = "";
    if (any) snprintf(kernel, sizeof kernel, "%.60s", any->kernel);
    if (a && b && strcmp(a->kernel, b->kernel))
        snprintf(kernel, sizeof kernel, "%.60s, %.60s", a->kernel, b->kernel);
    table_text(table, kind);
    table_text(table, what);
    table_text(table, any ? kernel : NULL);
    table_number(table, any ? (double)any->threads : NAN);
    table_integer(table, rows);
    table_text(table, comparison ? speed_words[speed_of(ratio)] : NULL);
    table_number(table, exp(ratio.middle));
    table_number(table, isfinite(ratio.low) ? exp(ratio.low) : NAN);
    table_number(table, isfinite(ratio.high) ? exp(ratio.high) : NAN);
    table_number(table, a ? median_ns(a) : NAN);
    table_number(table, b ? median_ns(b) : NAN);
    table_number(table, comparison ? exp(comparison->host_change) : NAN);
    table_text(table, comparison && comparison->note[0] ? comparison->note : NULL);
}

static int add_to_bucket(struct compare *compare, const char *name, struct interval ratio) {
    size_t at = 0;
    while (at < compare->bucket_count && strcmp(compare->buckets[at].name, name)) at++;
    if (at == compare->bucket_count) {
        struct bucket *buckets = realloc(compare->buckets, (at + 1) * sizeof *buckets);
        if (!buckets) return EXIT_FAILED;
        compare->buckets = buckets;
        buckets[compare->bucket_count++] = (struct bucket){.name = name};
    }
    struct bucket *bucket = &compare->buckets[at];
    bucket->sum.low += ratio.low;
    bucket->sum.middle += ratio.middle;
    bucket->sum.high += ratio.high;
    bucket->rows++;
    return EXIT_FINE;
}

static int same_row(const struct record *a, const struct record *b) {
    return a->threads == b->threads && !strcmp(a->asked, b->asked) &&
           !strcmp(a->problem, b->problem);
}

/* From `from` on; NULL: none. */
static struct record *find(const struct recording *recording, const struct record *like,
                           const struct record *from) {
    struct record *end = recording->records + recording->count;
    for (struct record *at = recording->records + (from ? from - recording->records : 0); at < end;
         at++)
        if (same_row(at, like)) return at;
    return NULL;
}

static void widen(struct comparison *all, const struct comparison *one, int pairs) {
    all->ratio.low = fmin(all->ratio.low, one->ratio.low);
    all->ratio.high = fmax(all->ratio.high, one->ratio.high);
    all->ratio.middle += (one->ratio.middle - all->ratio.middle) / pairs;
    if (!(fabs(one->host_change) <= fabs(all->host_change))) all->host_change = one->host_change;
    if (one->note[0]) strcpy(all->note, one->note);
}

/* A row may have been recorded several times: the interval holds every pair of recordings. With
   five on each side, all of one above all of the other is chance in 1 of 126 cases. With fewer,
   what one process may differ from the next by is not known, and much is allowed. */
static void compare_all(struct compare *compare, const struct record *like, uint64_t seed,
                        struct comparison *all) {
    struct comparison one;
    int pairs = 0, count[2] = {0, 0};
    for (struct record *a = find(&compare->a, like, NULL); a; a = find(&compare->a, like, a + 1)) {
        a->matched = 1;
        count[0]++;
        count[1] = 0;
        for (struct record *b = find(&compare->b, like, NULL); b;
             b = find(&compare->b, like, b + 1)) {
            b->matched = 1;
            count[1]++;
            compare_records(a, b, seed, &one);
            if (!pairs++)
                *all = one;
            else
                widen(all, &one, pairs);
        }
    }
    if (count[0] >= ENOUGH && count[1] >= ENOUGH) return;
    all->ratio.low -= log(process_allowance);
    all->ratio.high += log(process_allowance);
    if (!all->note[0])
        snprintf(all->note, sizeof all->note, "%d and %d recordings, %d needed: %.1f allowed",
                 count[0], count[1], ENOUGH, process_allowance);
}

static int compare_rows(struct compare *compare, uint64_t seed) {
    int code = EXIT_FINE;
    progress_begin("compare", (double)compare->a.count, "rows");
    stop_watch();
    for (size_t i = 0; i < compare->a.count && !code; i++) {
        const struct record *a = &compare->a.records[i], *b = find(&compare->b, a, NULL);
        struct comparison comparison;
        progress_at((double)i, "%s", a->problem);
        if (stop_asked()) return stop_say("", "%zu of %zu rows were compared: no verdict", i, compare->a.count);
        trust_add(&compare->trust[0], record_control(a));
        if (!b || a->matched) continue;
        compare_all(compare, a, seed, &comparison);
        compare->rows[speed_of(comparison.ratio)]++;
        add_line(compare, "row", a->problem, a, b, 1, &comparison);
        code = add_to_bucket(compare, a->bucket, comparison.ratio);
    }
    progress_end();
    for (size_t i = 0; i < compare->b.count; i++)
        trust_add(&compare->trust[1], record_control(&compare->b.records[i]));
    return code;
}

/* The geometric mean of its rows: a mean of intervals that all hold, holds. */
static void compare_buckets(struct compare *compare) {
    for (size_t i = 0; i < compare->bucket_count; i++) {
        const struct bucket *bucket = &compare->buckets[i];
        struct interval sum = bucket->sum;
        struct comparison mean = {
            .ratio = {sum.low / bucket->rows, sum.middle / bucket->rows, sum.high / bucket->rows},
            .host_change = NAN};
        compare->bucket_verdicts[speed_of(mean.ratio)]++;
        add_line(compare, "bucket", bucket->name, NULL, NULL, bucket->rows, &mean);
    }
}

static void name_unmatched(struct compare *compare) {
    const struct recording *sides[] = {&compare->a, &compare->b};
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < sides[side]->count; i++) {
            const struct record *record = &sides[side]->records[i];
            if (record->matched) continue;
            compare->unmatched[side]++;
            add_line(compare, side ? "only in B" : "only in A", record->problem,
                     side ? NULL : record, side ? record : NULL, 1, NULL);
        }
}

static void print_counts(const char *what, const int counts[4]) {
    printf("%s: %d SAME, %d FAST, %d SLOW, %d AMBIGUOUS\n", what, counts[SPEED_SAME],
           counts[SPEED_FAST], counts[SPEED_SLOW], counts[SPEED_AMBIGUOUS]);
}

static int report(const struct compare *compare, enum table_format format) {
    char line[128];
    int all[4], code = table_print(&compare->table, format, stdout);
    for (int i = 0; i < 4; i++) all[i] = compare->rows[i] + compare->bucket_verdicts[i];
    if (format == FORMAT_JSON) fputc('\n', stdout);
    if (format == FORMAT_MD) {
        printf("\nA: %s, B: %s; only in A: %d, only in B: %d\n", compare->a.name, compare->b.name,
               compare->unmatched[0], compare->unmatched[1]);
        print_counts("rows", compare->rows);
        print_counts("buckets", compare->bucket_verdicts);
        for (int side = 0; side < 2; side++) {
            trust_line(&compare->trust[side], line, sizeof line);
            printf("%c: %s\n", 'A' + side, line);
        }
    }
    if (!code && !compare->bucket_count) {
        complain("no row of %s is in %s: problem, kernel_asked and threads must be equal",
                 compare->a.name, compare->b.name);
        return EXIT_AMBIGUOUS;
    }
    return code ? code : verdicts_exit(all);
}

int command_compare(const struct options *options) {
    struct compare compare = {.rows = {0}};
    enum table_format format;
    if (table_format_parse(options->format, &format)) {
        complain("--output is '%s': it must be md, csv, json or jsonl", options->format);
        return EXIT_USAGE;
    }
    if (options->file_count != 2) {
        complain("compare takes two files, A.jsonl B.jsonl, not %d", options->file_count);
        return EXIT_USAGE;
    }
    int code = recording_read(&compare.a, options->files[0]);
    if (!code) code = recording_read(&compare.b, options->files[1]);
    table_open(&compare.table, columns, sizeof columns / sizeof *columns);
    if (!code) code = compare_rows(&compare, (uint64_t)options->seed);
    if (!code) {
        compare_buckets(&compare);
        name_unmatched(&compare);
        code = report(&compare, format);
    }
    table_close(&compare.table);
    free(compare.buckets);
    recording_free(&compare.a);
    recording_free(&compare.b);
    return code;
}
