/* SPDX-License-Identifier: Apache-2.0 */
/* The models of a trace, and whether all of it can be served, before anything is run. */
#include "replay/replay.h"
#include "tool/files.h"

#include <stdlib.h>
#include <string.h>

/* Layers that generate text: the others do not run once a request. */
static int take_groups(struct replay_model *m, const char *name) {
    for (int i = 0; i < m->model->group_count; i++) {
        const tp_layer_group *group = m->model->groups[i];
        int generates = group->part == TP_PART_TEXT && (group->all_of & TP_TERM_CAUSAL);
        if (group->out_of_scope || !generates || m->groups == REPLAY_GROUPS) {
            m->left_out++;
            continue;
        }
        m->group[m->groups++] = group;
        m->layers += group->layer_count;
    }
    if (m->groups) return EXIT_FINE;
    complain("model %s: it has no causal text layers that this library serves", name);
    return EXIT_REFUSED;
}

/* What a file wants kept with a loss is nobody's choice yet. */
static int check_cache(const struct replay *replay, const struct replay_model *m, const char *name) {
    if (!*m->model->cache || replay->options->kv_cache) return EXIT_FINE;
    complain("model %s: its file wants keys and values kept as %s, which loses something: say --kv-cache %s or --kv-cache plain",
             name, m->model->cache, m->model->cache);
    return EXIT_USAGE;
}

static int check_length(const struct replay *replay, const struct request *request, const char *name) {
    const struct replay_model *m = &replay->models[request->model];
    int64_t tokens = request->prompt + request->output;
    for (int i = 0; i < m->groups; i++)
        if (m->group[i]->kv_max && tokens > m->group[i]->kv_max)
            return complain_at(&(struct place){name, request->line},
                               "field 'prompt' is %lld: with output, %lld, it must be at most %lld, what model %s "
                               "takes",
                               (long long)request->prompt, (long long)request->output,
                               (long long)m->group[i]->kv_max, replay->requests->model[request->model]);
    return EXIT_FINE;
}

/* Would every group be served, in both phases? */
static int ask(const struct replay *replay, const struct request *request) {
    const struct replay_model *m = &replay->models[request->model];
    int code = EXIT_FINE;
    for (int i = 0; i < m->groups; i++)
        for (int phase = PREFILL; phase < PHASES; phase++) {
            tp_error error = TP_ERROR_INIT;
            tp_decision *decision = NULL;
            tp_problem problem;
            char text[512], layers[256];
            int64_t rows = phase == PREFILL ? request->prompt - request->cached : 1;
            tp_lengths lengths = {.struct_size = sizeof lengths};
            tp_layer_group_problem_in(m->group[i], replay->cache, 1, rows, request->prompt, text, sizeof text);
            tp_status status = tp_problem_parse(text, &problem, &lengths, &error);
            if (status == TP_OK) status = tp_explain(replay->context, &problem, NULL, &decision, &error);
            tp_decision_destroy(decision);
            if (status == TP_OK) continue;
            if (tp_layer_group_layers(m->group[i], layers, sizeof layers) != TP_OK) strcpy(layers, "?");
            complain("model %s, layers %s, %s: %s%s (%s)", replay->requests->model[request->model], layers,
                     phase_names[phase], error.text, option_for(&error), tp_status_name(status));
            if (!code) code = exit_code_of(status);
        }
    return code;
}

/* Nothing that is read may be written over. */
static int check_places(const struct replay *replay, const char *name) {
    const struct options *options = replay->options;
    const struct named_file written[] = {
        {"--trace", options->trace_file}, {"--metrics", options->metrics_file}, {"-o", options->format}};
    enum { COUNT = sizeof written / sizeof *written };
    int code = EXIT_FINE;
    for (int i = 0; i < COUNT && !code; i++) {
        for (int j = i + 1; j < COUNT && !code; j++) code = file_clash(&written[i], &written[j]);
        const struct named_file before = {"--against", options->against}, requests = {"the file of requests", name};
        if (!code) code = file_clash(&written[i], &before);
        if (!code) code = file_clash(&written[i], &requests);
        for (int j = 0; j < replay->requests->models && !code; j++) {
            if (!replay->models[j].model) continue;
            const struct named_file config = {"the config", replay->models[j].model->name};
            code = file_clash(&written[i], &config);
        }
    }
    return code;
}

int replay_load(struct replay *replay, const char *name) {
    int code = EXIT_FINE;
    unsigned char asked[REPLAY_MODELS] = {0};
    for (int i = 0; i < replay->requests->models; i++) {
        if (!replay->context && !model_known(replay->options, replay->requests->model[i])) continue;
        int one = model_read(replay->options, replay->requests->model[i], &replay->models[i].model);
        if (!one) one = take_groups(&replay->models[i], replay->requests->model[i]);
        if (!one && replay->context) one = check_cache(replay, &replay->models[i], replay->requests->model[i]);
        if (!code) code = one;
    }
    if (!code) code = check_places(replay, name);
    if (!replay->context) return code; /* it has been served */
    for (size_t i = 0; !code && i < replay->requests->count; i++)
        code = check_length(replay, &replay->requests->request[i], name);
    if (code) return code;
    /* all refusals are printed; the first decides the exit code */
    for (size_t i = 0; i < replay->requests->count; i++) {
        const struct request *request = &replay->requests->request[i];
        int one = asked[request->model]++ ? EXIT_FINE : ask(replay, request);
        asked[request->model] = 1;
        if (!code) code = one;
    }
    return code;
}

void replay_unload(struct replay *replay) {
    for (int i = 0; i < REPLAY_MODELS; i++) tp_model_destroy(replay->models[i].model);
    free(replay->steps.step);
    free(replay->request_ns);
}
