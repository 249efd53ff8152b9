/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's own threads, where it is in the process: two pools on the same cores would disturb each other. They are those of
 * the OpenMP library that PyTorch is linked with, by the entry that gcc calls for a parallel region; LLVM's and Intel's
 * libraries have it, too. */
#include "core.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

typedef void region(void (*body)(void *), void *data, unsigned threads, unsigned flags);

static region *parallel_region; /* guarded by the GIL; NULL: not found */
static pid_t born;              /* OpenMP's threads do not exist in a forked child, which would wait for them for ever */
static atomic_llong regions;

void openmp_init(void) {
    born = getpid();
}

int openmp_usable(void) {
    if (getpid() != born) return 0;
    if (parallel_region != NULL) return 1;
    void *torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (torch == NULL) return 0;
    parallel_region = (region *)(uintptr_t)dlsym(torch, "GOMP_parallel"); /* in it or in what it is linked with */
    dlclose(torch);                                                      /* PyTorch itself is never unloaded */
    return parallel_region != NULL;
}

PyObject *core_regions(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)self, (void)args;
    return wrong_count("regions", count, 0) ? NULL : PyLong_FromLongLong(atomic_load(&regions));
}

typedef struct shared_work {
    atomic_size_t next;
    size_t count;
    tp_task task;
    void *context;
} shared_work;

static void body(void *data) {
    shared_work *work = data;
    for (size_t i; (i = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed)) < work->count;)
        work->task(work->context, i);
}

/* The whole team, as PyTorch asks for it: of a smaller one the library would end threads, and start them again. */
void openmp_for(void *user, size_t count, tp_task task, void *context) {
    (void)user;
    shared_work work = {.count = count, .task = task, .context = context};
    atomic_fetch_add_explicit(&regions, 1, memory_order_relaxed);
    parallel_region(body, &work, 0, 0);
}
