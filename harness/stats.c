/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/stats.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

double now_seconds(void) { return 1e-9 * now_ns(); }

int samples_add(struct samples *samples, double value) {
    if (samples->count == samples->capacity) {
        size_t capacity = samples->capacity ? 2 * samples->capacity : 64;
        double *values = realloc(samples->values, capacity * sizeof *values);
        if (!values) return 1;
        samples->values = values;
        samples->capacity = capacity;
    }
    samples->values[samples->count++] = value;
    return 0;
}

void samples_free(struct samples *samples) {
    free(samples->values);
    *samples = (struct samples){0};
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

void sort_values(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_value);
}

double sorted_quantile(const double *sorted, size_t count, double share) {
    double at = share * (double)(count - 1);
    size_t low = (size_t)at, high = low + 1 < count ? low + 1 : low;
    return sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
}

struct summary samples_summary(struct samples *samples) {
    size_t count = samples->count;
    if (!count) return (struct summary){NAN, NAN, NAN, NAN};
    sort_values(samples->values, count);
    return (struct summary){samples->values[0], sorted_quantile(samples->values, count, 0.5),
                            sorted_quantile(samples->values, count, 0.99),
                            samples->values[count - 1]};
}
