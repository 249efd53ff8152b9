/* SPDX-License-Identifier: Apache-2.0 */
/* One problem on one kernel with so many threads: planned once, timed around tp_plan_run. */
#include "bench/bench.h"

#include <math.h>
#include <regex.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int bench_kernel(const char *name, const char **kernel) {
    const tp_kernel_info *one;
    *kernel = NULL;
    if (!name || !strcmp(name, "best")) return EXIT_FINE;
    if ((one = kernel_named(name))) {
        *kernel = one->name;
        return EXIT_FINE;
    }
    char names[256] = "best";
    for (int i = 0; (one = tp_kernel_at(i)); i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, ", %s", one->name);
    }
    complain("--kernel has '%s': it must be one of %s", name, names);
    return EXIT_USAGE;
}

int bench_context(int threads, tp_context **context) {
    tp_context_options wanted = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    wanted.threads = threads;
    wanted.policy = TP_PERMIT;
    return tp_context_create(&wanted, context, &error) == TP_OK ? 0 : complain_status(&error);
}

int bench_regex(const char *text, void *regex) {
    char reason[128];
    int failed = regcomp(regex, text ? text : "", REG_EXTENDED | REG_NOSUB);
    if (!failed) return EXIT_FINE;
    regerror(failed, regex, reason, sizeof reason);
    complain("--match is '%s': no regular expression (%s)", text, reason);
    return EXIT_USAGE;
}

void bench_progress(const char *format, ...) {
    static int terminal = -1; /* asked once */
    if (terminal < 0) terminal = isatty(STDERR_FILENO);
    if (!terminal) return;
    fputs("\r\033[K", stderr);
    if (format) {
        va_list arguments;
        va_start(arguments, format);
        vfprintf(stderr, format, arguments);
        va_end(arguments);
    }
    fflush(stderr);
}

static tp_status fail(tp_error *error, const char *text) {
    error->status = TP_NO_MEMORY;
    snprintf(error->text, sizeof error->text, "%s", text);
    return TP_NO_MEMORY;
}

static tp_status run(const struct bench_case *one, tp_receipt *receipt, tp_error *error) {
    tp_exec exec = TP_EXEC_INIT;
    exec.threads = one->threads;
    exec.workspace = one->workspace.memory;
    exec.workspace_size = one->workspace.bytes;
    double start = now_ns();
    tp_status status =
        one->library->plan_run(one->plan, &one->problem->tensors.call, &exec, receipt, error);
    if (one->slowed > 1)
        for (double end = start + one->slowed * (now_ns() - start); now_ns() < end;) continue;
    return status;
}

tp_status bench_case_start(struct bench_case *one, tp_context *context, tp_error *error) {
    const tp_problem *problem = &one->problem->tensors.problem;
    tp_choice choice = TP_CHOICE_INIT;
    choice.policy = TP_PERMIT;
    choice.kernel = one->kernel;
    choice.strategy = one->strategy;
    choice.disable = one->disable[0] ? one->disable : NULL;
    tp_status status = one->library->plan_create(context, problem, &choice, &one->plan, error);
    if (status != TP_OK) return status;
    size_t bytes = one->library->plan_workspace(one->plan, one->threads);
    double limit = 0.75 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if ((double)bytes > limit || workspace_grow(&one->workspace, bytes))
        return fail(error, "the workspace would take more than 3/4 of this host's memory");
    memset(one->workspace.memory, 0, one->workspace.bytes); /* its pages exist when time counts */
    tp_receipt_init(&one->receipt);
    status = bench_problem_prepare(one->problem, context, error);
    return status == TP_OK ? run(one, &one->receipt, error) : status;
}

/* Best first: what stands before it in the table is better. */
static void disable_better(struct bench_case *one, const char *kernel) {
    const tp_kernel_info *better;
    for (int i = 0; (better = tp_kernel_at(i)) && strcmp(better->name, kernel); i++) {
        size_t used = strlen(one->disable);
        snprintf(one->disable + used, sizeof one->disable - used, "%s%s", used ? "," : "",
                 better->name);
    }
}

/* Rows of q and o are no part of it. */
static double kv_bytes(const struct bench_case *one) {
    const struct tensors *tensors = &one->problem->tensors;
    const tp_problem *p = &tensors->problem;
    double rows = 0;
    for (int64_t s = 0; s < tensors->sequences; s++) rows += (double)tensors->q_lens[s];
    return (double)one->receipt.bytes_compulsory -
           rows * (double)p->q_heads *
               (double)(p->head_dim_qk * (int64_t)tp_dtype_bytes((tp_dtype)p->q_dtype) +
                        p->head_dim_v * (int64_t)tp_dtype_bytes((tp_dtype)p->o_dtype));
}

double bench_flops(const tp_problem *problem, int64_t pairs) {
    int64_t products = problem->op == TP_BACKWARD ? 3 * problem->head_dim_qk + 2 * problem->head_dim_v
                                                  : problem->head_dim_qk + problem->head_dim_v;
    return 2 * (double)pairs * (double)products;
}

double bench_roofline(const struct limits *limits, const char *isa, int threads, double flops,
                      double bytes) {
    return fmax(flops / limits_fma(limits, isa, threads), bytes / limits_read(limits, threads)) +
           0 * limits_read(limits, threads); /* NAN without it: fmax would hide that */
}

tp_status bench_case_open(struct bench_case *one, struct bench_problem *problem, const char *kernel,
                          const char *strategy, const char *like, int threads,
                          struct limits *limits, tp_error *error) {
    *one = (struct bench_case){
        .problem = problem, .kernel = kernel, .strategy = strategy, .threads = threads,
        .library = library_linked()};
    if (like && kernel && !strcmp(kernel, "math")) disable_better(one, like);
    tp_status status = bench_case_start(one, limits->context, error);
    if (status != TP_OK) {
        bench_case_close(one);
        return status;
    }
    const tp_decision *decision = tp_plan_decision(one->plan);
    one->ran =
        one->receipt.kernel ? one->receipt.kernel : decision->candidate[decision->chosen].kernel;
    one->isa = limits_isa(limits, one->ran);
    one->flops = bench_flops(&problem->tensors.problem, one->receipt.pairs_visible);
    one->kv_bytes = kv_bytes(one);
    return TP_OK;
}

struct bench_case bench_case_copy(const struct bench_case *one) {
    struct bench_case copy = *one;
    copy.borrowed = 1;
    return copy;
}

void bench_case_close(struct bench_case *one) {
    if (one->borrowed) return;
    if (one->plan) one->library->plan_destroy(one->plan);
    workspace_free(&one->workspace);
    one->plan = NULL;
}

tp_status bench_case_burst(const struct bench_case *one, double slice_ns, int min,
                           struct samples *times, tp_error *error) {
    double begin = now_ns();
    for (int count = 0; count < min || now_ns() - begin < slice_ns; count++) {
        double start = now_ns();
        tp_status status = run(one, NULL, error);
        double time = now_ns() - start;
        if (status != TP_OK) return status;
        if (samples_add(times, time)) return fail(error, "no memory for the times");
    }
    return TP_OK;
}

int bench_case_verify(const struct bench_case *one, const struct oracle *oracle, double *max_error) {
    struct measured_error measured;
    char reason[512] = "";
    tp_error error = TP_ERROR_INIT;
    int back = one->problem->tensors.problem.op == TP_BACKWARD;
    if (back)
        gradients_poison(&one->problem->gradients, 0xFF);
    else
        tensors_poison_outputs(&one->problem->tensors, 0xFF);
    if (run(one, NULL, &error) != TP_OK) return complain_status(&error);
    int wrong = back ? bench_gradients_wrong(one->problem, reason, sizeof reason)
                     : oracle_compare(oracle, &one->problem->tensors, &measured, reason, sizeof reason);
    *max_error = back ? NAN : measured.max;
    if (!wrong) return EXIT_FINE;
    complain("%s on %s is WRONG: %s", one->problem->words, one->ran, reason);
    return EXIT_FAILED;
}
