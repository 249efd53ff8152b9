/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/attempt.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "harness/fail.h"
#include "harness/placed.h"

enum { GUARD = 256, GUARD_BYTE = 0x5A, PAGE = 1 << 16 };

void workspace_free(struct workspace *workspace) {
    guarded_free(workspace->guarded, workspace->memory);
    *workspace = (struct workspace){.guarded = workspace->guarded};
}

int workspace_grow(struct workspace *workspace, size_t bytes) {
    if (workspace->bytes >= bytes + 2 * GUARD) return 0;
    workspace_free(workspace);
    bytes += 2 * GUARD;
    if (workspace->guarded) bytes = (2 * bytes + PAGE - 1) / PAGE * PAGE;
    workspace->memory = guarded_take(workspace->guarded, bytes, 64, -1);
    if (!workspace->memory) return 1;
    workspace->bytes = bytes;
    return 0;
}

/* Where so many bytes lie in it, and how many behind them are watched; GUARD bytes before them are. */
static unsigned char *workspace_place(const struct workspace *workspace, size_t bytes, size_t *watched) {
    size_t whole = (bytes + 63) / 64 * 64;
    *watched = workspace->guarded ? whole - bytes : GUARD;
    return (unsigned char *)workspace->memory + (workspace->guarded ? workspace->bytes - whole : GUARD);
}

static void serial_for(void *user, size_t count, tp_task task, void *task_context) {
    (void)user;
    for (size_t i = 0; i < count; i++) task(task_context, i);
}

struct caller_task {
    tp_task task;
    void *context;
    size_t index;
    pthread_t thread;
    int started;
};

static void *run_task(void *argument) {
    struct caller_task *task = argument;
    task->task(task->context, task->index);
    return NULL;
}

static void pthread_for(void *user, size_t count, tp_task task, void *task_context) {
    (void)user;
    struct caller_task *tasks = calloc(count + 1, sizeof *tasks);
    for (size_t i = 0; i < count; i++) {
        struct caller_task local = {task, task_context, i, 0, 0};
        struct caller_task *one = tasks ? &tasks[i] : &local;
        *one = local;
        one->started = tasks && !pthread_create(&one->thread, NULL, run_task, one);
        if (!one->started) run_task(one);
    }
    for (size_t i = 0; tasks && i < count; i++)
        if (tasks[i].started) pthread_join(tasks[i].thread, NULL);
    free(tasks);
}

/* The bytes around a workspace on a device, as they must be before and after a run. */
static tp_status watch_there(const struct attempt *attempt, int device, char *memory, size_t bytes, int after, tp_error *error) {
    unsigned char guard[GUARD];
    tp_status status = TP_OK;
    for (int end = 0; end < 2 && status == TP_OK; end++) {
        char *at = end ? memory + GUARD + bytes : memory;
        memset(guard, GUARD_BYTE, GUARD);
        status = after ? tp_memory_copy(attempt->context, TP_CPU, guard, device, at, GUARD, error)
                       : tp_memory_copy(attempt->context, device, at, TP_CPU, guard, GUARD, error);
        for (int i = 0; status == TP_OK && i < GUARD; i++)
            if (guard[i] != GUARD_BYTE)
                return harness_fail(error, TP_WORKSPACE, "the run wrote %s its workspace",
                                    end ? "beyond the end of" : "before the start of");
    }
    return status;
}

static tp_status poison_there(const struct attempt *attempt, int device, char *memory, size_t bytes, tp_error *error) {
    if (attempt->poison < 0) return TP_OK;
    void *poison = malloc(bytes);
    if (!poison) return harness_fail(error, TP_NO_MEMORY, "out of memory for a workspace of %zu bytes", bytes);
    memset(poison, attempt->poison, bytes);
    tp_status status = tp_memory_copy(attempt->context, device, memory, TP_CPU, poison, bytes, error);
    free(poison);
    return status;
}

/* The same on a device: tensors and workspace are copied there, what was written comes back. */
static tp_status run_there(const struct attempt *attempt, const tp_plan *plan, const struct tensors *tensors,
                           tp_receipt *receipt, tp_error *error) {
    int device = tp_plan_device(plan);
    size_t bytes = tp_plan_workspace(plan, attempt->threads);
    struct placed placed;
    void *memory = NULL;
    tp_exec exec = TP_EXEC_INIT;
    tp_status status = tp_memory_allocate(attempt->context, device, bytes + 2 * GUARD, &memory, error);
    if (status != TP_OK) return status;
    char *start = memory;
    status = placed_create(&placed, attempt->context, device, tensors, attempt->entry == ENTRY_CALLER, error);
    if (status == TP_OK) {
        exec.workspace = start + GUARD;
        exec.workspace_size = bytes;
        status = poison_there(attempt, device, exec.workspace, bytes, error);
        if (status == TP_OK) status = watch_there(attempt, device, start, bytes, 0, error);
        tp_receipt_init(receipt);
        if (status == TP_OK) status = tp_plan_run(plan, &placed.call, &exec, receipt, error);
        if (status == TP_OK) status = watch_there(attempt, device, start, bytes, 1, error);
        if (status == TP_OK) status = placed_fetch(&placed, error);
        placed_destroy(&placed);
    }
    tp_memory_free(attempt->context, device, memory, bytes + 2 * GUARD, NULL);
    return status;
}

tp_status attempt_run_plan(const struct attempt *attempt, const tp_plan *plan,
                           const struct tensors *tensors, tp_receipt *receipt, tp_error *error) {
    if (tp_plan_device(plan) != TP_CPU) return run_there(attempt, plan, tensors, receipt, error);
    size_t bytes = tp_plan_workspace(plan, attempt->threads);
    if (workspace_grow(attempt->workspace, bytes))
        return harness_fail(error, TP_NO_MEMORY, "out of memory for a workspace of %zu bytes", bytes);
    size_t watched;
    unsigned char *memory = workspace_place(attempt->workspace, bytes, &watched);
    if (attempt->poison >= 0) memset(memory, attempt->poison, bytes);
    memset(memory + bytes, GUARD_BYTE, watched);
    memset(memory - GUARD, GUARD_BYTE, GUARD);

    tp_exec exec = TP_EXEC_INIT;
    exec.threads = attempt->threads;
    exec.workspace = memory;
    exec.workspace_size = bytes;
    exec.flags = TP_EXEC_CHECK_DEEP;
    if (attempt->entry == ENTRY_SERIAL) exec.parallel_for = serial_for;
    if (attempt->entry == ENTRY_CALLER) exec.parallel_for = pthread_for;
    tp_receipt_init(receipt);
    tp_status status = tp_plan_run(plan, &tensors->call, &exec, receipt, error);
    for (size_t i = 0; i < watched; i++)
        if (memory[bytes + i] != GUARD_BYTE)
            return harness_fail(error, TP_WORKSPACE, "the run wrote beyond the end of its workspace");
    for (size_t i = 1; i <= GUARD; i++)
        if (*(memory - i) != GUARD_BYTE)
            return harness_fail(error, TP_WORKSPACE, "the run wrote before the start of its workspace");
    return status;
}

tp_status attempt_run(const struct attempt *attempt, const struct tensors *tensors,
                      tp_receipt *receipt, tp_error *error) {
    tp_plan *plan;
    tp_status status =
        tp_plan_create(attempt->context, &tensors->problem, attempt->choice, &plan, error);
    if (status != TP_OK) return status;
    status = attempt_run_plan(attempt, plan, tensors, receipt, error);
    tp_plan_destroy(plan);
    receipt->decision = NULL;
    return status;
}
