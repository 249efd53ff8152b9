/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine did, a row for each layer group and phase. */
#include "qualify/qualify.h"

#include <math.h>
#include <string.h>

struct engine_row {
    int status, cells;
    double share, peak, time_ns;                  /* largest error over what was allowed; largest memory; of the timed cell */
    int32_t contained, deterministic, empty_rows; /* the worst that was seen */
    const char *reason;                           /* of the worst cell */
    char kernels[96];
};

static void worst(int32_t *property, int32_t seen) {
    if (seen > *property) *property = seen;
}

static struct engine_row sum(const struct qualification *all, int model, int group, uint32_t phase) {
    struct engine_row row = {.status = TP_CELL_QUALIFIED, .reason = ""};
    for (int64_t i = 0; i < all->use_count; i++) {
        tp_qualify_use use = qualification_use(all, i);
        const tp_cell *cell = tp_qualification_cell(all->q, use.cell);
        if (use.model != model || use.group != group || use.phase != phase) continue;
        row.cells++;
        if (cell_rank(cell->status) > cell_rank(row.status)) row.status = cell->status, row.reason = cell->reason;
        if (cell->allowed > 0) row.share = fmax(row.share, cell->error / cell->allowed);
        if (cell->timed && cell->time_ns > 0) row.time_ns = cell->time_ns;
        row.peak = fmax(row.peak, (double)cell->temporary);
        add_name(row.kernels, sizeof row.kernels, cell->kernel[0] ? cell->kernel : cell->observed);
        worst(&row.contained, cell->contained);
        worst(&row.deterministic, cell->deterministic);
        worst(&row.empty_rows, cell->empty_rows);
    }
    return row;
}

/* Three digits or more, never with an exponent. */
static const char *readable_time(double time_ns, char text[32]) {
    double ms = time_ns * 1e-6;
    snprintf(text, 32, ms >= 100 ? "%.0f ms" : "%.3g ms", ms);
    return time_ns > 0 ? text : "";
}

static void print_row(const char *model, const char *place, uint32_t phase, const struct engine_row *row) {
    char memory[32] = "", time[32];
    if (row->peak > 0) readable_bytes(row->peak, memory);
    printf("| %s | %s | %s | %s | %s %d | %.0f %% | %s | %s | %s | %s | %s |\n", model, place, tp_qualify_phase_name(phase),
           row->kernels[0] ? row->kernels : "none", tp_cell_status_name((tp_cell_status)row->status), row->cells,
           100 * row->share, memory, readable_time(row->time_ns, time), tp_kept_name((tp_kept)row->contained),
           tp_kept_name((tp_kept)row->deterministic), tp_kept_name((tp_kept)row->empty_rows));
}

enum { INDENT = 13, KERNEL = 20 };

/* Below the figures. */
static void print_below(const char *text) {
    printf("%*s", INDENT, "");
    print_wrapped(stdout, INDENT, INDENT, text);
}

/* For a terminal: figures, then what is not as one wishes. */
static void print_lines(uint32_t phase, const struct engine_row *row) {
    char memory[32] = "", time[32], share[16] = "", lost[128];
    const char *kernels = row->kernels[0] ? row->kernels : "none";
    if (row->peak > 0) readable_bytes(row->peak, memory);
    if (row->share > 0) snprintf(share, sizeof share, "%.0f%%", 100 * row->share);
    int below = strlen(kernels) > KERNEL; /* a long name stands on lines of its own */
    printf("  %-10s %-*s %-18s %5s %10s %9s\n", tp_qualify_phase_name(phase), KERNEL, below ? "" : kernels,
           tp_cell_status_name((tp_cell_status)row->status), share, memory, readable_time(row->time_ns, time));
    if (below) print_below(kernels);
    if (*row->reason) print_below(row->reason);
    snprintf(lost, sizeof lost, "%s%s%s", row->contained > TP_KEPT_YES ? "; NaN in hidden keys leaks" : "",
             row->deterministic > TP_KEPT_YES ? "; bits vary" : "",
             row->empty_rows > TP_KEPT_YES ? "; rows without keys are not 0" : "");
    if (lost[0]) print_below(lost + 2);
}

static void print_groups(const struct qualification *all, int whole) {
    for (int i = 0; i < all->model_count; i++)
        for (int j = 0; j < all->models[i]->group_count; j++) {
            const tp_layer_group *group = all->models[i]->groups[j];
            const char *model = all->models[i]->label;
            char layers[8 * TP_MODEL_MAX_LAYERS], place[8 * TP_MODEL_MAX_LAYERS + 16];
            int first = 1;
            tp_layer_group_layers(group, layers, sizeof layers);
            snprintf(place, sizeof place, "%s %s", tp_part_name((tp_part)group->part), layers);
            for (uint32_t phase = 1; phase & TP_QUALIFY_ALL; phase <<= 1) {
                struct engine_row row = sum(all, i, j, phase);
                if (!row.cells) continue;
                if (whole) {
                    print_row(model, place, phase, &row);
                    continue;
                }
                if (first) printf("%s, %s\n", model, place);
                first = 0;
                print_lines(phase, &row);
            }
        }
}

void qualify_engine_table(const struct qualification *all, int whole) {
    const struct greeting *engine = &all->engine->greeting;
    printf("%s on %s%s%s:", engine->name, engine->device, engine->mode[0] ? ", " : "", engine->mode);
    for (const char *at = engine->versions; *at; at += strcspn(at, "\n") + (at[strcspn(at, "\n")] == '\n'))
        printf(" %.*s", (int)strcspn(at, "\n"), at);
    if (whole)
        printf("\n\n| model | layers | phase | kernel observed | status, cells | error | temporary | time | contained | "
               "deterministic | empty rows |\n|---|---|---|---|---|---:|---:|---:|---|---|---|\n");
    else
        printf("\n\n  %-10s %-*s %-18s %5s %10s %9s\n", "phase", KERNEL, "kernel observed", "worst status", "error", "temporary",
               "time");
    print_groups(all, whole);
    printf("%serror: the largest, of what is allowed: twice a naive kernel's in that dtype\n"
           "temporary: the largest of a row's cells\n",
           whole ? "\n" : "");
}
