/* SPDX-License-Identifier: Apache-2.0 */
/* The context: everything that outlives a call. */
#ifndef TP_API_CONTEXT_H
#define TP_API_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/birth.h"
#include "api/watch.h"
#include "plan/plan.h"
#include "strategies/parallel.h"
#include "telemetry/histogram.h"
#include "telemetry/locks.h"
#include "tileproof.h"

typedef struct tp__cache tp__cache;

/* Memory that only grows. */
typedef struct tp__workspace_held {
    void *memory;
    size_t size;
} tp__workspace_held;

struct tp_context {
    tp_machine machine; /* what plans are made for: detected, or the caller's */
    tp__device *device; /* NULL: the CPU alone */
    tp__catalog catalog;
    tp_allocator allocator;
    uint32_t host_isa;  /* what really is here */
    tp__kernel_set sets[TP__SETS]; /* as tp__kernel_sets, each whole */
    tp__birth birth;
    int threads;
    int32_t policy;
    char *disable; /* NULL: none */
    tp__parallel parallel; /* a pool of its own, or the caller's threads */
    atomic_llong calls, plans, cache_hits, fallbacks, refusals, pairs_shared;
    tp_context_options options; /* whom to tell; what it points to is not the context's */
    tp__permits *permits;
    atomic_uint permits_generation;
    tp__counts *counts;
    tp__histograms *histograms; /* NULL: calls are not counted */
    tp__recorder *recorder; /* NULL: none */
    atomic_int trace_ended; /* its sink asked to stop */
    tp__locks locks;
    atomic_llong workspace_held;
    /* tp_attention only, under this lock */
    pthread_mutex_t lock;
    tp__cache *cache;
    tp__workspace_held workspace, device_workspace;
};

/* TP_FORKED in a forked child. Every entry point asks it before it takes a lock or memory. */
tp_status tp__context_here(const tp_context *context, tp_error *error);
/* That, and not inside a task. */
tp_status tp__context_usable(const tp_context *context, tp_error *error);

/* The plan for the problem within the context's cache, made if need be; valid while lock is held. *plan is set
   as well when the decision was to refuse, for its decision; NULL when none was made. */
tp_status tp__cache_get(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                        const tp_plan **plan, int *planned, tp_error *error);
tp__cache *tp__cache_create(int max);
void tp__cache_destroy(tp__cache *cache);

/* Checks choice and problem, decides, and fills in *plan; tp_plan_create without the allocation. When the
   decision was to refuse, only the plan's decision is set; NULL: there is none. The caller releases it with the plan. */
tp_status tp__plan_make(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                        tp_plan *plan, tp_error *error);

/* What a plan holds besides its memory: the decision, and what its backend prepared, once no call on it is open. */
void tp__plan_release(tp_plan *plan);

/* The rules of tp_exec on the CPU (device NULL) or on a device. */
tp_status tp__exec_check(const tp_exec *exec, const tp__device *device, tp_error *error);

/* tp_plan_run with the bounds the caller named, which a cached plan's own may exceed. */
tp_status tp__run(const tp_plan *plan, const tp_problem *bounds, const tp_tensors *tensors,
                  const tp_exec *exec, tp_receipt *receipt, tp__watch *watch, tp_error *error);

#endif
