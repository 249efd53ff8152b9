/* SPDX-License-Identifier: Apache-2.0 */
/* What a goal's times come to, and whether that is enough. */
#include "bench/bench.h"

#include <math.h>
#include <string.h>

static const double near_share = 0.1, avx512_points = 5;

/* The detail says the best; the figure is the median of what was measured in turns. */
static void judge_share(const struct goal *goal, struct judged *judged) {
    struct interval share = share_interval(&goal->share, 1);
    size_t used = strlen(judged->detail);
    judged->of_best = judged->figure;
    judged->figure = 100 * share.middle;
    judged->low = share.low > 0 ? 100 * share.low : NAN;
    judged->high = isfinite(share.high) ? 100 * share.high : NAN;
    snprintf(judged->detail + used, sizeof judged->detail - used, "; %zu probes beside it: %.1f %s", goal->share.probes.count,
             interval_median(goal->share.probes.values, goal->share.probes.count, 0, 0).middle,
             goal->share.limit == SHARE_OF_FMA ? "GFLOP/s" : "GB/s");
}

static void judge_cases(struct goal *goal, const struct limits *limits, struct judged *judged) {
    double rate[GOAL_CASES] = {0}, best[GOAL_CASES] = {0}, median[GOAL_CASES] = {0};
    const struct goal_case *one = goal->cases;
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    for (int i = 0; i < goal->case_count; i++) {
        struct summary times = samples_summary(&goal->cases[i].times);
        best[i] = times.min;
        median[i] = times.median;
        rate[i] = goal->cases[i].flops / times.min;
    }
    char *text = judged->detail;
    size_t size = sizeof judged->detail;
    double limit = limits_fma(limits, one->isa, one->threads), scale, line;
    switch (goal->metric) {
    case GOAL_PCT_FMA:
        judged->figure = 100 * rate[0] / limit;
        snprintf(text, size, "%s: best %.1f of %.1f GFLOP/s (median %.1f)", one->ran, rate[0], limit,
                 one->flops / median[0]);
        break;
    case GOAL_PCT_READ:
        limit = limits_read(limits, one->threads);
        judged->figure = 100 * one->bytes / best[0] / limit;
        snprintf(text, size, "%s: best %.2f of %.2f GB/s (median %.2f)", one->ran, one->bytes / best[0],
                 limit, one->bytes / median[0]);
        break;
    case GOAL_PCT_ROOFLINE:
        line = limits_roofline(limits, one->isa, one->threads, one->flops, one->kv_bytes);
        judged->figure = 100 * line / best[0];
        snprintf(text, size, "%s: best %.2f of %.2f KV GB/s (median %.2f; read limit %.2f)", one->ran,
                 one->kv_bytes / best[0], one->kv_bytes / line, one->kv_bytes / median[0],
                 limits_read(limits, one->threads));
        break;
    case GOAL_SUM_OF_PARTS:
        judged->figure = (best[1] + best[2]) / best[0];
        snprintf(text, size, "%s: %.4g ms, its parts %.4g + %.4g ms (medians %.4g, %.4g + %.4g)",
                 one->ran, best[0] * 1e-6, best[1] * 1e-6, best[2] * 1e-6, median[0] * 1e-6,
                 median[1] * 1e-6, median[2] * 1e-6);
        break;
    case GOAL_RATE_VS:
        judged->figure = rate[0] / rate[1];
        snprintf(text, size, "%s: %.1f vs %.1f GFLOP/s (medians %.1f, %.1f)", one->ran, rate[0],
                 rate[1], one->flops / median[0], goal->cases[1].flops / median[1]);
        break;
    case GOAL_RATE_VS_LINE:
        bench_words_check(one->words, &problem, &error);
        scale = ((double)problem.head_dim_qk - goal->line_low) / (goal->line_high - goal->line_low);
        line = rate[1] + scale * (rate[2] - rate[1]);
        judged->figure = rate[0] / line;
        snprintf(text, size, "%s: %.1f vs %.1f GFLOP/s, between %.1f and %.1f", one->ran, rate[0],
                 line, rate[1], rate[2]);
        break;
    case GOAL_SPEED_VS:
        judged->figure = best[1] / best[0];
        snprintf(text, size, "%s %.4g ms, %s %.4g ms (medians %.4g, %.4g)", one->ran,
                 best[0] * 1e-6, goal->cases[1].ran, best[1] * 1e-6, median[0] * 1e-6,
                 median[1] * 1e-6);
        break;
    case GOAL_SPEEDUP_READ:
        scale = limits_read(limits, one->threads) / limits_read(limits, 1) / one->threads;
        judged->figure = best[1] / best[0] / fmin(scale, 1);
        snprintf(text, size, "%s: %.3fx; read loops on %d threads: %.3fx", one->ran,
                 best[1] / best[0], one->threads, scale * one->threads);
        break;
    default: /* GOAL_SPEEDUP_THREADS: what peak loops cannot, no kernel can */
        scale = limit / limits_fma(limits, one->isa, 1) / one->threads;
        judged->figure = best[1] / best[0] / fmin(scale, 1);
        snprintf(text, size, "%s: %.3fx; peak loops on %d threads: %.3fx", one->ran,
                 best[1] / best[0], one->threads, scale * one->threads);
    }
}

static void judge_workspace(const struct goal *goal, struct judged *judged) {
    judged->figure = goal->workspace_mib;
    snprintf(judged->detail, sizeof judged->detail, "%d thread%s", goal->cases[0].threads,
             goal->cases[0].threads > 1 ? "s" : "");
}

/* The best times of all attempts: what is slower was disturbed. */
static void judge_calls(struct goal *goal, struct judged *judged) {
    struct summary ns[CALL_COUNT];
    char *text = judged->detail;
    size_t size = sizeof judged->detail;
    for (int i = 0; i < CALL_COUNT; i++) ns[i] = samples_summary(&goal->calls[i]);
    double plain = ns[CALL_PLAIN].min * 1e-3, tasks = ns[CALL_TASKS].min * 1e-3;
    double receipt = ns[CALL_RECEIPT].min * 1e-3 - plain, full = ns[CALL_FULL].min * 1e-3;
    if (goal->metric == GOAL_PLAN_US) {
        judged->figure = ns[CALL_PLAN].min * 1e-3;
        snprintf(text, size, "best of each attempt: up to %.2f us", ns[CALL_PLAN].max * 1e-3);
    } else if (goal->metric == GOAL_OVERHEAD_US) {
        judged->figure = plain - tasks;
        snprintf(text, size, "with few keys: call %.2f us, its tasks %.2f us; all keys %.1f us",
                 plain, tasks, full);
    } else if (goal->metric == GOAL_COUNTING_US) {
        double counted = ns[CALL_COUNTED].min * 1e-3, not = ns[CALL_UNCOUNTED].min * 1e-3;
        judged->figure = counted - not;
        snprintf(text, size, "with few keys and tags: call %.3f us, not counted %.3f us", counted, not);
    } else {
        judged->figure = 100 * receipt / full;
        snprintf(text, size, "the receipt takes %.2f us, the call %.1f us", receipt, full);
    }
}

void goal_judge(struct goal *goal, const struct limits *limits, struct judged *judged) {
    *judged = (struct judged){.figure = NAN, .low = NAN, .high = NAN, .of_best = NAN, .floor = goal->floor};
    if (goal->note[0]) {
        judged->floor_met = judged->aim_met = goal->failed ? NOT_MET : NOT_RUN;
        snprintf(judged->detail, sizeof judged->detail, "%s", goal->note);
        return;
    }
    switch (goal->metric) {
    case GOAL_WORKSPACE_MIB: judge_workspace(goal, judged); break;
    case GOAL_HANDOVER:
        judged->figure = handover_worst(goal, judged->detail, sizeof judged->detail);
        break;
    case GOAL_PLAN_US:
    case GOAL_OVERHEAD_US:
    case GOAL_RECEIPT_PCT:
    case GOAL_COUNTING_US: judge_calls(goal, judged); break;
    default: judge_cases(goal, limits, judged);
    }
    if (goal->share.probes.count) judge_share(goal, judged);
    const tp_kernel_info *ran = goal->cases[0].ran ? kernel_named(goal->cases[0].ran) : NULL;
    if (goal->metric == GOAL_PCT_FMA && ran && (ran->needs & TP_ISA_AVX512)) {
        size_t used = strlen(judged->detail);
        judged->floor -= avx512_points;
        snprintf(judged->detail + used, sizeof judged->detail - used, "; AVX-512: floor %g less %g",
                 goal->floor, avx512_points);
    }
    double figure = judged->figure;
    int floor_met = goal->lower ? figure < judged->floor : figure >= judged->floor;
    int aim_met = goal->lower ? figure < goal->aim : figure >= goal->aim;
    judged->floor_met = floor_met ? MET : NOT_MET;
    judged->aim_met = aim_met ? MET : NOT_MET;
}

int goal_is_near(const struct goal *goal, const struct judged *judged) {
    return goal->lower ? judged->figure < judged->floor * (1 + 2 * near_share)
                       : judged->figure >= judged->floor * (1 - near_share);
}
