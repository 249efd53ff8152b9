/* SPDX-License-Identifier: Apache-2.0 */
#include "api/context.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/memory.h"
#include "base/structs.h"
#include "machine/isa.h"
#include "machine/trial.h"

#define THREADS_MAX 1024
#define PLANS_DEFAULT 64
#define PLANS_MAX 65536
#define RECORDED_DEFAULT 64
#define RECORDED_MAX 65536
#define STRING_(x) #x
#define STRING(x) STRING_(x)

const char *tp_version(void) {
    return STRING(TP_VERSION_MAJOR) "." STRING(TP_VERSION_MINOR) "." STRING(TP_VERSION_PATCH);
}

static tp_status check_options(const tp_context_options *options, tp_error *error) {
    TP_REQUIRE(options->threads >= 0 && options->threads <= THREADS_MAX, error, TP_INVALID,
               "threads is %d: it must be in 0..%d", options->threads, THREADS_MAX);
    TP_TRY(tp__policy_check(options->policy, error));
    TP_REQUIRE(options->cached_plans >= 0 && options->cached_plans <= PLANS_MAX, error, TP_INVALID,
               "cached_plans is %d: it must be in 0..%d", options->cached_plans, PLANS_MAX);
    TP_REQUIRE(options->recorded >= -1 && options->recorded <= RECORDED_MAX, error, TP_INVALID,
               "recorded is %d: it must be in -1..%d", options->recorded, RECORDED_MAX);
    TP_REQUIRE(options->counted == 0 || options->counted == -1, error, TP_INVALID,
               "counted is %d: it must be 0 (calls are counted) or -1 (they are not)", options->counted);
    TP_REQUIRE(options->reserved == 0 && options->reserved2 == 0, error, TP_INVALID,
               "reserved is %d and reserved2 %d: they must be 0", options->reserved, options->reserved2);
    return TP_OK;
}

/* What its options bring along, checked. */
static tp_status take_options(tp_context *made, const tp_context_options *options, tp_error *error) {
    const tp_backend *backend = options->backend;
    const tp_allocator *allocator = options->allocator;
    TP_STRUCT_IN_OR_NULL(tp_backend, backend, error);
    TP_STRUCT_IN_OR_NULL(tp_allocator, allocator, error);
    if (backend != NULL) TP_TRY(tp__device_create(backend, tp__is_cpu_kernel, &made->device, error));
    tp__catalog_fill(&made->catalog, made->device);
    made->allocator = allocator != NULL ? *allocator : tp__default_allocator;
    TP_TRY(tp__allocator_check(&made->allocator, error));
    return tp__names_check("disable", options->disable, &made->catalog, error);
}

static tp_status check_machine(const tp_machine *machine, tp_error *error) {
    char known[64];
    tp_isa_print(tp__isa_all(), known, sizeof known);
    TP_REQUIRE(machine == NULL || (machine->isa & ~tp__isa_all()) == 0, error, TP_INVALID,
               "machine.isa is %#x: it may have the bits %#x (%s)", machine->isa, tp__isa_all(), known);
    return TP_OK;
}

static tp_status start_pool(tp_context *context, tp_error *error) {
    int failed, reason, more = context->threads - 1; /* the caller's own is one of them */
    if (context->parallel.parallel_for != NULL) return TP_OK;
    int started = more > 0 ? tp__threads_start(more, &reason) : more;
    TP_REQUIRE(started == more, error, TP_NO_MEMORY,
               "threads is %d: %d can be had, the caller's among them, and the next could not be started (%s). Ask for "
               "fewer in tp_context_options.threads, or raise the limit of address space (ulimit -v), of processes "
               "(ulimit -u) or of the cgroup (pids.max)",
               context->threads, started + 1, strerror(reason));
    context->parallel.pool = tp__pool_create(context->threads, &failed);
    TP_REQUIRE(!failed, error, TP_NO_MEMORY, "threads is %d: no memory for a pool of so many", context->threads);
    return TP_OK;
}

tp_status tp_context_create(const tp_context_options *options, tp_context **context,
                            tp_error *error) {
    static const tp_context_options defaults = TP_CONTEXT_OPTIONS_INIT;
    TP_REQUIRE(context != NULL, error, TP_INVALID, "context is NULL: it must point to a pointer");
    *context = NULL;
    if (options == NULL) options = &defaults;
    TP_STRUCT_IN(tp_context_options, options, error);
    const tp_machine *machine = options->machine;
    TP_STRUCT_IN_OR_NULL(tp_machine, machine, error);
    TP_TRY(check_options(options, error));
    TP_TRY(check_machine(machine, error));

    tp_machine host;
    TP_TRY(tp_machine_detect(&host, error));
    tp_context *made = calloc(1, sizeof *made);
    TP_REQUIRE(made != NULL, error, TP_NO_MEMORY, "no memory for a context of %zu bytes",
               sizeof *made);
    made->machine = machine != NULL ? *machine : host;
    made->host_isa = host.isa;
    for (int i = 0; i < TP__SETS; i++) made->sets[i] = tp__kernel_set_whole(i);
    made->policy = options->policy;
    made->options = *options;
    made->threads = options->threads > 0 ? options->threads : host.threads;
    made->parallel = (tp__parallel){NULL, options->parallel_for, options->parallel_user};
    if (!tp__pool_available() && options->parallel_for == NULL) made->threads = 1;
    pthread_mutex_init(&made->lock, NULL);
    tp_status status = take_options(made, options, error);
    if (status != TP_OK) {
        tp_context_destroy(made);
        return status;
    }
    int max = options->cached_plans > 0 ? options->cached_plans : PLANS_DEFAULT;
    made->cache = tp__cache_create(max);
    made->permits = tp__permits_create(&made->catalog);
    made->counts = tp__counts_create(&made->catalog.names);
    if (options->counted == 0) made->histograms = tp__histograms_create();
    if (options->recorded >= 0)
        made->recorder = tp__recorder_create(options->recorded > 0 ? options->recorded : RECORDED_DEFAULT);
    if (options->disable != NULL) made->disable = strdup(options->disable);
    int failed = made->cache == NULL || made->permits == NULL || made->counts == NULL ||
                 (options->counted == 0 && made->histograms == NULL) || (options->recorded >= 0 && made->recorder == NULL) ||
                 (options->disable != NULL && made->disable == NULL) || !tp__birth_note(&made->birth);
    status = failed ? tp__fail(error, TP_NO_MEMORY, "no memory for what a context holds")
                    : start_pool(made, error); /* last: all other memory has been had */
    if (status == TP_OK)
        *context = made;
    else
        tp_context_destroy(made);
    return status;
}

void tp_context_destroy(tp_context *context) {
    if (context == NULL) return;
    int here = tp__birth_is_here(&context->birth);
    /* in a forked child the pool's threads do not exist, so joining them would wait for ever; nor do those of a device, and a
       caller's allocator may have locks of its own */
    if (here) tp__pool_destroy(context->parallel.pool);
    if (here && context->device != NULL) tp__device_wait(context->device, &context->device->open);
    /* and where a thread of the parent was at work, what its lock guards may be half changed: it is left */
    if (pthread_mutex_trylock(&context->lock) == 0) {
        tp__cache_destroy(context->cache);
        if (here || context->allocator.release == tp__default_allocator.release)
            tp__memory_give(&context->allocator, NULL, context->workspace.memory, context->workspace.size);
        if (here && context->device != NULL)
            tp__memory_give(NULL, context->device, context->device_workspace.memory, context->device_workspace.size);
        pthread_mutex_unlock(&context->lock);
        pthread_mutex_destroy(&context->lock);
    }
    tp__permits_destroy(context->permits);
    tp__counts_destroy(context->counts);
    tp__histograms_destroy(context->histograms);
    tp__recorder_destroy(context->recorder);
    tp__device_destroy(context->device, here);
    tp__birth_forget(&context->birth);
    free(context->disable);
    free(context);
}

int tp_context_threads(const tp_context *context) { return context != NULL ? context->threads : 0; }

const tp_machine *tp_context_machine(const tp_context *context) {
    return context != NULL ? &context->machine : NULL;
}

tp_status tp__context_here(const tp_context *context, tp_error *error) {
    TP_REQUIRE(tp__birth_is_here(&context->birth), error, TP_FORKED,
               "the context was made before process %ld was forked: make one of its own after fork", (long)getpid());
    return TP_OK;
}

tp_status tp__context_usable(const tp_context *context, tp_error *error) {
    TP_TRY(tp__context_here(context, error));
    TP_REQUIRE(!tp__inside_task(), error, TP_BUSY,
               "called from inside a task of a run: it would wait for itself");
    return TP_OK;
}
