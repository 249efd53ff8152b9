/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heat maps: keys across, head dim down, one for each kind of call. A field holds every metric; the page shows one of them.
 * The depth of a colour goes with the logarithm between the lowest and the highest value of its map.
 */
#include "report/report.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { METRICS = 6, LEVELS = 7, MAX_MAPS = 40, MAX_AXIS = 64, NAME = 256 };

static const struct metric {
    const char *id, *title, *field;
    enum number_form form;
    int lowest; /* of several calls in one place the lowest counts, otherwise the highest: the worst */
} metrics[METRICS] = {
    {"time", "time", "time", FORM_NS, 0},
    {"rate", "rate, GFLOP/s", "gflops", FORM_PLAIN, 1},
    {"share", "share of the host's limit", "roofline_pct", FORM_PERCENT, 1},
    {"scratch", "scratch memory", "scratch", FORM_BYTES, 0},
    {"error", "error, of what is allowed", "share", FORM_SHARE, 0},
    {"gain", "gain over materialised scores", "gain_over_math", FORM_TIMES, 1},
};

struct place_value {
    int64_t length, dim;
    double value[METRICS];
    size_t row, count; /* a row of the set: the slowest; how many calls */
};

struct map {
    char name[NAME];
    enum row_kind kind;
    struct place_value *at;
    size_t count;
};

struct maps {
    struct map map[MAX_MAPS];
    int count, left_out, failed;
};

static struct map *find_map(struct maps *maps, enum row_kind kind, const char *name) {
    for (int i = 0; i < maps->count; i++)
        if (maps->map[i].kind == kind && !strcmp(maps->map[i].name, name)) return &maps->map[i];
    if (maps->count == MAX_MAPS) {
        maps->left_out++;
        return NULL;
    }
    struct map *map = &maps->map[maps->count++];
    *map = (struct map){.kind = kind};
    snprintf(map->name, sizeof map->name, "%s", name);
    return map;
}

static struct place_value *find_place(struct maps *maps, struct map *map, int64_t length, int64_t dim) {
    for (size_t i = 0; i < map->count; i++)
        if (map->at[i].length == length && map->at[i].dim == dim) return &map->at[i];
    struct place_value *more = realloc(map->at, (map->count + 1) * sizeof *more);
    if (!more) {
        maps->failed = 1;
        return NULL;
    }
    map->at = more;
    map->at[map->count] = (struct place_value){.length = length, .dim = dim};
    for (int m = 0; m < METRICS; m++) map->at[map->count].value[m] = NAN;
    return &map->at[map->count++];
}

static double metric_of(const json_t *row, enum row_kind kind, int metric) {
    int rate = kind == ROWS_RATE;
    switch (metric) {
    case 0: return row_number(row, rate ? "min_ns" : "time_ns");
    case 3: return row_number(row, rate ? "workspace_bytes" : "scratch");
    case 4: return row_number(row, "error") / row_number(row, "allowed");
    default: return row_number(row, metrics[metric].field);
    }
}

static void add(struct maps *maps, enum row_kind kind, const char *name, const tp_problem *problem, size_t number,
                const json_t *row) {
    struct map *map = find_map(maps, kind, name);
    struct place_value *place = map ? find_place(maps, map, problem->kv_len, problem->head_dim_qk) : NULL;
    if (!place) return;
    double time = metric_of(row, kind, 0);
    if (!place->count++ || time > place->value[0]) place->row = number;
    for (int m = 0; m < METRICS; m++) {
        double value = metric_of(row, kind, m), *kept = &place->value[m];
        if (value > 0 && isfinite(value) && (!isfinite(*kept) || (metrics[m].lowest ? value < *kept : value > *kept)))
            *kept = value;
    }
}

/* The words of a problem without batch, lengths and head dim. */
static void other_words(const char *problem, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (const char *at = problem; *(at += strspn(at, " ")); at += strcspn(at, " ")) {
        int length = (int)strcspn(at, " ");
        if (strchr("bqkd", at[0]) && isdigit((unsigned char)at[1])) continue;
        if (used < size) used += (size_t)snprintf(text + used, size - used, "%s%.*s", used ? " " : "", length, at);
    }
}

static void add_rates(struct maps *maps, const struct report *report) {
    size_t i;
    json_t *row;
    json_array_foreach(report->rows[ROWS_RATE], i, row) {
        tp_problem problem;
        tp_error error = TP_ERROR_INIT;
        char words[128], name[NAME];
        if (bench_words_check(row_text(row, "problem"), &problem, &error) != TP_OK) continue;
        other_words(row_text(row, "problem"), words, sizeof words);
        snprintf(name, sizeof name, "%.40s: %s, %.0f thread%s", row_text(row, "kernel"), words, row_number(row, "threads"),
                 row_number(row, "threads") > 1 ? "s" : "");
        add(maps, ROWS_RATE, name, &problem, i, row);
    }
}

static void add_cells(struct maps *maps, const struct report *report) {
    for (size_t i = 0; i < report->cell_count; i++) {
        const json_t *row = report->cells[i].row;
        tp_problem problem;
        tp_lengths lengths = {.struct_size = sizeof lengths};
        char name[NAME];
        if (tp_problem_parse(row_text(row, "problem"), &problem, &lengths, NULL) != TP_OK || !*row_text(row, "kernel")) continue;
        snprintf(name, sizeof name, "cells of models: %.30s on %.60s%s%.60s", row_text(row, "phase"), row_text(row, "kernel"),
                 report->engine_count > 1 ? " of " : "", report->engine_count > 1 ? row_text(row, "engine") : "");
        add(maps, ROWS_CELL, name, &problem, i, row);
    }
}

static int compare_numbers(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* The different values of an axis, sorted; at most MAX_AXIS, the smallest. */
static int axis(const struct map *map, int dims, int64_t values[MAX_AXIS]) {
    int64_t *all = malloc((map->count + 1) * sizeof *all);
    int count = 0;
    if (!all) return 0;
    for (size_t i = 0; i < map->count; i++) all[i] = dims ? map->at[i].dim : map->at[i].length;
    qsort(all, map->count, sizeof *all, compare_numbers);
    for (size_t i = 0; i < map->count && count < MAX_AXIS; i++)
        if (!count || values[count - 1] != all[i]) values[count++] = all[i];
    free(all);
    return count;
}

static void put_place(const struct map *map, const struct place_value *place, double low[METRICS], double high[METRICS],
                      FILE *out) {
    char text[48];
    fprintf(out, "<td><button class=\"heat\" data-set=\"%s\" data-row=\"%zu\">", row_kind_names[map->kind], place->row);
    for (int m = 0; m < METRICS; m++) {
        double value = place->value[m], span = log(high[m] / low[m]);
        if (!isfinite(high[m])) continue;
        int level = !isfinite(value) ? 0 : span > 0 ? (int)fmin(LEVELS - 1, LEVELS * log(value / low[m]) / span) : LEVELS / 2;
        number_text(value, metrics[m].form, text);
        fprintf(out, "<span class=\"%s h%d\">%s</span>", metrics[m].id, level, *text ? text : "\xE2\x80\x93");
    }
    fputs("</button></td>", out);
}

static void put_map(const struct map *map, int number, FILE *out) {
    int64_t lengths[MAX_AXIS], dims[MAX_AXIS];
    int columns = axis(map, 0, lengths), lines = axis(map, 1, dims);
    double low[METRICS], high[METRICS];
    char text[32];
    for (int m = 0; m < METRICS; m++) {
        low[m] = INFINITY, high[m] = -INFINITY;
        for (size_t i = 0; i < map->count; i++)
            low[m] = fmin(low[m], map->at[i].value[m]), high[m] = fmax(high[m], map->at[i].value[m]);
    }
    fprintf(out, "<div class=\"scroll\" data-map=\"%d\"><table class=\"heatmap\"><caption>", number);
    html_text(out, map->name);
    fputs("</caption><thead><tr><th scope=\"col\">head dim \\ keys</th>", out);
    for (int c = 0; c < columns; c++) fprintf(out, "<th scope=\"col\">%s</th>", grouped(lengths[c], text));
    fputs("</tr></thead><tbody>\n", out);
    for (int l = 0; l < lines; l++) {
        fprintf(out, "<tr><th scope=\"row\">%lld</th>", (long long)dims[l]);
        for (int c = 0; c < columns; c++) {
            const struct place_value *found = NULL;
            for (size_t i = 0; i < map->count; i++)
                if (map->at[i].length == lengths[c] && map->at[i].dim == dims[l]) found = &map->at[i];
            if (found)
                put_place(map, found, low, high, out);
            else
                fputs("<td></td>", out);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

/* Which map, and which metric of it. */
static void put_choices(const struct maps *maps, FILE *out) {
    fputs("<div class=\"tools\" hidden><label>Calls <select data-maps>", out);
    for (int i = 0; i < maps->count; i++) {
        fprintf(out, "<option value=\"%d\">", i);
        html_text(out, maps->map[i].name);
        fputs("</option>", out);
    }
    fputs("</select></label><fieldset data-metrics><legend>Show</legend>", out);
    for (int m = 0; m < METRICS; m++) {
        int any = 0;
        for (int i = 0; i < maps->count; i++)
            for (size_t j = 0; j < maps->map[i].count; j++) any |= isfinite(maps->map[i].at[j].value[m]);
        if (any)
            fprintf(out, "<label><input type=\"radio\" name=\"metric\" value=\"%s\"%s> %s</label>", metrics[m].id,
                    m ? "" : " checked", metrics[m].title);
    }
    fputs("</fieldset></div>\n", out);
}

int report_heat(const struct report *report, FILE *out) {
    struct maps *maps = calloc(1, sizeof *maps);
    if (maps) {
        add_rates(maps, report);
        add_cells(maps, report);
    }
    int failed = !maps || maps->failed;
    if (!failed && maps->count) {
        fputs("<section id=\"heat\" data-nav=\"Heat maps\" data-metric=\"time\"><h2>Length by head dim</h2><p>Where several "
              "calls fall into one field, its worst value is shown; "
              "click it for the slowest of them. A stronger colour is more.</p>\n",
              out);
        put_choices(maps, out);
        for (int i = 0; i < maps->count; i++) put_map(&maps->map[i], i, out);
        if (maps->left_out)
            fprintf(out, "<p class=\"note\">%d rows of further kinds of calls are left out.</p>\n", maps->left_out);
        fputs("</section>\n", out);
    }
    for (int i = 0; maps && i < maps->count; i++) free(maps->map[i].at);
    free(maps);
    if (failed) complain("out of memory");
    return failed ? EXIT_FAILED : EXIT_FINE;
}
