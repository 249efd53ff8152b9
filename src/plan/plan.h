/* SPDX-License-Identifier: Apache-2.0 */
/* A plan: the decision and the bounds, nothing of any one call. */
#ifndef TP_PLAN_PLAN_H
#define TP_PLAN_PLAN_H

#include "base/reasons.h"
#include "kernels/kernel.h"
#include "strategies/schedule.h"
#include "strategies/strategy.h"
#include "tileproof.h"

/* What can be chosen: one strategy on one set of leaves. */
typedef struct tp__option {
    const char *name; /* of the ISA when fused, otherwise of the strategy */
    const tp__strategy *strategy;
    const tp__kernel_set *kernels; /* NULL: the best set this host has and nobody disabled */
} tp__option;

enum { TP__OPTIONS = TP__SETS + 1 }; /* the fused strategy on each set, and math */
extern const tp__option tp__options[TP__OPTIONS];
/* The strategy by which an option serves the problem: its own, or backward in place of fused. */
const tp__strategy *tp__option_strategy(const tp__option *option, const tp_problem *problem);

/* "a,b" names nothing but options: TP_OK, or TP_INVALID that lists the known names. */
tp_status tp__names_check(const char *what, const char *names, tp_error *error);
/* Whether the list holds the name; NULL is the empty list. */
int tp__names_have(const char *names, const char *name);
/* Whether a disable list takes this head dim from the fused kernels, by an entry head_dim=N. */
int tp__names_head_dim(const char *names, int64_t head_dim);

/* A policy that exists, or TP_INVALID. */
tp_status tp__policy_check(int32_t policy, tp_error *error);

/* The decision's reasons in short. */
tp__reasons tp__reasons_of(const tp_decision *decision);

/* What policy locked permits: permits.c. Safe to use from many threads. */
typedef struct tp__permits tp__permits;
tp__permits *tp__permits_create(void);
void tp__permits_destroy(tp__permits *permits);
tp_status tp__permits_add(tp__permits *permits, const tp_permit *more, int64_t count, tp_error *error);
void tp__permits_clear(tp__permits *permits);
/* Permits of the class; *named: one of them names the kernel. */
int64_t tp__permits_find(tp__permits *permits, const char *problem_class, const char *kernel, int *named);

/* All that a choice depends on. */
typedef struct tp__rules {
    const tp_machine *machine;
    int32_t policy;
    const char *disable[2]; /* the context's and the choice's; NULL: none */
    const char *kernel;     /* NULL: any */
    tp__path path;          /* of the fused strategy */
    tp__permits *permits;   /* for policy locked */
} tp__rules;

/* Fills in the decision's candidates, status, chosen, fallback, hint; the option's leaves come out in
   *kernels. The problem has passed tp_problem_check, and its class stands in the decision. */
tp_status tp__choose(const tp_problem *problem, const tp__rules *rules, tp_decision *decision,
                     const tp__kernel_set **kernels);

/* Fills in the decision's text, numerics id and figures; kernels NULL when nothing was chosen. */
void tp__figures(const tp_problem *problem, const tp__strategy *strategy, tp__path path,
                 const tp__kernel_set *kernels, int threads, tp_decision *decision);

struct tp_plan {
    tp_context *context;
    tp_problem problem;
    const tp__strategy *strategy;
    const tp__kernel_set *kernels;
    tp__path path;
    int32_t policy;
    tp__reasons why; /* the decision's, in short */
    tp_decision decision;
};

#endif
