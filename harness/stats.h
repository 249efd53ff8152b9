/* SPDX-License-Identifier: Apache-2.0 */
/* Times that were measured, and what is said of them. */
#ifndef TILEPROOF_HARNESS_STATS_H
#define TILEPROOF_HARNESS_STATS_H

#include <stddef.h>

struct samples {
    double *values;
    size_t count, capacity;
};

struct summary {
    double min, median, p99, max;
};

/* 0, or nonzero when memory ran out. */
int samples_add(struct samples *samples, double value);
void samples_free(struct samples *samples);
/* Sorts. All NaN when there is none. */
struct summary samples_summary(struct samples *samples);
void sort_values(double *values, size_t count);
/* The value below which this share of n > 0 sorted values lies, between the two nearest ones. */
double sorted_quantile(const double *sorted, size_t count, double share);

double now_ns(void); /* wall clock that only goes forward */
double now_seconds(void);

#endif
