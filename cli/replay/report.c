/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/replay.h"
#include "tool/files.h"
#include "tool/made.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *model_name(const struct replay *replay, int model) { return replay->requests->model[model]; }

static void print_models(const struct replay *replay) {
    const struct requests *all = replay->requests;
    for (int i = 0; i < all->models; i++) {
        const struct replay_model *m = &replay->models[i];
        if (m->model)
            printf("model %s: %d group%s, %.0f layers%s\n", all->model[i], m->groups, m->groups == 1 ? "" : "s", m->layers,
                   m->left_out ? "; layers that do not generate text are left out" : "");
        else
            printf("model %s: no config here (--models DIR), so its steps are one bucket, any\n", all->model[i]);
    }
}

static double seconds_of(const struct requests *all) { return all->request[all->count - 1].time - all->request[0].time; }

static void print_observed(const struct replay *replay) {
    const struct requests *all = replay->requests;
    printf("OBSERVED, nothing is run: times are the log's, of the whole model and its engine;\n"
           "prefill is ttft_ms without queue_ms, decode tpot_ms\n"
           "%lld of %zu requests over %.1f s have ttft_ms\n",
           (long long)replay->requests_run, all->count, seconds_of(all));
    print_models(replay);
}

static void print_what(const struct replay *replay) {
    const struct options *options = replay->options;
    const struct requests *all = replay->requests;
    printf("not modelled: queueing, batches of several requests, and the rest of the model\n"
           "%lld of %zu requests over %.1f s, %s, %d thread%s%s%s\n",
           (long long)replay->requests_run, all->count, seconds_of(all),
           options->modelled ? "MODELLED at 100 Gflop/s and 10 GB/s" : "measured", tp_context_threads(replay->context),
           tp_context_threads(replay->context) == 1 ? "" : "s", strcmp(replay->cache, "plain") ? ", cache " : "",
           strcmp(replay->cache, "plain") ? replay->cache : "");
    printf("a step is the attention of all layers: %s of each layer group %s run, the others count as much; "
           "up to %lld decode steps a request\n",
           options->layers ? grouped(options->layers, (char[32]){0}) : "all", options->layers == 1 ? "is" : "are",
           (long long)options->steps);
    print_models(replay);
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
    printf("\nfleet mean: %.4g ms %sa request\n", rows->fleet_mean / 1e6, replay->context ? "of attention " : "");
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
        if (replay->context && !row->fallback && strcmp(row->kernel, "mixed")) code = print_fallbacks(replay, &worst);
    }
    if (!replay->context)
        printf("with their queue, prefill steps have a p99 of %.4g ms; %.0f %% of the time at or above it is queue\n",
               rows->ttft_p99 / 1e6, 100 * rows->queue_share);
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
                            json_pack("{s:f,s:s,s:s,s:s}", "p99_ns", rows->p99[phase], "model", model_name(replay, r->model),
                                      "bucket", r->bucket, "kernel", r->kernel));
    }
    json_t *report =
        json_pack("{s:s,s:b,s:b,s:I,s:f,s:o,s:o}", "format", "tileproof.replay/1", "modelled", replay->options->modelled,
                  "observed", replay->options->observed, "requests", (json_int_t)replay->requests_run, "fleet_mean_ns",
                  rows->fleet_mean, "p99_owner", owners, "rows", list);
    json_t *more = replay->context ? json_pack("{s:s,s:i,s:I,s:I,s:i}", "cache", replay->cache, "seed", REPLAY_SEED, "layers",
                                               (json_int_t)replay->options->layers, "steps", (json_int_t)replay->options->steps,
                                               "threads", tp_context_threads(replay->context))
                                   : json_pack("{s:f,s:f}", "ttft_p99_ns", rows->ttft_p99, "queue_share", rows->queue_share);
    json_t *made = replay->options->observed ? made_of_others() : made_here();
    if (!(json_object_update_new(report, more) | json_object_update_new(report, made))) return report;
    json_decref(report);
    return NULL;
}

int replay_report(const struct replay *replay) {
    struct rows rows;
    if (rows_make(&rows, replay)) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    if (replay->context)
        print_what(replay);
    else
        print_observed(replay);
    print_rows(replay, &rows);
    int code = print_owners(replay, &rows), grown = 0;
    if (!code && replay->before) grown = report_compare(replay, &rows);
    const char *path = replay->options->format;
    if (!code && path) code = file_write_json(path, report_json(replay, &rows), JSON_INDENT(1));
    rows_free(&rows);
    return code ? code : grown ? EXIT_FAILED : EXIT_FINE;
}
