/* SPDX-License-Identifier: Apache-2.0 */
/* One call: plan from the cache, workspace and pool of the context. */
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "base/structs.h"
#include "telemetry/receipt.h"

/* Grow-only, by a quarter at least where there is memory: a sequence that grows from call to call does not get a new
   one each time. The old content is of no use, so it is freed first. */
static tp_status grow(tp_context *context, size_t need, tp_error *error) {
    if (need <= context->workspace_size) return TP_OK;
    size_t more = context->workspace_size + context->workspace_size / 4, size = need > more ? need : more;
    free(context->workspace);
    context->workspace = NULL;
    context->workspace_size = 0;
    atomic_store(&context->workspace_held, 0);
    if (posix_memalign(&context->workspace, 64, size) != 0) {
        context->workspace = NULL;
        size = need;
        TP_REQUIRE(posix_memalign(&context->workspace, 64, need) == 0, error, TP_NO_MEMORY,
                   "no memory for a workspace of %zu bytes", need);
    }
    context->workspace_size = size;
    atomic_store(&context->workspace_held, (long long)size);
    return TP_OK;
}

static tp_status attend(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                        const tp_tensors *tensors, tp_receipt *receipt, tp__watch *watch, tp_error *error) {
    const tp_plan *plan;
    int planned;
    tp_status status = tp__cache_get(context, problem, choice, &plan, &planned, error);
    watch->record.planned = planned;
    if (status != TP_OK) {
        if (plan != NULL) tp__watch_refused(watch, context, problem, tensors, plan->decision);
        return status;
    }
    size_t need = tp_plan_workspace(plan, context->threads);
    TP_TRY(grow(context, need, error));
    tp_exec exec = TP_EXEC_INIT;
    exec.workspace = context->workspace;
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
    back.struct_size = sizeof back;
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
    return tp__watch_end(&watch, context, tensors, status);
}
