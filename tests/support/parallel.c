/* SPDX-License-Identifier: Apache-2.0 */
#include "support/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { THREADS_MAX = 16 };

typedef struct job {
    atomic_size_t next;
    size_t count;
    tp_task task;
    void *context;
} job;

static void *claim(void *argument) {
    job *j = argument;
    for (;;) {
        size_t index = atomic_fetch_add(&j->next, 1);
        if (index >= j->count) return NULL;
        j->task(j->context, index);
    }
}

static void note(parallel *p, size_t count) {
    p->calls++;
    p->tasks += count;
}

void parallel_threads(void *user, size_t count, tp_task task, void *context) {
    parallel *p = user;
    pthread_t thread[THREADS_MAX];
    job j = {.count = count, .task = task, .context = context};
    int threads = p->threads > 0 && p->threads <= THREADS_MAX ? p->threads : 2, started = 0;
    atomic_init(&j.next, 0);
    note(p, count);
    while (started < threads && pthread_create(&thread[started], NULL, claim, &j) == 0) started++;
    claim(&j); /* whatever the threads left */
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
}

void parallel_reverse(void *user, size_t count, tp_task task, void *context) {
    note(user, count);
    for (size_t i = count; i-- > 0;) task(context, i);
}

void parallel_shuffled(void *user, size_t count, tp_task task, void *context) {
    parallel *p = user;
    uint64_t random = p->seed;
    size_t *order = malloc((count + 1) * sizeof *order);
    note(p, count);
    for (size_t i = 0; i < count; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t at = (size_t)(random >> 33) % (i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (size_t i = 0; i < count; i++) task(context, order[i]);
    free(order);
}

typedef struct one {
    void (*body)(void *user, int index);
    void *user;
    int index;
} one;

static void *run_one(void *argument) {
    one *o = argument;
    o->body(o->user, o->index);
    return NULL;
}

void parallel_each(int threads, void (*body)(void *user, int index), void *user) {
    pthread_t thread[THREADS_MAX];
    one all[THREADS_MAX];
    int started = 0;
    for (; started < threads && started < THREADS_MAX; started++) {
        all[started] = (one){body, user, started};
        if (pthread_create(&thread[started], NULL, run_one, &all[started]) != 0) break;
    }
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
}
