/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof qualify and tileproof canary: options, files, output and exit codes. Cells are made, run and compared by
 * libtileproof_proof (proof/qualify.h).
 *
 *     qualify.c        the command: models to cells, journal, run, lock
 *     report.c         the matrix, and a row for each cell
 *     report_engine.c  the table of a run by an engine
 *     summary.c        how long it will take, the verdict
 *     matrix.c         a letter for each layer group and phase, in 80 columns
 *     journal.c        finished cells of a run that was stopped; journal_text.c: as a text
 *     lockfile.c       locks as files, cells compared with them or written into them; exit codes of statuses
 *     canary.c         the command: everything a lock says, once more
 *     canary_engine.c  the same of an engine's revisions
 *     canary_speed.c   old library against new
 */
#ifndef TILEPROOF_CLI_QUALIFY_QUALIFY_H
#define TILEPROOF_CLI_QUALIFY_QUALIFY_H

#include "cli.h"
#include "engine/engine.h"
#include "terminal/terminal.h"

/* A run of the command. */
struct qualification {
    tp_model **models;
    int model_count;
    tp_qualification *q;
    int64_t use_count, cell_count, done;
    double seconds;
    double seconds_asked, seconds_left, host_factor; /* as estimated */
    int threads; /* that share the reference: what is estimated with */
    int64_t resumed;
    char cache[64]; /* the name of its format */
    struct engine *engine; /* that runs the cells; NULL: this library */
    int kept; /* the lock could not be written: the journal stays */
};
/* One of use_count. */
tp_qualify_use qualification_use(const struct qualification *all, int64_t index);
/* The context in which cells run. Exit code, reason printed. */
int qualify_context(const struct options *options, const char *disable, tp_context **context);

/* report_engine.c: a row for each layer group and phase: what ran, right or not, memory, time, properties. */
void qualify_engine_table(const struct qualification *all, int whole);
int qualify_report(const struct qualification *all, const struct options *options, const tp_identity *identity);
int qualify_save(const struct qualification *all, const char *path, const tp_identity *identity);
/* Of a status, 0 the best. */
static inline int cell_rank(int status) { return tp_cell_status_rank((tp_cell_status)status); }
/* Refused, wrong, unsure or other than the lock's: the exit code of a status. */
int cell_exit_code(int status);
int worse_exit(int a, int b);

/* journal.c. Exit codes, reasons printed. */
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

/* lockfile.c. Exit codes, reasons printed. A lock that is to be updated need not exist yet; NULL without --lock. Cells that are
   not as the lock has them get that as their status. */
int lock_read_file(const char *path, tp_lock **lock);
int lock_read_or_create(const char *path, tp_lock **lock); /* without any cell, where there is no file */
int lock_write_file(const char *path, const tp_lock *lock);
/* --wait: how long another process that changes the lock is waited for. */
int lock_wait_seconds(const struct options *options, double *seconds);
/* How many changes its history has; what one of them wrote and dropped, on stderr. */
int64_t lock_changes(const tp_lock *lock);
void lock_say_change(const char *path, const tp_lock *lock, int64_t index);
int qualify_open_lock(const struct options *options, tp_lock **lock);
int qualify_compare(struct qualification *all, const tp_lock *lock, const tp_identity *now);
/* Reads the lock once more: another process may have changed it meanwhile. */
int qualify_update(const struct qualification *all, const struct options *options, const tp_identity *now);

/* summary.c. What will be done and how long, on stderr, but not where a program reads -o jsonl and the like. */
void qualify_announce(struct qualification *all, const struct options *options, int threads);
/* Seconds left once this cell is done. */
double qualify_left(struct qualification *all, const tp_cell *done, int quick, double elapsed);
/* matrix.c: models, worst first, with a letter for each layer group by phase. */
void qualify_letters(const struct qualification *all);
/* One line: passed or not, how much, the lock, what next. */
void qualify_verdict(const struct qualification *all, const struct options *options, int code);

#endif
