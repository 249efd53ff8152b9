/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on random data through plan and run, with the receipt of what ran. */
#include "terminal/terminal.h"
#include "harness/attempt.h"
#include "cli.h"
#include "harness/gradients.h"
#include "harness/oracle.h"
#include "tool/watched.h"

#include <stdlib.h>
#include <unistd.h>

enum { VERIFY_ROWS = 128 };

static int guard_memory(double tensors, double workspace) {
    char wanted[32], limit_text[32];
    double limit = 0.75 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (tensors + workspace <= limit) return 0;
    complain("tensors and workspace would take %s: at most %s, 3/4 of this host's memory",
             readable_bytes(tensors + workspace, wanted), readable_bytes(limit, limit_text));
    return EXIT_FAILED;
}

static int by_value(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static void print_times(const struct options *options, int64_t *times, int64_t count) {
    if (options->json) {
        printf(",\n\"times_ns\": [");
        for (int64_t i = 0; i < count; i++) printf("%s%lld", i ? ", " : "", (long long)times[i]);
        printf("]");
    } else if (count > 1) {
        qsort(times, (size_t)count, sizeof *times, by_value);
        printf("repeat: %lld runs, best %.3f ms, median %.3f ms, worst %.3f ms\n", (long long)count,
               (double)times[0] / 1e6, (double)times[count / 2] / 1e6,
               (double)times[count - 1] / 1e6);
    }
}

/* What is run: the tensors, and of a backward problem its gradients. */
struct subject {
    struct tensors tensors;
    struct gradients gradients;
    int back;
};

static void print_verdict(const struct options *options, int64_t rows, const struct measured_error *measured,
                          int wrong, const char *reason) {
    if (options->json) {
        printf(",\n\"verify\": {\"rows\": %lld, \"ok\": %s, ", (long long)rows, wrong ? "false" : "true");
        if (measured)
            printf("\"max_error\": %.6g, \"mean_error\": %.6g, \"naive_max_error\": %.6g, "
                   "\"naive_mean_error\": %.6g, \"lse_max_error\": %.6g, "
                   "\"nearest\": {\"seq\": %lld, \"head\": %lld, \"row\": %lld, \"error\": %.6g, "
                   "\"bound\": %.6g, \"ratio\": %.6g}, ",
                   measured->max, measured->mean, measured->naive_max, measured->naive_mean,
                   measured->lse_max, (long long)measured->nearest.row.seq, (long long)measured->nearest.row.head,
                   (long long)measured->nearest.row.row, measured->nearest.error, measured->nearest.bound,
                   measured->nearest.ratio);
        printf("\"reason\": ");
        print_json_text(stdout, reason);
        printf("}");
    } else if (measured) {
        printf("verify: %lld row%s against double: max error %.3g (naive kernel %.3g), mean %.3g "
               "(%.3g), lse %.3g: %s\n",
               (long long)rows, rows == 1 ? "" : "s", measured->max, measured->naive_max, measured->mean,
               measured->naive_mean, measured->lse_max, wrong ? "WRONG" : "within the rule");
        if (measured->nearest.bound > 0)
            printf("nearest to its bound: seq %lld head %lld row %lld, error %.3g of %.3g, ratio %.3g\n",
                   (long long)measured->nearest.row.seq, (long long)measured->nearest.row.head,
                   (long long)measured->nearest.row.row, measured->nearest.error, measured->nearest.bound,
                   measured->nearest.ratio);
    } else {
        printf("verify: gradients of %lld rows and of all keys against double: %s\n", (long long)rows,
               wrong ? "WRONG" : "within the rule");
    }
}

static int verify_gradients(const struct options *options, const struct subject *subject) {
    struct gradients_oracle oracle;
    char reason[512] = "";
    tp_error error = TP_ERROR_INIT;
    int64_t rows = 0;
    if (gradients_oracle_create(&oracle, &subject->tensors, &subject->gradients, &error) != TP_OK)
        return complain_status(&error);
    int wrong = gradients_compare(&oracle, &subject->tensors, &subject->gradients, reason, sizeof reason);
    for (int64_t s = 0; s < subject->tensors.sequences; s++)
        rows += subject->tensors.q_lens[s] * subject->tensors.problem.q_heads;
    print_verdict(options, rows, NULL, wrong, reason);
    gradients_oracle_destroy(&oracle);
    if (wrong) complain("%s", reason);
    return wrong ? EXIT_FAILED : EXIT_FINE;
}

/* What was lost before attention began, apart from its own error. */
static void print_loss(const struct options *options, const struct tensors *t) {
    const tp_problem *p = &t->problem;
    const double *loss = t->loss;
    if (!p->k_scales && !p->v_scales) return;
    if (options->json) {
        printf(",\n\"loss\": {");
        if (p->k_scales) printf("\"k\": %.6g%s", loss[0], p->v_scales && !p->latent ? ", " : "");
        if (p->v_scales && !p->latent) printf("\"v\": %.6g", loss[1]);
        printf("}");
        return;
    }
    printf("loss: quantising moved elements by at most");
    if (p->k_scales) printf(" %.3g of the greatest in their row of k (%s)", loss[0], tp_dtype_name((tp_dtype)p->k_dtype));
    if (p->k_scales && p->v_scales && !p->latent) printf(",");
    if (p->v_scales && !p->latent)
        printf(" %.3g of the greatest in their row of v (%s)", loss[1], tp_dtype_name((tp_dtype)p->v_dtype));
    printf("; no part of the error\n");
}

static int verify(const struct options *options, const struct subject *subject, int32_t arithmetic) {
    struct oracle oracle;
    struct measured_error measured;
    char reason[512] = "";
    tp_error error = TP_ERROR_INIT;
    if (subject->back) return verify_gradients(options, subject);
    if (oracle_create(&oracle, &subject->tensors, VERIFY_ROWS, (uint64_t)options->seed, &error) != TP_OK)
        return complain_status(&error);
    int wrong = oracle_compare(&oracle, &subject->tensors, arithmetic, &measured, reason, sizeof reason);
    print_verdict(options, oracle.count, &measured, wrong, reason);
    print_loss(options, &subject->tensors);
    oracle_destroy(&oracle);
    if (wrong) complain("%s", reason);
    return wrong ? EXIT_FAILED : EXIT_FINE;
}

static int run_plan(const struct options *options, const struct attempt *attempt,
                    const tp_plan *plan, struct subject *subject) {
    tp_receipt receipt;
    tp_error error = TP_ERROR_INIT;
    int64_t *times = calloc((size_t)options->repeat, sizeof *times);
    if (!times) {
        complain("no memory for %lld times", (long long)options->repeat);
        return EXIT_FAILED;
    }
    int64_t ran = 0;
    progress_begin("run", (double)options->repeat, "runs");
    stop_watch();
    for (int64_t i = 0; i < options->repeat && (!i || !stop_asked()); i++) {
        progress_at((double)i, "%s", options->problem);
        if (subject->back)
            gradients_poison(&subject->gradients, 0xFF);
        else
            tensors_poison_outputs(&subject->tensors, 0xFF);
        if (attempt_run_plan(attempt, plan, &subject->tensors, &receipt, &error) != TP_OK) {
            free(times);
            return complain_status(&error);
        }
        times[ran++] = receipt.time_ns;
    }
    progress_end();
    if (options->json) printf("{\"receipt\":\n");
    tp_receipt_write(&receipt, options->json ? TP_JSON : TP_TEXT, write_to_file, stdout);
    print_times(options, times, ran);
    free(times);
    int stopped = stop_asked();
    int code = options->verify && !stopped ? verify(options, subject, receipt.arithmetic) : EXIT_FINE;
    if (options->json) printf("}\n");
    if (!stopped) return code;
    return stop_say("", "%lld of %lld runs%s", (long long)ran, (long long)options->repeat,
                    options->verify ? "; they were not compared" : "");
}

static const struct tensors_style style = {.lse = 1};

static int open_subject(struct subject *subject, const tp_problem *problem, const tp_lengths *lengths,
                        uint64_t seed) {
    if (tensors_create(&subject->tensors, problem, lengths, &style) || tensors_fill(&subject->tensors, seed)) return 1;
    return subject->back && gradients_create(&subject->gradients, &subject->tensors, lengths, seed);
}

int command_run(const struct options *options) {
    tp_problem problem;
    tp_lengths lengths;
    tp_context *context;
    tp_plan *plan;
    tp_error error = TP_ERROR_INIT;
    int code = options_problem(options, &problem, &lengths);
    struct watched watched;
    if (!code) code = watched_context(&watched, options, &context);
    if (code) return code;

    struct subject subject = {.back = problem.op == TP_BACKWARD};
    struct workspace workspace = {0};
    tp_choice choice = options_choice(options);
    struct attempt attempt = {.context = context,
                              .choice = &choice,
                              .workspace = &workspace,
                              .entry = ENTRY_POOL,
                              .threads = tp_context_threads(context),
                              .poison = 0xFF};
    if (tp_plan_create(context, &problem, &choice, &plan, &error) != TP_OK) {
        code = watched_end(&watched, context, complain_status(&error));
        tp_context_destroy(context);
        return code;
    }
    code = guard_memory((subject.back ? 2 : 1) * tensors_bytes(&problem, &lengths, &style),
                        (double)tp_plan_workspace(plan, attempt.threads));
    if (!code) {
        if (open_subject(&subject, &problem, &lengths, (uint64_t)options->seed)) {
            complain("the tensors could not be allocated");
            code = EXIT_FAILED;
        } else if (subject.back && gradients_forward(&subject.tensors, context, &error) != TP_OK) {
            code = complain_status(&error);
        } else {
            subject.tensors.arithmetic = (tp_arithmetic)tp_plan_decision(plan)->arithmetic;
            code = run_plan(options, &attempt, plan, &subject);
        }
        tensors_destroy(&subject.tensors);
        if (subject.back) gradients_destroy(&subject.gradients);
    }
    workspace_free(&workspace);
    tp_plan_destroy(plan);
    code = watched_end(&watched, context, code);
    tp_context_destroy(context);
    return code;
}
