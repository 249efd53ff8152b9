/* SPDX-License-Identifier: Apache-2.0 */
/* The flight recorder: a ring of records. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "telemetry/record.h"

void tp__bounds_text(const tp_problem *problem, char text[512]) {
    if (tp_problem_print(problem, NULL, text, 512) != TP_OK) strcpy(text, "(its text form is too long)");
}

struct tp__recorder {
    pthread_mutex_t lock;
    int64_t max, added, told; /* told: all before this one have been written as fresh */
    struct entry {
        tp__record record;
        tp_problem problem;
    } ring[];
};

tp__recorder *tp__recorder_create(int max) {
    tp__recorder *r = calloc(1, sizeof *r + (size_t)max * sizeof *r->ring);
    if (r == NULL) return NULL;
    r->max = max;
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

void tp__recorder_destroy(tp__recorder *recorder) {
    if (recorder == NULL) return;
    /* held where a thread of a forked child's parent was at work */
    if (pthread_mutex_trylock(&recorder->lock) == 0) {
        pthread_mutex_unlock(&recorder->lock);
        pthread_mutex_destroy(&recorder->lock);
    }
    free(recorder);
}

/* Without mask nodes that are not in use, which are most of it. */
static void copy_problem(tp_problem *to, const tp_problem *from) {
    size_t mask = offsetof(tp_problem, mask), rest = offsetof(tp_problem, page_size);
    memcpy(to, from, mask + (size_t)from->mask_nodes * sizeof from->mask[0]);
    memcpy((char *)to + rest, (const char *)from + rest, sizeof *to - rest);
}

void tp__recorder_add(tp__recorder *recorder, const tp__record *record, const tp_problem *problem) {
    pthread_mutex_lock(&recorder->lock);
    struct entry *entry = &recorder->ring[recorder->added++ % recorder->max];
    entry->record = *record;
    copy_problem(&entry->problem, problem);
    pthread_mutex_unlock(&recorder->lock);
}

/* A copy of the first record that is kept and not before *at; 0: none is left before `end`. */
static int take(tp__recorder *recorder, int64_t *at, int64_t end, struct entry *entry) {
    pthread_mutex_lock(&recorder->lock);
    int64_t oldest = recorder->added - recorder->max;
    if (*at < oldest) *at = oldest; /* overwritten meanwhile */
    int left = *at < end;
    if (left) *entry = recorder->ring[(*at)++ % recorder->max];
    pthread_mutex_unlock(&recorder->lock);
    return left;
}

tp_status tp__recorder_write(tp__recorder *recorder, int fresh, tp_write write, void *cookie) {
    struct entry entry;
    char text[512];
    if (recorder == NULL) return TP_OK;
    pthread_mutex_lock(&recorder->lock);
    int64_t end = recorder->added, at = fresh ? recorder->told : 0;
    if (fresh) recorder->told = end;
    pthread_mutex_unlock(&recorder->lock);
    while (take(recorder, &at, end, &entry)) {
        tp__bounds_text(&entry.problem, text);
        if (tp__record_send(&entry.record, text, NULL, write, cookie) != 0) return TP_INVALID;
    }
    return TP_OK;
}
