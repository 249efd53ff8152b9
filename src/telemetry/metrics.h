/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_TELEMETRY_METRICS_H
#define TP_TELEMETRY_METRICS_H

#include "telemetry/histogram.h"
#include "telemetry/locks.h"

/* All that the exposition says. */
typedef struct tp__metrics {
    const tp__counts *counts;
    const tp__histograms *histograms;
    const tp__locks *locks;
    tp_counters totals;
    int64_t workspace_bytes;
    int32_t policy;
    int32_t threads;
    uint32_t isa;
} tp__metrics;

tp_status tp__metrics_text(const tp__metrics *metrics, tp_write write, void *cookie);

#endif
