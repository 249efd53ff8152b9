/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/trace_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(name) offsetof(struct traced, name)
#define MAX_NS  INT64_C(4000000000000000000)
static const struct line_field fields[] = {
    {"ts_ns", LINE_WHOLE, AT(ts_ns), 0, MAX_NS, 0},
    {"time_ns", LINE_WHOLE, AT(time_ns), 0, MAX_NS, 0},
    {"thread", LINE_WHOLE, AT(thread), 0, INT64_MAX, 1},
    {"status", LINE_TEXT, AT(status), 0, 63, 0},
    {"kernel", LINE_TEXT, AT(kernel), 0, 63, 0},
    {"problem", LINE_TEXT, AT(problem), 0, 1023, 0},
    {"class", LINE_TEXT, AT(problem_class), 0, 1023, 1},
    {"phase", LINE_TEXT, AT(phase), 0, 63, 0},
    {"bucket", LINE_TEXT, AT(bucket), 0, 63, 0},
    {"fallback", LINE_FLAG, AT(fallback), 0, 0, 0},
    {"refused", LINE_ARRAY, AT(refused), 0, 0, 0},
    {"lock", LINE_TEXT, AT(lock), 0, 63, 0},
    {"model", LINE_TEXT, AT(model), 0, 63, 1},
    {"layer", LINE_WHOLE, AT(layer), 0, INT32_MAX, 1},
    {"request", LINE_TEXT, AT(request), 0, 63, 1},
    {"bytes_model", LINE_WHOLE, AT(bytes), 0, INT64_MAX, 0},
    {"workspace_bytes", LINE_WHOLE, AT(workspace), 0, INT64_MAX, 0},
};
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

int traced_call(const json_t *object, struct traced *call, char reason[LINES_REASON]) {
    *call = (struct traced){.layer = -1, .thread = 1};
    return line_fields(fields, FIELD_COUNT, object, call, reason);
}

static int read_call(void *user, json_t *object, int line, char reason[LINES_REASON]) {
    struct traced_calls *calls = user;
    struct traced call;
    (void)line;
    if (traced_call(object, &call, reason)) return 1;
    if (calls->count == calls->capacity) {
        size_t capacity = calls->capacity ? 2 * calls->capacity : 64;
        struct traced *more = realloc(calls->call, capacity * sizeof *more);
        if (!more) return line_wrong(reason, "no memory");
        calls->call = more;
        calls->capacity = capacity;
    }
    call.object = json_incref(object);
    calls->call[calls->count++] = call;
    if (calls->tell) calls->tell(calls->count);
    return 0;
}

int traced_read(struct traced_calls *calls, const char *text, size_t size, const char *name, char reason[LINES_REASON]) {
    int wrong = lines_read(text, size, name, read_call, calls, reason);
    if (wrong) traced_free(calls);
    return wrong;
}

void traced_free(struct traced_calls *calls) {
    for (size_t i = 0; i < calls->count; i++) json_decref(calls->call[i].object);
    free(calls->call);
    *calls = (struct traced_calls){0};
}

/* Models are shown as processes, in order of appearance; 0: memory ran out. */
static int process_of(json_t *processes, const char *model, int *is_new) {
    const json_t *known = json_object_get(processes, model);
    *is_new = !known;
    if (known) return (int)json_integer_value(known);
    int next = (int)json_object_size(processes) + 1;
    return json_object_set_new(processes, model, json_integer(next)) ? 0 : next;
}

static json_t *arguments_of(const struct traced *call) {
    json_t *all = json_pack("{s:s,s:s,s:s,s:s,s:b,s:O,s:s,s:I,s:I}", "problem", call->problem, "phase", call->phase,
                            "bucket", call->bucket, "status", call->status, "fallback", call->fallback, "refused",
                            (json_t *)(uintptr_t)call->refused, "lock", call->lock, "bytes_model", (json_int_t)call->bytes,
                            "workspace_bytes", (json_int_t)call->workspace);
    if (all && call->request) json_object_set_new(all, "request", json_string(call->request));
    if (all && call->layer >= 0) json_object_set_new(all, "layer", json_integer(call->layer));
    return all;
}

/* Times are in microseconds since the first call: as doubles they keep their nanoseconds. */
static int add_events(json_t *events, const struct traced *call, int process, int64_t start) {
    double ts = (double)(call->ts_ns - start) / 1e3;
    json_int_t thread = call->thread;
    int ran = !strcmp(call->status, "TP_OK"), failed = 0;
    if (ran)
        failed |= json_array_append_new(
            events, json_pack("{s:s,s:s,s:s,s:f,s:f,s:i,s:I,s:o}", "name", call->kernel, "cat", "attention", "ph",
                              "X", "ts", ts, "dur", (double)call->time_ns / 1e3, "pid", process, "tid", thread,
                              "args", arguments_of(call)));
    if (ran)
        failed |= json_array_append_new(
            events, json_pack("{s:s,s:s,s:s,s:f,s:i,s:I,s:{s:I}}", "name", "workspace", "cat", "memory", "ph", "C",
                              "ts", ts, "pid", process, "tid", thread, "args", "bytes",
                              (json_int_t)call->workspace));
    if (!ran || call->fallback)
        failed |= json_array_append_new(
            events, json_pack("{s:s,s:s,s:s,s:s,s:f,s:i,s:I,s:o}", "name", ran ? "fallback" : call->status, "cat",
                              "selection", "ph", "i", "s", "t", "ts", ts, "pid", process, "tid", thread, "args",
                              arguments_of(call)));
    return failed;
}

static int add_name(json_t *events, const char *model, int process) {
    return json_array_append_new(
        events, json_pack("{s:s,s:s,s:i,s:i,s:{s:s}}", "name", "process_name", "ph", "M", "pid", process, "tid", 0,
                          "args", "name", model));
}

json_t *traced_events(const struct traced_calls *calls) {
    json_t *events = json_array(), *processes = json_object();
    int64_t start = INT64_MAX;
    int failed = !events || !processes;
    for (size_t i = 0; i < calls->count; i++)
        if (calls->call[i].ts_ns < start) start = calls->call[i].ts_ns;
    for (size_t i = 0; !failed && i < calls->count; i++) {
        const struct traced *call = &calls->call[i];
        const char *model = call->model ? call->model : "tileproof";
        int is_new, process = process_of(processes, model, &is_new);
        failed = !process || (is_new && add_name(events, model, process)) ||
                 add_events(events, call, process, start);
    }
    json_decref(processes);
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)start);
    if (!failed)
        return json_pack("{s:o,s:s,s:{s:s}}", "traceEvents", events, "displayTimeUnit", "ns", "otherData",
                         "start_unix_ns", text);
    json_decref(events);
    return NULL;
}
