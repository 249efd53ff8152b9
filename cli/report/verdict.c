/* SPDX-License-Identifier: Apache-2.0 */
/* The first screen: is it fit, how far can this host be trusted, and what each other file says in a line. */
#include "report/report.h"

#include <math.h>
#include <string.h>

#include "harness/verdict.h"

enum { STATUSES = TP_CELL_NUMERICS_CHANGED + 1 };

struct evidence {
    size_t count[STATUSES], bad;
    double worst_share;
    size_t worst_at;
    double gain; /* geometric mean; 0: none was measured */
    double loss; /* the largest of quantised caches; 0: there are none */
    size_t loss_at;
};

static struct evidence sum_up(const struct report *report) {
    struct evidence sum = {.worst_share = -1};
    double logs = 0, timed = 0;
    for (size_t i = 0; i < report->cell_count; i++) {
        const struct report_cell *cell = &report->cells[i];
        double share = row_number(cell->row, "error") / row_number(cell->row, "allowed");
        double gain = row_number(cell->row, "gain_over_math");
        sum.count[cell->status]++;
        sum.bad += cell->rank > 1;
        if (isfinite(share) && share > sum.worst_share) sum.worst_share = share, sum.worst_at = i;
        if (gain > 0) logs += log(gain), timed++;
        if (row_number(cell->row, "loss") > sum.loss) sum.loss = row_number(cell->row, "loss"), sum.loss_at = i;
    }
    if (timed > 0) sum.gain = exp(logs / timed);
    return sum;
}

static void card(FILE *out, const char *css, const char *title) {
    fprintf(out, "<li class=\"card %s\"><h3>%s</h3><p>", css, title);
}

static void put_cells(const struct report *report, const struct evidence *sum, FILE *out) {
    card(out, sum->bad ? "bad" : "good", "Evidence");
    for (int status = 0; status < STATUSES; status++)
        if (sum->count[status]) {
            html_status(out, status);
            fprintf(out, " %zu<br>", sum->count[status]);
        }
    if (sum->worst_share >= 0) {
        char text[48];
        number_text(sum->worst_share, FORM_SHARE, text);
        fprintf(out, "Largest error: <button class=\"link\" data-set=\"cell\" data-row=\"%zu\">%s of what is allowed</button>",
                sum->worst_at, text);
    }
    if (sum->loss > 0) {
        char text[48];
        number_text(sum->loss, FORM_SHARE, text);
        fprintf(out,
                "<br>Lost in quantising, apart from that: <button class=\"link\" data-set=\"cell\" data-row=\"%zu\">%s of a "
                "row's greatest value</button>",
                sum->loss_at, text);
    }
    fprintf(out, "</p></li>\n");
    if (report->rows[ROWS_CHANGE] || report->rows[ROWS_HISTORY]) {
        size_t changes = json_array_size(report->rows[ROWS_CHANGE]);
        card(out, changes ? "doubt" : "good", "Since an earlier lock");
        fprintf(out, changes ? "<a href=\"#change\">%zu difference%s</a></p></li>\n" : "Nothing differs.</p></li>\n", changes,
                changes == 1 ? "" : "s");
    }
}

static size_t count_if(const json_t *rows, const char *field, const char *text) {
    size_t i, count = 0;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row) count += row_is(row, field, text);
    return count;
}

static void add_controls(const json_t *rows, struct trust *trust, size_t *disturbed) {
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row) {
        struct interval control = {log(row_number(row, "aa_low")), log(row_number(row, "aa_ratio")),
                                   log(row_number(row, "aa_high"))};
        if (isfinite(control.low) && isfinite(control.middle) && isfinite(control.high)) trust_add(trust, control);
        *disturbed += *row_text(row, "disturbed") && !row_is(row, "disturbed", "no");
    }
}

/* What the A/A controls say; without any, that nothing does. */
static void put_trust(const struct report *report, const struct evidence *sum, FILE *out) {
    struct trust trust = {0};
    char text[256];
    size_t disturbed = 0, timed = json_array_size(report->rows[ROWS_RATE]) + json_array_size(report->rows[ROWS_AGAINST]);
    add_controls(report->rows[ROWS_RATE], &trust, &disturbed);
    add_controls(report->rows[ROWS_AGAINST], &trust, &disturbed);
    size_t peers = json_array_size(report->rows[ROWS_PEER]),
           untrusted = count_if(report->rows[ROWS_PEER], "verdict", "untrusted");
    int trusted = trust.controls && trust_line(&trust, text, sizeof text);
    card(out, trusted && !untrusted ? "good" : "doubt", "How far can times of this host be trusted?");
    if (trust.controls)
        html_text(out, text);
    else
        fputs("No file has an A/A control: nothing says how steady this host is, so times are hints.", out);
    if (timed) fprintf(out, "<br>%zu of %zu timed rows were disturbed by others", disturbed, timed);
    if (peers) fprintf(out, "<br>%zu of %zu comparisons with peers failed their control", untrusted, peers);
    if (sum->count[TP_CELL_MISTRUSTED])
        fprintf(out, "<br>%zu cells could not have failed: they prove nothing", sum->count[TP_CELL_MISTRUSTED]);
    fputs("</p></li>\n", out);
}

static void put_speed(const struct report *report, const struct evidence *sum, FILE *out) {
    const json_t *peers = report->rows[ROWS_PEER], *goals = report->rows[ROWS_GOAL];
    if (sum->gain > 0) {
        card(out, "plain", "Speed of the models' cells");
        fprintf(out, "<strong>%.2f \xC3\x97</strong> as fast as materialised scores, the geometric mean</p></li>\n", sum->gain);
    }
    if (peers) {
        card(out, "plain", "Other libraries");
        fprintf(out,
                "<a href=\"#peer\">ahead in <strong>%zu</strong>, behind in <strong>%zu</strong>, even in "
                "<strong>%zu</strong></a></p></li>\n",
                count_if(peers, "verdict", "ahead"), count_if(peers, "verdict", "behind"), count_if(peers, "verdict", "even"));
    }
    if (goals) {
        size_t met = count_if(goals, "floor_met", "met"), missed = count_if(goals, "floor_met", "not met");
        card(out, missed ? "bad" : "good", "Goals");
        fprintf(out, "<a href=\"#goal\">%zu of %zu floors are met</a></p></li>\n", met, json_array_size(goals));
    }
}

static void put_headline(const struct report *report, const struct evidence *sum, FILE *out) {
    if (!report->cell_count) {
        fputs("<p class=\"verdict none\">No qualification</p><p>None of the files holds cells of <code>tileproof qualify</code> "
              "or a "
              "lock, so nothing here says whether a result is right.</p>\n",
              out);
        return;
    }
    if (sum->bad)
        fprintf(out,
                "<p class=\"verdict bad\">FAIL</p><p><strong>%zu of %zu cells</strong> of %d model%s must not be served as they "
                "are.</p>\n",
                sum->bad, report->cell_count, report->model_count, report->model_count == 1 ? "" : "s");
    else
        fprintf(out,
                "<p class=\"verdict good\">PASS</p><p>All <strong>%zu cells</strong> of %d model%s are served and right.</p>\n",
                report->cell_count, report->model_count, report->model_count == 1 ? "" : "s");
}

int report_verdict(const struct report *report, FILE *out) {
    struct evidence sum = sum_up(report);
    fputs("<section id=\"verdict\" aria-label=\"Verdict\"><div class=\"headline\">", out);
    put_headline(report, &sum, out);
    fputs("</div><ul class=\"cards\">\n", out);
    if (report->cell_count) put_cells(report, &sum, out);
    put_trust(report, &sum, out);
    put_speed(report, &sum, out);
    fputs("</ul></section>\n", out);
    return EXIT_FINE;
}
