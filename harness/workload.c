/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/workload.h"

#include <stdio.h>
#include <string.h>

#include "harness/fail.h"

tp_status workload_open(struct workload *workload, const char *words, const tp_problem *problem,
                        const tp_lengths *lengths, enum tensors_form form, uint64_t seed, tp_error *error) {
    int back = problem->op == TP_BACKWARD; /* it reads lse */
    struct tensors_style style = {.form = form, .repeat = 1, .lse = back};
    double bytes = (back ? 2 : 1) * tensors_bytes(problem, lengths, &style), max = harness_max_bytes();
    memset(workload, 0, sizeof *workload);
    snprintf(workload->words, sizeof workload->words, "%s", words);
    if (bytes > max)
        return harness_fail(error, TP_NO_MEMORY, "the tensors would take %.4g GiB: at most %.4g GiB, 3/4 of this host's memory",
                            bytes * 0x1p-30, max * 0x1p-30);
    if (tensors_create(&workload->tensors, problem, lengths, &style) || tensors_fill(&workload->tensors, seed)) {
        workload_close(workload);
        return harness_fail(error, TP_NO_MEMORY, "the tensors could not be allocated");
    }
    if (!back || !gradients_create(&workload->gradients, &workload->tensors, lengths, seed)) return TP_OK;
    workload_close(workload);
    return harness_fail(error, TP_NO_MEMORY, "the gradients could not be allocated");
}

void workload_close(struct workload *workload) {
    tensors_destroy(&workload->tensors);
    gradients_destroy(&workload->gradients);
}

tp_status workload_prepare(struct workload *workload, tp_context *context, tp_error *error) {
    if (workload->tensors.problem.op != TP_BACKWARD) return TP_OK;
    return gradients_forward(&workload->tensors, context, error);
}

int workload_gradients_wrong(const struct workload *workload, char *reason, size_t size) {
    struct gradients_oracle oracle;
    tp_error error = TP_ERROR_INIT;
    if (gradients_oracle_create(&oracle, &workload->tensors, &workload->gradients, &error) != TP_OK) {
        snprintf(reason, size, "%s", error.text);
        return 1;
    }
    int wrong = gradients_compare(&oracle, &workload->tensors, &workload->gradients, reason, size);
    gradients_oracle_destroy(&oracle);
    return wrong;
}
