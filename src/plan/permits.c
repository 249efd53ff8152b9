/* SPDX-License-Identifier: Apache-2.0 */
/* What policy locked permits: pairs of a problem's class and a kernel, sorted, under a lock of their own. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/structs.h"
#include "plan/plan.h"
#include "problem/sequence.h"

#define PERMITS_MAX 65536

typedef struct permit {
    char *problem_class;
    const char *kernel; /* of the table of options */
} permit;

struct tp__permits {
    const tp__catalog *catalog;
    pthread_mutex_t lock;
    int64_t count;
    permit *permit;
};

tp_status tp_problem_class(const tp_problem *problem, char *text, size_t size) {
    if (text == NULL || size == 0) return TP_INVALID;
    text[0] = 0;
    TP_STRUCT_IN(tp_problem, problem, NULL);
    TP_TRY(tp_problem_check(problem, NULL));
    return tp__class_print(problem, tp__bucket(problem, problem->q_len), text, size);
}

tp__permits *tp__permits_create(const tp__catalog *catalog) {
    tp__permits *permits = calloc(1, sizeof *permits);
    if (permits == NULL) return NULL;
    permits->catalog = catalog;
    pthread_mutex_init(&permits->lock, NULL);
    return permits;
}

static void free_all(permit *all, int64_t count) {
    for (int64_t i = 0; i < count; i++) free(all[i].problem_class);
    free(all);
}

void tp__permits_destroy(tp__permits *permits) {
    if (permits == NULL) return;
    /* a lock that a thread of a forked child's parent held: what it guards may be half changed, and is left */
    if (pthread_mutex_trylock(&permits->lock) == 0) {
        free_all(permits->permit, permits->count);
        pthread_mutex_unlock(&permits->lock);
        pthread_mutex_destroy(&permits->lock);
    }
    free(permits);
}

static tp_status check(const tp__permits *permits, const tp_permit *p, int64_t index, tp_error *error) {
    TP_REQUIRE(p->problem_class != NULL && p->kernel != NULL, error, TP_INVALID,
               "permit %lld: %s is NULL", (long long)index,
               p->problem_class == NULL ? "problem_class" : "kernel");
    const char *bucket = strchr(p->problem_class, ' ');
    int phase = strncmp(p->problem_class, "prefill ", 8) == 0 || strncmp(p->problem_class, "decode ", 7) == 0 ||
                strncmp(p->problem_class, "backward ", 9) == 0;
    TP_REQUIRE(phase && (strncmp(bucket, " few-rows h", 11) == 0 || strncmp(bucket, " many-rows h", 12) == 0),
               error, TP_INVALID,
               "permit %lld: problem_class is '%.80s': it must begin as tp_problem_class writes it, with a "
               "phase and a bucket",
               (long long)index, p->problem_class);
    TP_REQUIRE(p->kernel[0] != '\0' && strchr(p->kernel, ',') == NULL, error, TP_INVALID,
               "permit %lld: kernel is '%.64s': it must be one name", (long long)index, p->kernel);
    return tp__names_check("kernel", p->kernel, permits->catalog, error);
}

static int by_class(const void *left, const void *right) {
    const permit *a = left, *b = right;
    int order = strcmp(a->problem_class, b->problem_class);
    return order != 0 ? order : strcmp(a->kernel, b->kernel);
}

/* Each once: who loads a lock again adds nothing. */
static int64_t sort(permit *all, int64_t count) {
    int64_t kept = 0;
    qsort(all, (size_t)count, sizeof *all, by_class);
    for (int64_t i = 0; i < count; i++) {
        if (kept > 0 && by_class(&all[kept - 1], &all[i]) == 0)
            free(all[i].problem_class);
        else
            all[kept++] = all[i];
    }
    return kept;
}

/* The table's own name, which outlives the caller's. */
static const char *own_name(const tp__permits *permits, const char *kernel) {
    const tp__kernel_names *names = &permits->catalog->names;
    int i = 0;
    while (strcmp(names->name[i], kernel) != 0) i++;
    return names->name[i];
}

/* A copy of both, so that a failure leaves the old ones as they were. */
static permit *joined(const tp__permits *permits, const tp_permit *more, int64_t count) {
    permit *all = calloc((size_t)(permits->count + count), sizeof *all);
    int64_t n = 0;
    int failed = all == NULL;
    for (; !failed && n < permits->count + count; n++) {
        const tp_permit *fresh = n < permits->count ? NULL : &more[n - permits->count];
        all[n].problem_class = strdup(fresh != NULL ? fresh->problem_class : permits->permit[n].problem_class);
        all[n].kernel = fresh != NULL ? own_name(permits, fresh->kernel) : permits->permit[n].kernel;
        failed = all[n].problem_class == NULL;
    }
    if (!failed) return all;
    if (all != NULL) free_all(all, n);
    return NULL;
}

tp_status tp__permits_add(tp__permits *permits, const tp_permit *more, int64_t count, tp_error *error) {
    TP_REQUIRE(count >= 0 && count <= PERMITS_MAX && (more != NULL || count == 0), error, TP_INVALID,
               "permits is %p with a count of %lld: it must be in 0..%d, and 0 for NULL", (const void *)more,
               (long long)count, PERMITS_MAX);
    for (int64_t i = 0; i < count; i++) TP_TRY(check(permits, &more[i], i, error));
    if (count == 0) return TP_OK;
    pthread_mutex_lock(&permits->lock);
    int64_t all = permits->count + count;
    permit *both = joined(permits, more, count);
    if (both != NULL) all = sort(both, all);
    if (both != NULL && all <= PERMITS_MAX) {
        free_all(permits->permit, permits->count);
        permits->permit = both;
        permits->count = all;
    } else if (both != NULL)
        free_all(both, all);
    pthread_mutex_unlock(&permits->lock);
    TP_REQUIRE(all <= PERMITS_MAX, error, TP_INVALID, "%lld permits in all: a context holds at most %d",
               (long long)all, PERMITS_MAX);
    TP_REQUIRE(both != NULL, error, TP_NO_MEMORY, "no memory for %lld permits", (long long)all);
    return TP_OK;
}

void tp__permits_clear(tp__permits *permits) {
    pthread_mutex_lock(&permits->lock);
    free_all(permits->permit, permits->count);
    permits->permit = NULL;
    permits->count = 0;
    pthread_mutex_unlock(&permits->lock);
}

int64_t tp__permits_find(tp__permits *permits, const char *problem_class, const char *kernel, int *named) {
    int64_t low = 0, found = 0;
    *named = 0;
    pthread_mutex_lock(&permits->lock);
    for (int64_t high = permits->count; low < high;) {
        int64_t middle = low + (high - low) / 2;
        if (strcmp(permits->permit[middle].problem_class, problem_class) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < permits->count && strcmp(permits->permit[low].problem_class, problem_class) == 0; low++) {
        found++;
        *named |= strcmp(permits->permit[low].kernel, kernel) == 0;
    }
    pthread_mutex_unlock(&permits->lock);
    return found;
}
