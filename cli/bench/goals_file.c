/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data file of goals, one a line:
 *
 *     name | problem | metric | floor | aim            # to the end of the line is a remark
 *
 * bench/goals.txt says what each metric means. The problem may hold threads=N, kernel=NAME and
 * strategy=NAME.
 */
#include "bench/bench.h"
#include "tool/files.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GOALS_MAX_BYTES = 1 << 20 };
enum argument {
    ARGUMENT_NONE,
    ARGUMENT_PROBLEM,
    ARGUMENT_PROBLEMS, /* two of them */
    ARGUMENT_DIMS,
    ARGUMENT_KERNEL, /* or a problem */
    ARGUMENT_THREADS
};

static const struct metric_row {
    const char *name;
    enum goal_metric metric;
    enum argument argument;
    const char *form;
    int lower;
} metrics[] = {
    {"pct_fma", GOAL_PCT_FMA, ARGUMENT_NONE, "pct_fma", 0},
    {"pct_read", GOAL_PCT_READ, ARGUMENT_NONE, "pct_read", 0},
    {"pct_roofline", GOAL_PCT_ROOFLINE, ARGUMENT_NONE, "pct_roofline", 0},
    {"rate_vs", GOAL_RATE_VS, ARGUMENT_PROBLEM, "rate_vs \"PROBLEM\"", 0},
    {"rate_vs_line", GOAL_RATE_VS_LINE, ARGUMENT_DIMS, "rate_vs_line LOW HIGH (head dims)", 0},
    {"speed_vs", GOAL_SPEED_VS, ARGUMENT_KERNEL, "speed_vs KERNEL or speed_vs \"PROBLEM\"", 0},
    {"sum_of_parts", GOAL_SUM_OF_PARTS, ARGUMENT_PROBLEMS, "sum_of_parts \"PROBLEM\" \"PROBLEM\"",
     0},
    {"speedup_threads", GOAL_SPEEDUP_THREADS, ARGUMENT_THREADS, "speedup_threads N (2..1024)", 0},
    {"speedup_read", GOAL_SPEEDUP_READ, ARGUMENT_THREADS, "speedup_read N (2..1024)", 0},
    {"handover", GOAL_HANDOVER, ARGUMENT_NONE, "handover", 1},
    {"workspace_mib", GOAL_WORKSPACE_MIB, ARGUMENT_NONE, "workspace_mib", 1},
    {"plan_us", GOAL_PLAN_US, ARGUMENT_NONE, "plan_us", 1},
    {"overhead_us", GOAL_OVERHEAD_US, ARGUMENT_NONE, "overhead_us", 1},
    {"receipt_pct", GOAL_RECEIPT_PCT, ARGUMENT_NONE, "receipt_pct", 1},
    {"counting_us", GOAL_COUNTING_US, ARGUMENT_NONE, "counting_us", 1},
};
enum { METRIC_COUNT = sizeof metrics / sizeof *metrics };

static char *trimmed(char *text) {
    text += strspn(text, " \t\r");
    size_t length = strlen(text);
    while (length && strchr(" \t\r", text[length - 1])) text[--length] = 0;
    return text;
}

/* NULL: no such strategy. */
static const char *strategy_named(const char *text, int length) {
    if (length == 7 && !memcmp(text, "prefill", 7)) return "prefill";
    return length == 6 && !memcmp(text, "decode", 6) ? "decode" : NULL;
}

/* Problem words without threads=, kernel= and strategy=, which go to the case. */
static int read_case(const struct place *place, const char *text, struct goal_case *one) {
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    size_t used = 0;
    one->threads = 1;
    one->strategy = NULL;
    one->words[0] = 0;
    for (const char *at = text; *(at += strspn(at, " ")); at += strcspn(at, " ")) {
        int length = (int)strcspn(at, " ");
        if (!strncmp(at, "threads=", 8)) {
            one->threads = atoi(at + 8);
            if (one->threads < 1 || one->threads > 1024)
                return complain_at(place, "'%.*s': threads must be in 1..1024", length, at);
        } else if (!strncmp(at, "strategy=", 9)) {
            one->strategy = strategy_named(at + 9, length - 9);
            if (!one->strategy)
                return complain_at(place, "'%.*s': strategy must be prefill or decode", length, at);
        } else if (!strncmp(at, "kernel=", 7)) {
            snprintf(one->kernel, sizeof one->kernel, "%.*s", length - 7, at + 7);
        } else {
            used += (size_t)snprintf(one->words + used, sizeof one->words - used, "%s%.*s",
                                     used ? " " : "", length, at);
            if (used >= sizeof one->words) return complain_at(place, "the problem is too long");
        }
    }
    if (!used) return complain_at(place, "the problem is empty");
    if (bench_words_check(one->words, &problem, &error) != TP_OK)
        return complain_at(place, "problem '%s': %s", one->words, error.text);
    return EXIT_FINE;
}

/* The same words with another head dim; nonzero when they have none. */
static int with_dim(const char *words, long dim, char *text, size_t size) {
    for (const char *at = words; *(at += strspn(at, " ")); at += strcspn(at, " "))
        if (at[0] == 'd' && at[1] >= '0' && at[1] <= '9') {
            snprintf(text, size, "%.*sd%ld%s", (int)(at - words), words, dim,
                     at + strcspn(at, " "));
            return 0;
        }
    return 1;
}

static int read_line_dims(const struct place *place, const char *argument, struct goal *goal) {
    long low, high;
    char rest;
    if (sscanf(argument, "%ld %ld%c", &low, &high, &rest) != 2 || low < 1 || low >= high)
        return complain_at(place, "rate_vs_line '%s': two head dims are needed, the lower one first",
                     argument);
    for (int i = 1; i <= 2; i++) {
        goal->cases[i] = goal->cases[0];
        if (with_dim(goal->cases[0].words, i == 1 ? low : high, goal->cases[i].words,
                     sizeof goal->cases[i].words))
            return complain_at(place, "rate_vs_line: the problem has no word dN");
    }
    goal->line_low = (double)low;
    goal->line_high = (double)high;
    goal->case_count = 3;
    return EXIT_FINE;
}

/* "PROBLEM" "PROBLEM" */
static int read_parts(const struct place *place, char *argument, const struct metric_row *row,
                      struct goal *goal) {
    for (int i = 1; i <= 2; i++) {
        char *end = argument[0] == '"' ? strchr(argument + 1, '"') : NULL;
        if (!end || (i == 2 && *trimmed(end + 1)))
            return complain_at(place, "metric '%s': its form is %s", goal->metric_text, row->form);
        *end = 0;
        int code = read_case(place, argument + 1, &goal->cases[i]);
        if (code) return code;
        argument = trimmed(end + 1);
    }
    goal->case_count = 3;
    return EXIT_FINE;
}

static int read_metric(const struct place *place, char *text, struct goal *goal) {
    size_t length = strcspn(text, " ");
    const struct metric_row *row = NULL;
    for (int i = 0; i < METRIC_COUNT; i++)
        if (strlen(metrics[i].name) == length && !memcmp(metrics[i].name, text, length))
            row = &metrics[i];
    if (!row) {
        char names[384] = "";
        for (int i = 0; i < METRIC_COUNT; i++) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", metrics[i].name);
        }
        return complain_at(place, "metric '%s': it must be one of %s", text, names);
    }
    snprintf(goal->metric_text, sizeof goal->metric_text, "%s", text);
    goal->metric = row->metric;
    goal->lower = row->lower;
    char *argument = trimmed(text + length);
    size_t last = strlen(argument);
    int quoted = *argument == '"';
    if (row->argument == ARGUMENT_PROBLEMS) return read_parts(place, argument, row, goal);
    if (last >= 2 && argument[0] == '"' && argument[last - 1] == '"') {
        argument[last - 1] = 0;
        argument++;
    }
    if ((row->argument == ARGUMENT_NONE) != !*argument)
        return complain_at(place, "metric '%s': its form is %s", goal->metric_text, row->form);
    goal->case_count = row->argument == ARGUMENT_NONE ? 1 : 2;
    goal->cases[1] = goal->cases[0];
    switch (row->argument) {
    case ARGUMENT_NONE:
    case ARGUMENT_PROBLEMS: break;
    case ARGUMENT_PROBLEM: return read_case(place, argument, &goal->cases[1]);
    case ARGUMENT_DIMS: return read_line_dims(place, argument, goal);
    case ARGUMENT_KERNEL:
        if (quoted) return read_case(place, argument, &goal->cases[1]);
        snprintf(goal->cases[1].kernel, sizeof goal->cases[1].kernel, "%s", argument);
        break;
    case ARGUMENT_THREADS:
        goal->cases[0].threads = atoi(argument);
        goal->cases[1].threads = 1;
        if (goal->cases[0].threads < 2 || goal->cases[0].threads > 1024)
            return complain_at(place, "metric '%s': its form is %s", goal->metric_text, row->form);
    }
    return EXIT_FINE;
}

static int read_number(const struct place *place, const char *what, const char *text,
                       double *number) {
    char *end;
    *number = strtod(text, &end);
    if (end == text || *end || !isfinite(*number))
        return complain_at(place, "%s is '%s': it must be a number%s", what, text,
                     strcmp(what, "aim") ? "" : ", or - for none");
    return EXIT_FINE;
}

static int read_line(const struct place *place, char *line, struct goals *goals) {
    char *field[5], *at = line;
    int count = 0;
    for (; count < 5 && at; count++) {
        field[count] = at;
        at = strchr(at, '|');
        if (at) *at++ = 0;
    }
    if (count < 5 || at)
        return complain_at(place, "a goal is name | problem | metric | floor | aim: five fields, not %s",
                     at ? "more" : "fewer");
    for (int i = 0; i < 5; i++) field[i] = trimmed(field[i]);
    struct goal *all = realloc(goals->goal, (goals->count + 1) * sizeof *all);
    if (!all) return complain_at(place, "no memory");
    goals->goal = all;
    struct goal *goal = &all[goals->count];
    memset(goal, 0, sizeof *goal);
    goal->line = place->line;
    goal->aim = NAN;
    if (!*field[0] || strlen(field[0]) >= sizeof goal->name)
        return complain_at(place, "the name is '%s': 1 to %zu characters", field[0],
                     sizeof goal->name - 1);
    strcpy(goal->name, field[0]);
    for (size_t i = 0; i < goals->count; i++)
        if (!strcmp(all[i].name, goal->name))
            return complain_at(place, "the name '%s' is that of line %d too", goal->name, all[i].line);
    int code = read_case(place, field[1], &goal->cases[0]);
    if (!code) code = read_metric(place, field[2], goal);
    if (!code) code = read_number(place, "floor", field[3], &goal->floor);
    if (!code && strcmp(field[4], "-")) code = read_number(place, "aim", field[4], &goal->aim);
    if (!code) goals->count++;
    return code;
}

static char *read_text(const char *file) {
    size_t size;
    char *text = file ? file_text(file, GOALS_MAX_BYTES, &size) : strdup(bench_goals_text);
    if (!file || !text || strlen(text) == size) return text;
    complain("--goals-file %s: it holds a byte of 0, which no text has", file);
    free(text);
    return NULL;
}

int goals_read(struct goals *goals, const char *file) {
    struct place place = {file ? file : "bench/goals.txt", 0};
    char *text = read_text(file), *at = text;
    int code = text ? EXIT_FINE : EXIT_USAGE;
    *goals = (struct goals){0};
    while (!code && at) {
        char *line = at;
        at = strchr(at, '\n');
        if (at) *at++ = 0;
        place.line++;
        line[strcspn(line, "#")] = 0;
        if (*trimmed(line)) code = read_line(&place, line, goals);
    }
    free(text);
    if (!code && !goals->count) code = complain_at(&place, "the file holds no goal");
    return code;
}

void goals_free(struct goals *goals) {
    for (size_t i = 0; i < goals->count; i++) {
        for (int c = 0; c < CALL_COUNT; c++) samples_free(&goals->goal[i].calls[c]);
        for (int c = 0; c < GOAL_CASES; c++) samples_free(&goals->goal[i].cases[c].times);
        share_free(&goals->goal[i].share);
    }
    free(goals->goal);
    *goals = (struct goals){0};
}
