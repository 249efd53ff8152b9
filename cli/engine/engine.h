/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine behind a runner (docs/runner-protocol.md): cells go to a child process, and its answers are what
 * libtileproof_proof judges.
 *
 *     process.c    the child: started, spoken to, ended
 *     call.c       one call: lines and tensors out, lines and the output back
 *     engine.c     options, the greeting, a new child when one broke
 */
#ifndef TILEPROOF_CLI_ENGINE_ENGINE_H
#define TILEPROOF_CLI_ENGINE_ENGINE_H

#include "cli.h"
#include "engine/process.h"

enum { ENGINE_WORDS = 9, ENGINE_TEXT = 1024 };

struct engine {
    tp_engine api; /* for tp_qualify_run_options.engine */
    struct process process;
    char *words[ENGINE_WORDS]; /* the command */
    char engine[32], threads[24];
    struct greeting {
        char name[64], mode[64], device[64]; /* "torch", "eager", "cpu" */
        char versions[1024], host[512];      /* lines of name=value */
    } greeting;
    int64_t cell;   /* number of the call */
    int bad_starts; /* in a row */
    char kernel[256], observed[64], reasons[ENGINE_TEXT]; /* of the last answer */
};

/* By --engine and --runner; NULL where neither is given, or it is tileproof. Exit code, reason printed. */
int engine_open(const struct options *options, struct engine **engine);
void engine_close(struct engine *engine);
/* Of this process with its engine; NULL: with this library. Texts are those of both. */
void engine_identity(const struct engine *engine, const tp_identity *here, tp_identity *now);

/* call.c: 0: answered, and *status says how; 1: the runner broke, for the reason. */
int engine_call(struct engine *engine, const tp_engine_call *call, tp_engine_answer *answer, tp_status *status,
                char why[PROCESS_WHY]);
/* The value of a line "key value", or NULL. */
const char *line_value(const char *line, const char *key);

#endif
