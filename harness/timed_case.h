/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One workload, planned once by one library on one kernel with so many threads, and timed around tp_plan_run: what
 * bench and A/B tests put beside each other.
 */
#ifndef TILEPROOF_HARNESS_TIMED_CASE_H
#define TILEPROOF_HARNESS_TIMED_CASE_H

#include "harness/attempt.h"
#include "harness/library.h"
#include "harness/limits.h"
#include "harness/workload.h"

struct timed_case {
    /* as asked */
    struct workload *workload;
    const struct library *library; /* that plans and runs it */
    const char *kernel;            /* NULL: the best */
    const char *strategy;          /* NULL: by rows */
    char disable[128];             /* "": nothing */
    int threads;
    double slowed; /* simulated: each run takes this many times as long, by waiting; 0: no */
    /* as planned */
    tp_plan *plan;
    struct workspace workspace;
    int borrowed;       /* plan and workspace are another case's */
    tp_receipt receipt; /* of the first run, which is not timed */
    /* of timed_case_open alone */
    const char *ran;        /* the kernel that did */
    const char *isa;        /* whose peak is its limit */
    double flops, kv_bytes; /* useful multiply-adds, twice; bytes of k and v, each element that is seen once */
};

/* Plans by workload, kernel, strategy, threads and library, in a context of that library, and runs once. */
tp_status timed_case_start(struct timed_case *one, tp_context *context, tp_error *error);
/* The same by the linked library, in the context of the limits, and what its rates are computed with. The kernel's name
   must outlive the case. `like`, when not NULL, keeps math from using vectors better than that kernel's. */
tp_status timed_case_open(struct timed_case *one, struct workload *workload, const char *kernel, const char *strategy,
                          const char *like, int threads, struct limits *limits, tp_error *error);
void timed_case_close(struct timed_case *one);
/* The same case once more, as an A/A control: where memory lies can change times by some %, so plan and workspace are
   those of the case, which outlives it. */
struct timed_case timed_case_copy(const struct timed_case *one);

/* Useful ones of so many pairs: two products forward, five backward. */
double useful_flops(const tp_problem *problem, int64_t pairs);

tp_status timed_case_run(const struct timed_case *one, tp_receipt *receipt, tp_error *error);
/* Runs until slice_ns are over, at least min times; adds each time in ns. Nothing else is allocated while the clock
   runs. */
tp_status timed_case_burst(const struct timed_case *one, double slice_ns, int min, struct samples *times,
                           tp_error *error);

#endif
