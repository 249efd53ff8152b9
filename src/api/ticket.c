/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that nobody waits for yet. A ticket has up to three holders: the caller, until tp_ticket_destroy; the call, until it
 * is done and its tp_done function has returned; and tp_plan_submit itself, because a call may be done, and its ticket
 * destroyed, before the backend's submit has returned. The last one frees it.
 */
#include <stdlib.h>
#include <string.h>

#include "api/flight.h"
#include "base/structs.h"
#include "problem/sequence.h"
#include "telemetry/receipt.h"

struct tp_ticket {
    tp__flight flight;
    tp_context *context;
    tp_receipt *receipt; /* the caller's; NULL: not wanted */
    tp_done done;
    void *done_user;
    /* who watches is told when the call is done; by then its tensors may be gone */
    tp__watch watch;
    tp__labels labels;
    tp__own_tags tags;
    /* under the flight's lock */
    int holders;
    int wanted; /* by the caller: its handle is not destroyed */
    int told;   /* tp_done has returned */
    int telling;
    pthread_t teller;
    void *event; /* the driver's */
};

static void let_go(tp_ticket *ticket) {
    pthread_mutex_lock(&ticket->flight.lock);
    int last = --ticket->holders == 0;
    pthread_mutex_unlock(&ticket->flight.lock);
    if (!last) return;
    tp__flight_end(&ticket->flight);
    free(ticket);
}

/* The call is done: its ticket says so, then its function is called. */
static void tell(tp_ticket *ticket) {
    tp__flight *flight = &ticket->flight;
    pthread_mutex_lock(&flight->lock);
    ticket->telling = 1;
    ticket->teller = pthread_self();
    flight->done = 1;
    pthread_cond_broadcast(&flight->changed);
    pthread_mutex_unlock(&flight->lock);
    if (ticket->done != NULL) {
        int outer = tp__set_inside(1);
        ticket->done(ticket->done_user, (tp_status)flight->error.status, flight->error.text);
        tp__set_inside(outer);
    }
}

static void told(tp_ticket *ticket) {
    pthread_mutex_lock(&ticket->flight.lock);
    ticket->telling = 0;
    ticket->told = 1;
    pthread_cond_broadcast(&ticket->flight.changed);
    pthread_mutex_unlock(&ticket->flight.lock);
    let_go(ticket);
}

static const tp_tags *tags_of(const tp_ticket *ticket) { return ticket->tags.given ? &ticket->tags.tags : NULL; }

static void landed(tp__flight *flight) {
    tp_ticket *ticket = (tp_ticket *)flight; /* its first field */
    const tp_plan *plan = flight->plan;
    tp_status status = (tp_status)flight->error.status;
    tp__ran ran = {flight->receipt.kernel, flight->amounts};
    if (ticket->receipt != NULL) tp__receipt_out(ticket->receipt, &flight->receipt);
    if (ticket->watch.detail) ticket->watch.receipt = flight->receipt;
    tp__watch_ran(&ticket->watch, plan, &plan->problem, ticket->labels, tags_of(ticket), &ran, status);
    tp__watch_end(&ticket->watch, plan->context, tags_of(ticket), status);
    tell(ticket);
    tp__device_close(plan->device, (int64_t *)&plan->open); /* plan and context may go from here on */
    told(ticket);
}

/* The driver's event is the handle's: released with it, or at once where there is none any more. */
static void keep_event(tp_ticket *ticket, tp__device *device, void *event) {
    pthread_mutex_lock(&ticket->flight.lock);
    int wanted = ticket->wanted;
    if (wanted) ticket->event = event;
    pthread_mutex_unlock(&ticket->flight.lock);
    if (!wanted) tp__device_release_event(device, event);
}

static tp_status submit(tp_ticket *ticket, const tp_tensors *tensors, const tp_exec *exec, tp_error *error) {
    const tp_plan *plan = ticket->flight.plan;
    void *event = NULL;
    if (plan->device == NULL) {
        tp_exec now = *exec;
        now.done = NULL;
        TP_TRY(tp_plan_run(plan, tensors, &now, ticket->receipt, error));
        tell(ticket);
        told(ticket);
        return TP_OK;
    }
    tp__watch_begin(&ticket->watch, plan->context);
    ticket->watch.record.start_ns = ticket->flight.start_ns;
    tp__watch_wants_receipt(&ticket->watch, plan);
    tp__tags_copy(&ticket->tags, tp__tags_of(tensors));
    tp__device_open(plan->device, (int64_t *)&plan->open);
    tp_status status = tp__flight_check(plan, &plan->problem, tensors, exec, error);
    if (status == TP_OK) {
        ticket->labels = tp__labels_of(&plan->problem, tensors);
        status = tp__flight_submit(&ticket->flight, &plan->problem, tensors, exec, &event, error);
    }
    if (status == TP_OK) {
        keep_event(ticket, plan->device, event);
        return TP_OK;
    }
    tp__device_close(plan->device, (int64_t *)&plan->open);
    const tp__ran nothing = {"none", {0, 0, 0}};
    tp__watch_ran(&ticket->watch, plan, &plan->problem, tp__labels_of(&plan->problem, NULL), tags_of(ticket), &nothing,
                  status);
    return tp__watch_end(&ticket->watch, plan->context, tags_of(ticket), status);
}

tp_status tp_plan_submit(const tp_plan *plan, const tp_tensors *tensors, const tp_exec *exec, tp_receipt *receipt,
                         tp_ticket **ticket, tp_error *error) {
    if (ticket != NULL) *ticket = NULL;
    TP_REQUIRE(plan != NULL, error, TP_INVALID, "plan is NULL");
    TP_TRY(tp__context_usable(plan->context, error));
    TP_STRUCT_IN(tp_exec, exec, error);
    tp__tensors_here here;
    TP_TRY(tp__tensors_in(&tensors, plan->problem.op, &here, error));
    if (receipt != NULL) TP_REQUIRE_SIZE(tp_receipt, receipt->struct_size, error);
    tp_ticket *made = malloc(sizeof *made);
    TP_REQUIRE(made != NULL, error, TP_NO_MEMORY, "no memory for a ticket of %zu bytes", sizeof *made);
    tp__flight_init(&made->flight, plan, landed);
    made->context = plan->context;
    made->receipt = receipt;
    made->done = exec->done;
    made->done_user = exec->done_user;
    made->wanted = ticket != NULL;
    made->holders = 2 + made->wanted;
    made->told = made->telling = 0;
    made->event = NULL;
    if (ticket != NULL) *ticket = made; /* its tp_done may come before submit returns */
    tp_status status = submit(made, tensors, exec, error);
    if (status == TP_OK) {
        let_go(made);
        return TP_OK;
    }
    if (ticket != NULL) *ticket = NULL;
    tp__flight_end(&made->flight);
    free(made);
    return status;
}

tp_status tp_ticket_wait(tp_ticket *ticket, int64_t timeout_ns, tp_error *error) {
    TP_REQUIRE(ticket != NULL, error, TP_INVALID, "ticket is NULL");
    TP_TRY(tp__context_here(ticket->context, error));
    tp__flight *flight = &ticket->flight;
    int done = tp__flight_wait(flight, tp__inside_task() ? 0 : timeout_ns);
    TP_REQUIRE(done || timeout_ns == 0 || !tp__inside_task(), error, TP_BUSY,
               "called from inside a task of a run, or a function that the library called: the call may wait for that");
    TP_REQUIRE(done, error, TP_PENDING, "the call is not done after %lld ns", (long long)timeout_ns);
    TP_REQUIRE(flight->error.status == TP_OK, error, (tp_status)flight->error.status, "%s", flight->error.text);
    return TP_OK;
}

void *tp_ticket_event(const tp_ticket *ticket) {
    if (ticket == NULL || tp__context_here(ticket->context, NULL) != TP_OK) return NULL;
    tp_ticket *locked = (tp_ticket *)ticket;
    pthread_mutex_lock(&locked->flight.lock);
    void *event = ticket->event;
    pthread_mutex_unlock(&locked->flight.lock);
    return event;
}

void tp_ticket_destroy(tp_ticket *ticket) {
    if (ticket == NULL) return;
    if (tp__context_here(ticket->context, NULL) != TP_OK) { /* its lock may be held by a thread that is not here */
        free(ticket);
        return;
    }
    tp__flight *flight = &ticket->flight;
    pthread_mutex_lock(&flight->lock);
    int from_done = ticket->telling && pthread_equal(ticket->teller, pthread_self());
    while (!ticket->told && !from_done) pthread_cond_wait(&flight->changed, &flight->lock);
    void *event = ticket->event;
    ticket->event = NULL;
    ticket->wanted = 0;
    pthread_mutex_unlock(&flight->lock);
    tp__device_release_event(flight->plan->device, event);
    let_go(ticket);
}
