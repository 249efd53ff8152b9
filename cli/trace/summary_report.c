/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/table.h"
#include "cli.h"
#include "tool/made.h"
#include "trace/summary.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { MODEL, KERNEL, CLASS, COLUMNS = 12 };

static void add_row(struct table *table, const struct summary *s, const struct group *g) {
    const struct group *all = s->group[0];
    static const double shares[] = {0.5, 0.9, 0.99};
    table_text(table, g->model);
    table_text(table, g->kernel);
    table_text(table, g->problem_class);
    table_integer(table, g->calls);
    table_number(table, g->times.sum * 1e-9);
    table_number(table, all->times.sum > 0 ? g->times.sum / all->times.sum : NAN);
    for (int i = 0; i < 3; i++) table_number(table, g->calls ? sketch_quantile(&g->times, shares[i]) * 1e-9 : NAN);
    table_number(table, g->calls ? (double)g->times.max * 1e-9 : NAN);
    table_integer(table, g->fallbacks);
    table_integer(table, g->refused);
}

/* The groups of a kind; where it is shown to people, only the labels that it goes by. */
static int print_groups(const struct summary *s, enum by by, enum table_format format) {
    struct column columns[COLUMNS] = {
        {"model", "model", 1, 0},          {"kernel", "kernel", 1, 0},   {"class", "class", 1, 0},
        {"calls", "calls", 1, 0},          {"seconds", NULL, 1, 0},      {"share_of_time", "% of time", 100, 2},
        {"p50_s", "p50 us", 1e6, 1},       {"p90_s", "p90 us", 1e6, 1},  {"p99_s", "p99 us", 1e6, 1},
        {"max_s", "max us", 1e6, 1},       {"fallbacks", "fallbacks", 1, 0}, {"refused", "refused", 1, 0},
    };
    struct table table;
    if (by == BY_ALL || by == BY_KERNEL) columns[MODEL].title = NULL;
    if (by == BY_ALL || by == BY_MODEL) columns[KERNEL].title = NULL;
    if (by != BY_CLASS) columns[CLASS].title = NULL;
    table_open(&table, columns, COLUMNS);
    for (int i = 0; i < s->group_count; i++)
        if (s->group[i]->by == by) add_row(&table, s, s->group[i]);
    int broken = table_print(&table, format, stdout);
    table_close(&table);
    return broken;
}

static void print_faults(const struct summary *s, const char *file) {
    if (!s->wrong) return;
    printf("%lld lines are no calls and left out:\n", (long long)s->wrong);
    for (int i = 0; i < s->fault_count; i++)
        printf("- %lld: %s; the first is %s:%lld: %s\n", (long long)s->fault[i].lines, s->fault[i].what, file,
               (long long)s->fault[i].first, s->fault[i].shown);
    putchar('\n');
}

static int print_text(const struct summary *s, const char *file, int64_t bytes, int md) {
    char size[32], calls[32];
    static const char *const titles[BYS] = {"All calls", "By model", "By kernel", "By class"};
    int broken = 0;
    printf("%s%s: %s calls in %.3f s, %s. Quantiles are within 1.6 %%; refused calls have no time.\n\n", md ? "# " : "", file,
           grouped(s->lines, calls), (double)(s->last_ns - s->first_ns) * 1e-9, readable_bytes((double)bytes, size));
    print_faults(s, file);
    for (int by = 0; by < BYS; by++) {
        printf("%s%s\n\n", md ? "## " : "", titles[by]);
        broken |= print_groups(s, (enum by)by, FORMAT_MD);
        putchar('\n');
    }
    if (s->grouped_together) printf("More than %d groups: further ones are together as \"other\".\n", SUMMARY_GROUPS);
    return broken;
}

static int print_json(const struct summary *s, const char *file, int64_t bytes) {
    json_t *made = made_of_others();
    int broken = !made;
    time_t first = (time_t)(s->first_ns / 1000000000);
    struct tm at;
    char date[32] = "";
    if (gmtime_r(&first, &at)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &at);
    putchar('{');
    json_dumpf(made, stdout, JSON_COMPACT | JSON_EMBED);
    json_decref(made);
    printf(",\"file\":");
    print_json_text(stdout, file);
    printf(",\"date\":\"%s\"", date); /* of the first call */
    printf(",\"bytes\":%lld,\"calls\":%lld,\"seconds\":%.9f,\"relative_error\":%g,\"grouped_together\":%s", (long long)bytes,
           (long long)s->lines, (double)(s->last_ns - s->first_ns) * 1e-9, 0.5 / SKETCH_STEPS,
           s->grouped_together ? "true" : "false");
    printf(",\"wrong_lines\":%lld,\"wrong\":[", (long long)s->wrong);
    for (int i = 0; i < s->fault_count; i++) {
        const struct fault *fault = &s->fault[i];
        printf("%s{\"what\":", i ? "," : "");
        print_json_text(stdout, fault->what);
        printf(",\"lines\":%lld,\"first_line\":%lld,\"first\":", (long long)fault->lines, (long long)fault->first);
        print_json_text(stdout, fault->shown);
        putchar('}');
    }
    putchar(']');
    for (int by = 0; by < BYS; by++) {
        printf(",\"by_%s\":", by_names[by]);
        broken |= print_groups(s, (enum by)by, FORMAT_JSON);
    }
    printf("}\n");
    return broken;
}

int summary_report(const struct summary *s, const char *file, int64_t bytes, const char *format) {
    int broken = !strcmp(format, "json") ? print_json(s, file, bytes) : print_text(s, file, bytes, !strcmp(format, "md"));
    if (broken) complain("out of memory");
    return broken ? EXIT_FAILED : EXIT_FINE;
}
