/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/timed_case.h"

#include <stdio.h>
#include <string.h>

#include "harness/fail.h"

tp_status timed_case_run(const struct timed_case *one, tp_receipt *receipt, tp_error *error) {
    tp_exec exec = TP_EXEC_INIT;
    exec.threads = one->threads;
    exec.workspace = one->workspace.memory;
    exec.workspace_size = one->workspace.bytes;
    double start = now_ns();
    tp_status status = one->library->plan_run(one->plan, &one->workload->tensors.call, &exec, receipt, error);
    if (one->slowed > 1)
        for (double end = start + one->slowed * (now_ns() - start); now_ns() < end;) continue;
    return status;
}

tp_status timed_case_start(struct timed_case *one, tp_context *context, tp_error *error) {
    tp_choice choice = TP_CHOICE_INIT;
    choice.policy = TP_PERMIT;
    choice.kernel = one->kernel;
    choice.strategy = one->strategy;
    choice.disable = one->disable[0] ? one->disable : NULL;
    tp_status status =
        one->library->plan_create(context, &one->workload->tensors.problem, &choice, &one->plan, error);
    if (status != TP_OK) return status;
    size_t bytes = one->library->plan_workspace(one->plan, one->threads);
    if ((double)bytes > harness_max_bytes() || workspace_grow(&one->workspace, bytes))
        return harness_fail(error, TP_NO_MEMORY, "the workspace would take more than 3/4 of this host's memory");
    memset(one->workspace.memory, 0, one->workspace.bytes); /* its pages exist when time counts */
    tp_receipt_init(&one->receipt);
    status = workload_prepare(one->workload, context, error);
    return status == TP_OK ? timed_case_run(one, &one->receipt, error) : status;
}

/* Best first: what stands before it in the table is better. */
static void disable_better(struct timed_case *one, const char *kernel) {
    const tp_kernel_info *better;
    for (int i = 0; (better = tp_kernel_at(i)) && strcmp(better->name, kernel); i++) {
        size_t used = strlen(one->disable);
        snprintf(one->disable + used, sizeof one->disable - used, "%s%s", used ? "," : "", better->name);
    }
}

double useful_flops(const tp_problem *p, int64_t pairs) {
    int64_t products =
        p->op == TP_BACKWARD ? 3 * p->head_dim_qk + 2 * p->head_dim_v : p->head_dim_qk + p->head_dim_v;
    return 2 * (double)pairs * (double)products;
}

/* Rows of q and o are no part of it. */
static double kv_bytes(const struct timed_case *one) {
    const struct tensors *tensors = &one->workload->tensors;
    const tp_problem *p = &tensors->problem;
    double rows = 0;
    for (int64_t s = 0; s < tensors->sequences; s++) rows += (double)tensors->q_lens[s];
    return (double)one->receipt.bytes_compulsory -
           rows * (double)p->q_heads *
               (double)(p->head_dim_qk * (int64_t)tp_dtype_bytes((tp_dtype)p->q_dtype) +
                        p->head_dim_v * (int64_t)tp_dtype_bytes((tp_dtype)p->o_dtype));
}

tp_status timed_case_open(struct timed_case *one, struct workload *workload, const char *kernel, const char *strategy,
                          const char *like, int threads, struct limits *limits, tp_error *error) {
    *one = (struct timed_case){.workload = workload,
                               .kernel = kernel,
                               .strategy = strategy,
                               .threads = threads,
                               .library = library_linked()};
    if (like && kernel && !strcmp(kernel, "math")) disable_better(one, like);
    tp_status status = timed_case_start(one, limits->context, error);
    if (status != TP_OK) {
        timed_case_close(one);
        return status;
    }
    const tp_decision *decision = tp_plan_decision(one->plan);
    one->ran = one->receipt.kernel ? one->receipt.kernel : tp_decision_candidate(decision, decision->chosen)->kernel;
    one->isa = limits_isa(limits, one->ran);
    one->flops = useful_flops(&workload->tensors.problem, one->receipt.pairs_visible);
    one->kv_bytes = kv_bytes(one);
    return TP_OK;
}

struct timed_case timed_case_copy(const struct timed_case *one) {
    struct timed_case copy = *one;
    copy.borrowed = 1;
    return copy;
}

void timed_case_close(struct timed_case *one) {
    if (one->borrowed) return;
    if (one->plan) one->library->plan_destroy(one->plan);
    workspace_free(&one->workspace);
    one->plan = NULL;
}

tp_status timed_case_burst(const struct timed_case *one, double slice_ns, int min, struct samples *times,
                           tp_error *error) {
    double begin = now_ns();
    for (int count = 0; count < min || now_ns() - begin < slice_ns; count++) {
        double start = now_ns();
        tp_status status = timed_case_run(one, NULL, error);
        double time = now_ns() - start;
        if (status != TP_OK) return status;
        if (samples_add(times, time)) return harness_fail(error, TP_NO_MEMORY, "no memory for the times");
    }
    return TP_OK;
}
