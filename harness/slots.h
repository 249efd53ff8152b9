/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases that are compared run in slots: a few calls of one, then of the next, forth and then back,
 * so that drift meets all of them alike. A series is what the slots of one case measured, in order.
 */
#ifndef TILEPROOF_HARNESS_SLOTS_H
#define TILEPROOF_HARNESS_SLOTS_H

#include "harness/timed_case.h"
#include "harness/verdict.h"

struct series {
    struct samples calls;     /* wall ns of each call */
    struct samples wall, cpu; /* a slot: median wall ns of its calls, CPU ns a call */
    double wall_sum, cpu_sum; /* ns of whole slots */
    int64_t switches;         /* involuntary ones of this process, while its slots ran */
};
void series_free(struct series *series);

/* One slot of each case, in the order given or backwards. */
tp_status slots_pass(const struct timed_case *cases, struct series *series, int count, int backward,
                     double slot_ns, tp_error *error);
/* Adds the paired log ratios of wall or CPU time. 0, or nonzero when memory ran out. */
int slots_ratios(const struct samples *first, const struct samples *second, struct samples *ratios);
/* Their interval at this miss. */
struct interval slots_compare(const struct samples *first, const struct samples *second,
                              double miss, uint64_t seed);

/* Time of all CPUs since boot, in ticks of /proc/stat. */
struct ticks {
    double all, steal;
};
struct ticks ticks_now(void);
double ticks_steal(struct ticks from, struct ticks to); /* a share; NAN when it cannot be known */

/* What may have disturbed a series, in words: "switches steal cpu" or fewer; "" for nothing. */
const char *series_flags(const struct series *series, double steal, char text[32]);

#endif
