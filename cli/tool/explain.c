/* SPDX-License-Identifier: Apache-2.0 */
/* The library writes the whole answer; the tool adds the exit code. */
#include "cli.h"

/* The best of those that only the policy refuses. */
static const char *first_refused(const tp_decision *decision) {
    const tp_candidate *candidate;
    for (int i = 0; (candidate = tp_decision_candidate(decision, i)); i++)
        if (candidate->reason_count == 1 && tp_candidate_reason(candidate, 0)->code == TP_WHY_POLICY)
            return candidate->kernel;
    return "a lower tier";
}

int command_explain(const struct options *options) {
    tp_problem problem;
    tp_lengths lengths;
    tp_context *context;
    tp_decision *decision;
    tp_error error = TP_ERROR_INIT;
    int code = options_problem(options, &problem, &lengths);
    if (!code) code = options_context(options, &context);
    if (code) return code;

    tp_choice choice = options_choice(options);
    tp_status status = tp_explain(context, &problem, &choice, &decision, &error);
    if (status == TP_OK || status == TP_FALLBACK_REFUSED || status == TP_UNSUPPORTED) {
        tp_decision_write(decision, options->json ? TP_JSON : TP_TEXT, write_to_file, stdout);
        if (status == TP_FALLBACK_REFUSED && !options->json)
            printf("permit     --fallback permit: %s serves this, slower\n", first_refused(decision));
        tp_decision_destroy(decision);
        code = exit_code_of(status);
    } else {
        code = complain_status(&error);
    }
    tp_context_destroy(context);
    return code;
}
