/* SPDX-License-Identifier: Apache-2.0 */
/* One call: plan from the cache, workspace and pool of the context. */
#include <string.h>

#include "api/memory.h"
#include "base/structs.h"
#include "telemetry/receipt.h"

/* Grow-only, by a quarter at least where there is memory: a sequence that grows from call to call does not get a new
   one each time. The old content is of no use, so it is freed first. */
static tp_status grow(tp_context *context, tp__device *device, size_t need, tp__workspace_held *held, tp_error *error) {
    if (need <= held->size) return TP_OK;
    size_t more = held->size + held->size / 4, size = need > more ? need : more;
    tp__memory_give(&context->allocator, device, held->memory, held->size);
    *held = (tp__workspace_held){NULL, 0};
    if (tp__memory_take(&context->allocator, device, size, &held->memory, NULL) != TP_OK) {
        size = need;
        TP_TRY(tp__memory_take(&context->allocator, device, need, &held->memory, error));
    }
    held->size = size;
    return TP_OK;
}

static tp_status attend(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                        const tp_tensors *tensors, tp_receipt *receipt, tp__watch *watch, tp_error *error) {
    const tp_plan *plan;
    int planned;
    tp_status status = tp__cache_get(context, problem, choice, &plan, &planned, error);
    watch->record.planned = planned;
    if (status != TP_OK) {
        if (plan != NULL && plan->decision->status != TP_OK)
            tp__watch_refused(watch, context, problem, tp__tags_of(tensors), plan->decision);
        return status;
    }
    size_t need = tp_plan_workspace(plan, context->threads);
    tp__workspace_held *held = plan->device != NULL ? &context->device_workspace : &context->workspace;
    tp_status grown = grow(context, plan->device, need, held, error);
    atomic_store(&context->workspace_held, (long long)(context->workspace.size + context->device_workspace.size));
    TP_TRY(grown);
    tp_exec exec = TP_EXEC_INIT;
    exec.workspace = held->memory;
    exec.workspace_size = need;
    TP_TRY(tp__run(plan, problem, tensors, &exec, receipt, watch, error));
    if (receipt != NULL) {
        receipt->planned = planned;
        receipt->decision = NULL; /* the plan is the cache's and may go at the next call */
    }
    return TP_OK;
}

tp_status tp_backward(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                      const tp_tensors *tensors, tp_receipt *receipt, tp_error *error) {
    TP_STRUCT_IN(tp_problem, problem, error);
    tp_problem back = *problem;
    back.op = TP_BACKWARD;
    return tp_attention(context, &back, choice, tensors, receipt, error);
}

tp_status tp_attention(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                       const tp_tensors *tensors, tp_receipt *receipt, tp_error *error) {
    TP_REQUIRE(context != NULL, error, TP_INVALID, "context is NULL");
    TP_TRY(tp__context_usable(context, error));
    TP_STRUCT_IN(tp_problem, problem, error);
    TP_STRUCT_IN_OR_NULL(tp_choice, choice, error);
    tp__tensors_here here;
    TP_TRY(tp__tensors_in(&tensors, problem->op, &here, error));
    tp_receipt *filled = receipt, receipt_here;
    TP_TRY(tp__receipt_in(&filled, &receipt_here, error));
    tp__watch watch;
    tp__watch_begin(&watch, context);
    pthread_mutex_lock(&context->lock);
    tp_status status = attend(context, problem, choice, tensors, filled, &watch, error);
    pthread_mutex_unlock(&context->lock);
    if (status == TP_OK) tp__receipt_out(receipt, filled);
    return tp__watch_end(&watch, context, tp__tags_of(tensors), status);
}
