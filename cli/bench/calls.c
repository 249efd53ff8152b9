/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies around the kernel, on one thread:
 *
 *     plan      tp_plan_create alone
 *     overhead  a cached tp_attention, less the time inside the tasks of the same work, which our
 *               own parallel-for times when tp_plan_run is cut into two (the first does it all)
 *     receipt   the same tp_attention with and without a receipt, over the time of a whole call
 *     counting  the same with tags, on a context that counts calls and on one that does not
 *
 * Overhead and receipt depend on the problem, not on how many keys a call brings. They are measured
 * on calls of the same plan with few keys, where the kernel's own noise does not hide them. Lengths
 * grow from call to call, as in a decode loop, and tp_attention must never plan anew.
 */
#include "bench/bench.h"

#include <string.h>

enum { FEW_KEYS = 4, PLANS = 200, MIN_CALLS = 20, MAX_CALLS = 2000, FULL_CALLS = 20, BATCH = 20 };
static const double calls_ns = 20e6;

struct calls {
    tp_context *context, *uncounted;
    tp_tags tags;
    struct workload problem;
    tp_choice choice;
    tp_plan *plan;
    tp_tensors few; /* the call with few keys, where its layout allows that */
    tp_tensors tagged;
    int grows;      /* it does */
    struct workspace workspace;
    tp_receipt receipt;
    double task_ns; /* of the last run through timing_for */
};

static void timing_for(void *user, size_t count, tp_task task, void *task_context) {
    struct calls *calls = user;
    double start = now_ns();
    for (size_t i = 0; i < count; i++) task(task_context, i);
    calls->task_ns = now_ns() - start;
}

static tp_status time_plan(struct calls *calls, double *best_ns, tp_error *error) {
    *best_ns = 0;
    for (int i = 0; i < PLANS; i++) {
        tp_plan *plan;
        double start = now_ns();
        tp_status status = tp_plan_create(calls->context, &calls->problem.tensors.problem,
                                          &calls->choice, &plan, error);
        double time = now_ns() - start;
        if (status != TP_OK) return status;
        tp_plan_destroy(plan);
        if (!i || time < *best_ns) *best_ns = time;
    }
    return TP_OK;
}

static tp_status time_call(struct calls *calls, const tp_tensors *tensors, tp_receipt *receipt,
                           double *ns, tp_error *error) {
    double start = now_ns();
    tp_status status = tp_attention(calls->context, &calls->problem.tensors.problem, &calls->choice,
                                    tensors, receipt, error);
    *ns = now_ns() - start;
    return status;
}

static tp_status time_tasks(struct calls *calls, double *ns, tp_error *error) {
    tp_exec exec = TP_EXEC_INIT;
    exec.threads = 2;
    exec.parallel_for = timing_for;
    exec.parallel_user = calls;
    exec.workspace = calls->workspace.memory;
    exec.workspace_size = calls->workspace.bytes;
    calls->task_ns = 0;
    tp_status status = tp_plan_run(calls->plan, &calls->few, &exec, NULL, error);
    *ns = calls->task_ns;
    if (status == TP_OK && calls->task_ns == 0) {
        snprintf(error->text, sizeof error->text,
                 "the problem is too small to be cut into two tasks, which overhead_us times");
        return TP_INVALID;
    }
    return status;
}

/* Counting takes less than the clock's own steps: several calls at a time. */
static tp_status time_batch(struct calls *calls, tp_context *context, double *ns, tp_error *error) {
    tp_status status = TP_OK;
    double start = now_ns();
    for (int i = 0; i < BATCH && status == TP_OK; i++)
        status = tp_attention(context, &calls->problem.tensors.problem, &calls->choice, &calls->tagged, NULL, error);
    *ns = (now_ns() - start) / BATCH;
    return status;
}

static tp_status time_one(struct calls *calls, int which, double *ns, tp_error *error) {
    switch (which) {
    case CALL_PLAIN: return time_call(calls, &calls->few, NULL, ns, error);
    case CALL_TASKS: return time_tasks(calls, ns, error);
    case CALL_RECEIPT: return time_call(calls, &calls->few, &calls->receipt, ns, error);
    case CALL_COUNTED: return time_batch(calls, calls->context, ns, error);
    case CALL_UNCOUNTED: return time_batch(calls, calls->uncounted, ns, error);
    default: return time_call(calls, &calls->problem.tensors.call, NULL, ns, error);
    }
}

/* Its workspace follows the lengths, so it is planned anew each time. */
static int is_math(const struct calls *calls) {
    const tp_decision *decision = tp_plan_decision(calls->plan);
    return tp_decision_candidate(decision, decision->chosen)->tier == TP_TIER_MATH;
}

/* Each runs twice and the second time counts: they have workspaces of their own, which must be
   equally warm. */
static tp_status time_calls(struct calls *calls, struct samples *times, tp_error *error) {
    double begin = now_ns(), ns;
    tp_counters before = {.struct_size = sizeof before}, after = before;
    tp_context_counters(calls->context, &before);
    for (int i = 0; i < MAX_CALLS && (i < MIN_CALLS || now_ns() - begin < calls_ns); i++) {
        if (calls->grows) calls->few.kv_len = 1 + i % FEW_KEYS;
        calls->tagged = calls->few;
        calls->tagged.tags = &calls->tags;
        for (int k = 0; k < CALL_FULL; k++) {
            int which = i % 2 ? CALL_FULL - 1 - k : k;
            tp_status status = time_one(calls, which, &ns, error);
            if (status == TP_OK) status = time_one(calls, which, &ns, error);
            if (status != TP_OK) return status;
            if (samples_add(&times[which], ns)) return TP_NO_MEMORY;
        }
    }
    tp_context_counters(calls->context, &after);
    if (after.plans != before.plans && !is_math(calls)) {
        snprintf(error->text, sizeof error->text,
                 "tp_attention planned %lld times in a loop of calls",
                 (long long)(after.plans - before.plans));
        return TP_INVALID;
    }
    for (int i = 0; i < FULL_CALLS; i++) {
        tp_status status = time_one(calls, CALL_FULL, &ns, error);
        if (status != TP_OK) return status;
        if (samples_add(&times[CALL_FULL], ns)) return TP_NO_MEMORY;
    }
    return TP_OK;
}

static tp_status measure(struct calls *calls, struct samples *times, tp_error *error) {
    const tp_problem *problem = &calls->problem.tensors.problem;
    double once;
    tp_status status = time_plan(calls, &once, error);
    if (status == TP_OK)
        status = tp_plan_create(calls->context, problem, &calls->choice, &calls->plan, error);
    if (status != TP_OK) return status;
    tp_receipt_init(&calls->receipt);
    calls->few = calls->problem.tensors.call;
    calls->grows = problem->kv_layout == TP_BATCH && !calls->few.kv_lens &&
                   calls->few.kv_len >= FEW_KEYS && !problem->sparse_len;
    if (samples_add(&times[CALL_PLAN], once) ||
        workspace_grow(&calls->workspace, tp_plan_workspace(calls->plan, 2)))
        return TP_NO_MEMORY;
    status = time_one(calls, CALL_FULL, &once, error); /* now its plan is cached */
    return status == TP_OK ? time_calls(calls, times, error) : status;
}

tp_status bench_calls(const char *words, const char *kernel, uint64_t seed, struct samples *times,
                      tp_error *error) {
    struct calls calls;
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    memset(&calls, 0, sizeof calls);
    wanted.threads = 1;
    calls.choice = (tp_choice)TP_CHOICE_INIT;
    calls.choice.policy = TP_PERMIT;
    calls.choice.kernel = kernel;
    calls.tags = (tp_tags)TP_TAGS_INIT;
    calls.tags.model = "bench";
    tp_status status = tp_context_create(&wanted, &calls.context, error);
    wanted.counted = -1;
    if (status == TP_OK) status = tp_context_create(&wanted, &calls.uncounted, error);
    if (status == TP_OK) status = bench_problem_open(&calls.problem, words, seed, error);
    if (status == TP_OK) {
        status = measure(&calls, times, error);
        if (calls.plan) tp_plan_destroy(calls.plan);
        workspace_free(&calls.workspace);
        workload_close(&calls.problem);
    }
    tp_context_destroy(calls.context);
    tp_context_destroy(calls.uncounted);
    return status;
}
