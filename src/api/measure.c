/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points to the limits of the machine. */
#include <string.h>

#include "api/context.h"
#include "base/clock.h"
#include "base/control.h"
#include "base/error.h"

#define FMA_ROUNDS 100000

typedef struct measure {
    const tp__kernel_set *kernels;
    const float *buffer;
    int64_t floats;
    int streams, threads;
    double flops; /* of one task */
} measure;

static void fma_task(void *context, size_t index) {
    measure *m = context;
    float out[2] = {1.000001f, 1e-9f};
    double flops = m->kernels->peak(FMA_ROUNDS, out);
    if (index == 0) m->flops = flops;
}

static void read_task(void *context, size_t index) {
    const measure *m = context;
    float out[1];
    int64_t part = m->floats / m->threads;
    m->kernels->read(m->buffer + (int64_t)index * part, part, m->streams, out);
}

static tp_status prepare(tp_context *context, const char *kernel, int threads, const double *result,
                         measure *m, tp_error *error) {
    TP_REQUIRE(context != NULL && result != NULL, error, TP_INVALID, "%s is NULL",
               context == NULL ? "context" : "the result's pointer");
    TP_TRY(tp__context_usable(context, error));
    TP_REQUIRE(threads >= 1 && threads <= context->threads, error, TP_INVALID,
               "threads is %d: it must be in 1..%d, the context's", threads, context->threads);
    for (int i = 0; i < TP__SETS; i++)
        if (kernel != NULL && strcmp(kernel, context->sets[i].isa) == 0) m->kernels = &context->sets[i];
    TP_REQUIRE(m->kernels != NULL, error, TP_INVALID,
               "kernel is '%.40s': it must be the name of a fused one", kernel != NULL ? kernel : "");
    TP_REQUIRE((m->kernels->needs & ~context->host_isa) == 0, error, TP_MACHINE,
               "kernel %s needs instructions this host lacks", kernel);
    m->threads = threads;
    return TP_OK;
}

/* Nanoseconds. */
static int64_t timed(tp_context *context, measure *m, tp_task task) {
    int64_t start = tp__now_ns();
    tp__parallel_run(&context->parallel, (size_t)m->threads, task, m);
    return tp__now_ns() - start;
}

/* In 1e9 a second. Not inlined: its arithmetic must not leave the environment that is taken for it. */
static __attribute__((noinline)) double speed_of(double amount, int64_t time_ns) {
    return amount / (double)time_ns;
}

static double speed(double amount, int64_t time_ns) {
    tp__control saved = tp__control_take();
    double result = speed_of(amount, time_ns);
    tp__control_restore(saved);
    return result;
}

tp_status tp_measure_fma(tp_context *context, const char *kernel, int threads, double *gflops,
                         tp_error *error) {
    measure m = {0};
    TP_TRY(prepare(context, kernel, threads, gflops, &m, error));
    int64_t time = timed(context, &m, fma_task);
    *gflops = speed(m.flops * threads, time);
    return TP_OK;
}

tp_status tp_measure_read(tp_context *context, const char *kernel, int threads, const void *buffer,
                          size_t bytes, int streams, double *gigabytes_per_second,
                          tp_error *error) {
    measure m = {.buffer = buffer, .floats = (int64_t)(bytes / sizeof(float)), .streams = streams};
    TP_TRY(prepare(context, kernel, threads, gigabytes_per_second, &m, error));
    TP_REQUIRE(buffer != NULL && bytes >= 1 << 20, error, TP_INVALID,
               "buffer is %p of %zu bytes: it must hold at least 1 MiB", buffer, bytes);
    TP_REQUIRE(streams >= 1 && streams <= 64, error, TP_INVALID,
               "streams is %d: it must be in 1..64", streams);
    int64_t time = timed(context, &m, read_task);
    *gigabytes_per_second = speed((double)bytes, time);
    return TP_OK;
}
