/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A caller's own parallel-for, for tp_exec.parallel_for. Thread-sanitizer runs use it because the
 * sanitizer does not understand libpthreadpool's futexes.
 */
#ifndef TP_TESTS_SUPPORT_PARALLEL_H
#define TP_TESTS_SUPPORT_PARALLEL_H

#include "tileproof.h"

typedef struct parallel {
    int threads;   /* of parallel_threads; 0: 2 */
    uint64_t seed; /* of parallel_shuffled */
    int calls;     /* how often it was used */
    size_t tasks;  /* how many tasks were run */
} parallel;

/* user is a parallel. Real threads, each taking the next index that is left. */
void parallel_threads(void *user, size_t count, tp_task task, void *context);
/* On the calling thread, the last index first. */
void parallel_reverse(void *user, size_t count, tp_task task, void *context);
/* On the calling thread, in an order that the seed gives. */
void parallel_shuffled(void *user, size_t count, tp_task task, void *context);

/* Runs body(user, index) on this many threads at once and waits for all. */
void parallel_each(int threads, void (*body)(void *user, int index), void *user);

#endif
