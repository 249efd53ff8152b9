/* SPDX-License-Identifier: Apache-2.0 */
#include "replay/replay.h"

#include <stdlib.h>
#include <string.h>

struct raw {
    struct request request;
    const char *model;
};

#define AT(name) offsetof(struct raw, name)
static const struct line_field fields[] = {
    {"time", LINE_REAL, AT(request.time), 0, 1000000000, 0},
    {"model", LINE_TEXT, AT(model), 0, 63, 0},
    {"prompt", LINE_WHOLE, AT(request.prompt), 1, REPLAY_TOKENS, 0},
    {"cached", LINE_WHOLE, AT(request.cached), 0, REPLAY_TOKENS, 0},
    {"output", LINE_WHOLE, AT(request.output), 0, REPLAY_TOKENS, 0},
};
enum { FIELD_COUNT = sizeof fields / sizeof *fields };

static int find_model(struct requests *requests, const char *name) {
    int i = 0;
    while (i < requests->models && strcmp(requests->model[i], name)) i++;
    if (i == REPLAY_MODELS) return -1;
    if (i == requests->models) strcpy(requests->model[requests->models++], name);
    return i;
}

static int read_request(void *user, json_t *object, int line, char reason[LINES_REASON]) {
    struct requests *all = user;
    struct raw raw = {0};
    if (line_fields(fields, FIELD_COUNT, object, &raw, reason)) return 1;
    struct request *r = &raw.request;
    if (r->cached >= r->prompt)
        return line_wrong(reason, "field 'cached' is %lld: it must be less than prompt, %lld",
                          (long long)r->cached, (long long)r->prompt);
    if (all->count && r->time < all->request[all->count - 1].time)
        return line_wrong(reason, "field 'time' is %g: it must not be before the line above, %g", r->time,
                          all->request[all->count - 1].time);
    r->line = line;
    r->model = find_model(all, raw.model);
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
