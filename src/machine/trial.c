/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libpthreadpool does not look at what pthread_create returns: a pool whose threads cannot all be started waits
 * for the missing ones for ever. So they are tried first. Limits on threads are limits on how many exist at a time
 * (processes of a user, pids of a cgroup, address space for stacks), hence all of them are kept until the last has
 * been tried.
 */
#define _GNU_SOURCE
#include "machine/trial.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOKS_MAX 100000 /* a thread that has been joined is gone after a few; a debugger may hold it */

typedef struct trial {
    pthread_mutex_t *gate; /* closed until all have been tried */
    pthread_t thread;
    long id;               /* the kernel's */
    char memory[192];      /* a pool takes about as much for a thread: given back before one is made */
} trial;

static void *wait_at_the_gate(void *one) {
    trial *t = one;
    t->id = syscall(SYS_gettid);
    pthread_mutex_lock(t->gate);
    pthread_mutex_unlock(t->gate);
    return NULL;
}

/* pthread_join returns a little before the kernel stops counting the thread. */
static void wait_until_gone(long id) {
    for (int i = 0; i < LOOKS_MAX && syscall(SYS_tgkill, (long)getpid(), id, 0L) == 0; i++) sched_yield();
}

int tp__threads_start(int count, int *reason) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    int started = 0;
    trial *all = count > 0 ? calloc((size_t)count, sizeof *all) : NULL;
    *reason = all == NULL ? ENOMEM : 0;
    if (all == NULL) return 0;
    pthread_mutex_lock(&gate);
    while (*reason == 0 && started < count) {
        all[started].gate = &gate;
        *reason = pthread_create(&all[started].thread, NULL, wait_at_the_gate, &all[started]);
        if (*reason == 0) started++;
    }
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < started; i++) pthread_join(all[i].thread, NULL);
    for (int i = 0; i < started; i++) wait_until_gone(all[i].id);
    pthread_mutex_destroy(&gate);
    free(all);
    return started;
}
