/* SPDX-License-Identifier: Apache-2.0 */
/* Time of a call and how many times as fast as math it is: in turns, AB BA, so that drift meets both alike. */
#include "qualify.h"

#include <math.h>

#include "harness/stats.h"

/* Beyond these math is not run beside it. */
static const double max_scratch = 512e6, max_call_ns = 0.3e9;

static int timed_run(const tp_plan *plan, tp__trial *s, double *ns) {
    tp_exec exec = TP_EXEC_INIT;
    exec.threads = tp_context_threads(s->context);
    exec.workspace = s->workspace.memory;
    exec.workspace_size = s->workspace.bytes;
    double start = now_ns();
    tp_status status = tp_plan_run(plan, &s->tensors.call, &exec, NULL, NULL);
    *ns = now_ns() - start;
    return status != TP_OK;
}

static int open_math(tp__trial *s, tp_plan **plan) {
    tp_choice choice = TP_CHOICE_INIT;
    int threads = tp_context_threads(s->context);
    choice.policy = TP_PERMIT;
    choice.kernel = "math";
    if (tp_plan_create(s->context, &s->problem, &choice, plan, NULL) != TP_OK) return 1;
    size_t bytes = tp_plan_workspace(*plan, threads);
    return (double)bytes > max_scratch || workspace_grow(&s->workspace, bytes);
}

void tp__trial_time(tp__trial *s) {
    struct samples times = {0}, ratios = {0};
    tp_plan *math = NULL;
    double first = 0, ours[2], theirs[2], begin;
    int with_math = !open_math(s, &math);
    if (workspace_grow(&s->workspace, tp_plan_workspace(s->plan, tp_context_threads(s->context))) ||
        timed_run(s->plan, s, &first))
        with_math = -1;
    if (first > max_call_ns && with_math > 0) with_math = 0;
    begin = now_ns();
    while (with_math >= 0 && (!times.count || (now_ns() - begin < s->time_ns && times.count < 200))) {
        int broken = timed_run(s->plan, s, &ours[0]) ||
                     (with_math && (timed_run(math, s, &theirs[0]) || timed_run(math, s, &theirs[1]))) ||
                     timed_run(s->plan, s, &ours[1]);
        if (broken || samples_add(&times, ours[0]) || samples_add(&times, ours[1])) break;
        if (with_math &&
            samples_add(&ratios, 0.5 * (log(theirs[0] / ours[0]) + log(theirs[1] / ours[1]))))
            break;
    }
    if (times.count) s->cell.time_ns = samples_summary(&times).median;
    if (ratios.count) s->cell.gain_over_math = exp(samples_summary(&ratios).median);
    samples_free(&times);
    samples_free(&ratios);
    if (math) tp_plan_destroy(math);
}
