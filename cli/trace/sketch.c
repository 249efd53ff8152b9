/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/sketch.h"

#include <math.h>

/* Times below two steps' worth are their own place; above, each power of two is cut into steps. */
static int shift_of(int64_t ns) {
    int bits = 63 - __builtin_clzll((unsigned long long)ns | 1);
    return bits > 5 ? bits - 5 : 0;
}

void sketch_add(struct sketch *sketch, int64_t ns) {
    int shift = shift_of(ns);
    sketch->within[shift * SKETCH_STEPS + (int)(ns >> shift)]++;
    sketch->count++;
    sketch->sum += (double)ns;
    if (ns > sketch->max) sketch->max = ns;
}

/* The middle of a place. */
static double time_of(int place) {
    int shift = place < 2 * SKETCH_STEPS ? 0 : place / SKETCH_STEPS - 1;
    double from = (double)(place - shift * SKETCH_STEPS);
    return ldexp(from + (shift ? 0.5 : 0), shift);
}

double sketch_quantile(const struct sketch *sketch, double share) {
    int64_t rank = (int64_t)ceil(share * (double)sketch->count), seen = 0;
    for (int place = 0; place < SKETCH_PLACES; place++) {
        seen += sketch->within[place];
        if (seen && seen >= rank) return fmin(time_of(place), (double)sketch->max);
    }
    return 0;
}
