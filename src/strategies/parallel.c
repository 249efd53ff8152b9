/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/parallel.h"

#include "base/control.h"

#ifdef TILEPROOF_PTHREADPOOL
#include <pthreadpool.h>
#ifdef TILEPROOF_YIELD
#define POOL_FLAGS PTHREADPOOL_FLAG_YIELD_WORKERS
#else
#define POOL_FLAGS 0 /* workers spin a while after a call: the next one starts sooner */
#endif
#endif

/* The one thread-local mark that tileproof.h names. */
static _Thread_local int inside;

int tp__inside_task(void) {
    return inside;
}

int tp__set_inside(int now) {
    int before = inside;
    inside = now;
    return before;
}

typedef struct job {
    tp_task task;
    void *context;
} job;

static void one_task(void *context, size_t index) {
    const job *j = context;
    tp__control saved = tp__control_take();
    int outer = inside;
    inside = 1;
    j->task(j->context, index);
    inside = outer;
    tp__control_restore(saved);
}

void tp__parallel_run(const tp__parallel *parallel, size_t count, tp_task task, void *context) {
    job j = {task, context};
    if (count > 1 && parallel->parallel_for != NULL) {
        parallel->parallel_for(parallel->user, count, one_task, &j);
        return;
    }
#ifdef TILEPROOF_PTHREADPOOL
    if (count > 1 && parallel->pool != NULL) {
        pthreadpool_parallelize_1d(parallel->pool, one_task, &j, count, POOL_FLAGS);
        return;
    }
#endif
    for (size_t i = 0; i < count; i++) one_task(&j, i);
}

#ifdef TILEPROOF_PTHREADPOOL
struct pthreadpool *tp__pool_create(int threads, int *failed) {
    struct pthreadpool *pool = threads > 1 ? pthreadpool_create((size_t)threads) : NULL;
    *failed = threads > 1 && pool == NULL;
    return pool;
}
void tp__pool_destroy(struct pthreadpool *pool) {
    if (pool != NULL) pthreadpool_destroy(pool);
}
int tp__pool_threads(struct pthreadpool *pool) {
    return pool != NULL ? (int)pthreadpool_get_threads_count(pool) : 1;
}
int tp__pool_available(void) {
    return 1;
}
#else
struct pthreadpool *tp__pool_create(int threads, int *failed) {
    (void)threads;
    *failed = 0;
    return NULL;
}
void tp__pool_destroy(struct pthreadpool *pool) {
    (void)pool;
}
int tp__pool_threads(struct pthreadpool *pool) {
    (void)pool;
    return 1;
}
int tp__pool_available(void) {
    return 0;
}
#endif
