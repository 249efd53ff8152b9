/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points to the decision: plan, explain. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "api/context.h"
#include "base/structs.h"
#include "strategies/prepare.h"

static tp_status check_choice(const tp_context *context, const tp_choice *choice, tp_error *error) {
    if (choice == NULL) return TP_OK;
    const char *device = context->device != NULL ? context->device->backend.name : NULL;
    TP_REQUIRE(choice->device == TP_CPU || choice->device == tp__device_number(context->device), error, TP_INVALID,
               "choice.device is %d: it must be TP_CPU (0)%s%s", choice->device,
               device != NULL ? " or the number of the backend " : ", because the context has no backend",
               device != NULL ? device : "");
    TP_REQUIRE(choice->device == TP_CPU || choice->strategy == NULL, error, TP_INVALID,
               "strategy is '%.64s' on device %d: it must be NULL, a device has loops of its own", choice->strategy,
               choice->device);
    TP_REQUIRE(choice->reserved == 0, error, TP_INVALID, "choice.reserved is %d: it must be 0", choice->reserved);
    TP_TRY(tp__policy_check(choice->policy, error));
    TP_TRY(tp__names_check("disable", choice->disable, &context->catalog, error));
    if (choice->kernel == NULL) return TP_OK;
    TP_REQUIRE(choice->kernel[0] != '\0' && strchr(choice->kernel, ',') == NULL, error, TP_INVALID,
               "kernel is '%.64s': it must be one name, or NULL for any", choice->kernel);
    return tp__names_check("kernel", choice->kernel, &context->catalog, error);
}

static tp_status check_context(const tp_context *context, tp_error *error) {
    TP_REQUIRE(context != NULL, error, TP_INVALID, "context is NULL");
    return tp__context_here(context, error);
}

/* Which loop the choice asks for. */
static tp_status find_path(const tp_problem *problem, const tp_choice *choice, tp__path *path,
                           tp_error *error) {
    const char *name = choice != NULL ? choice->strategy : NULL;
    *path = name == NULL                    ? TP__BY_ROWS
            : strcmp(name, "prefill") == 0 ? TP__PREFILL
                                           : TP__DECODE;
    TP_REQUIRE(name == NULL || *path == TP__PREFILL || strcmp(name, "decode") == 0, error, TP_INVALID,
               "strategy is '%.64s': it must be prefill or decode, or NULL for either", name);
    TP_REQUIRE(name == NULL || problem->op != TP_BACKWARD, error, TP_INVALID,
               "strategy is '%.64s' for a backward call: it must be NULL", name);
    TP_REQUIRE(*path != TP__DECODE || !problem->invariant, error, TP_INVALID,
               "strategy is decode though the problem is invariant: that means prefill's arithmetic");
    return TP_OK;
}

/* What to do about it, first in an error text, whose end may be cut off. */
static void remedy_of(const tp_decision *decision, char *text, size_t size) {
    const char *kernel = "";
    for (int i = decision->candidate_count - 1; i >= 0; i--) {
        const tp_candidate *c = tp_decision_candidate(decision, i);
        int code = c->reason_count == 1 ? tp_candidate_reason(c, 0)->code : 0;
        if (code == TP_WHY_POLICY || code == TP_WHY_NOT_LOCKED) kernel = c->kernel; /* the best of them in the end */
    }
    text[0] = '\0';
    if (decision->status == TP_FALLBACK_REFUSED)
        snprintf(text, size, " (policy TP_PERMIT, in tp_choice or tp_context_options, lets %s serve it, slower)", kernel);
    if (decision->status == TP_NOT_LOCKED)
        snprintf(text, size, " (tp_context_permit, or tp_preflight with a lock that names it, lets %s serve it)", kernel);
}

/* One line of the whole decision, for an error text. */
static tp_status refuse(const tp_decision *decision, tp_error *error) {
    char list[400], remedy[128];
    size_t used = 0;
    list[0] = '\0';
    for (int i = 0; i < decision->candidate_count && used < sizeof list; i++) {
        const tp_candidate *c = tp_decision_candidate(decision, i);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s: %s", i > 0 ? "; " : "", c->kernel,
                                 tp_candidate_reason(c, 0)->text);
    }
    remedy_of(decision, remedy, sizeof remedy);
    const char *hint = remedy[0] == '\0' ? decision->hint : ""; /* one advice is enough */
    return tp__fail(error, (tp_status)decision->status, "%s%s for '%s': %s%s%s",
                    decision->status == TP_FALLBACK_REFUSED ? "fallback refused"
                    : decision->status == TP_NOT_LOCKED     ? "not permitted by policy locked"
                                                            : "nothing serves",
                    remedy, decision->problem, list, hint[0] != '\0' ? "; hint: " : "", hint);
}

static void let_go(tp_decision **decision) {
    tp_decision_destroy(*decision);
    *decision = NULL;
}

/* *plan gets all but what belongs to a plan that may be run. Its decision is set as well when that is to refuse. */
static tp_status decide(tp_context *context, const tp_problem *problem, const tp_choice *choice, tp_plan *plan,
                        tp_error *error) {
    char text[512];
    plan->decision = NULL;
    TP_TRY(tp_problem_check(problem, error));
    TP_TRY(check_choice(context, choice, error));
    TP_TRY(find_path(problem, choice, &plan->path, error));
    tp__rules rules = {
        .machine = &context->machine,
        .sets = context->sets,
        .options = context->catalog.option,
        .option_count = context->catalog.count,
        .device = choice != NULL ? choice->device : TP_CPU,
        .policy = choice != NULL ? choice->policy : context->policy,
        .disable = {context->disable, choice != NULL ? choice->disable : NULL},
        .kernel = choice != NULL ? choice->kernel : NULL,
        .path = plan->path,
        .permits = context->permits,
    };
    tp_decision *made = tp__decision_create(rules.option_count);
    TP_REQUIRE(made != NULL, error, TP_NO_MEMORY, "no memory for a decision");
    made->problem_class = tp_problem_class(problem, text, sizeof text) == TP_OK ? tp__decision_text(made, "%s", text)
                                                                                : "(its text form is too long)";
    tp_status status = tp__choose(problem, &rules, made);
    const tp__option *chosen = status == TP_OK ? &rules.options[made->chosen] : NULL;
    plan->strategy = chosen != NULL ? chosen->executor->strategy[problem->op] : NULL;
    plan->device = chosen != NULL ? chosen->device : NULL;
    plan->kernels = chosen != NULL && plan->device == NULL ? tp__option_kernels(chosen, &rules) : NULL;
    plan->policy = rules.policy;
    made->device = rules.device == TP_CPU ? "cpu" : tp__device_name(context->device);
    tp__figures(problem, plan->strategy, plan->path, plan->kernels, tp_context_threads(context), made);
    if (plan->device != NULL) {
        plan->device_kernel = chosen->device_kernel;
        plan->device_workspace = tp__device_figures(problem, chosen, made);
    }
    if (tp__decision_failed(made)) let_go(&made);
    TP_REQUIRE(made != NULL, error, TP_NO_MEMORY, "no memory for a decision");
    plan->decision = made;
    if (status == TP_OK) return TP_OK;
    atomic_fetch_add(&context->refusals, 1);
    return refuse(made, error);
}

tp_status tp__plan_make(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                        tp_plan *plan, tp_error *error) {
    plan->context = context;
    plan->device = NULL;
    plan->prepared = NULL;
    plan->device_workspace = 0;
    plan->open = 0;
    TP_TRY(decide(context, problem, choice, plan, error));
    plan->why = tp__reasons_of(plan->decision);
    plan->problem = *problem;
    if (plan->device != NULL)
        TP_TRY(tp__device_prepare(plan->device, plan->device_kernel, &plan->problem, &plan->prepared, error));
    atomic_fetch_add(&context->plans, 1);
    return TP_OK;
}

tp_status tp_plan_create(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                         tp_plan **plan, tp_error *error) {
    TP_REQUIRE(plan != NULL, error, TP_INVALID, "plan is NULL: it must point to a pointer");
    *plan = NULL;
    TP_TRY(check_context(context, error));
    TP_STRUCT_IN(tp_problem, problem, error);
    TP_STRUCT_IN_OR_NULL(tp_choice, choice, error);
    tp_plan *made = malloc(sizeof *made);
    TP_REQUIRE(made != NULL, error, TP_NO_MEMORY, "no memory for a plan of %zu bytes", sizeof *made);
    tp_status status = tp__plan_make(context, problem, choice, made, error);
    if (status == TP_OK) {
        *plan = made;
        return TP_OK;
    }
    if (made->decision != NULL && made->decision->status != TP_OK) { /* otherwise it was not prepared */
        tp__watch watch;
        tp__watch_begin(&watch, context);
        tp__watch_refused(&watch, context, problem, NULL, made->decision);
        tp__watch_end(&watch, context, NULL, status);
    }
    tp_plan_destroy(made);
    return status;
}

void tp__plan_release(tp_plan *plan) {
    tp__device *device = plan->device;
    if (device != NULL && tp__context_here(plan->context, NULL) == TP_OK) {
        tp__device_wait(device, &plan->open);
        if (plan->prepared != NULL) device->backend.release_prepared(device->backend.user, plan->prepared);
    }
    plan->device = NULL;
    plan->prepared = NULL;
    let_go(&plan->decision);
}

void tp_plan_destroy(tp_plan *plan) {
    if (plan == NULL) return;
    tp__plan_release(plan);
    free(plan);
}

int tp_plan_device(const tp_plan *plan) { return plan != NULL ? tp__device_number(plan->device) : TP_CPU; }

const tp_decision *tp_plan_decision(const tp_plan *plan) {
    return plan != NULL ? plan->decision : NULL;
}

size_t tp_plan_workspace(const tp_plan *plan, int threads) {
    if (plan == NULL) return 0;
    if (plan->device != NULL) return plan->device_workspace;
    return tp__workspace(plan->strategy, &plan->problem, plan->kernels, plan->path,
                         threads > 1 ? threads : 1);
}

tp_status tp_explain(tp_context *context, const tp_problem *problem, const tp_choice *choice,
                     tp_decision **decision, tp_error *error) {
    tp_plan plan;
    TP_REQUIRE(decision != NULL, error, TP_INVALID, "decision is NULL: it must point to a pointer");
    *decision = NULL;
    TP_TRY(check_context(context, error));
    TP_STRUCT_IN(tp_problem, problem, error);
    TP_STRUCT_IN_OR_NULL(tp_choice, choice, error);
    tp_status status = decide(context, problem, choice, &plan, error);
    *decision = plan.decision; /* be it to refuse */
    return status;
}
