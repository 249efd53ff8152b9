/* SPDX-License-Identifier: Apache-2.0 */
/* Cells in the order in which the matrix has them, so that those of one of its fields stand together. */
#include "report/report.h"

#include <stdlib.h>
#include <string.h>

static const char *const engine_fields[ENGINE_FIELDS] = {"engine", "mode", "device", "isa", "cache"};

const char *engine_text(const json_t *row, int field) {
    return field == ENGINE_FIELDS - 1 ? row_cache(row) : row_text(row, engine_fields[field]);
}

/* By which fields any two rows differ. */
static unsigned differ_by(const json_t *rows) {
    unsigned bits = 0;
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row) for (int field = 0; field < ENGINE_FIELDS; field++)
        if (strcmp(engine_text(row, field), engine_text(json_array_get(rows, 0), field))) bits |= 1u << field;
    return bits;
}

/* The number of a name: those that came before it. */
static int number_of(json_t *names, const char *name) {
    json_t *known = json_object_get(names, name);
    if (known) return (int)json_integer_value(known);
    int number = (int)json_object_size(names);
    json_object_set_new(names, name, json_integer(number));
    return number;
}

static int phase_number(const char *name) {
    int number = 0;
    for (uint32_t bit = 1; bit & TP_QUALIFY_ALL; bit <<= 1, number++)
        if (!strcmp(tp_qualify_phase_name(bit), name)) break;
    return number;
}

static int compare(const void *left, const void *right) {
    const struct report_cell *a = left, *b = right;
    const int both[][2] = {
        {a->model, b->model}, {a->engine, b->engine}, {a->group, b->group}, {a->phase, b->phase}, {b->rank, a->rank}};
    for (size_t i = 0; i < sizeof both / sizeof *both; i++)
        if (both[i][0] != both[i][1]) return both[i][0] < both[i][1] ? -1 : 1;
    return strcmp(row_text(a->row, "problem"), row_text(b->row, "problem"));
}

struct model_order {
    int number, worst;
};

static int worse_first(const void *left, const void *right) {
    const struct model_order *a = left, *b = right;
    return a->worst != b->worst ? b->worst - a->worst : a->number - b->number;
}

/* Models get the numbers of their places, the worst first. */
static int order_models(struct report *report) {
    size_t count = (size_t)report->model_count;
    struct model_order *models = calloc(count + 1, sizeof *models);
    int *place = calloc(count + 1, sizeof *place);
    int failed = !models || !place;
    for (size_t i = 0; !failed && i < count; i++) models[i].number = (int)i;
    for (size_t i = 0; !failed && i < report->cell_count; i++)
        if (models[report->cells[i].model].worst < report->cells[i].rank)
            models[report->cells[i].model].worst = report->cells[i].rank;
    if (!failed) qsort(models, count, sizeof *models, worse_first);
    for (size_t i = 0; !failed && i < count; i++) place[models[i].number] = (int)i;
    for (size_t i = 0; !failed && i < report->cell_count; i++) report->cells[i].model = place[report->cells[i].model];
    free(models);
    free(place);
    return failed;
}

int report_order(struct report *report) {
    json_t *rows = report->rows[ROWS_CELL], *row;
    json_t *models = json_object(), *engines = json_object(), *groups = json_object(), *sorted = json_array();
    size_t i;
    report->cell_count = json_array_size(rows);
    report->cells = calloc(report->cell_count + 1, sizeof *report->cells);
    int failed = !models || !engines || !groups || !sorted || !report->cells;
    if (!failed) json_array_foreach(rows, i, row) {
            struct report_cell *cell = &report->cells[i];
            char name[1024];
            int32_t status = TP_CELL_NOT_RUN;
            tp_cell_status_parse(row_text(row, "status"), &status);
            snprintf(name, sizeof name, "%.200s\n%.100s\n%.200s\n%.200s\n%.100s", row_text(row, "engine"),
                     row_text(row, "mode"), row_text(row, "device"), row_text(row, "isa"), row_cache(row));
            int engine = number_of(engines, name), model = number_of(models, row_text(row, "model"));
            snprintf(name, sizeof name, "%d %.100s %.800s", model, row_text(row, "part"), row_text(row, "layers"));
            *cell = (struct report_cell){row,
                                         status,
                                         tp_cell_status_rank((tp_cell_status)status),
                                         model,
                                         engine,
                                         number_of(groups, name),
                                         phase_number(row_text(row, "phase"))};
        }
    report->model_count = (int)json_object_size(models);
    report->engine_count = (int)json_object_size(engines);
    report->engine_apart = differ_by(rows);
    failed = failed || order_models(report);
    if (!failed) qsort(report->cells, report->cell_count, sizeof *report->cells, compare);
    for (i = 0; !failed && i < report->cell_count; i++) failed = json_array_append(sorted, (json_t *)report->cells[i].row);
    json_decref(models);
    json_decref(engines);
    json_decref(groups);
    if (failed) {
        json_decref(sorted);
        complain("out of memory");
        return EXIT_FAILED;
    }
    json_decref(rows); /* the sorted list holds every row */
    report->rows[ROWS_CELL] = sorted;
    return EXIT_FINE;
}
