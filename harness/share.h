/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The share of a limit that a case reaches, on hosts whose speed changes by the second: calls of the case and a probe of
 * its limit of about the same length, in turns. A pair gives one log ratio, the rate of the calls over that of the
 * probe beside them; the share is the median of the ratios, with an interval.
 */
#ifndef TILEPROOF_HARNESS_SHARE_H
#define TILEPROOF_HARNESS_SHARE_H

#include "harness/timed_case.h"
#include "harness/verdict.h"

enum share_limit { SHARE_OF_FMA, SHARE_OF_READ };

struct share {
    enum share_limit limit;
    struct samples ratios; /* logs */
    struct samples probes; /* 1e9 multiply-adds twice, or bytes, a second */
};

/* Whether reading k and v, from a cache that holds them, or the multiply-adds bound the case. */
enum share_limit share_limit_of(const struct timed_case *one, struct limits *limits);
/* One pair forth and one back. amount: flops or bytes of a call. Adds the calls' times in ns. */
tp_status share_measure(struct share *share, const struct timed_case *one, double amount, struct limits *limits,
                        struct samples *times, tp_error *error);
/* Ratios, not logs; 99 %. Infinite ends: too few pairs. */
struct interval share_interval(const struct share *share, uint64_t seed);
void share_free(struct share *share);

#endif
