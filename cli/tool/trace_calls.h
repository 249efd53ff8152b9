/* SPDX-License-Identifier: Apache-2.0 */
/* A trace of calls, as tp_context_options.trace writes it. */
#ifndef TILEPROOF_CLI_TOOL_TRACE_CALLS_H
#define TILEPROOF_CLI_TOOL_TRACE_CALLS_H

#include "tool/lines.h"

struct traced {
    int64_t ts_ns, time_ns, thread, layer, bytes, workspace;
    const char *status, *kernel, *problem, *problem_class, *phase, *bucket, *lock, *model, *request; /* NULL: not said */
    const json_t *refused;
    int fallback;
    json_t *object; /* holds the texts */
};

struct traced_calls {
    struct traced *call;
    size_t count, capacity;
    void (*tell)(size_t count); /* how many are read; NULL: nobody asks */
};

/* One line's object; its texts live as long as that. Nonzero: reason says why not. */
int traced_call(const json_t *object, struct traced *call, char reason[LINES_REASON]);

/* Into an empty one. Nonzero: reason says why; what was read is freed. */
int traced_read(struct traced_calls *calls, const char *text, size_t size, const char *name, char reason[LINES_REASON]);
void traced_free(struct traced_calls *calls);

/* The events of chrome://tracing, as one JSON value; NULL when memory ran out. */
json_t *traced_events(const struct traced_calls *calls);

#endif
