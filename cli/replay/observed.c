/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a log: times and kernels are its own, and buckets follow from the model's config, where there is one. */
#include "replay/replay.h"

#include <math.h>

static const char *observed_bucket(const struct replay_model *m, int64_t rows, int64_t keys) {
    const char *bucket = NULL;
    char text[512];
    for (int i = 0; i < m->groups; i++)
        if (tp_layer_group_problem(m->group[i], 1, rows, keys, text, sizeof text) == TP_OK)
            bucket = joined(bucket, bucket_of(text));
    return bucket ? bucket : "any";
}

int observe_request(struct replay *replay, size_t index) {
    const struct request *r = &replay->requests->request[index];
    struct step step = {.model = r->model,
                        .request = (int)index,
                        .phase = PREFILL,
                        .kernel = r->kernel < 0 ? "?" : replay->requests->kernel[r->kernel],
                        .q_len = r->prompt - r->cached,
                        .kv_len = r->prompt};
    if (isnan(r->ttft_ms)) return EXIT_FINE;
    step.queue_ns = isnan(r->queue_ms) ? 0 : r->queue_ms * 1e6;
    step.ns = r->ttft_ms * 1e6 - step.queue_ns;
    step.bucket = observed_bucket(&replay->models[r->model], step.q_len, step.kv_len);
    replay->request_ns[index] = step.ns;
    replay->requests_run++;
    int code = add_step(replay, &step);
    if (code || isnan(r->tpot_ms)) return code;
    step.phase = DECODE;
    step.q_len = 1;
    step.kv_len = r->prompt + r->output;
    step.ns = r->tpot_ms * 1e6;
    step.queue_ns = 0;
    step.bucket = observed_bucket(&replay->models[r->model], 1, step.kv_len);
    if (r->output > 1) replay->request_ns[index] += step.ns * (double)(r->output - 1); /* the first token is prefill's */
    return add_step(replay, &step);
}
