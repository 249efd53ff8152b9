/* SPDX-License-Identifier: Apache-2.0 */
/* How long calls took, by model, phase and bucket. A histogram for each set of labels that there can be, at a fixed place:
   no search, no lock, no memory while calls run. */
#ifndef TP_TELEMETRY_HISTOGRAM_H
#define TP_TELEMETRY_HISTOGRAM_H

#include "telemetry/counts.h"

enum {
    TP__BOUND_FIRST = 10, /* bound i is 2^(10 + i) ns: 1.024 us ... */
    TP__BOUNDS = 26       /* ... to 34.4 s; longer calls are beyond all bounds */
};

typedef struct tp__histograms tp__histograms;
tp__histograms *tp__histograms_create(void);
void tp__histograms_destroy(tp__histograms *histograms);
/* Of the labels, model, phase and bucket. */
void tp__histograms_add(tp__histograms *histograms, tp__labels labels, int64_t time_ns);

/* One histogram as it was read: calls of at most each bound, and all of them. */
typedef struct tp__histogram {
    tp__labels labels; /* model, phase and bucket */
    int64_t within[TP__BOUNDS], count, sum_ns;
} tp__histogram;
/* The next that has calls, from *at = 0 on; 0 at the end. */
int tp__histograms_next(const tp__histograms *histograms, int64_t *at, tp__histogram *histogram);

#endif
