/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/measure.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"

enum { SAMPLED_ROWS = 128 };

/* Bytes that a file of /proc gives as "KEY: N kB"; 0 when it does not say. */
static int64_t proc_bytes(const char *name, const char *key) {
    char line[256];
    long long kib = 0;
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), ": %lld kB", &kib) == 1)
            break;
    if (file) fclose(file);
    return (int64_t)kib * 1024;
}

/* Peak resident bytes of this process since it started or since the last reset. */
static int64_t high_water(void) { return proc_bytes("/proc/self/status", "VmHWM"); }

/* Of these, pages of files: code that runs for the first time is no temporary memory. */
static int64_t resident_files(void) { return proc_bytes("/proc/self/status", "RssFile"); }

static void reset_high_water(void) {
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file) return; /* then the mark of the set-up stays, which can only hide memory of ours */
    fputs("5", file);
    fclose(file);
}

static void fail(struct measurement *out, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void fail(struct measurement *out, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out->reason, sizeof out->reason, format, arguments);
    va_end(arguments);
    out->failed = code;
}

static void keep_receipt(const tp_receipt *receipt, struct measurement *out) {
    snprintf(out->kernel, sizeof out->kernel, "%s", receipt->kernel ? receipt->kernel : "none");
    snprintf(out->problem, sizeof out->problem, "%s", receipt->problem);
    out->scores_written = receipt->scores_written;
    out->time_ns = receipt->time_ns;
    out->pairs_visible = receipt->pairs_visible;
    out->threads = receipt->tasks;
    out->arithmetic = receipt->arithmetic;
}

/* What the kernel says could be used now without swapping; 0 when it does not say. */
static double available_bytes(void) {
    return (double)proc_bytes("/proc/meminfo", "MemAvailable");
}

static void run_measured(const tp_plan *plan, int threads, const struct tensors *tensors,
                         struct measurement *out) {
    tp_error error = TP_ERROR_INIT;
    tp_exec exec = TP_EXEC_INIT;
    tp_receipt receipt;
    exec.threads = threads;
    exec.workspace_size = tp_plan_workspace(plan, threads);
    double capacity = 0.75 * available_bytes();
    char wanted[32], max[32];
    if (capacity > 0 && (double)exec.workspace_size > capacity) {
        fail(out, EXIT_REFUSED,
             "the workspace would take %s: at most %s, 3/4 of the memory available now",
             readable_bytes((double)exec.workspace_size, wanted), readable_bytes(capacity, max));
        return;
    }
    /* Fresh pages: what the run does not touch is never resident. */
    exec.workspace = mmap(NULL, exec.workspace_size + 1, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (exec.workspace == MAP_FAILED) {
        fail(out, EXIT_FAILED, "no memory for a workspace of %zu bytes", exec.workspace_size);
        return;
    }
    out->workspace_bytes = (int64_t)exec.workspace_size;
    tp_receipt_init(&receipt);
    reset_high_water();
    int64_t before = high_water() - resident_files();
    tp_status status = tp_plan_run(plan, &tensors->call, &exec, &receipt, &error);
    out->peak_bytes = high_water() - resident_files() - before;
    if (status != TP_OK)
        fail(out, EXIT_FAILED, "%s", error.text);
    else
        keep_receipt(&receipt, out);
    munmap(exec.workspace, exec.workspace_size + 1);
}

static void measure_error(const struct workload *problem, uint64_t seed, struct measurement *out) {
    const struct tensors *tensors = &problem->tensors;
    struct oracle oracle;
    struct measured_error measured;
    char reason[256];
    tp_error error = TP_ERROR_INIT;
    if (tensors->problem.op == TP_BACKWARD) { /* all gradients, by their own rule, which has no one largest error */
        if (workload_gradients_wrong(problem, reason, sizeof reason)) fail(out, EXIT_FAILED, "%s", reason);
        out->max_error = NAN;
        return;
    }
    if (oracle_create(&oracle, tensors, SAMPLED_ROWS, seed, &error) != TP_OK) {
        fail(out, EXIT_FAILED, "%s", error.text);
        return;
    }
    if (oracle_compare(&oracle, tensors, out->arithmetic, &measured, reason, sizeof reason))
        fail(out, EXIT_FAILED, "%s", reason);
    out->max_error = measured.max;
    out->rows = oracle.count;
    oracle_destroy(&oracle);
}

static void run_child(const char *text, const char *kernel, const struct options *options,
                      struct measurement *out) {
    struct workload problem;
    tp_context *context;
    tp_plan *plan;
    tp_error error = TP_ERROR_INIT;
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    tp_choice choice = TP_CHOICE_INIT;
    wanted.threads = (int32_t)options->threads;
    choice.policy = kernel ? TP_PERMIT : TP_REFUSE;
    choice.kernel = kernel;
    tp_status status = bench_problem_open(&problem, text, (uint64_t)options->seed, &error);
    if (status == TP_OK) status = tp_context_create(&wanted, &context, &error);
    if (status == TP_OK)
        status = tp_plan_create(context, &problem.tensors.problem, &choice, &plan, &error);
    if (status == TP_OK) status = workload_prepare(&problem, context, &error);
    if (status != TP_OK) { /* memory that is not there is this host's affair too */
        fail(out, status == TP_NO_MEMORY ? EXIT_REFUSED : exit_code_of(status), "%s", error.text);
        return; /* the process ends here */
    }
    run_measured(plan, tp_context_threads(context), &problem.tensors, out);
    if (!out->failed) measure_error(&problem, (uint64_t)options->seed, out);
    tp_plan_destroy(plan);
    tp_context_destroy(context);
    workload_close(&problem);
}

void measure_in_child(const char *problem, const char *kernel, const struct options *options,
                      struct measurement *measurement) {
    int ends[2];
    *measurement = (struct measurement){0};
    fflush(NULL);
    if (pipe(ends)) {
        fail(measurement, EXIT_FAILED, "pipe: %s", strerror(errno));
        return;
    }
    pid_t child = fork();
    if (child < 0) fail(measurement, EXIT_FAILED, "fork: %s", strerror(errno));
    if (child == 0) {
        run_child(problem, kernel, options, measurement);
        ssize_t sent = write(ends[1], measurement, sizeof *measurement);
        _exit(sent == (ssize_t)sizeof *measurement ? 0 : 1);
    }
    close(ends[1]);
    if (child > 0) {
        stop_wait(child, NULL); /* what it writes fits into the pipe */
        ssize_t got = read(ends[0], measurement, sizeof *measurement);
        if (got != (ssize_t)sizeof *measurement)
            fail(measurement, EXIT_FAILED, "the child process died");
    }
    close(ends[0]);
}
