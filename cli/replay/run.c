/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of the requests, run one after another by tp_attention. */
#include "replay/replay.h"
#include "terminal/terminal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What --modelled counts: a compute rate and a memory rate of no host in particular, without overlap. */
#define MODEL_FLOPS_PER_NS 100.0
#define MODEL_BYTES_PER_NS 10.0

static double cost_of(const struct replay *replay, const tp_problem *problem, const tp_receipt *receipt) {
    if (!replay->options->modelled) return (double)receipt->time_ns;
    double flops = 2.0 * (double)receipt->pairs_visible * (double)(problem->head_dim_qk + problem->head_dim_v);
    return flops / MODEL_FLOPS_PER_NS + (double)receipt->bytes_model / MODEL_BYTES_PER_NS;
}

static int make_tensors(const tp_problem *problem, const tp_lengths *lengths, struct tensors *tensors) {
    static const struct tensors_style style = {.repeat = 1};
    double limit = 0.75 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (tensors_bytes(problem, lengths, &style) > limit || tensors_create(tensors, problem, lengths, &style) ||
        tensors_fill(tensors, REPLAY_SEED)) {
        complain("no memory for the tensors of one call");
        return EXIT_FAILED;
    }
    return EXIT_FINE;
}

/* As many layers of a group as the options ask for; the mean cost of one. */
static int run_group(const struct replay *replay, tp_context *context, const tp_choice *choice,
                     const tp_layer_group *group, const struct step *step, const char *request,
                     tp_receipt *receipt, double *ns) {
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    tp_tags tags = {sizeof tags, -1, replay->requests->model[step->model], request};
    struct tensors tensors = {0};
    char text[512];
    int64_t layers = replay->options->layers;
    if (!layers || layers > group->layer_count) layers = group->layer_count;
    tp_layer_group_problem_in(group, replay->cache, 1, step->q_len, step->kv_len, text, sizeof text);
    if (tp_problem_parse(text, &problem, &lengths, &error) != TP_OK) return complain_status(&error);
    int code = make_tensors(&problem, &lengths, &tensors);
    *ns = 0;
    for (int64_t i = 0; !code && i < layers; i++) {
        tags.layer = group->layers[i];
        tensors.call.tags = &tags;
        if (tp_attention(context, &problem, choice, &tensors.call, receipt, &error) != TP_OK)
            code = complain_status(&error);
        else
            *ns += cost_of(replay, &problem, receipt) / (double)layers;
    }
    tensors_destroy(&tensors);
    return code;
}

const char *joined(const char *before, const char *now) { return !before || !strcmp(before, now) ? now : "mixed"; }

const char *bucket_of(const char *call) {
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    char text[512];
    if (tp_problem_parse(call, &problem, &lengths, NULL) != TP_OK ||
        tp_problem_class(&problem, text, sizeof text) != TP_OK)
        return "?";
    return strstr(text, " few-rows ") ? "few-rows" : "many-rows";
}

int replay_step(const struct replay *replay, tp_context *context, const tp_choice *choice, struct step *step,
                const char *request) {
    const struct replay_model *m = &replay->models[step->model];
    step->ns = 0;
    step->fallback = 0;
    step->bucket = step->kernel = NULL;
    for (int i = 0; i < m->groups; i++) {
        tp_receipt receipt;
        double ns = 0;
        tp_receipt_init(&receipt);
        int code = run_group(replay, context, choice, m->group[i], step, request, &receipt, &ns);
        if (code) return code;
        step->ns += ns * m->group[i]->layer_count;
        step->fallback |= receipt.fallback;
        step->kernel = joined(step->kernel, receipt.kernel);
        step->bucket = joined(step->bucket, bucket_of(receipt.problem));
    }
    return EXIT_FINE;
}

int add_step(struct replay *replay, const struct step *step) {
    struct steps *all = &replay->steps;
    if (all->count == all->capacity) {
        size_t capacity = all->capacity ? 2 * all->capacity : 256;
        struct step *more = realloc(all->step, capacity * sizeof *more);
        if (!more) {
            complain("out of memory");
            return EXIT_FAILED;
        }
        all->step = more;
        all->capacity = capacity;
    }
    all->step[all->count++] = *step;
    return EXIT_FINE;
}

static int run_step(struct replay *replay, struct step *step, const char *request) {
    int code = replay_step(replay, replay->context, NULL, step, request);
    return code ? code : add_step(replay, step);
}

static int run_request(struct replay *replay, size_t index) {
    const struct request *r = &replay->requests->request[index];
    char name[32];
    snprintf(name, sizeof name, "line-%d", r->line);
    struct step step = {.model = r->model,
                        .request = (int)index,
                        .phase = PREFILL,
                        .q_len = r->prompt - r->cached,
                        .kv_len = r->prompt};
    int code = run_step(replay, &step, name);
    double total = step.ns, decode = 0;
    int64_t steps = replay->options->steps < r->output ? replay->options->steps : r->output;
    for (int64_t i = 0; !code && i < steps; i++) {
        step.phase = DECODE;
        step.q_len = 1;
        /* evenly spaced: the last one sees all tokens */
        step.kv_len = r->prompt + (i + 1) * r->output / steps;
        code = run_step(replay, &step, name);
        decode += step.ns;
    }
    if (steps) total += decode / (double)steps * (double)r->output;
    replay->request_ns[index] = total;
    replay->requests_run++;
    return code;
}

int replay_run(struct replay *replay) {
    size_t count = replay->requests->count, wanted = (size_t)replay->options->sample;
    int code = EXIT_FINE;
    if (!wanted || wanted > count) wanted = count;
    replay->request_ns = malloc(count * sizeof *replay->request_ns);
    if (!replay->request_ns) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    for (size_t i = 0; i < count; i++) replay->request_ns[i] = NAN;
    int (*one)(struct replay *, size_t) = replay->context ? run_request : observe_request;
    progress_begin("replay", (double)wanted, "requests");
    stop_watch();
    for (size_t i = 0; !code && !stop_asked() && i < wanted; i++) {
        progress_at((double)i, "%s", replay->requests->model[replay->requests->request[i * count / wanted].model]);
        code = one(replay, i * count / wanted);
    }
    progress_end();
    return code;
}
