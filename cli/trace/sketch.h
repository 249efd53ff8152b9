/* SPDX-License-Identifier: Apache-2.0 */
/* Quantiles of any number of times in 15 KiB: counts in 32 steps for each power of two, so within 1.6 %. */
#ifndef TILEPROOF_CLI_TRACE_SKETCH_H
#define TILEPROOF_CLI_TRACE_SKETCH_H

#include <stdint.h>

enum { SKETCH_STEPS = 32, SKETCH_PLACES = SKETCH_STEPS * 60 };

struct sketch {
    int64_t count, max;
    double sum;
    int64_t within[SKETCH_PLACES];
};

void sketch_add(struct sketch *sketch, int64_t ns); /* ns >= 0 */
/* The smallest time that at least this share of the times does not exceed, 0 < share <= 1; 0 for none. */
double sketch_quantile(const struct sketch *sketch, double share);

#endif
