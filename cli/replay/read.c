/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct raw {
    struct request request;
    const char *model, *kernel;
};

#define AT(name) offsetof(struct raw, name)
#define MAX_MS   1000000000
static const struct line_field fields[] = {
    {"time", LINE_REAL, AT(request.time), 0, 1000000000, 0},
    {"model", LINE_TEXT, AT(model), 0, 63, 0},
    {"prompt", LINE_WHOLE, AT(request.prompt), 1, REPLAY_TOKENS, 0},
    {"cached", LINE_WHOLE, AT(request.cached), 0, REPLAY_TOKENS, 1},
    {"output", LINE_WHOLE, AT(request.output), 0, REPLAY_TOKENS, 0},
    {"ttft_ms", LINE_REAL, AT(request.ttft_ms), 0, MAX_MS, 1},
    {"queue_ms", LINE_REAL, AT(request.queue_ms), 0, MAX_MS, 1},
    {"tpot_ms", LINE_REAL, AT(request.tpot_ms), 0, MAX_MS, 1},
    {"kernel", LINE_TEXT, AT(kernel), 0, 63, 1},
};
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

/* Its index among the names, of which it becomes one; -1: there are too many. */
static int find_name(char (*names)[64], int *count, int max, const char *name) {
    int i = 0;
    while (i < *count && strcmp(names[i], name)) i++;
    if (i == max) return -1;
    if (i == *count) strcpy(names[(*count)++], name);
    return i;
}

/* What was observed, if anything was. */
static int read_observed(struct requests *all, struct request *r, const char *kernel, char reason[LINES_REASON]) {
    if (r->queue_ms > r->ttft_ms)
        return line_wrong(reason, "field 'queue_ms' is %g: it must be at most ttft_ms, %g, of which it is a part", r->queue_ms,
                          r->ttft_ms);
    r->kernel = kernel ? find_name(all->kernel, &all->kernels, REPLAY_KERNELS, kernel) : -1;
    if (!kernel || r->kernel >= 0) return 0;
    return line_wrong(reason, "field 'kernel' is '%s': a trace names at most %d kernels", kernel, REPLAY_KERNELS);
}

static int read_request(void *user, json_t *object, int line, char reason[LINES_REASON]) {
    struct requests *all = user;
    struct raw raw = {.request = {.ttft_ms = NAN, .queue_ms = NAN, .tpot_ms = NAN}};
    if (line_fields(fields, FIELD_COUNT, object, &raw, reason)) return 1;
    struct request *r = &raw.request;
    if (r->cached >= r->prompt)
        return line_wrong(reason, "field 'cached' is %lld: it must be less than prompt, %lld",
                          (long long)r->cached, (long long)r->prompt);
    if (all->count && r->time < all->request[all->count - 1].time)
        return line_wrong(reason, "field 'time' is %g: it must not be before the line above, %g", r->time,
                          all->request[all->count - 1].time);
    r->line = line;
    if (read_observed(all, r, raw.kernel, reason)) return 1;
    r->model = find_name(all->model, &all->models, REPLAY_MODELS, raw.model);
    if (r->model < 0)
        return line_wrong(reason, "field 'model' is '%s': a trace names at most %d models", raw.model,
                          REPLAY_MODELS);
    if (all->count == REPLAY_REQUESTS)
        return line_wrong(reason, "one request too many: a trace holds at most %d", REPLAY_REQUESTS);
    if (all->count == all->capacity) {
        size_t capacity = all->capacity ? 2 * all->capacity : 64;
        struct request *more = realloc(all->request, capacity * sizeof *more);
        if (!more) return line_wrong(reason, "no memory");
        all->request = more;
        all->capacity = capacity;
    }
    all->request[all->count++] = *r;
    return 0;
}

int requests_read(struct requests *requests, const char *text, size_t size, const char *name,
                  char reason[LINES_REASON]) {
    memset(requests, 0, sizeof *requests);
    int wrong = lines_read(text, size, name, read_request, requests, reason);
    if (wrong) requests_free(requests);
    return wrong;
}

void requests_free(struct requests *requests) {
    free(requests->request);
    memset(requests, 0, sizeof *requests);
}
