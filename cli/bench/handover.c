/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hand-over: on the same keys, more rows must never take less time, and the loop that rows
 * choose must be no worse than the other one. Both by more than noise, which the goal's figure
 * judges.
 */
#include "bench/bench.h"

static const int handover_rows[HANDOVER_ROWS] = {1,  2,  3,  4,  5,  6,  7,  8,  9,
                                                 10, 11, 12, 13, 14, 15, 16, 17, 18,
                                                 19, 20, 24, 28, 32, 40, 48, 56, 64};
static const char *const strategies[3] = {NULL, "prefill", "decode"};
static const char *const names[3] = {"by rows", "prefill", "decode"};
/* Beyond so many rows of a head the decode loop is no candidate any more, and slow. */
enum { DECODE_MAX = 4 * TP_DECODE_ROWS };

/* One after another on each number of rows, so that the three are compared at the same time. */
static tp_status measure(struct goal *goal, struct timed_case *cases, tp_error *error) {
    tp_tensors *call = &cases[0].workload->tensors.call;
    const tp_problem *problem = &cases[0].workload->tensors.problem;
    int64_t rows = call->q_len, group = problem->q_heads / problem->kv_heads;
    tp_status status = TP_OK;
    for (int i = 0; status == TP_OK && i < HANDOVER_ROWS; i++) {
        call->q_len = handover_rows[i] < rows ? handover_rows[i] : rows;
        for (int s = 0; status == TP_OK && s < 3; s++) {
            struct samples times = {0};
            int at = goal->rounds % 2 ? 2 - s : s;
            if (at == 2 && call->q_len * group > DECODE_MAX) continue;
            status = timed_case_burst(&cases[at], 0, 2, &times, error);
            double best = samples_summary(&times).min, *kept = &goal->handover_ns[at][i];
            if (status == TP_OK && (*kept == 0 || best < *kept)) *kept = best;
            samples_free(&times);
        }
    }
    call->q_len = rows;
    return status;
}

tp_status bench_handover(struct goal *goal, const char *kernel, uint64_t seed,
                         struct limits *limits, tp_error *error) {
    struct workload problem;
    struct timed_case cases[3];
    struct goal_case *one = &goal->cases[0];
    int opened = 0;
    tp_status status = bench_problem_open(&problem, one->words, seed, error);
    if (status != TP_OK) return status;
    for (; status == TP_OK && opened < 3; opened++) {
        status = timed_case_open(&cases[opened], &problem, kernel, strategies[opened], NULL,
                                 one->threads, limits, error);
        if (status != TP_OK) break;
    }
    if (status == TP_OK) {
        one->ran = cases[0].ran;
        one->isa = cases[0].isa;
        status = measure(goal, cases, error);
    }
    for (int i = 0; i < opened; i++) timed_case_close(&cases[i]);
    workload_close(&problem);
    return status;
}

double handover_worst(const struct goal *goal, char *text, size_t size) {
    const double(*ns)[HANDOVER_ROWS] = goal->handover_ns;
    double worst = 0;
    snprintf(text, size, "nothing was measured");
    for (int i = 0; i < HANDOVER_ROWS; i++) {
        for (int s = 1; s < 3; s++)
            if (ns[s][i] > 0 && ns[0][i] / ns[s][i] > worst) {
                worst = ns[0][i] / ns[s][i];
                snprintf(text, size, "%d rows: %.3f ms, %.3f ms by %s", handover_rows[i],
                         ns[0][i] * 1e-6, ns[s][i] * 1e-6, names[s]);
            }
        for (int j = i + 1; j < HANDOVER_ROWS; j++)
            if (ns[0][j] > 0 && ns[0][i] / ns[0][j] > worst) {
                worst = ns[0][i] / ns[0][j];
                snprintf(text, size, "%d rows: %.3f ms, %d rows: %.3f ms", handover_rows[i],
                         ns[0][i] * 1e-6, handover_rows[j], ns[0][j] * 1e-6);
            }
    }
    return worst;
}
