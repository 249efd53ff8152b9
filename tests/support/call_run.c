/* SPDX-License-Identifier: Apache-2.0 */
/* Running a call, and that nothing but its output rows was written. */
#include "support/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int call_quick(void) {
    const char *quick = getenv("TILEPROOF_TEST_QUICK");
    return quick != NULL && strcmp(quick, "1") == 0;
}

int call_pool_usable(void) {
#if defined(__SANITIZE_THREAD__)
    return 0;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    return 0;
#else
    return 1;
#endif
#else
    return 1;
#endif
}

static tp_context *context_of(tp_context_options options, int threads) {
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    options.struct_size = sizeof options;
    options.threads = threads;
    if (tp_context_create(&options, &context, &error)) fail_msg("%s", error.text);
    return context;
}

tp_context *call_context_new(int threads) { return context_of((tp_context_options)TP_CONTEXT_OPTIONS_INIT, threads); }
tp_context *call_context_with(tp_context_options options) { return context_of(options, 1); }

tp_status call_attend(tp_context *context, call *c) {
    return tp_attention(context, &c->problem, NULL, &c->tensors, NULL, NULL);
}

tp_context *call_context(void) {
    static tp_context *context;
    if (context == NULL) context = call_context_new(1);
    return context;
}

const tp_kernel_info *call_kernel_info(int index) {
    uint32_t isa = tp_context_machine(call_context())->isa;
    for (int i = 0; tp_kernel_at(i) != NULL; i++)
        if ((tp_kernel_at(i)->needs & ~isa) == 0 && tp_kernel_at(i)->arithmetic == TP_ARITHMETIC_F32 && index-- == 0)
            return tp_kernel_at(i);
    return NULL;
}

const char *call_kernel(int index) {
    const tp_kernel_info *info = call_kernel_info(index);
    return info != NULL ? info->name : NULL;
}

tp_status call_plan_run(const tp_problem *problem, const tp_tensors *tensors, const call_how *how,
                        void (*poison)(void *cookie, int byte), void *cookie, tp_receipt *receipt, tp_error *error) {
    tp_context *context = how->context != NULL ? how->context : call_context();
    tp_choice choice = TP_CHOICE_INIT;
    tp_exec exec = TP_EXEC_INIT;
    tp_plan *plan;
    int byte = how->fill != 0 ? how->fill : 0xff;
    choice.policy = TP_PERMIT;
    choice.kernel = how->kernel;
    choice.strategy = how->strategy;
    tp_status status = tp_plan_create(context, problem, &choice, &plan, error);
    if (status != TP_OK) return status;
    exec.threads = how->threads > 0 ? how->threads : 1;
    exec.parallel_for = how->parallel_for;
    exec.parallel_user = how->user;
    exec.flags = TP_EXEC_CHECK_DEEP;
    exec.workspace_size = tp_plan_workspace(plan, exec.threads);
    exec.workspace = aligned_alloc(64, exec.workspace_size);
    memset(exec.workspace, byte, exec.workspace_size);
    poison(cookie, byte);
    status = tp_plan_run(plan, tensors, &exec, receipt, error);
    if (receipt != NULL) receipt->decision = NULL; /* it dies with the plan */
    free(exec.workspace);
    tp_plan_destroy(plan);
    return status;
}

static void poison(void *cookie, int byte) { tensors_poison_outputs(&((call *)cookie)->held, byte); }

tp_status call_try(call *c, const call_how *how, tp_receipt *receipt, tp_error *error) {
    tp_receipt own;
    tp_receipt_init(&own);
    if (receipt == NULL && c->problem.p_dtype != 0) receipt = &own;
    tp_status status = call_plan_run(&c->problem, &c->tensors, how, poison, c, receipt, error);
    c->held.arithmetic = receipt != NULL && status == TP_OK ? receipt->arithmetic : TP_ARITHMETIC_F32;
    return status;
}

void call_run(call *c, const call_how *how, tp_receipt *receipt) {
    tp_error error = TP_ERROR_INIT;
    char reason[256];
    if (call_try(c, how, receipt, &error))
        fail_msg("%s: %s", how->kernel != NULL ? how->kernel : "any kernel", error.text);
    struct tensors view = call_view(c);
    if (tensors_badly_written(&view, reason, sizeof reason)) fail_msg("%s", reason);
}

void call_check_all(const char *text, const call_shape *shape) {
    call *c = call_new(text, shape);
    call_keep(c);
    for (int i = 0; call_kernel(i) != NULL; i++) {
        call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
        call_check(c, text);
    }
    call_free(c);
}

int64_t call_count_of(const tp_receipt *receipt, const char *part) {
    const char *name;
    int64_t calls, sum = 0;
    for (int i = 0; tp_receipt_function(receipt, i, &name, &calls); i++)
        if (strstr(name, part) != NULL) sum += calls;
    return sum;
}
