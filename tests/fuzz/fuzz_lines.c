/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a trace of requests and as a trace of calls, read whole, and line by line for its summary.
   Either what was read keeps the rules, or there is a reason that names the line. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "replay/replay.h"
#include "tool/line_stream.h"
#include "tool/trace_calls.h"
#include "trace/summary.h"

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
    struct traced_calls calls = {0};
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

/* Bytes in pieces of any size. */
struct pieces {
    const char *text;
    size_t left, piece;
};

static ssize_t next_piece(void *user, char *to, size_t room) {
    struct pieces *p = user;
    size_t n = p->piece = p->piece * 7 % 61 + 1;
    if (n > p->left) n = p->left;
    if (n > room) n = room;
    memcpy(to, p->text, n);
    p->text += n;
    p->left -= n;
    return (ssize_t)n;
}

static void check_groups(const struct summary *s) {
    int64_t lines[BYS] = {0};
    for (int i = 0; i < s->group_count; i++) {
        const struct group *g = s->group[i];
        double p50 = sketch_quantile(&g->times, 0.5), p99 = sketch_quantile(&g->times, 0.99);
        lines[g->by] += g->calls + g->refused;
        require(g->fallbacks <= g->calls && g->times.count == g->calls);
        require(0 <= p50 && p50 <= p99 && p99 <= (double)g->times.max);
        require(g->times.sum <= (double)g->calls * (double)g->times.max * (1 + 1e-9));
    }
    for (int by = 0; by < BYS; by++) require(lines[by] == s->lines);
}

/* Every line is a call, wrong or blank, and every call is in one group of each kind. */
static void check_summary(const char *text, size_t size) {
    struct summary summary;
    struct line_stream stream;
    struct pieces pieces = {text, size, size};
    int64_t wrong = 0;
    int got;
    require(!summary_open(&summary) && !line_stream_open(&stream, next_piece, &pieces));
    while ((got = line_stream_next(&stream)) > 0) require(!summary_line(&summary, stream.line, stream.length, stream.number));
    require(!got && stream.bytes == (int64_t)size && summary.lines + summary.wrong + summary.blank == stream.number);
    require(stream.number >= 0 && (stream.number > 0 || size == 0));
    summary_sort(&summary);
    check_groups(&summary);
    for (int i = 0; i < summary.fault_count; i++) {
        wrong += summary.fault[i].lines;
        require(summary.fault[i].what[0] && summary.fault[i].first > 0 && summary.fault[i].first <= stream.number);
    }
    require(wrong == summary.wrong);
    line_stream_close(&stream);
    summary_close(&summary);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_requests((const char *)data, size);
    check_calls((const char *)data, size);
    check_summary((const char *)data, size);
    return 0;
}
