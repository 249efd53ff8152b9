/* SPDX-License-Identifier: Apache-2.0 */
#include "api/flight.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/structs.h"
#include "problem/overlap.h"
#include "problem/sequence.h"
#include "telemetry/receipt.h"

tp_status tp__flight_check(const tp_plan *plan, const tp_problem *bounds, const tp_tensors *tensors, const tp_exec *exec,
                           tp_error *error) {
    const tp__device *device = plan->device;
    TP_TRY(tp__exec_check(exec, device, error));
    TP_TRY(tp__tensors_check_on(bounds, tensors, device->backend.device, error));
    TP_REQUIRE(tensors->index_device == TP_CPU || (device->backend.flags & TP_BACKEND_INDEX_ON_DEVICE), error,
               TP_UNSUPPORTED, "index_device is %d: %s reads index arrays on the host only, TP_CPU (0)",
               tensors->index_device, device->backend.name);
    const char *unknown = tp__device_unknown(device, bounds, tensors);
    TP_REQUIRE(unknown == NULL, error, TP_UNSUPPORTED,
               "%s has a field set that is newer than the backend %s: build the backend with this version's headers",
               unknown, device->backend.name);
    if (exec->flags & TP_EXEC_CHECK_DEEP) TP_TRY(tp__check_deep(bounds, tensors, error));
    TP_REQUIRE(exec->workspace_size >= plan->device_workspace && (exec->workspace != NULL || plan->device_workspace == 0),
               error, TP_WORKSPACE, "workspace is %p of %zu bytes: the plan needs %zu on device %d, %s (tp_plan_workspace)",
               exec->workspace, exec->workspace_size, plan->device_workspace, device->backend.device, device->backend.name);
    TP_REQUIRE((uintptr_t)exec->workspace % TP__ALIGN == 0, error, TP_WORKSPACE,
               "workspace is at %p: it must be %d-byte aligned", exec->workspace, TP__ALIGN);
    return TP_OK;
}

/* What the device counted must be what the host asked for: a launch that did nothing is no success. */
static tp_status judge(const tp__flight *flight, const tp_outcome *o, tp_error *error) {
    const tp__device *device = flight->plan->device;
    TP_TRY(tp__device_status(device, "done", o->status, o->text, error));
    TP_REQUIRE(o->tiles_planned < 0 || o->tiles_planned == o->tiles_counted, error, TP_DEVICE_FAILED,
               "%s: the device counted %lld tiles, and %lld were planned: the result is not to be trusted",
               device->backend.name, (long long)o->tiles_counted, (long long)o->tiles_planned);
    TP_REQUIRE(o->kernel >= -1 && o->kernel < device->kernels && (o->kernel >= 0 || o->tiles_counted == 0), error,
               TP_DEVICE_FAILED, "%s: the device counted %lld tiles and its mark names kernel %d: it must be in 0..%d",
               device->backend.name, (long long)o->tiles_counted, o->kernel, device->kernels - 1);
    TP_REQUIRE(o->kernel < 0 || o->kernel == flight->plan->device_kernel, error, TP_DEVICE_FAILED,
               "%s: kernel %s left its mark on the device, and the plan's is %s: the result is not to be trusted",
               device->backend.name, device->kernel[o->kernel].name, device->kernel[flight->plan->device_kernel].name);
    return TP_OK;
}

/* The backend's completion function. */
static void done(void *completion, const tp_outcome *outcome) {
    tp__flight *flight = completion;
    tp_outcome here;
    outcome = TP_IN(tp_outcome, outcome, &here, &flight->error);
    tp_status status = TP_DEVICE_FAILED; /* of a backend that gives no outcome, or one of no size */
    if (outcome != NULL) status = judge(flight, outcome, &flight->error);
    flight->error.status = status;
    flight->amounts.time_ns = tp__now_ns() - flight->start_ns;
    if (status == TP_OK) {
        flight->amounts.bytes = outcome->bytes_model;
        tp__receipt_outcome(&flight->receipt, flight->plan->device, outcome);
    }
    flight->receipt.status = status;
    flight->receipt.time_ns = flight->amounts.time_ns;
    if (flight->landed != NULL)
        flight->landed(flight);
    else
        tp__flight_land(flight);
}

void tp__flight_init(tp__flight *flight, const tp_plan *plan, void (*landed)(tp__flight *flight)) {
    flight->plan = plan;
    flight->start_ns = tp__now_ns();
    flight->amounts = (tp__amounts){0, 0, (int64_t)plan->device_workspace};
    flight->error = (tp_error)TP_ERROR_INIT;
    flight->landed = landed;
    flight->done = 0;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&flight->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&flight->lock, NULL);
}

void tp__flight_end(tp__flight *flight) {
    pthread_cond_destroy(&flight->changed);
    pthread_mutex_destroy(&flight->lock);
}

tp_status tp__flight_submit(tp__flight *flight, const tp_problem *bounds, const tp_tensors *tensors, const tp_exec *exec,
                            void **event, tp_error *error) {
    const tp_plan *plan = flight->plan;
    tp__receipt_begin(&flight->receipt, bounds, tensors, plan->decision);
    tp__receipt_submitted(&flight->receipt, bounds, tensors);
    flight->receipt.kernel = "none";
    flight->receipt.workspace_bytes = (int64_t)plan->device_workspace;
    const tp_submission submission = {
        .struct_size = sizeof submission,
        .kernel = plan->device_kernel,
        .problem = bounds,
        .tensors = tensors,
        .prepared = plan->prepared,
        .workspace = exec->workspace,
        .workspace_bytes = exec->workspace_size,
        .queue = exec->queue,
        .done = done,
        .completion = flight,
    };
    return tp__device_submit(plan->device, &submission, event, error);
}

void tp__flight_land(tp__flight *flight) {
    pthread_mutex_lock(&flight->lock);
    flight->done = 1;
    pthread_cond_broadcast(&flight->changed);
    pthread_mutex_unlock(&flight->lock);
}

int tp__flight_wait(tp__flight *flight, int64_t timeout_ns) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout_ns > 0) {
        int64_t ns = until.tv_nsec + timeout_ns % 1000000000;
        until.tv_sec += (time_t)(timeout_ns / 1000000000 + ns / 1000000000);
        until.tv_nsec = (long)(ns % 1000000000);
    }
    int over = 0;
    pthread_mutex_lock(&flight->lock);
    while (!flight->done && timeout_ns != 0 && !over) {
        if (timeout_ns < 0)
            pthread_cond_wait(&flight->changed, &flight->lock);
        else
            over = pthread_cond_timedwait(&flight->changed, &flight->lock, &until) == ETIMEDOUT;
    }
    int is_done = flight->done;
    pthread_mutex_unlock(&flight->lock);
    return is_done;
}

tp_status tp__fly(const tp_plan *plan, const tp_problem *bounds, const tp_tensors *tensors, const tp_exec *exec,
                  tp_receipt *receipt, tp__ran *told, tp_error *error) {
    tp__flight flight;
    void *event = NULL;
    TP_TRY(tp__flight_check(plan, bounds, tensors, exec, error));
    tp__flight_init(&flight, plan, NULL);
    tp_status status = tp__flight_submit(&flight, bounds, tensors, exec, &event, error);
    if (status == TP_OK) {
        tp__flight_wait(&flight, -1);
        tp__device_release_event(plan->device, event);
        status = (tp_status)flight.error.status;
        if (status != TP_OK) tp__fail(error, status, "%s", flight.error.text);
        told->kernel = flight.receipt.kernel;
        told->amounts = flight.amounts;
        if (status == TP_OK && receipt != NULL) *receipt = flight.receipt;
    }
    tp__flight_end(&flight);
    return status;
}
