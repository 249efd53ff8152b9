/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof trace summary: whose the time of a trace is.
 *
 *     line_stream.c (tool)  lines of a file of any size
 *     sketch.c              quantiles in fixed memory
 *     summary.c             calls by model, kernel and class; lines that are none, by what is wrong with them
 *     summary_report.c      text, md, JSON
 *     summary_command.c     reading, with progress
 */
#ifndef TILEPROOF_CLI_TRACE_SUMMARY_H
#define TILEPROOF_CLI_TRACE_SUMMARY_H

#include "tool/trace_calls.h"
#include "trace/sketch.h"

enum by { BY_ALL, BY_MODEL, BY_KERNEL, BY_CLASS, BYS };
extern const char *const by_names[BYS];
enum {
    SUMMARY_GROUPS = 1024, /* told apart; the rest of each kind is "other" */
    SUMMARY_FAULTS = 16    /* kinds of wrong lines */
};

/* Calls with the same labels. */
struct group {
    enum by by;
    char *model, *kernel, *problem_class; /* NULL: all of them */
    int64_t calls, fallbacks, refused;    /* calls: completed ones */
    struct sketch times;                  /* of these */
};

/* Lines with the same fault. */
struct fault {
    char what[96];     /* "field 'time_ns'", "no JSON" and so on */
    int64_t lines, first; /* how many; the first one's number */
    char shown[LINES_REASON]; /* what is wrong with that one */
};

struct summary {
    struct group **group;
    int group_count;
    int *slot; /* a hash table of groups: index + 1 */
    struct fault fault[SUMMARY_FAULTS + 1]; /* last: other faults */
    int fault_count;
    int64_t lines, wrong, blank;
    int64_t first_ns, last_ns; /* when the first call began and the last one ended */
    int grouped_together;      /* some group is "other" */
};

/* 0, or nonzero when memory ran out. */
int summary_open(struct summary *summary);
void summary_close(struct summary *summary);
/* One line of a trace: counted, or noted as wrong. 0, or nonzero when memory ran out. */
int summary_line(struct summary *summary, const char *line, size_t length, int64_t number);
/* Sorts groups: by kind, then most time first. */
void summary_sort(struct summary *summary);

/* summary_report.c: exit code. */
int summary_report(const struct summary *summary, const char *file, int64_t bytes, const char *format);
/* summary_command.c: exit code. */
int trace_summary(const char *path, const char *format);

#endif
