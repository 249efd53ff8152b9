/* SPDX-License-Identifier: Apache-2.0 */
/* Running tasks: serial, on a pthreadpool, or through the caller's own parallel-for. */
#ifndef TP_STRATEGIES_PARALLEL_H
#define TP_STRATEGIES_PARALLEL_H

#include "tileproof.h"

typedef struct tp__parallel {
    struct pthreadpool *pool;     /* NULL: none */
    tp_parallel_for parallel_for; /* taken before pool; NULL: none */
    void *user;
} tp__parallel;

/* Equals: for (size_t i = 0; i < count; i++) task(context, i); in any order. Every task runs with the
   default floating-point control word, whatever the caller's thread or the pool's had. */
void tp__parallel_run(const tp__parallel *parallel, size_t count, tp_task task, void *context);

/* Whether the calling thread is inside a task: a nested call would wait for itself. */
int tp__inside_task(void);
/* Sets that mark, around a function of the caller's that may not run attention; gives the old one back. */
int tp__set_inside(int now);

/* Pools of the library's own. NULL from create when threads <= 1, when the build has no pthreadpool or
   when it failed (*failed is then 1). */
struct pthreadpool *tp__pool_create(int threads, int *failed);
void tp__pool_destroy(struct pthreadpool *pool);
int tp__pool_threads(struct pthreadpool *pool); /* 1 for NULL */
int tp__pool_available(void);

#endif
