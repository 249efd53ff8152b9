/* SPDX-License-Identifier: Apache-2.0 */
/* Models by phases: a button for the cells of a layer group in a phase. Engines side by side. */
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PHASES = 6 }; /* the last: names that this tool does not know */

static const char *phase_title(const struct report *report, int phase) {
    if (phase < PHASES - 1) return tp_qualify_phase_name(1u << phase);
    for (size_t i = 0; i < report->cell_count; i++)
        if (report->cells[i].phase == phase) return row_text(report->cells[i].row, "phase");
    return "";
}

static int same_row(const struct report_cell *a, const struct report_cell *b) {
    return a->model == b->model && a->engine == b->engine && a->group == b->group;
}

/* The cells from one on that belong to its group and phase; the first is the worst. */
static size_t run_length(const struct report *report, size_t from) {
    size_t count = 1;
    while (from + count < report->cell_count && same_row(&report->cells[from], &report->cells[from + count]) &&
           report->cells[from].phase == report->cells[from + count].phase)
        count++;
    return count;
}

static void put_button(const struct report *report, size_t from, size_t count, int with_time, FILE *out) {
    char kernels[64] = "", text[48];
    double gain = NAN, time = NAN;
    struct status_look look = status_look(report->cells[from].status);
    for (size_t i = from; i < from + count; i++) {
        const json_t *row = report->cells[i].row;
        const char *kernel = row_text(row, "kernel");
        add_name(kernels, sizeof kernels, *kernel ? kernel : row_text(row, "observed"));
        if (row_number(row, "gain_over_math") > 0) gain = row_number(row, "gain_over_math");
        if (row_number(row, "time_ns") > 0) time = row_number(row, "time_ns");
    }
    fprintf(
        out,
        "<td data-v=\"%d\"><button class=\"cell %s\" data-set=\"cell\" data-row=\"%zu\" data-count=\"%zu\"><b>%s</b> %s<small>",
        report->cells[from].rank, look.css, from, count, look.letter, look.word);
    html_text(out, *kernels ? kernels : "no kernel");
    fprintf(out, " \xC2\xB7 %zu", count);
    number_text(with_time ? time : gain, with_time ? FORM_NS : FORM_TIMES, text);
    if (*text) fprintf(out, " \xC2\xB7 %s", text);
    fputs("</small></button></td>", out);
}

static int caches_alone(const struct report *report) { return report->engine_apart == 1u << (ENGINE_FIELDS - 1); }

/* What tells an engine from the others here; what all have in common is on click and in the last part of the page. */
static void put_engine(const struct report *report, const json_t *row, FILE *out) {
    int shown = 0;
    for (int field = 0; field < ENGINE_FIELDS; field++) {
        const char *text = engine_text(row, field);
        int cache = field == ENGINE_FIELDS - 1;
        if (!(report->engine_apart & 1u << field) || !*text || (shown && cache && !strcmp(text, "plain"))) continue;
        if (shown) fputs(cache ? " <small>cache " : " <small>", out);
        html_text(out, text);
        if (shown++) fputs("</small>", out);
    }
}

static void put_place(const struct report *report, const json_t *row, int engine, FILE *out) {
    html_element(out, "th scope=\"row\"", NULL, row_text(row, "model"));
    if (engine) {
        fputs("<td class=\"layers\">", out);
        put_engine(report, row, out);
        fputs("</td>", out);
    }
    fputs("<td class=\"layers\">", out);
    html_text(out, row_text(row, "part"));
    fputs(" ", out);
    html_text(out, row_text(row, "layers"));
    fputs("</td>", out);
}

/* Filter and status: what the script looks at is the row's letters. */
static void put_tools(const struct report *report, FILE *out) {
    fputs("<div class=\"tools\" hidden><label>Filter <input type=\"search\" data-filter=\"matrix\" placeholder=\"model, layers, "
          "kernel\"></label>"
          "<label>Status <select data-status=\"matrix\"><option value=\"\">all</option>",
          out);
    for (int status = 0; status <= TP_CELL_NUMERICS_CHANGED; status++) {
        size_t count = 0;
        for (size_t i = 0; i < report->cell_count; i++) count += report->cells[i].status == status;
        struct status_look look = status_look(status);
        if (count) fprintf(out, "<option value=\"%s\">%s %s (%zu)</option>", look.letter, look.letter, look.word, count);
    }
    fputs("</select></label><output data-shown=\"matrix\"></output></div>\n", out);
}

int report_matrix(const struct report *report, FILE *out) {
    int seen[PHASES] = {0};
    if (!report->cell_count) return EXIT_FINE;
    for (size_t i = 0; i < report->cell_count; i++) seen[report->cells[i].phase]++;
    fputs("<section id=\"cell\" data-nav=\"Matrix\"><h2>What is served, and how</h2><p>A row for each layer group, the worst "
          "model first; a field for each phase: "
          "its worst status, the kernels, how many cells, and the gain over materialised scores. Click a field for its cells: "
          "every refusal, "
          "the error beside its bound, tiles, bytes, and a line that repeats it.</p>\n",
          out);
    put_tools(report, out);
    fputs("<div class=\"scroll\"><table id=\"matrix\" class=\"matrix\"><thead><tr><th scope=\"col\">model</th>", out);
    if (report->engine_count > 1) html_element(out, "th scope=\"col\"", NULL, caches_alone(report) ? "cache" : "engine");
    fputs("<th scope=\"col\">layers</th>", out);
    for (int phase = 0; phase < PHASES; phase++)
        if (seen[phase]) html_element(out, "th scope=\"col\"", NULL, phase_title(report, phase));
    fputs("</tr></thead><tbody>\n", out);
    for (size_t i = 0, count; i < report->cell_count;) {
        const struct report_cell *first = &report->cells[i];
        size_t end = i;
        fputs("<tr data-letters=\"", out);
        for (; end < report->cell_count && same_row(first, &report->cells[end]); end += run_length(report, end))
            fputs(status_look(report->cells[end].status).letter, out);
        fputs("\">", out);
        put_place(report, first->row, report->engine_count > 1, out);
        for (int phase = 0; phase < PHASES; phase++) {
            if (!seen[phase]) continue;
            if (i == end || report->cells[i].phase != phase) {
                fputs("<td data-v=\"-1\"></td>", out);
                continue;
            }
            count = run_length(report, i);
            put_button(report, i, count, 0, out);
            i += count;
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div></section>\n", out);
    return EXIT_FINE;
}

/* The run of cells of an engine in the place and phase of another cell; count 0: none */
static size_t find_run(const struct report *report, const struct report_cell *like, int engine, size_t *count) {
    *count = 0;
    for (size_t i = (size_t)(like - report->cells); i < report->cell_count && report->cells[i].model == like->model; i++)
        if (report->cells[i].engine == engine && report->cells[i].group == like->group && report->cells[i].phase == like->phase) {
            *count = run_length(report, i);
            return i;
        }
    return 0;
}

/* Nobody before it in its model has its group and phase. */
static int first_of_place(const struct report *report, size_t at) {
    const struct report_cell *cell = &report->cells[at];
    for (size_t i = at; i-- && report->cells[i].model == cell->model;)
        if (report->cells[i].group == cell->group && report->cells[i].phase == cell->phase) return 0;
    return 1;
}

static void put_engine_names(const struct report *report, FILE *out) {
    for (int engine = 0; engine < report->engine_count; engine++)
        for (size_t i = 0; i < report->cell_count; i++) {
            const json_t *row = report->cells[i].row;
            if (report->cells[i].engine != engine) continue;
            fputs("<th scope=\"col\">", out);
            put_engine(report, row, out);
            fputs("</th>", out);
            break;
        }
}

int report_engines(const struct report *report, FILE *out) {
    if (report->engine_count < 2) return EXIT_FINE;
    fputs(caches_alone(report)
              ? "<section id=\"engines\" data-nav=\"Caches\"><h2>Caches side by side</h2><p>The same cells from each cache:"
              : "<section id=\"engines\" data-nav=\"Engines\"><h2>Engines side by side</h2><p>The same cells by each engine:",
          out);
    fputs(" worst status, the kernel that was observed, how many cells, and the time of the main one.</p>\n<div "
          "class=\"scroll\"><table "
          "class=\"matrix\"><thead><tr><th "
          "scope=\"col\">model</th><th "
          "scope=\"col\">layers</th><th scope=\"col\">phase</th>",
          out);
    put_engine_names(report, out);
    fputs("</tr></thead><tbody>\n", out);
    for (size_t i = 0; i < report->cell_count; i++) {
        if (!first_of_place(report, i)) continue;
        fputs("<tr>", out);
        put_place(report, report->cells[i].row, 0, out);
        html_element(out, "td", "layers", row_text(report->cells[i].row, "phase"));
        for (int engine = 0; engine < report->engine_count; engine++) {
            size_t count, at = find_run(report, &report->cells[i], engine, &count);
            if (count)
                put_button(report, at, count, 1, out);
            else
                fputs("<td data-v=\"-1\"></td>", out);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div></section>\n", out);
    return EXIT_FINE;
}
