/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plots of cli/plot, drawn by gnuplot into a folder of their own and taken into the page: without the head of an XML file,
 * with ids that no other chart has, and only if every element is one that charts are made of.
 */
#include "report/report.h"

#include <math.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool/files.h"

enum { MAX_SVG = 8 << 20, MAX_LATENCIES = 40 };

static int name_is(const char *name, size_t length, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == length && !memcmp(names[i], name, length)) return 1;
    return 0;
}

/* gnuplot escapes texts. Should it ever not, what comes of it is no part of the page: no elements but these, no attribute with
   code. */
static int svg_is_plain(const char *svg) {
    static const char *const elements[] = {
        "svg",  "g",        "path",  "text", "tspan",  "use",     "circle",      "rect",    "polygon",        "polyline", "line",
        "defs", "clipPath", "title", "desc", "filter", "feFlood", "feComposite", "pattern", "linearGradient", "stop"};
    for (const char *at = svg; (at = strchr(at, '<')); at++) {
        const char *name = at + 1 + (at[1] == '/');
        size_t length = strcspn(name, " \t\r\n/>");
        const char *end = strchr(name, '>');
        if (!strncmp(at, "<!--", 4)) continue;
        if (!end || !name_is(name, length, elements, sizeof elements / sizeof *elements)) return 0;
        for (const char *c = name; c < end; c++) /* onload= and the like */
            if (strchr(" \t\r\n\"'", c[0]) && !strncasecmp(c + 1, "on", 2) &&
                strchr(" =", c[3 + strspn(c + 3, "abcdefghijklmnopqrstuvwxyz")]))
                return 0;
    }
    return 1;
}

/* Blanks once; ids and references to them begin with the chart's name; the frame's white background goes. */
static void put_svg(const char *svg, const char *name, const char *title, FILE *out) {
    static const char *const ids[] = {"id='", "id=\"", "href='#", "href=\"#", "url(#"};
    static const char background[] = " fill=\"#ffffff\"";
    int after_blank = 1;
    const char *head_end = strchr(svg, '>');
    fputs("<svg role=\"img\" aria-label=\"", out);
    html_text(out, title);
    fputc('"', out);
    const char *box = strstr(svg, "viewBox=");
    if (box && head_end && box < head_end) fprintf(out, " viewBox=\"%.*s\"", (int)strcspn(box + 9, "\""), box + 9);
    for (const char *at = head_end ? head_end : ""; *at; at++) {
        size_t i = 0;
        if (!strncmp(at, background, sizeof background - 1)) {
            fputs(" fill=\"none\"", out);
            at += sizeof background - 2;
            continue;
        }
        while (i < sizeof ids / sizeof *ids && strncmp(at, ids[i], strlen(ids[i]))) i++;
        if (i < sizeof ids / sizeof *ids) {
            fprintf(out, "%s%s-", ids[i], name);
            at += strlen(ids[i]) - 1;
            after_blank = 0;
            continue;
        }
        int blank = strchr(" \t\r\n", *at) != NULL;
        if (!blank || !after_blank) fputc(blank ? *at == '\n' ? '\n' : ' ' : *at, out);
        after_blank = blank;
    }
}

struct drawing {
    struct report *report;
    FILE *out;
    char folder[1024];
    int number;
};

/* Draws one plot of these rows; a chart that cannot be made is said in its place. */
static int draw(struct drawing *d, const struct plot *plot, const struct plot_rows *rows, const char *summary) {
    struct series_list *list = calloc(1, sizeof *list);
    char origin[256], path[1100], name[64];
    int any, code = EXIT_FINE;
    if (!list || plot_collect(plot, rows, list, &any)) {
        complain("no memory for the plot '%s'", plot->name);
        code = EXIT_FAILED;
    } else if (list->count && !d->report->no_gnuplot) {
        snprintf(path, sizeof path, "%s/chart.svg", d->folder);
        snprintf(name, sizeof name, "c%d", d->number++);
        plot_origin(rows, plot->kind, origin, sizeof origin);
        code = plot_draw_svg(plot, list, origin, path);
        size_t size;
        char *svg = code ? NULL : file_text(path, MAX_SVG, &size), *begin = svg ? strstr(svg, "<svg") : NULL;
        unlink(path);
        if (code == EXIT_REFUSED) d->report->no_gnuplot = 1, code = EXIT_FINE;
        if (begin && svg_is_plain(begin)) {
            if (summary) fputs("<details open><summary>", d->out), html_text(d->out, summary), fputs("</summary>", d->out);
            fputs("<figure class=\"chart scroll\">", d->out);
            put_svg(begin, name, plot->title, d->out);
            fputs(summary ? "</figure></details>\n" : "</figure>\n", d->out);
        } else if (!code && !d->report->no_gnuplot) {
            fprintf(d->out, "<p class=\"note\">The chart '%s' could not be made.</p>\n", plot->name);
        }
        free(svg);
        if (!code && list->left_out)
            fprintf(d->out, "<p class=\"note\">%d further series are left out of this chart; the table has all rows.</p>\n",
                    list->left_out);
    }
    if (list) plot_series_free(list);
    free(list);
    return code;
}

static const struct plot *plot_named(const char *name) {
    for (int i = 0; plot_at(i); i++)
        if (!strcmp(plot_at(i)->name, name)) return plot_at(i);
    return NULL;
}

static int same_chart(const struct plot_row *a, const struct plot_row *b) {
    return a->kind == KIND_PEER && b->kind == KIND_PEER && !strcmp(a->peer, b->peer) && !strcmp(a->host, b->host) &&
           !strcmp(a->date, b->date);
}

/* A chart for each peer, host and day: it fits a screen, and its ratios can be held against each other. */
static int draw_peers(struct drawing *d) {
    const struct plot_rows *all = &d->report->drawn;
    int code = EXIT_FINE;
    for (size_t i = 0; !code && i < all->count; i++) {
        const struct plot_row *row = &all->row[i];
        struct plot_rows one = {0};
        char summary[320];
        size_t j = 0;
        while (j < i && !same_chart(&all->row[j], row)) j++;
        if (row->kind != KIND_PEER || j < i) continue;
        for (j = i; !code && j < all->count; j++)
            if (same_chart(&all->row[j], row)) code = plot_add_row(&one, &all->row[j]);
        snprintf(summary, sizeof summary, "%s%s%s%s%s", row->peer, *row->host ? ", " : "", row->host, *row->date ? ", " : "",
                 row->date);
        if (!code) code = draw(d, plot_named("peers"), &one, summary);
        free(one.row);
    }
    return code;
}

/* Rows with quantiles, in the units of their fields. */
static int draw_latency(struct drawing *d, enum row_kind kind) {
    int trace = kind == ROWS_TRACE, code = EXIT_FINE;
    double to_ms = trace ? 1e3 : 1e-6;
    struct plot_rows rows = {0};
    json_t *row;
    size_t i;
    json_array_foreach(d->report->rows[kind], i, row) {
        struct plot_row one = {.kind = KIND_LATENCY};
        one.p50 = to_ms * row_number(row, trace ? "p50_s" : "p50_ns");
        one.p90 = to_ms * row_number(row, trace ? "p90_s" : "p90_ns");
        one.p99 = to_ms * row_number(row, trace ? "p99_s" : "p99_ns");
        if (!(one.p50 > 0 && one.p90 >= one.p50 && one.p99 >= one.p90 && isfinite(one.p99)) || rows.count == MAX_LATENCIES)
            continue;
        /* "-" of a trace: its calls name no model */
        int quantised = !trace && strcmp(row_cache(row), "plain");
        snprintf(one.problem, sizeof one.problem, "%.40s%s%.40s %.60s %.30s%s%.40s",
                 row_is(row, "model", "-") ? "" : row_text(row, "model"), row_is(row, "model", "-") ? "" : " ",
                 row_text(row, trace ? "kernel" : "phase"), row_text(row, trace ? "class" : "bucket"),
                 trace ? "" : row_text(row, "kernel"), quantised ? ", cache " : "", quantised ? row_cache(row) : "");
        snprintf(one.host, sizeof one.host, "%s", row_text(row, "host"));
        snprintf(one.date, sizeof one.date, "%.10s", row_text(row, "date"));
        if (!code) code = plot_add_row(&rows, &one);
    }
    if (!code && rows.count) code = draw(d, plot_named("latency"), &rows, trace ? "calls of a trace" : "steps of a replay");
    free(rows.row);
    return code;
}

static int draw_latencies(struct drawing *d) {
    int code = draw_latency(d, ROWS_REPLAY);
    return code ? code : draw_latency(d, ROWS_TRACE);
}

/* A part of the page: charts, then the tables of these kinds of rows. It is there when one of them has rows. */
static const struct part {
    const char *id, *nav, *title, *plots[4];
    int (*draw)(struct drawing *d); /* more charts, or NULL */
    enum row_kind kinds[3];         /* ROW_KINDS ends them */
} parts[] = {
    {"speed",
     "Speed",
     "Speed beside this host's limits",
     {"roofline", "rate-length", "rate-head-dim"},
     NULL,
     {ROWS_RATE, ROWS_AGAINST, ROW_KINDS}},
    {"use",
     "Memory",
     "Bytes and memory against materialised scores",
     {"bytes-length", "memory-length"},
     NULL,
     {ROWS_BYTES, ROWS_MEMORY, ROW_KINDS}},
    {"latency", "Latency", "Latencies", {NULL}, draw_latencies, {ROWS_REPLAY, ROWS_TRACE, ROW_KINDS}},
    {"peers", "Peers", "Beside other libraries", {NULL}, draw_peers, {ROWS_PEER, ROW_KINDS}},
    {"goals", "Goals", "Goals and cliffs", {NULL}, NULL, {ROWS_GOAL, ROWS_CLIFF, ROW_KINDS}},
};

static int draw_part(struct drawing *d, const struct part *part) {
    int any = 0, code = EXIT_FINE;
    for (int i = 0; part->kinds[i] != ROW_KINDS; i++) any |= json_array_size(d->report->rows[part->kinds[i]]) > 0;
    if (!any) return EXIT_FINE;
    fprintf(d->out, "<section id=\"%s\" data-nav=\"%s\"><h2>%s</h2>\n", part->id, part->nav, part->title);
    for (int i = 0; !code && part->plots[i]; i++) code = draw(d, plot_named(part->plots[i]), &d->report->drawn, NULL);
    if (!code && part->draw) code = part->draw(d);
    if (d->report->no_gnuplot && (part->draw || part->plots[0]))
        fputs("<p class=\"note\">Charts are not drawn here: gnuplot was not found where this report was made (Debian: "
              "gnuplot-nox). The tables "
              "have the figures.</p>\n",
              d->out);
    for (int i = 0; !code && part->kinds[i] != ROW_KINDS; i++) code = report_table(d->report, part->kinds[i], d->out);
    fputs("</section>\n", d->out);
    return code;
}

int report_charts(struct report *report, FILE *out) {
    struct drawing d = {.report = report, .out = out};
    const char *temporary = getenv("TMPDIR");
    int code = EXIT_FINE;
    if (snprintf(d.folder, sizeof d.folder, "%s/tileproof-report-XXXXXX", temporary && *temporary ? temporary : "/tmp") >=
            (int)sizeof d.folder ||
        !mkdtemp(d.folder)) {
        complain("a folder for charts: %s: %s; TMPDIR says where", d.folder, strerror(errno));
        return EXIT_FAILED;
    }
    for (size_t i = 0; !code && i < sizeof parts / sizeof *parts; i++) code = draw_part(&d, &parts[i]);
    rmdir(d.folder);
    return code;
}
