/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/limits.h"

#include "harness/fail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FMA_TRIES = 3 }; /* of about 2 ms each */

const tp_kernel_info *kernel_named(const char *name) {
    const tp_kernel_info *kernel;
    for (int i = 0; (kernel = tp_kernel_at(i)); i++)
        if (!strcmp(kernel->name, name)) return kernel;
    return NULL;
}

int kernel_takes(const tp_kernel_info *kernel, const tp_problem *problem) {
    int64_t max = kernel->max_head_dim;
    uint32_t dtypes = 1u << problem->q_dtype | 1u << problem->k_dtype | 1u << problem->v_dtype;
    if (problem->op == TP_BACKWARD) dtypes |= 1u << problem->o_dtype; /* d_o is an input */
    return (max == 0 || (problem->head_dim_qk <= max && problem->head_dim_v <= max)) &&
           (kernel->ops >> problem->op & 1) && (dtypes & ~kernel->dtypes) == 0 &&
           (kernel->arithmetic != TP_ARITHMETIC_P_BF16 || problem->p_dtype == TP_BF16);
}

int kernel_runs(const tp_context *context, const tp_kernel_info *kernel) {
    return !(kernel->needs & ~tp_context_machine(context)->isa);
}

static int has_peak(const struct limits *limits, const char *kernel) {
    tp_error error = TP_ERROR_INIT;
    double gflops;
    return tp_measure_fma(limits->context, kernel, 1, &gflops, &error) == TP_OK;
}

/* A tile of 0x0: no ISA of its own. */
const char *limits_isa(const struct limits *limits, const char *kernel) {
    const tp_kernel_info *own = kernel_named(kernel), *other;
    if (has_peak(limits, kernel)) return kernel;
    for (int i = 0; (other = tp_kernel_at(i)); i++)
        if (kernel_runs(limits->context, other) && other->arithmetic == TP_ARITHMETIC_F32 &&
            (!own || !own->mr || other->needs == own->needs) && has_peak(limits, other->name))
            return other->name;
    return limits->reader;
}

tp_status limits_open(struct limits *limits, tp_context *context, int64_t mib, tp_error *error) {
    const tp_kernel_info *kernel;
    *limits = (struct limits){.context = context};
    for (int i = 0; !limits->reader && (kernel = tp_kernel_at(i)); i++)
        if (kernel_runs(context, kernel) && kernel->arithmetic == TP_ARITHMETIC_F32 && has_peak(limits, kernel->name))
            limits->reader = kernel->name;
    if (!limits->reader) return harness_fail(error, TP_MACHINE, "no kernel of this build can measure this host's limits");
    if (!mib) return TP_OK;
    limits->bytes = (size_t)mib << 20;
    if (posix_memalign(&limits->buffer, 4096, limits->bytes)) {
        limits->buffer = NULL;
        return harness_fail(error, TP_NO_MEMORY, "no memory for the read limit's buffer of %lld MiB", (long long)mib);
    }
    memset(limits->buffer, 1, limits->bytes); /* pages of their own, not the zero page */
    return TP_OK;
}

void limits_close(struct limits *limits) {
    free(limits->buffer);
    for (int i = 0; i < limits->fma_count; i++) samples_free(&limits->fma[i].here);
    *limits = (struct limits){0};
}

/* One attempt; NAN when it failed. */
static double attempt_fma(const struct limits *limits, struct fma_limit *limit) {
    tp_error error = TP_ERROR_INIT;
    double gflops;
    if (tp_measure_fma(limits->context, limit->isa, limit->threads, &gflops, &error) != TP_OK) return NAN;
    limit->attempts++;
    if (!(gflops <= limit->gflops)) limit->gflops = gflops;
    return gflops;
}

static void measure_fma(const struct limits *limits, struct fma_limit *limit) {
    for (int i = 0; i < FMA_TRIES; i++) {
        double gflops = attempt_fma(limits, limit);
        if (isnan(gflops)) return;
        samples_add(&limit->here, gflops); /* without memory it is one fewer */
    }
}

static double attempt_read(const struct limits *limits, struct read_limit *limit, int streams) {
    tp_error error = TP_ERROR_INIT;
    double gbps;
    if (tp_measure_read(limits->context, limits->reader, limit->threads, limits->buffer, limit->bytes, streams, &gbps,
                        &error) != TP_OK)
        return NAN;
    limit->attempts++;
    if (gbps > limit->gbps) {
        limit->gbps = gbps;
        limit->streams = streams;
    }
    return gbps;
}

static void measure_read(const struct limits *limits, struct read_limit *limit) {
    int all = !limit->attempts, low = all ? 1 : limit->streams, high = all ? 8 : limit->streams;
    for (int streams = low; streams <= high; streams *= 2)
        if (isnan(attempt_read(limits, limit, streams))) return;
}

static struct fma_limit *find_fma(struct limits *limits, const char *isa, int threads) {
    for (int i = 0; i < limits->fma_count; i++)
        if (limits->fma[i].threads == threads && !strcmp(limits->fma[i].isa, isa)) return &limits->fma[i];
    if (limits->fma_count == MAX_LIMITS) return NULL;
    struct fma_limit *limit = &limits->fma[limits->fma_count++];
    *limit = (struct fma_limit){.isa = isa, .threads = threads};
    measure_fma(limits, limit);
    return limit;
}

static struct read_limit *find_read(struct limits *limits, int threads, size_t bytes) {
    for (int i = 0; i < limits->read_count; i++)
        if (limits->read[i].threads == threads && limits->read[i].bytes == bytes) return &limits->read[i];
    if (!limits->buffer || limits->read_count == MAX_LIMITS) return NULL;
    struct read_limit *limit = &limits->read[limits->read_count++];
    *limit = (struct read_limit){.threads = threads, .bytes = bytes};
    measure_read(limits, limit);
    return limit;
}

void limits_want(struct limits *limits, const char *isa, int threads) {
    find_fma(limits, isa, threads);
    find_read(limits, threads, limits->bytes);
}

/* Attempts of equal work: their common rate is the harmonic mean of theirs. */
struct probe {
    double begin, slowness, count;
};

/* Counts an attempt of this rate. Does one more bring the whole nearer to ns? */
static int probe_goes_on(struct probe *probe, double rate, double ns) {
    double passed = now_ns() - probe->begin;
    probe->slowness += 1 / rate;
    probe->count++;
    return passed + passed / probe->count / 2 < ns;
}

double limits_probe_fma(struct limits *limits, const char *isa, int threads, double ns) {
    struct fma_limit *limit = find_fma(limits, isa, threads);
    struct probe probe = {.begin = now_ns()};
    if (!limit) return NAN;
    while (probe_goes_on(&probe, attempt_fma(limits, limit), ns))
        ;
    return probe.count / probe.slowness;
}

/* NULL: it cannot be measured. */
static struct read_limit *read_of_size(struct limits *limits, int threads, double bytes) {
    double size = fmin(fmax(bytes, 1 << 20), (double)limits->bytes);
    struct read_limit *limit = find_read(limits, threads, (size_t)size);
    return limit && limit->streams ? limit : NULL;
}

double limits_read_of(struct limits *limits, int threads, double bytes) {
    struct read_limit *limit = read_of_size(limits, threads, bytes);
    return limit ? limit->gbps : NAN;
}

double limits_probe_read(struct limits *limits, int threads, double bytes, double ns) {
    struct read_limit *limit = read_of_size(limits, threads, bytes);
    if (!limit) return NAN;
    attempt_read(limits, limit, limit->streams);
    struct probe probe = {.begin = now_ns()};
    while (probe_goes_on(&probe, attempt_read(limits, limit, limit->streams), ns))
        ;
    return probe.count / probe.slowness;
}

void limits_measure(struct limits *limits, int reads) {
    for (int i = 0; i < limits->fma_count; i++) measure_fma(limits, &limits->fma[i]);
    for (int i = 0; reads && i < limits->read_count; i++) measure_read(limits, &limits->read[i]);
}

/* Many threads can do at least what fewer were seen to do. */
double limits_fma(const struct limits *limits, const char *isa, int threads) {
    double max = NAN;
    for (int i = 0; i < limits->fma_count; i++) {
        const struct fma_limit *limit = &limits->fma[i];
        if (limit->attempts && limit->threads <= threads && !strcmp(limit->isa, isa))
            max = fmax(max, limit->gflops);
    }
    return max;
}

double limits_read(const struct limits *limits, int threads) {
    double max = NAN;
    for (int i = 0; i < limits->read_count; i++)
        if (limits->read[i].attempts && limits->read[i].threads <= threads && limits->read[i].bytes == limits->bytes)
            max = fmax(max, limits->read[i].gbps);
    return max;
}

double limits_here(struct limits *limits, const char *isa, int threads) {
    for (int i = 0; i < limits->fma_count; i++)
        if (limits->fma[i].threads == threads && !strcmp(limits->fma[i].isa, isa))
            return samples_summary(&limits->fma[i].here).median;
    return NAN;
}

void limits_forget(struct limits *limits) {
    for (int i = 0; i < limits->fma_count; i++) limits->fma[i].here.count = 0;
}

double limits_roofline(const struct limits *limits, const char *isa, int threads, double flops, double bytes) {
    return fmax(flops / limits_fma(limits, isa, threads), bytes / limits_read(limits, threads)) +
           0 * limits_read(limits, threads); /* NAN without it: fmax would hide that */
}
