/* SPDX-License-Identifier: Apache-2.0 */
/* One call on a device, from its checks until the backend says that it is done. */
#ifndef TP_API_FLIGHT_H
#define TP_API_FLIGHT_H

#include <pthread.h>

#include "api/context.h"
#include "device/device.h"

typedef struct tp__flight tp__flight;
struct tp__flight {
    const tp_plan *plan;
    int64_t start_ns;
    tp_receipt receipt; /* begun at submission, when the tensors can be read; whole when done */
    tp__amounts amounts;
    tp_error error;     /* the status of the call, and what failed */
    void (*landed)(tp__flight *flight); /* on the thread that completed the call; NULL: only who waits is woken */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int done; /* under the lock */
};

void tp__flight_init(tp__flight *flight, const tp_plan *plan, void (*landed)(tp__flight *flight));
/* What a run of the CPU checks, and what belongs to a device. */
tp_status tp__flight_check(const tp_plan *plan, const tp_problem *bounds, const tp_tensors *tensors, const tp_exec *exec,
                           tp_error *error);
/* Begins a call that was checked. TP_OK: it will be marked as done, or is already. */
tp_status tp__flight_submit(tp__flight *flight, const tp_problem *bounds, const tp_tensors *tensors, const tp_exec *exec,
                            void **event, tp_error *error);
/* Marks the call as done and wakes the threads that wait for it. */
void tp__flight_land(tp__flight *flight);
/* Waits until it is done; 0 when the time was over first. A negative time is no limit. */
int tp__flight_wait(tp__flight *flight, int64_t timeout_ns);
/* What tp__flight_init took. */
void tp__flight_end(tp__flight *flight);

/* A call that waits. */
tp_status tp__fly(const tp_plan *plan, const tp_problem *bounds, const tp_tensors *tensors, const tp_exec *exec,
                  tp_receipt *receipt, tp__ran *told, tp_error *error);

#endif
