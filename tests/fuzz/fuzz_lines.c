/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a trace of requests and as a trace of calls. Either what was read keeps the rules,
   or there is a reason that names the line. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "replay/replay.h"
#include "tool/trace_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition) {
    if (!condition) abort();
}

static void check_requests(const char *text, size_t size) {
    static struct requests requests;
    char reason[LINES_REASON] = "";
    if (requests_read(&requests, text, size, "fuzz", reason)) {
        require(!strncmp(reason, "fuzz:", 5) && !requests.request);
        return;
    }
    require(requests.count > 0 && requests.models > 0 && requests.models <= REPLAY_MODELS);
    for (size_t i = 0; i < requests.count; i++) {
        const struct request *r = &requests.request[i];
        require(r->model >= 0 && r->model < requests.models && requests.model[r->model][0]);
        require(r->cached >= 0 && r->cached < r->prompt && r->prompt <= REPLAY_TOKENS);
        require(r->kernel >= -1 && r->kernel < requests.kernels && (r->kernel < 0 || requests.kernel[r->kernel][0]));
        require(isnan(r->ttft_ms) || (r->ttft_ms >= 0 && r->ttft_ms <= 1e9 && !(r->queue_ms > r->ttft_ms)));
        require(r->output >= 0 && r->output <= REPLAY_TOKENS && r->time >= (i ? requests.request[i - 1].time : 0));
    }
    requests_free(&requests);
}

static void check_calls(const char *text, size_t size) {
    struct traced_calls calls;
    char reason[LINES_REASON] = "";
    if (traced_read(&calls, text, size, "fuzz", reason)) {
        require(!strncmp(reason, "fuzz:", 5) && !calls.call);
        return;
    }
    json_t *events = traced_events(&calls);
    require(events != NULL);
    json_t *list = json_object_get(events, "traceEvents"), *event;
    size_t i;
    require(json_array_size(list) > calls.count); /* and a name at least */
    json_array_foreach(list, i, event) {
        require(json_is_string(json_object_get(event, "ph")) && json_is_integer(json_object_get(event, "pid")));
    }
    json_decref(events);
    traced_free(&calls);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_requests((const char *)data, size);
    check_calls((const char *)data, size);
    return 0;
}
