/* SPDX-License-Identifier: Apache-2.0 */
/* A plan: the decision and the bounds, nothing of any one call. */
#ifndef TP_PLAN_PLAN_H
#define TP_PLAN_PLAN_H

#include "device/device.h"
#include "kernels/set.h"
#include "plan/decision.h"
#include "strategies/schedule.h"
#include "strategies/strategy.h"
#include "tileproof.h"

typedef struct tp__option tp__option;
typedef struct tp__rules tp__rules;

/* Who runs a problem. The two of the CPU are in candidates.c; a device brings its own. */
typedef struct tp__executor {
    const char *name; /* "fused", "math" */
    int fused;        /* never writes the score matrix */
    const tp__strategy *strategy[2]; /* by tp_op; NULL: it lacks the op */
    /* Adds a reason for each thing that the candidate cannot do for the problem on the rules' machine. What people
       forbid is no matter of its own. */
    void (*serves)(const tp__option *option, const tp_problem *problem, const tp__rules *rules, const tp__why *why);
} tp__executor;

/* What can be chosen. */
struct tp__option {
    const char *name; /* of the kernel set when fused, otherwise of the executor */
    const tp__executor *executor;
    const tp__kernel_set *kernels; /* NULL: the best set with math that this host has and nobody disabled */
    int32_t arithmetic;            /* tp_arithmetic */
    tp__device *device;            /* NULL: the CPU */
    int device_kernel;             /* its index there */
};

enum { TP__OPTIONS = TP__SETS + 1 }; /* the fused executor on each set, and math */
extern const tp__option tp__options[TP__OPTIONS];
_Static_assert(TP__OPTIONS + TP__DEVICE_KERNELS <= TP__CANDIDATES_MAX, "a record keeps the reasons of so many candidates");

/* What a context can choose from: the CPU's options and, behind them, the device's. */
typedef struct tp__catalog {
    tp__option option[TP__CANDIDATES_MAX];
    int count;
    tp__kernel_names names;
} tp__catalog;
void tp__catalog_fill(tp__catalog *catalog, tp__device *device);
int tp__is_cpu_kernel(const char *name);

/* device.c: asks the backend. */
void tp__device_serves(const tp__option *option, const tp_problem *problem, const tp__rules *rules, const tp__why *why);
/* The figures of a plan on a device; bytes of its workspace come back. */
size_t tp__device_figures(const tp_problem *problem, const tp__option *option, tp_decision *decision);

/* On the CPU: the kernel set by which an option serves, and what it can serve. */
const tp__kernel_set *tp__option_kernels(const tp__option *option, const tp__rules *rules);
void tp__cpu_serves(const tp__option *option, const tp_problem *problem, const tp__rules *rules, const tp__why *why);

/* "a,b" names nothing but options: TP_OK, or TP_INVALID that lists the known names. */
tp_status tp__names_check(const char *what, const char *names, const tp__catalog *catalog, tp_error *error);
/* Whether the list holds the name; NULL is the empty list. */
int tp__names_have(const char *names, const char *name);
/* Whether a disable list takes this head dim from the fused kernels, by an entry head_dim=N. */
int tp__names_head_dim(const char *names, int64_t head_dim);

/* A policy that exists, or TP_INVALID. */
tp_status tp__policy_check(int32_t policy, tp_error *error);

/* What policy locked permits: permits.c. Safe to use from many threads. */
typedef struct tp__permits tp__permits;
tp__permits *tp__permits_create(const tp__catalog *catalog);
void tp__permits_destroy(tp__permits *permits);
tp_status tp__permits_add(tp__permits *permits, const tp_permit *more, int64_t count, tp_error *error);
void tp__permits_clear(tp__permits *permits);
/* Permits of the class; *named: one of them names the kernel. */
int64_t tp__permits_find(tp__permits *permits, const char *problem_class, const char *kernel, int *named);

/* All that a choice depends on. */
struct tp__rules {
    const tp_machine *machine;
    const tp__kernel_set *sets; /* as tp__kernel_sets, each whole */
    const tp__option *options;  /* of each device best first */
    int option_count;
    int32_t device;            /* the tp_device asked for */
    int32_t policy;
    const char *disable[2]; /* the context's and the choice's; NULL: none */
    const char *kernel;     /* NULL: any */
    tp__path path;          /* of the fused strategy */
    tp__permits *permits;   /* for policy locked */
};

int tp__disabled(const tp__rules *rules, const char *name);

/* Fills in the decision's candidates, status, chosen, fallback, hint. The problem has passed tp_problem_check, and its
   class stands in the decision, which was made for as many candidates as the rules have. */
tp_status tp__choose(const tp_problem *problem, const tp__rules *rules, tp_decision *decision);

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
    tp_decision *decision; /* one holder of it */
    tp__device *device;    /* NULL: the CPU; otherwise strategy and kernels are NULL */
    int device_kernel;
    void *prepared;        /* the backend's */
    size_t device_workspace;
    int64_t open;          /* calls on the device that are not done: tp__device_open */
};

#endif
