/* SPDX-License-Identifier: Apache-2.0 */
/* The entry point to running a plan: check everything, then hand over to its strategy. */

#include "api/flight.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/control.h"
#include "base/structs.h"
#include "problem/sequence.h"
#include "strategies/prepare.h"
#include "strategies/schedule.h"
#include "telemetry/receipt.h"

tp_status tp__exec_check(const tp_exec *exec, const tp__device *device, tp_error *error) {
    TP_REQUIRE(exec->threads >= 0 && exec->threads <= 1024, error, TP_INVALID,
               "exec.threads is %d: it must be in 0..1024", exec->threads);
    TP_REQUIRE(exec->queue == NULL || device != NULL, error, TP_INVALID,
               "exec.queue is %p: it must be NULL on the CPU, which has none", exec->queue);
    TP_REQUIRE(exec->reserved == 0, error, TP_INVALID, "exec.reserved is %d: it must be 0", exec->reserved);
    TP_REQUIRE((exec->flags & ~TP_EXEC_CHECK_DEEP) == 0, error, TP_INVALID,
               "exec.flags is %#x: only TP_EXEC_CHECK_DEEP (1) exists", exec->flags);
    TP_REQUIRE(exec->pool == NULL || tp__pool_available(), error, TP_INVALID,
               "exec.pool is given, but this build has no pthreadpool: use parallel_for");
    return TP_OK;
}

/* Tasks worth starting: cutting further leaves threads without rows. Changes no bit. */
static int useful_threads(const tp_plan *plan, const tp_tensors *tensors, int asked) {
    const tp_problem *p = &plan->problem;
    int64_t heads = tp__times(tensors->batch, plan->strategy->fused ? p->kv_heads : p->q_heads);
    int64_t tokens = p->q_layout == TP_PACKED ? tensors->q_tokens
                                              : tp__times(tensors->batch, tensors->q_len);
    int64_t ranges = tp__times(tokens, p->q_heads) / TP__RANGE_ROWS_MIN;
    int64_t keys = p->kv_layout == TP_PACKED ? tensors->kv_tokens : tensors->kv_len;
    if (p->sparse_len > 0 && plan->strategy->fused) { /* every token by itself */
        heads = tp__times(tokens, p->kv_heads);
        keys = tp__row_keys_max(p);
    }
    int64_t chunks = tp__times(heads, keys) / TP_DECODE_CHUNK_KEYS;
    int64_t max = plan->strategy->fused ? tp__max(heads, tp__max(ranges, chunks)) : heads;
    if (plan->strategy->max != NULL) max = plan->strategy->max(p, tensors);
    return (int)tp__max(1, tp__min(asked, max));
}

tp_status tp_plan_run(const tp_plan *plan, const tp_tensors *tensors, const tp_exec *exec,
                      tp_receipt *receipt, tp_error *error) {
    TP_REQUIRE(plan != NULL, error, TP_INVALID, "plan is NULL");
    TP_STRUCT_IN(tp_exec, exec, error);
    tp__tensors_here here;
    TP_TRY(tp__tensors_in(&tensors, plan->problem.op, &here, error));
    tp_receipt *filled = receipt, receipt_here;
    TP_TRY(tp__receipt_in(&filled, &receipt_here, error));
    TP_REQUIRE(exec->done == NULL, error, TP_INVALID, "exec.done is given: it is for tp_plan_submit, tp_plan_run waits");
    tp__watch watch;
    tp__watch_begin(&watch, plan->context);
    tp_status status = tp__run(plan, &plan->problem, tensors, exec, filled, &watch, error);
    if (status == TP_OK) tp__receipt_out(receipt, filled);
    return tp__watch_end(&watch, plan->context, tp__tags_of(tensors), status);
}

/* It may ask a mask's callback, which is inside the call as it will be when tasks ask it. */
static tp_status check_deep(const tp_problem *bounds, const tp_tensors *tensors, tp_error *error) {
    int outer = tp__set_inside(1);
    tp_status status = tp_check_deep(bounds, tensors, error);
    tp__set_inside(outer);
    return status;
}

static tp_status run(const tp_plan *plan, const tp_problem *bounds, const tp_tensors *tensors,
                     const tp_exec *exec, tp_receipt *receipt, int64_t start, tp__ran *told, tp_error *error) {
    tp_context *context = plan->context;
    TP_TRY(tp__exec_check(exec, NULL, error));
    TP_REQUIRE((plan->kernels->needs & ~context->host_isa) == 0, error, TP_MACHINE,
               "the plan's kernel functions are %s, which this host lacks: it was made for another machine",
               plan->kernels->isa);
    TP_TRY(tp__tensors_check(bounds, tensors, error));
    if (exec->flags & TP_EXEC_CHECK_DEEP) TP_TRY(check_deep(bounds, tensors, error));

    int given = exec->pool != NULL || exec->parallel_for != NULL, threads = exec->threads;
    if (threads == 0)
        threads = !given ? context->threads : exec->parallel_for != NULL ? 1 : tp__pool_threads(exec->pool);
    threads = useful_threads(plan, tensors, threads);
    size_t need = tp_plan_workspace(plan, threads);
    TP_REQUIRE(exec->workspace != NULL && exec->workspace_size >= need, error, TP_WORKSPACE,
               "workspace is %p of %zu bytes: %d tasks need %zu (tp_plan_workspace)",
               exec->workspace, exec->workspace_size, threads, need);
    TP_REQUIRE((uintptr_t)exec->workspace % TP__ALIGN == 0, error, TP_WORKSPACE,
               "workspace is at %p: it must be %d-byte aligned", exec->workspace, TP__ALIGN);

    tp__trace trace = {0};
    tp__job job = {
        .problem = &plan->problem,
        .tensors = tensors,
        .kernels = plan->kernels,
        .path = plan->path,
        .parallel = given ? (tp__parallel){exec->pool, exec->parallel_for, exec->parallel_user} : context->parallel,
        .threads = threads,
        .workspace = exec->workspace,
        .trace = &trace,
    };
    tp__prepare(&job);
    tp_status status = tp__prepared_check(&job, error);
    if (status == TP_OK) {
        tp__control saved = tp__control_take(); /* it computes outside its tasks, too */
        job.units = tp__units_of(&plan->problem);
        plan->strategy->run(&job);
        tp__control_restore(saved);
    }
    tp__arena_open(exec->workspace, need);
    if (status != TP_OK) return status;
    told->kernel = tp__trace_kernel(&trace);
    if (trace.pairs_shared > 0) atomic_fetch_add(&context->pairs_shared, trace.pairs_shared);
    told->amounts = (tp__amounts){tp__now_ns() - start, trace.bytes, (int64_t)need};
    if (receipt != NULL) {
        tp__receipt_fill(receipt, &plan->problem, tensors, plan->decision, &trace,
                         job.prepared.seen != NULL ? tp__prepared_keys(&job) : -1);
        receipt->tasks = threads;
        receipt->workspace_bytes = (int64_t)need;
        receipt->time_ns = tp__now_ns() - start;
    }
    return TP_OK;
}

tp_status tp__run(const tp_plan *plan, const tp_problem *bounds, const tp_tensors *tensors,
                  const tp_exec *exec, tp_receipt *receipt, tp__watch *watch, tp_error *error) {
    tp__ran told = {"none", {0, 0, 0}};
    watch->record.start_ns = tp__now_ns();
    TP_TRY(tp__context_usable(plan->context, error));
    int wanted = tp__watch_wants_receipt(watch, plan);
    tp_receipt *filled = receipt == NULL && wanted ? &watch->receipt : receipt;
    tp_status status =
        plan->device != NULL ? tp__fly(plan, bounds, tensors, exec, filled, &told, error)
                             : run(plan, bounds, tensors, exec, filled, watch->record.start_ns, &told, error);
    if (wanted && receipt != NULL && status == TP_OK) watch->receipt = *receipt;
    tp__watch_ran(watch, plan, bounds, tp__labels_of(bounds, status == TP_OK ? tensors : NULL), tp__tags_of(tensors), &told,
                  status);
    return status;
}
