/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/replay.h"
#include "tool/files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *model_name(const struct replay *replay, int model) { return replay->requests->model[model]; }

static void print_what(const struct replay *replay) {
    const struct options *options = replay->options;
    const struct requests *all = replay->requests;
    printf("%lld of %zu requests over %.1f s, %s, %d thread%s\n", (long long)replay->requests_run, all->count,
           all->request[all->count - 1].time - all->request[0].time,
           options->modelled ? "MODELLED at 100 Gflop/s and 10 GB/s" : "measured", tp_context_threads(replay->context),
           tp_context_threads(replay->context) == 1 ? "" : "s");
    printf("a step is the attention of all layers: %s of each layer group %s run, the others count as much; "
           "up to %lld decode steps a request\n",
           options->layers ? grouped(options->layers, (char[32]){0}) : "all", options->layers == 1 ? "is" : "are",
           (long long)options->steps);
    for (int i = 0; i < all->models; i++)
        printf("model %s: %d group%s, %.0f layers%s\n", all->model[i], replay->models[i].groups,
               replay->models[i].groups == 1 ? "" : "s", replay->models[i].layers,
               replay->models[i].left_out ? "; layers that do not generate text are left out" : "");
}

static void print_rows(const struct replay *replay, const struct rows *rows) {
    printf("\n| model | phase | bucket | kernel | n | p50 ms | p90 ms | p99 ms | rows | keys |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *r = &rows->row[i];
        printf("| %s | %s | %s | %s%s | %zu | %.4g | %.4g | %.4g%s | %lld..%lld | %lld..%lld |\n",
               model_name(replay, r->model), phase_names[r->phase], r->bucket, r->kernel,
               r->fallback ? " FALLBACK" : "", r->n, r->p50 / 1e6, r->p90 / 1e6, r->p99 / 1e6,
               r->n < 100 ? " (n<100)" : "", (long long)r->q_low, (long long)r->q_high, (long long)r->k_low,
               (long long)r->k_high);
    }
    printf("\nfleet mean: %.4g ms of attention a request\n", rows->fleet_mean / 1e6);
}

/* The row's most costly step. */
static struct step worst_of(const struct replay *replay, const struct row *row) {
    struct step worst = {.ns = -1};
    for (size_t i = 0; i < replay->steps.count; i++) {
        const struct step *s = &replay->steps.step[i];
        if (s->model == row->model && s->phase == row->phase && s->ns > worst.ns) worst = *s;
    }
    return worst;
}

/* The same step by another kernel: best of three, beside the kernel that serves. */
static int time_of(const struct replay *replay, tp_context *context, const char *kernel, struct step step,
                   double *best) {
    tp_choice choice = TP_CHOICE_INIT;
    choice.policy = TP_PERMIT;
    choice.kernel = kernel;
    *best = INFINITY;
    for (int i = 0; i < (replay->options->modelled ? 1 : 3); i++) {
        int code = replay_step(replay, context, &choice, &step, NULL);
        if (code) return code;
        if (step.ns < *best) *best = step.ns;
    }
    return EXIT_FINE;
}

static int serves(const tp_kernel_info *info, uint32_t isa) { return (info->needs & ~isa) == 0; }

/* What each lower kernel of this host would take for the step that the tail is made of. */
static int print_fallbacks(const struct replay *replay, const struct step *step) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    double taken, other;
    int below = 0;
    options.threads = tp_context_threads(replay->context);
    if (tp_context_create(&options, &context, &error) != TP_OK) return complain_status(&error);
    int code = time_of(replay, context, step->kernel, *step, &taken);
    for (int i = 0; !code && tp_kernel_at(i); i++) {
        const tp_kernel_info *info = tp_kernel_at(i);
        if (below && serves(info, tp_context_machine(context)->isa)) {
            code = time_of(replay, context, info->name, *step, &other);
            if (!code) printf("%s %s x%.3g", below++ == 1 ? "  a fallback there would cost:" : ",", info->name,
                              other / taken);
        }
        if (!below) below = !strcmp(info->name, step->kernel);
    }
    if (below > 1)
        printf(" (%s)\n", replay->options->modelled ? "modelled: by flops and bytes, not by speed" : "measured, best of 3");
    tp_context_destroy(context);
    return code;
}

static int print_owners(const struct replay *replay, const struct rows *rows) {
    int code = EXIT_FINE;
    for (int phase = 0; !code && phase < PHASES; phase++) {
        if (rows->owner[phase] < 0) continue;
        const struct row *row = &rows->row[rows->owner[phase]];
        struct step worst = worst_of(replay, row);
        printf("p99 of %s steps: %.4g ms, owned by %s %s %s on %s%s: %zu of %zu steps at or above it; the "
               "longest has %lld rows on %lld keys\n",
               phase_names[phase], rows->p99[phase] / 1e6, model_name(replay, row->model), phase_names[phase],
               row->bucket, row->kernel, row->fallback ? ", a FALLBACK" : "", rows->owned[phase],
               rows->above[phase], (long long)worst.q_len, (long long)worst.kv_len);
        if (!row->fallback && strcmp(row->kernel, "mixed")) code = print_fallbacks(replay, &worst);
    }
    return code;
}

static json_t *report_json(const struct replay *replay, const struct rows *rows) {
    json_t *list = json_array();
    for (size_t i = 0; i < rows->count; i++) {
        const struct row *r = &rows->row[i];
        json_array_append_new(
            list, json_pack("{s:s,s:s,s:s,s:s,s:b,s:I,s:f,s:f,s:f,s:f}", "model", model_name(replay, r->model),
                            "phase", phase_names[r->phase], "bucket", r->bucket, "kernel", r->kernel, "fallback",
                            r->fallback, "n", (json_int_t)r->n, "p50_ns", r->p50, "p90_ns", r->p90, "p99_ns",
                            r->p99, "mean_ns", r->mean));
    }
    json_t *owners = json_object();
    for (int phase = 0; phase < PHASES; phase++) {
        if (rows->owner[phase] < 0) continue;
        const struct row *r = &rows->row[rows->owner[phase]];
        json_object_set_new(owners, phase_names[phase],
                            json_pack("{s:f,s:s,s:s,s:s}", "p99_ns", rows->p99[phase], "model",
                                      model_name(replay, r->model), "bucket", r->bucket, "kernel", r->kernel));
    }
    return json_pack("{s:s,s:b,s:I,s:I,s:I,s:i,s:f,s:o,s:o}", "format", "tileproof.replay/1", "modelled",
                     replay->options->modelled, "requests", (json_int_t)replay->requests_run, "layers",
                     (json_int_t)replay->options->layers, "steps", (json_int_t)replay->options->steps, "threads",
                     tp_context_threads(replay->context), "fleet_mean_ns", rows->fleet_mean, "p99_owner", owners,
                     "rows", list);
}

static int write_json(const struct replay *replay, const struct rows *rows, const char *path) {
    struct atomic_file out;
    json_t *report = report_json(replay, rows);
    if (!report) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    int code = file_open(&out, path);
    if (!code) {
        int bad = json_dumpf(report, out.stream, JSON_INDENT(1)) || fputc('\n', out.stream) == EOF;
        code = file_close(&out, !bad);
        if (bad) code = EXIT_FAILED;
    }
    json_decref(report);
    return code;
}

int replay_report(const struct replay *replay) {
    struct rows rows;
    if (rows_make(&rows, replay)) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    print_what(replay);
    print_rows(replay, &rows);
    int code = print_owners(replay, &rows);
    if (!code && replay->before) report_compare(replay, &rows);
    if (!code && replay->options->format) code = write_json(replay, &rows, replay->options->format);
    rows_free(&rows);
    return code;
}
