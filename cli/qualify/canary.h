/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TILEPROOF_CLI_QUALIFY_CANARY_H
#define TILEPROOF_CLI_QUALIFY_CANARY_H

#include "bench/table.h"
#include "qualify/qualify.h"
#include "harness/verdict.h"

struct drill {
    char disable[64]; /* of the context: nothing, a kernel, or a head dim */
    char kernel[32];  /* that is slowed */
    double slowed;    /* 0: none */
};

/* A config that --model names. */
struct deployed {
    tp_model *model;
    int64_t revision, last; /* its own in the lock; the last one of its name. -1: none */
    int state; /* tp_lock_status */
    tp_lock *seen; /* its cells, where the lock does not have it; NULL: they were not run */
};

struct canary {
    tp_lock *lock; /* NULL: it could not be read */
    struct deployed *deployed;
    int deployed_count, unknown;
    int stale; /* one of the lock's revisions, for this host */
    int64_t counts[TP_CELL_NUMERICS_CHANGED + 1]; /* cells by verdict */
    tp_identity *here; /* this process */
    tp_identity now;   /* with the device of --device, and the cache of --kv-cache */
    char cache[64];
    tp_qualification *q; /* the lock's cells, in its order */
    tp_context *context;
    tp_qualify_run_options options;
    struct drill drill;
    double begin, budget_ns; /* 0: no limit */
    int64_t cells, ran, left, refused;
    int notes, code;
    int broken; /* exit code, reason printed: a cell could not be judged */
    int races, raced, not_raced; /* speed is asked for; timed cells */
    struct trust trust;
    struct table table;
    char text[1200];
};

void canary_row(struct canary *c, const char *const row[8]); /* a note, as it is */
void canary_count(struct canary *c, int status);
int canary_is_over(const struct canary *c); /* the budget */
/* One line for everybody who uses the problem; NULL: for the lock as a whole. */
void canary_note(struct canary *c, const char *check, const char *status, const char *problem,
                 const char *detail);
/* canary_engine.c: what the lock has of an engine, once more. Exit code. */
int canary_engine(const struct options *options);
/* canary_speed.c: verdicts of timed cells, noted and in the code. Exit code of what broke, reason printed. */
int canary_speed(struct canary *c, const struct options *options);

/* canary_models.c: is it this library's, on this device and ISA? */
int canary_is_mine(const struct canary *c, const tp_lock_revision *revision);
/* Exit codes, reasons printed. */
int canary_models_read(struct canary *c, const struct options *options);
void canary_models_find(struct canary *c); /* which revisions they are */
int canary_models_fresh(const struct canary *c, char *text, size_t size); /* 0: the text says why */
/* The index'th cell of the lock, as the deployed revisions have it, or the last one where none are named. 0: behind the last; -1:
   another revision's. */
int canary_cell_at(const struct canary *c, int64_t index, tp_cell *cell);
int canary_models_run(struct canary *c, const struct options *options); /* those that the lock does not have */
void canary_models_say(const struct canary *c);
void canary_models_free(struct canary *c);

/* canary_metrics.c. Exit codes, reasons printed. */
int canary_metrics_check(const struct options *options); /* the file is no other file of the run */
int canary_metrics_write(const struct canary *c, const char *path, int code);

#endif
