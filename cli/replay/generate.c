/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace as servers see it: log-normal prompts and outputs (median 180 and 60 tokens; one prompt in a hundred
 * is over 2,000), prompts that begin with a cached prefix, arrivals in bursts, and models of which the first is
 * asked for most. A model whose config is found gets no request that is longer than it takes. The same seed and models give the
 * same trace.
 */
#include "replay/replay.h"
#include "tool/files.h"

#include <math.h>
#include <string.h>

static const char *const usual_models[] = {"llama-3.2-1b", "qwen2.5-0.5b", "gemma-3-1b-it", "qwen3-0.6b"};

enum draw { MODEL, PROMPT, OUTPUT, CACHED, PREFIX, GAP, SWITCH };

/* In (0, 1): one number for each draw of each request. */
static double uniform(const struct options *options, int64_t request, int which) {
    uint64_t bits = random_bits((uint64_t)options->seed, (uint64_t)request, (uint64_t)which);
    return ((double)(bits >> 11) + 0.5) / 9007199254740992.0;
}

static int64_t lognormal(const struct options *options, int64_t request, enum draw draw, double median,
                         double sigma, int64_t min, int64_t max) {
    double u = uniform(options, request, 2 * draw), v = uniform(options, request, 2 * draw + 1);
    double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
    double value = median * exp(sigma * normal);
    return value < (double)min ? min : value > (double)max ? max : (int64_t)value;
}

/* Weights 1, 1/2, 1/3, ... */
static int pick_model(int models, double u) {
    double sum = 0;
    for (int i = 0; i < models; i++) sum += 1.0 / (i + 1);
    int i = 0;
    for (u *= sum; i < models - 1 && u > 1.0 / (i + 1); i++) u -= 1.0 / (i + 1);
    return i;
}

/* How many tokens, prompt and output, the model takes. Names without a config are for another host: no limit. */
static int read_limit(const struct options *options, const char *name, int64_t *tokens) {
    tp_model *model;
    *tokens = INT64_MAX;
    if (!model_known(options, name)) return EXIT_FINE;
    int code = model_read(options, name, &model);
    if (code) return code;
    for (int i = 0; i < model->group_count; i++) {
        int64_t max = model->groups[i]->part == TP_PART_TEXT ? model->groups[i]->kv_max : 0;
        if (max > 0 && max < *tokens) *tokens = max;
    }
    tp_model_destroy(model);
    return EXIT_FINE;
}

static int64_t at_most(int64_t value, int64_t max) { return value < max ? value : max; }

static int write_requests(const struct options *options, char *const *names, const int64_t *limits, int models, FILE *file) {
    double time = 0;
    int burst = 0;
    for (int64_t r = 0; r < options->requests; r++) {
        /* calm: two requests a second; a burst: twenty, for about 15 of them */
        if (uniform(options, r, 2 * SWITCH) < (burst ? 1.0 / 15 : 1.0 / 40)) burst = !burst;
        time += -log(uniform(options, r, 2 * GAP)) / (burst ? 20 : 2);
        int model = pick_model(models, uniform(options, r, 2 * MODEL));
        int64_t output = at_most(lognormal(options, r, OUTPUT, 60, 0.9, 1, 2048), limits[model] / 2);
        int64_t prompt = at_most(lognormal(options, r, PROMPT, 180, 1.1, 8, 8192), limits[model] - output);
        int64_t cached = 0;
        if (uniform(options, r, 2 * CACHED) < 0.4) cached = prompt / 64 * 64 / 2; /* half, in whole blocks */
        fprintf(file, "{\"time\":%.3f,\"model\":\"%s\",\"prompt\":%lld,\"cached\":%lld,\"output\":%lld}\n", time,
                names[model], (long long)prompt, (long long)cached, (long long)output);
    }
    return ferror(file);
}

int requests_generate(const struct options *options) {
    struct atomic_file out;
    char *const *names = options->files;
    int models = options->file_count;
    if (!models) {
        names = (char *const *)(uintptr_t)usual_models;
        models = sizeof usual_models / sizeof *usual_models;
    }
    if (options->requests < 1 || options->requests > REPLAY_REQUESTS || models > REPLAY_MODELS) {
        complain("%lld requests of %d models: they must be in 1..%d and 1..%d", (long long)options->requests,
                 models, REPLAY_REQUESTS, REPLAY_MODELS);
        return EXIT_USAGE;
    }
    for (int i = 0; i < models; i++)
        for (const char *c = names[i]; *c || c == names[i]; c++)
            if (*c <= ' ' || *c > '~' || *c == '"' || *c == '\\' || strlen(names[i]) > 63) {
                complain("model '%s': it must be 1..63 printable ASCII characters without quotes", names[i]);
                return EXIT_USAGE;
            }
    int64_t limits[REPLAY_MODELS];
    int code = EXIT_FINE;
    for (int i = 0; i < models && !code; i++) code = read_limit(options, names[i], &limits[i]);
    if (!code) code = file_open(&out, options->format ? options->format : "-");
    if (code) return code;
    int bad = write_requests(options, names, limits, models, out.stream);
    code = file_close(&out, !bad);
    return bad ? EXIT_FAILED : code;
}
