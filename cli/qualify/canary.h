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

struct canary {
    tp_lock *lock;
    tp_identity *now;
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

/* One line for everybody who uses the problem; NULL: for the lock as a whole. */
void canary_note(struct canary *c, const char *check, const char *status, const char *problem,
                 const char *detail);
/* canary_engine.c: what the lock has of an engine, once more. Exit code. */
int canary_engine(const struct options *options);
/* canary_speed.c: verdicts of timed cells, noted and in the code. Exit code of what broke, reason printed. */
int canary_speed(struct canary *c, const struct options *options);

#endif
