/* SPDX-License-Identifier: Apache-2.0 */
/* One call: plan from the cache, workspace and pool of the context. */
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "base/error.h"

/* Grow-only; the old content is of no use, so it is freed first. */
static tp_status grow(tp_context *context, size_t need, tp_error *error) {
    if (need <= context->workspace_size) return TP_OK;
    free(context->workspace);
    context->workspace = NULL;
    context->workspace_size = 0;
    TP_REQUIRE(posix_memalign(&context->workspace, 64, need) == 0, error, TP_NO_MEMORY,
               "no memory for a workspace of %zu bytes", need);
    context->workspace_size = need;
    return TP_OK;
}

static tp_status attend(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                        const tp_tensors *tensors, tp_receipt *receipt, tp_error *error) {
    const tp_plan *plan;
    int planned;
    TP_TRY(tp__cache_get(context, problem, choice, &plan, &planned, error));
    size_t need = tp_plan_workspace(plan, context->threads);
    TP_TRY(grow(context, need, error));
    tp_exec exec = TP_EXEC_INIT;
    exec.workspace = context->workspace;
    exec.workspace_size = need;
    TP_TRY(tp__run(plan, problem, tensors, &exec, receipt, error));
    if (receipt != NULL) {
        receipt->planned = planned;
        receipt->decision = NULL; /* the plan is the cache's and may go at the next call */
    }
    return TP_OK;
}

tp_status tp_backward(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                      const tp_tensors *tensors, tp_receipt *receipt, tp_error *error) {
    TP_REQUIRE_STRUCT(problem, tp_problem, error);
    tp_problem back;
    memcpy(&back, problem, sizeof back);
    back.struct_size = sizeof back;
    back.op = TP_BACKWARD;
    return tp_attention(context, &back, choice, tensors, receipt, error);
}

tp_status tp_attention(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                       const tp_tensors *tensors, tp_receipt *receipt, tp_error *error) {
    TP_REQUIRE(context != NULL, error, TP_INVALID, "context is NULL");
    TP_TRY(tp__context_usable(context, error));
    pthread_mutex_lock(&context->lock);
    tp_status status = attend(context, problem, choice, tensors, receipt, error);
    pthread_mutex_unlock(&context->lock);
    return status;
}
