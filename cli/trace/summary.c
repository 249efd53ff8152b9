/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/summary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const by_names[BYS] = {"all", "model", "kernel", "class"};
enum { SLOTS = 4 * SUMMARY_GROUPS };

struct labels {
    enum by by;
    const char *model, *kernel, *problem_class;
};

int summary_open(struct summary *s) {
    *s = (struct summary){.group = calloc(SUMMARY_GROUPS + BYS, sizeof *s->group), .slot = calloc(SLOTS, sizeof *s->slot)};
    return !s->group || !s->slot;
}

static void group_free(struct group *g) {
    if (!g) return;
    free(g->model);
    free(g->kernel);
    free(g->problem_class);
    free(g);
}

void summary_close(struct summary *s) {
    for (int i = 0; s->group && i < s->group_count; i++) group_free(s->group[i]);
    free(s->group);
    free(s->slot);
    *s = (struct summary){0};
}

static uint64_t hash(uint64_t h, const char *text) {
    for (; text && *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return (h ^ 0xff) * 0x100000001b3u;
}

static int same(const char *a, const char *b) { return a && b ? !strcmp(a, b) : a == b; }

static int is_of(const struct group *g, const struct labels *l) {
    return g->by == l->by && same(g->model, l->model) && same(g->kernel, l->kernel) &&
           same(g->problem_class, l->problem_class);
}

static struct group *group_new(struct summary *s, const struct labels *l) {
    struct group *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->by = l->by;
    g->model = l->model ? strdup(l->model) : NULL;
    g->kernel = l->kernel ? strdup(l->kernel) : NULL;
    g->problem_class = l->problem_class ? strdup(l->problem_class) : NULL;
    if ((l->model && !g->model) || (l->kernel && !g->kernel) || (l->problem_class && !g->problem_class)) {
        group_free(g);
        return NULL;
    }
    s->group[s->group_count++] = g;
    return g;
}

/* The group of these labels, made if need be; NULL: no memory. When there are too many, one for the rest of its kind, whose
   place is kept free. */
static struct group *group_of(struct summary *s, struct labels l) {
    uint64_t h = hash(hash(hash(0xcbf29ce484222325u + l.by, l.model), l.kernel), l.problem_class);
    int at = (int)(h % SLOTS);
    for (; s->slot[at]; at = (at + 1) % SLOTS)
        if (is_of(s->group[s->slot[at] - 1], &l)) return s->group[s->slot[at] - 1];
    const char *other = "other";
    struct labels rest = {l.by, l.model ? other : NULL, l.kernel ? other : NULL, l.problem_class ? other : NULL};
    int is_rest = same(l.model, rest.model) && same(l.kernel, rest.kernel) && same(l.problem_class, rest.problem_class);
    if (s->group_count >= SUMMARY_GROUPS && !is_rest) {
        s->grouped_together = 1;
        return group_of(s, rest);
    }
    struct group *g = group_new(s, &l);
    if (g) s->slot[at] = s->group_count;
    return g;
}

static int count_in(struct group *g, const struct traced *call) {
    if (!g) return 1;
    if (strcmp(call->status, "TP_OK")) {
        g->refused++;
        return 0;
    }
    g->calls++;
    g->fallbacks += call->fallback;
    sketch_add(&g->times, call->time_ns);
    return 0;
}

static int count(struct summary *s, const struct traced *call) {
    char words[160];
    const char *model = call->model ? call->model : "-", *of = call->problem_class;
    int64_t end = call->ts_ns + call->time_ns; /* each is at most 4e18 */
    snprintf(words, sizeof words, "%s %s", call->phase, call->bucket); /* a line of the flight recorder has no class */
    const struct labels labels[BYS] = {{BY_ALL, NULL, NULL, NULL},
                                       {BY_MODEL, model, NULL, NULL},
                                       {BY_KERNEL, NULL, call->kernel, NULL},
                                       {BY_CLASS, model, call->kernel, of ? of : words}};
    if (!s->lines || call->ts_ns < s->first_ns) s->first_ns = call->ts_ns;
    if (!s->lines || end > s->last_ns) s->last_ns = end;
    s->lines++;
    int failed = 0;
    for (int i = 0; i < BYS; i++) failed |= count_in(group_of(s, labels[i]), call);
    return failed;
}

/* Faults of one kind have the same beginning: up to the value that they show. */
static size_t kind_length(const char *reason) {
    const char *value = strstr(reason, "' is ");
    if (!value) return strcspn(reason, ":0123456789");
    return (size_t)(value - reason) + (strncmp(value + 5, "missing", 7) ? 1 : 12);
}

static void note(struct summary *s, const char *reason, int64_t number) {
    char what[sizeof s->fault->what];
    size_t length = kind_length(reason);
    while (length && reason[length - 1] == ' ') length--;
    snprintf(what, sizeof what, "%.*s", (int)(length < sizeof what ? length : sizeof what - 1), reason);
    s->wrong++;
    int i = 0;
    while (i < s->fault_count && strcmp(s->fault[i].what, what)) i++;
    if (i > SUMMARY_FAULTS) i = SUMMARY_FAULTS;
    struct fault *fault = &s->fault[i];
    if (i == s->fault_count) {
        *fault = (struct fault){.first = number};
        strcpy(fault->what, i < SUMMARY_FAULTS ? what : "others");
        snprintf(fault->shown, sizeof fault->shown, "%s", reason);
        s->fault_count++;
    }
    fault->lines++;
}

struct reading {
    struct summary *summary;
    int failed;
};

static int take(void *user, json_t *object, int line, char reason[LINES_REASON]) {
    struct reading *reading = user;
    struct traced call;
    (void)line;
    if (traced_call(object, &call, reason)) return 1;
    reading->failed = count(reading->summary, &call);
    return 0;
}

int summary_line(struct summary *s, const char *line, size_t length, int64_t number) {
    char reason[LINES_REASON];
    struct reading reading = {s, 0};
    if (line_blank(line, length)) {
        s->blank++;
        return 0;
    }
    if (line_read(line, length, take, &reading, 0, reason)) note(s, reason, number);
    return reading.failed;
}

static int by_time(const void *left, const void *right) {
    const struct group *a = *(struct group *const *)left, *b = *(struct group *const *)right;
    if (a->by != b->by) return (int)a->by - (int)b->by;
    if (a->times.sum != b->times.sum) return a->times.sum > b->times.sum ? -1 : 1;
    if (a->refused != b->refused) return a->refused > b->refused ? -1 : 1;
    int order = strcmp(a->model ? a->model : "", b->model ? b->model : "");
    if (!order) order = strcmp(a->kernel ? a->kernel : "", b->kernel ? b->kernel : "");
    return order ? order : strcmp(a->problem_class ? a->problem_class : "", b->problem_class ? b->problem_class : "");
}

void summary_sort(struct summary *s) { qsort(s->group, (size_t)s->group_count, sizeof *s->group, by_time); }
