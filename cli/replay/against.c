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

/* One row beside what it was: "m decode few-rows: p99 x1.97, 60 -> 118 ms, kernel avx512 -> math, a FALLBACK". */
static void describe(const struct replay *replay, const struct row *row, const struct before *before, char text[512]) {
    char bucket[96] = "", kernel[160] = "";
    if (strcmp(before->bucket, row->bucket)) snprintf(bucket, sizeof bucket, ", bucket %s -> %s", before->bucket, row->bucket);
    if (strcmp(before->kernel, row->kernel)) snprintf(kernel, sizeof kernel, ", kernel %s -> %s", before->kernel, row->kernel);
    snprintf(text, 512, "%s %s %s: p99 x%.3g, %.4g -> %.4g ms%s%s%s", replay->requests->model[row->model],
             phase_names[row->phase], row->bucket, row->p99 / before->p99, before->p99 / 1e6, row->p99 / 1e6, bucket, kernel,
             row->fallback ? ", a FALLBACK" : "");
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
    if (json_is_true(json_object_get(report, "observed")) != options->observed)
        return wrong(path, "field 'observed': times of a log and costs of attention alone cannot be compared");
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
    return check(options, *report);
}

/* The earlier row of the same model, phase and bucket; if there is none, of any bucket, for a model whose heads have changed
   may have moved to another. Of several, the slowest. */
static int find_before(const struct replay *replay, const struct row *row, struct before *before) {
    size_t at;
    json_t *object;
    char reason[LINES_REASON];
    int found = 0; /* 1: another bucket, 2: the same */
    json_array_foreach(json_object_get(replay->before, "rows"), at, object) {
        struct before one;
        if (line_fields(fields, FIELD_COUNT, object, &one, reason) || strcmp(one.model, replay->requests->model[row->model]) ||
            strcmp(one.phase, phase_names[row->phase]))
            continue;
        int same = strcmp(one.bucket, row->bucket) ? 1 : 2;
        if (same < found || (same == found && one.p99 <= before->p99)) continue;
        found = same;
        *before = one;
    }
    return found;
}

int report_compare(const struct replay *replay, const struct rows *rows) {
    double mean = json_number_value(json_object_get(replay->before, "fleet_mean_ns"));
    const json_t *was = json_object_get(replay->before, "cache"); /* reports that lack it are of plain caches */
    const char *cache = json_is_string(was) ? json_string_value(was) : "plain";
    int grown = 0;
    printf("\nagainst %s: fleet mean x%.3g, %.4g -> %.4g ms\n", replay->options->against, rows->fleet_mean / mean,
           mean / 1e6, rows->fleet_mean / 1e6);
    if (replay->context && strcmp(cache, replay->cache)) printf("  cache %.60s -> %s\n", cache, replay->cache);
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *row = &rows->row[i];
        struct before before = {0};
        char text[512];
        if (!find_before(replay, row, &before)) {
            printf("  %s %s %s: not in the earlier report\n", replay->requests->model[row->model], phase_names[row->phase],
                   row->bucket);
            continue;
        }
        describe(replay, row, &before, text);
        printf("  %s\n", text);
        if (!(replay->fail_above > 0 && row->p99 > replay->fail_above * before.p99)) continue;
        complain("%s: more than --fail-above %g", text, replay->fail_above);
        grown++;
    }
    return grown;
}
