/* SPDX-License-Identifier: Apache-2.0 */
/* What the benches share: options in words, a context, and one more run against the reference. */
#include "bench/bench.h"

#include <math.h>
#include <regex.h>
#include <stdarg.h>
#include <string.h>
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

int bench_limits(struct limits *limits, tp_context *context, int64_t mib) {
    tp_error error = TP_ERROR_INIT;
    return limits_open(limits, context, mib, &error) == TP_OK ? 0 : complain_status(&error);
}

int bench_regex(const char *text, void *regex) {
    char reason[128];
    int failed = regcomp(regex, text ? text : "", REG_EXTENDED | REG_NOSUB);
    if (!failed) return EXIT_FINE;
    regerror(failed, regex, reason, sizeof reason);
    complain("--match is '%s': no regular expression (%s)", text, reason);
    return EXIT_USAGE;
}

int bench_case_verify(const struct timed_case *one, const struct oracle *oracle, double *max_error) {
    struct measured_error measured;
    char reason[512] = "";
    tp_error error = TP_ERROR_INIT;
    int back = one->workload->tensors.problem.op == TP_BACKWARD;
    if (back)
        gradients_poison(&one->workload->gradients, 0xFF);
    else
        tensors_poison_outputs(&one->workload->tensors, 0xFF);
    if (timed_case_run(one, NULL, &error) != TP_OK) return complain_status(&error);
    int wrong = back ? workload_gradients_wrong(one->workload, reason, sizeof reason)
                     : oracle_compare(oracle, &one->workload->tensors, one->receipt.arithmetic, &measured, reason, sizeof reason);
    *max_error = back ? NAN : measured.max;
    if (!wrong) return EXIT_FINE;
    complain("%s on %s is WRONG: %s", one->workload->words, one->ran, reason);
    return EXIT_FAILED;
}
