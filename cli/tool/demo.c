/* SPDX-License-Identifier: Apache-2.0 */
/* One screen: the textbook way, which materialises the scores, beside the library's choice. */
#include "bench/measure.h"
#include "terminal/terminal.h"

static const char demo_problem[] = "prefill b1 h1/1 q8192 k8192 d64 bf16";

static void print_row(const char *name, const char *left, const char *right, const char *remark) {
    printf("%-21s %-20s %-*s%s\n", name, left, *remark ? 21 : 0, right, remark);
}

static void print_scores(const struct measurement *columns) {
    char number[2][32], bytes[32], remark[64];
    snprintf(remark, sizeof remark, "%s in bf16", readable_bytes(2.0 * (double)columns[0].scores_written, bytes));
    print_row("scores written", grouped(columns[0].scores_written, number[0]), grouped(columns[1].scores_written, number[1]),
              remark);
}

static void print_columns(const struct measurement *columns, double flops_per_pair) {
    char text[2][80], bytes[32];
    print_row("", "math", "tileproof", "");
    print_scores(columns);
    for (int i = 0; i < 2; i++)
        snprintf(text[i], sizeof text[i], "%s",
                 readable_bytes((double)columns[i].peak_bytes, bytes));
    print_row("peak temporary memory", text[0], text[1], "measured");
    for (int i = 0; i < 2; i++)
        snprintf(text[i], sizeof text[i], "%s",
                 readable_bytes((double)columns[i].workspace_bytes, bytes));
    print_row("workspace asked for", text[0], text[1], "");
    for (int i = 0; i < 2; i++)
        snprintf(text[i], sizeof text[i], "%.2f s on %d thread%s", (double)columns[i].time_ns / 1e9,
                 columns[i].threads, columns[i].threads == 1 ? "" : "s");
    print_row("time", text[0], text[1], "");
    for (int i = 0; i < 2; i++)
        snprintf(text[i], sizeof text[i], "%.1f G",
                 flops_per_pair * (double)columns[i].pairs_visible / 1e9);
    print_row("flops", text[0], text[1],
              columns[0].pairs_visible == columns[1].pairs_visible ? "still quadratic" : "");
    for (int i = 0; i < 2; i++) snprintf(text[i], sizeof text[i], "%.1e", columns[i].max_error);
    char remark[64];
    snprintf(remark, sizeof remark, "over %lld rows", (long long)columns[0].rows);
    print_row("max error to double", text[0], text[1], remark);
    print_row("kernel that ran", columns[0].kernel, columns[1].kernel, "by the receipts");
}

static void print_refusals(const tp_decision *decision) {
    printf("\nWhy not the others (tileproof explain):\n");
    const tp_candidate *candidate;
    const tp_reason *reason;
    for (int i = 0; (candidate = tp_decision_candidate(decision, i)); i++)
        for (int r = 0; (reason = tp_candidate_reason(candidate, r)); r++)
            printf("  %-12s %s\n", candidate->kernel, reason->text);
}

int command_demo(const struct options *given) {
    struct measurement columns[2];
    struct options fair = *given, *options = &fair;
    if (!fair.threads) fair.threads = 1; /* math cuts its work by heads, and there is one */
    progress_begin("demo", 2, "runs");
    stop_watch();
    for (int i = 0; i < 2 && !stop_asked(); i++) {
        progress_at(i, "%s", i ? "tileproof" : "math");
        measure_in_child(demo_problem, i ? NULL : "math", options, &columns[i]);
    }
    progress_end();
    if (stop_asked()) return stop_say("", "both runs are needed");
    for (int i = 0; i < 2; i++)
        if (columns[i].failed) {
            complain("%s: %s", i ? "tileproof" : "math", columns[i].reason);
            return EXIT_FAILED;
        }

    tp_problem problem;
    tp_context *context;
    tp_decision *decision;
    tp_error error = TP_ERROR_INIT;
    int code = options_context(options, &context);
    if (code) return code;
    if (tp_problem_parse(demo_problem, &problem, NULL, &error) != TP_OK ||
        tp_explain(context, &problem, NULL, &decision, &error) != TP_OK) {
        code = complain_status(&error);
    } else {
        printf("8,192 tokens, one head: %s\n\n", demo_problem);
        print_columns(columns, 2.0 * (double)(problem.head_dim_qk + problem.head_dim_v));
        print_refusals(decision);
        tp_decision_destroy(decision);
    }
    tp_context_destroy(context);
    return code;
}
