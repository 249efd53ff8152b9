/* SPDX-License-Identifier: Apache-2.0 */
#include "telemetry/histogram.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct place {
    _Alignas(64) atomic_llong calls[TP__BOUNDS + 1]; /* above the bound before, up to this one; last: beyond all */
    atomic_llong sum_ns;
} place;

enum { PLACES = TP__MODEL_SLOTS * TP__PHASES * TP__BUCKETS };

struct tp__histograms {
    place place[PLACES];
};

tp__histograms *tp__histograms_create(void) {
    tp__histograms *made = NULL;
    if (posix_memalign((void **)&made, 64, sizeof *made) != 0) return NULL;
    memset(made, 0, sizeof *made);
    return made;
}

void tp__histograms_destroy(tp__histograms *histograms) { free(histograms); }

/* The first bound that is not below the time. */
static int bound_of(int64_t time_ns) {
    if (time_ns <= INT64_C(1) << TP__BOUND_FIRST) return 0;
    int bits = 64 - __builtin_clzll((unsigned long long)time_ns - 1); /* time_ns <= 2^bits */
    return bits - TP__BOUND_FIRST < TP__BOUNDS ? bits - TP__BOUND_FIRST : TP__BOUNDS;
}

void tp__histograms_add(tp__histograms *histograms, tp__labels labels, int64_t time_ns) {
    int slot = tp__model_slot(labels.model);
    place *p = &histograms->place[(slot * TP__PHASES + labels.phase) * TP__BUCKETS + labels.bucket];
    atomic_fetch_add_explicit(&p->calls[bound_of(time_ns)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->sum_ns, time_ns, memory_order_relaxed);
}

int tp__histograms_next(const tp__histograms *histograms, int64_t *at, tp__histogram *histogram) {
    while (*at >= 0 && *at < PLACES) {
        int64_t i = (*at)++;
        const place *p = &histograms->place[i];
        histogram->count = 0;
        for (int b = 0; b <= TP__BOUNDS; b++) {
            histogram->count += atomic_load(&p->calls[b]);
            if (b < TP__BOUNDS) histogram->within[b] = histogram->count;
        }
        if (histogram->count == 0) continue;
        histogram->sum_ns = atomic_load(&p->sum_ns);
        histogram->labels = (tp__labels){.model = tp__slot_model((int)(i / (TP__PHASES * TP__BUCKETS))),
                                         .phase = (uint8_t)(i / TP__BUCKETS % TP__PHASES),
                                         .bucket = (uint8_t)(i % TP__BUCKETS)};
        return 1;
    }
    return 0;
}
