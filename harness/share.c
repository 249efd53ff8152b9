/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/share.h"

#include <math.h>

#include "harness/fail.h"

/* A turn is at least as long as one attempt of tp_measure_fma. */
static const double turn_ns = 2e6;

enum share_limit share_limit_of(const struct timed_case *one, struct limits *limits) {
    double read = one->kv_bytes / limits_read_of(limits, one->threads, one->kv_bytes);
    return read > one->flops / limits_fma(limits, one->isa, one->threads) ? SHARE_OF_READ : SHARE_OF_FMA;
}

/* Calls until a turn is over; ns of a call and of all. The first one brings back what the probe drove out of the
   caches; it is not timed unless it is a turn by itself. */
static tp_status run_turn(const struct timed_case *one, struct samples *times, double *call, double *whole, tp_error *error) {
    double begin = now_ns();
    tp_status status = timed_case_run(one, NULL, error);
    double first = now_ns() - begin;
    size_t before = times->count;
    if (status != TP_OK) return status;
    if (first >= turn_ns) {
        if (samples_add(times, first)) return harness_fail(error, TP_NO_MEMORY, "no memory for the times");
    } else {
        status = timed_case_burst(one, turn_ns, 1, times, error);
    }
    *whole = 0;
    for (size_t i = before; i < times->count; i++) *whole += times->values[i];
    *call = *whole / (double)(times->count - before);
    return status;
}

static double probe(const struct share *share, const struct timed_case *one, double amount, struct limits *limits, double ns) {
    return share->limit == SHARE_OF_FMA ? limits_probe_fma(limits, one->isa, one->threads, ns)
                                        : limits_probe_read(limits, one->threads, amount, ns);
}

static tp_status add(struct share *share, double rate, double limit, tp_error *error) {
    if (!(limit > 0)) return harness_fail(error, TP_MACHINE, "the limit beside these calls could not be measured");
    if (samples_add(&share->ratios, log(rate / limit)) || samples_add(&share->probes, limit))
        return harness_fail(error, TP_NO_MEMORY, "no memory for the ratios");
    return TP_OK;
}

tp_status share_measure(struct share *share, const struct timed_case *one, double amount, struct limits *limits,
                        struct samples *times, tp_error *error) {
    double call = 0, whole = 0;
    tp_status status = run_turn(one, times, &call, &whole, error);
    if (status == TP_OK) status = add(share, amount / call, probe(share, one, amount, limits, whole), error);
    if (status != TP_OK) return status;
    double limit = probe(share, one, amount, limits, whole);
    status = run_turn(one, times, &call, &whole, error);
    return status == TP_OK ? add(share, amount / call, limit, error) : status;
}

struct interval share_interval(const struct share *share, uint64_t seed) {
    struct interval logs = interval_median(share->ratios.values, share->ratios.count, miss_share, seed);
    return (struct interval){exp(logs.low), exp(logs.middle), exp(logs.high)};
}

void share_free(struct share *share) {
    samples_free(&share->ratios);
    samples_free(&share->probes);
}
