/* SPDX-License-Identifier: Apache-2.0 */
/* One context for each crew: a number of threads, of PyTorch or of our own. A few that nobody uses are kept; a forked child
 * starts with none. */
#include "core.h"

#include <limits.h>
#include <stdlib.h>

#define KEPT        8
/* About what waking another thread costs; PyTorch's are mostly awake. Bits do not depend on threads. */
#define SMALL_FLOPS 5e5
#define SMALL_OF_PYTORCH 1e5

struct shared_context {
    tp_context *context;
    crew crew;
    int users, told; /* told: it was made while somebody listened */
    struct shared_context *next;
};

static shared_context *first; /* the most recently used; guarded by the GIL */
static int host;              /* how many threads it allows; 0: not asked yet */

int context_is_here(const shared_context *s) {
    tp_counters counters = {.struct_size = sizeof counters};
    return tp_context_counters(s->context, &counters) != TP_FORKED;
}

/* The pool's threads do not exist in a forked child, and locks may be held for ever: leave them
 * alone. */
static void forget_after_fork(void) {
    if (first == NULL || !context_is_here(first)) first = NULL, host = 0;
}

static int same_crew(crew a, crew b) {
    return a.threads == b.threads && a.openmp == b.openmp;
}

/* Python hears of what goes, and may come back here: by then the list is whole again. */
static void drop_oldest(void) {
    int idle = 0;
    shared_context *gone = NULL;
    for (shared_context **at = &first; *at != NULL;) {
        shared_context *s = *at;
        if (s->users == 0 && ++idle > KEPT) {
            *at = s->next;
            s->next = gone;
            gone = s;
        } else {
            at = &s->next;
        }
    }
    for (shared_context *s = gone, *next; s != NULL; s = next) {
        next = s->next;
        telemetry_gone(s->context);
        tp_context_destroy(s->context);
        free(s);
    }
}

static shared_context *make(crew who) {
    tp_error error = TP_ERROR_INIT;
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    options.threads = who.threads;
    if (who.openmp) options.parallel_for = openmp_for;
    telemetry_options(&options);
    shared_context *s = calloc(1, sizeof *s);
    if (s == NULL) return (shared_context *)PyErr_NoMemory();
    tp_status status = tp_context_create(&options, &s->context, &error);
    if (status != TP_OK) {
        free(s);
        raise_status(status, &error);
        return NULL;
    }
    s->crew = who;
    s->told = telemetry_wanted();
    preflight_again(s->context);
    return s;
}

static int host_threads(void) {
    tp_error error = TP_ERROR_INIT;
    tp_machine machine;
    forget_after_fork();
    if (host == 0)
        host = tp_machine_detect(&machine, &error) == TP_OK ? machine.threads : INT_MAX;
    return host;
}

int is_small(const tp_problem *p) {
    double pairs = (double)p->batch * (double)p->q_heads * (double)p->q_len * (double)p->kv_len;
    double flops = 2.0 * pairs * (double)(p->head_dim_qk + p->head_dim_v);
    return flops < SMALL_OF_PYTORCH || (flops < SMALL_FLOPS && !openmp_usable());
}

crew crew_of_any_size(int threads, int max) {
    if (threads != 0) return (crew){threads, 0}; /* exactly so many: a pool of our own has them */
    return (crew){max > 0 && max < host_threads() ? max : 0, openmp_usable()};
}

crew crew_of(const tp_problem *problem, int threads, int max) {
    return threads == 0 && is_small(problem) ? (crew){1, 0} : crew_of_any_size(threads, max);
}

shared_context *context_take(crew who) {
    forget_after_fork();
    who.openmp = who.openmp && openmp_usable(); /* a plan's may be older than a fork */
    shared_context **at = &first;
    int told = telemetry_wanted();
    while (*at != NULL && !(same_crew((*at)->crew, who) && (*at)->told == told)) at = &(*at)->next;
    shared_context *s = *at;
    if (s != NULL)
        *at = s->next;
    else if ((s = make(who)) == NULL)
        return NULL;
    s->next = first;
    first = s;
    s->users++;
    if (s->next != NULL) drop_oldest();
    return s;
}

tp_context *context_of(shared_context *s) {
    return s->context;
}

shared_context *context_next(shared_context *s) {
    if (s == NULL) forget_after_fork();
    return s == NULL ? first : s->next;
}

void context_give(shared_context *s) {
    if (s != NULL) s->users--;
}
