/* SPDX-License-Identifier: Apache-2.0 */
#include "api/watch.h"

#include <string.h>

#include "api/context.h"
#include "base/clock.h"
#include "problem/sequence.h"

void tp__watch_begin(tp__watch *watch, const tp_context *context) {
    watch->told = watch->event = watch->detail = 0;
    watch->decision = NULL;
    watch->record.planned = 0;
    watch->listening = !tp__inside_task() && (context->options.event != NULL || context->options.trace != NULL ||
                                              context->options.dump != NULL);
}

static int is_served(int32_t policy) { return policy == TP_SERVE || policy == TP_LOCKED; }

int tp__watch_wants_receipt(tp__watch *watch, const tp_plan *plan) {
    const tp_context_options *to = &plan->context->options;
    if (plan->decision->fallback && is_served(plan->policy)) watch->event = TP_EVENT_FALLBACK;
    int event = to->event != NULL && watch->event != 0;
    watch->detail = watch->listening && (event || to->trace != NULL);
    return watch->detail;
}

const tp_tags *tp__tags_of(const tp_tensors *tensors) {
    return tensors != NULL && tp__tags_check(tensors->tags, NULL) == TP_OK ? tensors->tags : NULL;
}

static const char *copy_tag(char to[TP__TAG_SIZE], const char *tag) {
    return tag != NULL ? strcpy(to, tag) : NULL;
}

void tp__tags_copy(tp__own_tags *own, const tp_tags *tags) {
    own->given = tags != NULL;
    if (!own->given) return;
    own->tags = (tp_tags)TP_TAGS_INIT;
    own->tags.layer = tags->layer;
    own->tags.model = copy_tag(own->model, tags->model);
    own->tags.request = copy_tag(own->request, tags->request);
}

static void fill(tp__watch *watch, tp_context *context, const tp_problem *problem, const tp_tags *tags,
                 const tp_decision *decision, const tp__reasons *why) {
    tp__record *r = &watch->record;
    const char *model = tags != NULL ? tags->model : NULL, *request = tags != NULL ? tags->request : NULL;
    if (context->histograms != NULL) r->labels.model = (uint8_t)tp__counts_model(context->counts, model);
    if (context->recorder == NULL && !watch->listening) return; /* nobody will ask */
    r->lock = tp__locks_of(&context->locks, context->counts, r->labels.model);
    r->layer = tags != NULL ? tags->layer : -1;
    r->fallback = decision->fallback;
    strcpy(r->model, model != NULL ? model : "");
    strcpy(r->request, request != NULL ? request : "");
    r->why = *why;
    r->names = &context->catalog.names;
    if (context->recorder != NULL) tp__recorder_add(context->recorder, r, problem);
    watch->problem = problem;
    if (watch->detail) watch->decision = tp__decision_hold(decision);
    watch->told = watch->detail || (watch->listening && r->status != TP_OK);
}

static void count(tp_context *context, const tp__record *r, const tp__amounts *amounts) {
    if (context->histograms == NULL) return; /* calls are not counted */
    tp__counts_add(context->counts, r->labels, amounts);
    if (amounts != NULL) tp__histograms_add(context->histograms, r->labels, amounts->time_ns);
}

void tp__watch_refused(tp__watch *watch, tp_context *context, const tp_problem *problem, const tp_tags *tags,
                       const tp_decision *decision) {
    tp__record *r = &watch->record;
    watch->detail = watch->listening;
    r->labels = tp__labels_of(problem, NULL);
    r->labels.kind = TP_COUNT_REFUSALS;
    r->labels.kernel = TP__NO_KERNEL;
    r->labels.device = strcmp(decision->device, "cpu") != 0;
    r->labels.reason = (uint8_t)tp__first_reason(decision);
    r->start_ns = tp__now_ns();
    r->amounts = (tp__amounts){0, 0, 0};
    r->status = decision->status;
    tp__reasons why = tp__reasons_of(decision);
    fill(watch, context, problem, tags, decision, &why);
    count(context, r, NULL);
    watch->event = decision->status == TP_NOT_LOCKED ? TP_EVENT_NOT_LOCKED : TP_EVENT_REFUSED;
}

void tp__watch_ran(tp__watch *watch, const tp_plan *plan, const tp_problem *problem, tp__labels labels, const tp_tags *tags,
                   const tp__ran *ran, tp_status status) {
    tp__record *r = &watch->record;
    tp_context *context = plan->context;
    r->labels = labels;
    r->labels.kind = TP_COUNT_CALLS;
    r->labels.kernel = tp__kernel_index(&context->catalog.names, ran->kernel);
    r->labels.device = plan->device != NULL;
    r->amounts = ran->amounts;
    r->status = status;
    fill(watch, context, problem, tags, plan->decision, &plan->why);
    if (status != TP_OK) {
        watch->event = 0;
        return; /* no call was completed */
    }
    atomic_fetch_add(&context->calls, 1);
    count(context, r, &ran->amounts);
    if (!plan->decision->fallback) return;
    atomic_fetch_add(&context->fallbacks, 1);
    r->labels.kind = TP_COUNT_FALLBACKS;
    r->labels.reason = (uint8_t)tp__first_reason(plan->decision);
    count(context, r, NULL);
}

static void tell(tp__watch *watch, tp_context *context, const tp_tags *tags, tp_status status) {
    const tp_context_options *to = &context->options;
    int ran = status == TP_OK;
    char bounds[512];
    if (!ran) tp__bounds_text(watch->problem, bounds);
    watch->receipt.planned = watch->record.planned;
    if (to->trace != NULL && watch->detail && !atomic_load(&context->trace_ended) &&
        tp__record_send(&watch->record, ran ? watch->receipt.problem : bounds, watch->decision, to->trace,
                        to->trace_cookie) != 0)
        atomic_store(&context->trace_ended, 1);
    if (to->event != NULL && watch->event != 0) {
        tp_event event = {.struct_size = sizeof event,
                          .kind = watch->event,
                          .status = status,
                          .decision = watch->decision,
                          .receipt = ran ? &watch->receipt : NULL,
                          .tags = tags};
        to->event(to->event_user, &event);
    }
    if (to->dump != NULL && status != TP_OK) tp__recorder_write(context->recorder, 1, to->dump, to->dump_cookie);
}

tp_status tp__watch_end(tp__watch *watch, tp_context *context, const tp_tags *tags, tp_status status) {
    if (!watch->told) return status;
    int outer = tp__set_inside(1);
    tell(watch, context, tags, status);
    tp__set_inside(outer);
    tp_decision_destroy(watch->decision);
    return status;
}
