/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench --goals: each goal gets one attempt a round, in at least five rounds over all goals, so
 * that its attempts are spaced over the whole run. What a goal compares runs back and forth within
 * the attempt; a share of a limit is taken beside probes of that limit (harness/share.h). A goal that
 * misses its floor by little gets up to as many rounds again: the best rate of a kernel is not what a
 * busy neighbour leaves of it.
 */
#include "bench/bench.h"

#include <math.h>
#include <regex.h>
#include <string.h>

static const double slice_ns = 20e6;

struct goals_run {
    const struct options *options;
    struct limits limits;
    struct goals goals;
    const char *kernel; /* where a goal names none; NULL: the best */
};

static const char *const verdict_words[] = {"met", "not met", "not run here"};

static const char *kernel_of(const struct goals_run *run, const struct goal_case *one) {
    return one->kernel[0] ? one->kernel : run->kernel;
}

/* 0 when this build and host have what the goal needs; otherwise its note says what is missing. */
static int lacks(const struct goals_run *run, struct goal *goal) {
    int host = tp_context_machine(run->limits.context)->threads;
    for (int i = 0; i < goal->case_count; i++) {
        const char *name = kernel_of(run, &goal->cases[i]);
        const tp_kernel_info *kernel = name ? kernel_named(name) : NULL;
        if (name && !kernel)
            snprintf(goal->note, sizeof goal->note, "this build has no kernel %.32s", name);
        else if (kernel && !kernel_runs(run->limits.context, kernel))
            snprintf(goal->note, sizeof goal->note, "this host cannot run %.32s", name);
        else if (goal->cases[i].threads > host)
            snprintf(goal->note, sizeof goal->note, "this host has %d of %d threads", host,
                     goal->cases[i].threads);
        if (goal->note[0]) return 1;
    }
    return 0;
}

static tp_status measure_workspace(const struct goals_run *run, struct goal *goal,
                                   tp_error *error) {
    const struct goal_case *one = &goal->cases[0];
    tp_problem problem;
    tp_plan *plan;
    tp_choice choice = TP_CHOICE_INIT;
    choice.policy = TP_PERMIT;
    choice.kernel = kernel_of(run, one);
    tp_status status = bench_words_check(one->words, &problem, error);
    if (status == TP_OK)
        status = tp_plan_create(run->limits.context, &problem, &choice, &plan, error);
    if (status != TP_OK) return status;
    double bytes = (double)tp_plan_workspace(plan, one->threads);
    tp_plan_destroy(plan);
    goal->workspace_mib = bytes / one->threads / 1048576;
    return TP_OK;
}

static int is_share(const struct goal *goal) {
    return goal->metric == GOAL_PCT_FMA || goal->metric == GOAL_PCT_READ || goal->metric == GOAL_PCT_ROOFLINE;
}

/* One case beside the limit that the metric names. */
static tp_status measure_share(struct goals_run *run, struct goal *goal, const struct timed_case *one, tp_error *error) {
    struct goal_case *judged = &goal->cases[0];
    struct share *share = &goal->share;
    share->limit = goal->metric == GOAL_PCT_FMA    ? SHARE_OF_FMA
                   : goal->metric == GOAL_PCT_READ ? SHARE_OF_READ
                                                   : share_limit_of(one, &run->limits);
    double bytes = goal->metric == GOAL_PCT_READ ? judged->bytes : judged->kv_bytes;
    return share_measure(share, one, share->limit == SHARE_OF_FMA ? judged->flops : bytes, &run->limits, &judged->times,
                         error);
}

static int needs_reads(const struct goal *goal) {
    return goal->metric == GOAL_PCT_READ || goal->metric == GOAL_PCT_ROOFLINE ||
           goal->metric == GOAL_SPEEDUP_READ;
}

/* Equal words share their tensors. */
static tp_status open_problems(struct goal *goal, struct workload *problems,
                               struct workload **of_case, int *opened, uint64_t seed,
                               tp_error *error) {
    for (int i = 0; i < goal->case_count; i++) {
        of_case[i] = NULL;
        for (int k = 0; k < *opened && !of_case[i]; k++)
            if (!strcmp(problems[k].words, goal->cases[i].words)) of_case[i] = &problems[k];
        if (of_case[i]) continue;
        tp_status status =
            bench_problem_open(&problems[*opened], goal->cases[i].words, seed, error);
        if (status != TP_OK) return status;
        of_case[i] = &problems[(*opened)++];
    }
    return TP_OK;
}

static tp_status measure_cases(struct goals_run *run, struct goal *goal, tp_error *error) {
    struct workload problems[GOAL_CASES], *of_case[GOAL_CASES];
    struct timed_case cases[GOAL_CASES];
    int opened = 0, planned = 0;
    tp_status status =
        open_problems(goal, problems, of_case, &opened, (uint64_t)run->options->seed, error);
    for (; status == TP_OK && planned < goal->case_count; planned++) {
        struct goal_case *one = &goal->cases[planned];
        status =
            timed_case_open(&cases[planned], of_case[planned], kernel_of(run, one), one->strategy,
                            kernel_of(run, &goal->cases[0]), one->threads, &run->limits, error);
        if (status != TP_OK) break;
        limits_want(&run->limits, cases[planned].isa, one->threads);
        one->ran = cases[planned].ran;
        one->isa = cases[planned].isa;
        one->flops = cases[planned].flops;
        one->bytes = (double)cases[planned].receipt.bytes_compulsory;
        one->kv_bytes = cases[planned].kv_bytes;
    }
    if (status == TP_OK && is_share(goal)) status = measure_share(run, goal, &cases[0], error);
    for (int i = 0; status == TP_OK && !is_share(goal) && i < goal->case_count; i++) {
        int at = goal->rounds % 2 ? goal->case_count - 1 - i : i;
        status = timed_case_burst(&cases[at], slice_ns, 1, &goal->cases[at].times, error);
    }
    limits_measure(&run->limits, needs_reads(goal));
    for (int i = 0; i < planned; i++) timed_case_close(&cases[i]);
    for (int i = 0; i < opened; i++) workload_close(&problems[i]);
    return status;
}

static void attempt_goal(struct goals_run *run, struct goal *goal) {
    tp_error error = TP_ERROR_INIT;
    tp_status status;
    if (goal->note[0] || lacks(run, goal)) return;
    switch (goal->metric) {
    case GOAL_WORKSPACE_MIB: status = measure_workspace(run, goal, &error); break;
    case GOAL_HANDOVER:
        status = bench_handover(goal, kernel_of(run, &goal->cases[0]), (uint64_t)run->options->seed,
                                &run->limits, &error);
        break;
    case GOAL_PLAN_US:
    case GOAL_OVERHEAD_US:
    case GOAL_RECEIPT_PCT:
    case GOAL_COUNTING_US:
        status = bench_calls(goal->cases[0].words, kernel_of(run, &goal->cases[0]),
                             (uint64_t)run->options->seed, goal->calls, &error);
        break;
    default: status = measure_cases(run, goal, &error);
    }
    if (!goal->cases[0].ran) {
        const char *kernel = kernel_of(run, &goal->cases[0]);
        goal->cases[0].ran = kernel ? kernel : run->limits.reader;
    }
    goal->rounds++;
    if (status == TP_OK) return;
    goal->failed = 1;
    snprintf(goal->note, sizeof goal->note, "%s: %.200s", tp_status_name(status), error.text);
}

static int run_rounds(struct goals_run *run) {
    int64_t rounds = run->options->attempts;
    if (rounds < DEFAULT_ATTEMPTS) rounds = DEFAULT_ATTEMPTS;
    int selected = 0;
    for (size_t i = 0; i < run->goals.count; i++) selected += run->goals.goal[i].selected;
    progress_begin("bench --goals", (double)selected * (double)rounds, "attempts");
    stop_watch();
    for (int64_t round = 0; round < 2 * rounds && !stop_asked(); round++) {
        int wanted = 0;
        if (round == rounds) progress_begin("bench --goals, what missed its floor by little", 0, "attempts");
        for (size_t i = 0; i < run->goals.count && !stop_asked(); i++) {
            struct goal *goal = &run->goals.goal[round % 2 ? run->goals.count - 1 - i : i];
            struct judged judged;
            if (!goal->selected || goal->failed) continue;
            if (round >= rounds) {
                goal_judge(goal, &run->limits, &judged);
                if (judged.floor_met != NOT_MET || !goal_is_near(goal, &judged)) continue;
            }
            progress_next(0, "%s", goal->name);
            attempt_goal(run, goal);
            progress_next(1, "%s", goal->name);
            wanted++;
        }
        if (!wanted) break;
    }
    progress_end();
    return EXIT_FINE;
}

static const struct column columns[] = {
    {"name", "goal", 1, 0},          {"figure", "figure", 1, 3},     {"low", "from", 1, 1},
    {"high", "to", 1, 1},            {"of_best", "of best", 1, 1},   {"floor", "floor", 1, 2},
    {"aim", "aim", 1, 2},            {"floor_met", "floor is", 1, 0}, {"aim_met", "aim is", 1, 0},
    {"attempts", "attempts", 1, 0},  {"metric", "metric", 1, 0},     {"detail", "measured", 1, 0},
    {"problem", NULL, 1, 0},         {"kernel", NULL, 1, 0},         {"threads", NULL, 1, 0},
    {"repro", NULL, 1, 0},           {"version", NULL, 1, 0},        {"host", NULL, 1, 0},
    {"machine", NULL, 1, 0},         {"kind", NULL, 1, 0},           {"date", NULL, 1, 0},
    {"build", NULL, 1, 0},           {"seed", NULL, 1, 0},
};
enum { COLUMN_COUNT = sizeof columns / sizeof *columns };

static int report(struct goals_run *run, enum table_format format) {
    struct table table;
    int floors[3] = {0}, aims[3] = {0}, with_aim = 0;
    table_open(&table, columns, COLUMN_COUNT);
    for (size_t i = 0; i < run->goals.count; i++) {
        struct goal *goal = &run->goals.goal[i];
        struct judged judged;
        char repro[512];
        const char *file = run->options->goals_file;
        if (!goal->selected) continue;
        goal_judge(goal, &run->limits, &judged);
        floors[judged.floor_met]++;
        aims[judged.aim_met] += !isnan(goal->aim);
        with_aim += !isnan(goal->aim);
        snprintf(repro, sizeof repro, "tileproof bench --goals%s%s --match '^%s$'%s%s",
                 file ? " --goals-file " : "", file ? file : "", goal->name,
                 run->kernel ? " -k " : "", run->kernel ? run->kernel : "");
        table_text(&table, goal->name);
        table_number(&table, judged.figure);
        table_number(&table, judged.low);
        table_number(&table, judged.high);
        table_number(&table, judged.of_best);
        table_number(&table, judged.floor);
        table_number(&table, goal->aim);
        table_text(&table, verdict_words[judged.floor_met]);
        table_text(&table, isnan(goal->aim) ? NULL : verdict_words[judged.aim_met]);
        table_integer(&table, goal->rounds);
        table_text(&table, goal->metric_text);
        table_text(&table, judged.detail);
        table_text(&table, goal->cases[0].words);
        table_text(&table, goal->cases[0].ran);
        table_integer(&table, goal->cases[0].threads);
        table_text(&table, repro);
        table_text(&table, tp_version());
        bench_add_host(&table, &run->limits, "goal");
        table_integer(&table, run->options->seed);
    }
    if (format == FORMAT_MD) bench_print_host(&run->limits, stdout);
    int code = table_print(&table, format, stdout);
    if (format == FORMAT_JSON) fputc('\n', stdout);
    if (format == FORMAT_MD)
        printf("\nfloors: %d met, %d not met, %d not run here; aims: %d of %d met\n"
               "A share is the median of calls beside probes of their limit in turns, with its 99 %% interval; of best: "
               "the best call of the highest limit seen.\nOf all others the best of all attempts counts; metrics in _mib, _us, "
               "of receipts and of the hand-over must stay below.\n",
               floors[MET], floors[NOT_MET], floors[NOT_RUN], aims[MET], with_aim);
    table_close(&table);
    return code ? code : floors[NOT_MET] ? EXIT_FAILED : EXIT_FINE;
}

/* Goals that were attempted; a floor that is not met yet may still be, so none of them decides. */
static int report_stopped(struct goals_run *run, enum table_format format) {
    int attempted = 0, selected = 0;
    for (size_t i = 0; i < run->goals.count; i++) {
        struct goal *goal = &run->goals.goal[i];
        selected += goal->selected;
        goal->selected &= goal->rounds > 0;
        attempted += goal->selected;
    }
    if (attempted) (void)report(run, format);
    return stop_say("", "%d of %d goals were attempted, not as often as asked for", attempted, selected);
}

static int prepare(struct goals_run *run, tp_context **context) {
    regex_t match;
    int threads = 1, reads = 0, count = 0, code;
    code = goals_read(&run->goals, run->options->goals_file);
    if (!code) code = bench_kernel(run->options->kernel, &run->kernel);
    if (!code) code = bench_regex(run->options->match, &match);
    if (code) return code;
    for (size_t i = 0; i < run->goals.count; i++) {
        struct goal *goal = &run->goals.goal[i];
        goal->selected = !regexec(&match, goal->name, 0, NULL, 0);
        count += goal->selected;
        reads |= goal->selected && needs_reads(goal);
        for (int c = 0; goal->selected && c < goal->case_count; c++)
            if (goal->cases[c].threads > threads) threads = goal->cases[c].threads;
    }
    regfree(&match);
    if (!count) {
        complain("no goal matches '%s'", run->options->match);
        return EXIT_USAGE;
    }
    code = bench_context(threads, context);
    return code ? code : bench_limits(&run->limits, *context, reads ? run->options->read_mib : 0);
}

int bench_goals(const struct options *options, enum table_format format) {
    static struct goals_run run; /* large, and one a process */
    tp_context *context = NULL;
    if (options->problem[0]) {
        complain("--goals takes no problem: '%s' is one too many", options->problem);
        return EXIT_USAGE;
    }
    run = (struct goals_run){.options = options};
    int code = prepare(&run, &context);
    if (!code) code = run_rounds(&run);
    if (!code && stop_asked())
        code = report_stopped(&run, format);
    else if (!code)
        code = report(&run, format);
    limits_close(&run.limits);
    goals_free(&run.goals);
    if (context) tp_context_destroy(context);
    return code;
}
