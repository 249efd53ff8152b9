/* SPDX-License-Identifier: Apache-2.0 */
/* What changed since an earlier report: the fleet's mean, and each model's tail. */
#include "tool/files.h"
#include "replay/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct before {
    const char *model, *phase, *bucket, *kernel;
    double p99;
};

#define AT(name) offsetof(struct before, name)
static const struct line_field fields[] = {
    {"model", LINE_TEXT, AT(model), 0, 63, 0},   {"phase", LINE_TEXT, AT(phase), 0, 63, 0},
    {"bucket", LINE_TEXT, AT(bucket), 0, 63, 0}, {"kernel", LINE_TEXT, AT(kernel), 0, 63, 0},
    {"p99_ns", LINE_REAL, AT(p99), 0, INT64_MAX, 0},
};
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

static int wrong(const char *path, const char *reason) {
    complain("%s: %s", path, reason);
    return EXIT_USAGE;
}

static void print_row(const struct replay *replay, const struct row *row, const struct before *before) {
    printf("  %s %s %s: p99 x%.3g, %.4g -> %.4g ms", replay->requests->model[row->model], phase_names[row->phase],
           row->bucket, row->p99 / before->p99, before->p99 / 1e6, row->p99 / 1e6);
    if (strcmp(before->kernel, row->kernel)) printf(", kernel %s -> %s", before->kernel, row->kernel);
    printf("%s\n", row->fallback ? ", a FALLBACK" : "");
}

static int check(const struct options *options, const json_t *report) {
    const char *path = options->against;
    const json_t *format = json_object_get(report, "format"), *list = json_object_get(report, "rows");
    double mean = json_number_value(json_object_get(report, "fleet_mean_ns"));
    size_t at;
    json_t *object;
    struct before before;
    char reason[LINES_REASON];
    if (!json_is_string(format) || strcmp(json_string_value(format), "tileproof.replay/1"))
        return wrong(path, "field 'format': it must be \"tileproof.replay/1\", as replay -o writes it");
    if (json_is_true(json_object_get(report, "modelled")) != options->modelled)
        return wrong(path, "field 'modelled': measured and modelled costs cannot be compared");
    if (!(mean > 0) || !isfinite(mean)) return wrong(path, "field 'fleet_mean_ns': it must be a number above 0");
    if (!json_is_array(list)) return wrong(path, "field 'rows': it must be an array");
    json_array_foreach(list, at, object) {
        if (line_fields(fields, FIELD_COUNT, object, &before, reason)) return wrong(path, reason);
    }
    return EXIT_FINE;
}

int report_read(const struct options *options, json_t **report) {
    size_t size;
    json_error_t broken;
    *report = NULL;
    if (!options->against) return EXIT_FINE;
    char *text = file_text(options->against, LINES_MAX_BYTES, &size);
    if (!text) return EXIT_USAGE;
    *report = json_loadb(text, size, JSON_REJECT_DUPLICATES, &broken);
    free(text);
    if (!*report)
        return complain_at(&(struct place){options->against, broken.line}, "no JSON: %s", broken.text);
    int code = check(options, *report);
    if (code) json_decref(*report);
    return code;
}

/* The earlier row of the same model, phase and bucket. */
static int find_before(const struct replay *replay, const struct row *row, struct before *before) {
    size_t at;
    json_t *object;
    char reason[LINES_REASON];
    json_array_foreach(json_object_get(replay->before, "rows"), at, object) {
        if (!line_fields(fields, FIELD_COUNT, object, before, reason) &&
            !strcmp(before->model, replay->requests->model[row->model]) &&
            !strcmp(before->phase, phase_names[row->phase]) && !strcmp(before->bucket, row->bucket))
            return 1;
    }
    return 0;
}

void report_compare(const struct replay *replay, const struct rows *rows) {
    double mean = json_number_value(json_object_get(replay->before, "fleet_mean_ns"));
    printf("\nagainst %s: fleet mean x%.3g, %.4g -> %.4g ms\n", replay->options->against, rows->fleet_mean / mean,
           mean / 1e6, rows->fleet_mean / 1e6);
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->row[i];
        struct before before;
        if (find_before(replay, row, &before))
            print_row(replay, row, &before);
        else
            printf("  %s %s %s: not in the earlier report\n", replay->requests->model[row->model],
                   phase_names[row->phase], row->bucket);
    }
}
