/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof qualify and tileproof canary.
 *
 *     qualify.c          the command: models to cells, each problem run once, journal, lock
 *     qualify_cell.c     one cell: plan, run, compare with the reference, witnesses
 *     qualify_alone.c    packed sequences as if each were alone, neighbours full of NaN
 *     qualify_trust.c    could this cell have failed at all?
 *     qualify_time.c     its time, and math's beside it
 *     qualify_report.c   the matrix, and a row a cell
 *     qualify_summary.c  how long it will take, progress, the short table, the verdict
 *     qualify_journal.c  finished cells of a run that was stopped; journal_text.c: as a text
 *     qualify_lock.c     cells against a lock, or into it
 *     lockfile.c         locks as files; a cell against the lock's
 *     canary.c           the command: everything a lock says, once more
 *     canary_speed.c     old library against new
 */
#ifndef TILEPROOF_CLI_QUALIFY_QUALIFY_H
#define TILEPROOF_CLI_QUALIFY_QUALIFY_H

#include "harness/attempt.h"
#include "cli.h"
#include "harness/oracle.h"

/* Of every cell, for ever: other inputs have other bits, and locks keep those. */
enum { CELL_SEED = 1 };

struct qualifier {
    tp_context *context;
    tp_choice choice;
    struct workspace workspace;
    uint64_t seed;
    int quick;
    double time_ns; /* spent on the times of one cell; 0: none are taken */
};
int qualifier_open(struct qualifier *q, const struct options *options, const char *disable);
void qualifier_close(struct qualifier *q);

/* Fills in what is seen, the status first. A cell that is refused already stays as it is. */
void qualify_cell(struct qualifier *q, tp_cell *cell);

/* How many rows of a cell are held against the reference at most. */
int64_t qualify_rows(const tp_problem *problem, int quick);

/* One cell while it is at work. */
struct subject {
    tp_cell *cell;
    tp_problem problem;
    tp_lengths lengths;
    struct tensors tensors;
    struct oracle oracle;
    tp_plan *plan;
    int64_t hidden; /* keys that no row may see and that hold NaN */
};
/* Sets status and reason; returns 1. */
int subject_fail(struct subject *s, tp_cell_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Runs the plan on so many tasks; 1 when it broke, with the status set. */
int subject_run(struct qualifier *q, struct subject *s, int threads, tp_receipt *receipt);

/* 1 when something is wrong, with the status set. */
int qualify_alone(struct qualifier *q, struct subject *s);
int qualify_trust(struct subject *s);
void qualify_time(struct qualifier *q, struct subject *s);

/* A cell of a model's group. */
struct use {
    int model, group, cell;
};
struct qualification {
    tp_model **models;
    int model_count;
    struct use *uses;
    size_t use_count, use_capacity;
    tp_cell *cells; /* no two with one problem */
    size_t cell_count, cell_capacity, done;
    double seconds;
    double seconds_asked, seconds_left, host_factor; /* as estimated */
    int threads; /* that share the reference: what is estimated with */
    int64_t resumed;
    int kept; /* the lock could not be written: the journal stays */
};
int qualify_report(const struct qualification *all, const struct options *options, const tp_identity *identity);
int qualify_save(const struct qualification *all, const char *path, const tp_identity *identity);
/* Rank of a status; the worst one is the highest. */
int cell_badness(int status);
/* Refused, wrong, unsure or other than the lock's: the exit code of a status. */
int cell_exit_code(int status);
int worse_exit(int a, int b);

/* qualify_journal.c. Exit codes, reasons printed. */
struct journal {
    char *path;
    FILE *file; /* NULL: there is none */
    int lines;  /* it holds cells */
};
/* The journal is this run's until it is closed: whoever reads a lock to update it has opened the journal first. The
   files of the run must be different files, the models' where they were found among them. */
int journal_open(struct journal *journal, const struct options *options, const struct qualification *all);
/* With --resume cells are taken from it, if they were made as this run would make them; otherwise they go. */
int journal_begin(struct journal *journal, const struct options *options, const tp_identity *now,
                  struct qualification *all);
int journal_add(struct journal *journal, const tp_cell *cell);
void journal_close(struct journal *journal, int finished);

/* qualify_lock.c. Exit codes, reasons printed. A lock that is to be updated need not exist yet; NULL without
   --lock. Cells that are not as the lock has them get that as their status. */
int qualify_open_lock(const struct options *options, tp_lock **lock);
int qualify_compare(struct qualification *all, const tp_lock *lock, const tp_identity *now);
int qualify_update(const struct qualification *all, const struct options *options, tp_lock *lock,
                   const tp_identity *now);

/* lockfile.c */
int lock_read_file(const char *path, tp_lock **lock); /* exit code, reason printed */
int lock_write_file(const char *path, const tp_lock *lock);
/* What the cell does that the lock does not say. TP_CELL_QUALIFIED: nothing; NUMERICS_CHANGED: other bits,
   within the rule; STALE: another kernel, or other witnesses; the cell's own status where it is worse. */
tp_cell_status lock_compare(const tp_cell *locked, const tp_cell *now, char *text, size_t size);

/* qualify_summary.c. What will be done and how long, on stderr, but not where a program reads -o jsonl and the like. */
void qualify_announce(struct qualification *all, const struct options *options, int threads);
/* Seconds left once this cell is done. */
double qualify_left(struct qualification *all, const tp_cell *done, int quick, double elapsed);
/* Overwritten on a terminal, a line now and then elsewhere. seconds_left below 0: not known. */
void qualify_progress(size_t done, size_t count, double seconds_left, const tp_cell *cell);
/* A row a model, worst first, in 80 columns; then one line: passed or not, how much, the lock, what next. */
void qualify_summary(const struct qualification *all);
void qualify_verdict(const struct qualification *all, const struct options *options, int code);

/* SIGINT and SIGTERM ask to stop after the cell at hand. */
void stop_watch(void);
int stop_asked(void);

#endif
