/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine behind a runner (docs/runner-protocol.md): cells go to a child process, and its answers are what
 * libtileproof_proof judges.
 *
 *     process.c    the child: started, spoken to, ended
 *     wire.c       what it writes: bytes, lines, a greeting, an answer
 *     call.c       one call: lines and tensors out, an answer and the output back
 *     engine.c     options, the greeting, a new child when one broke
 */
#ifndef TILEPROOF_CLI_ENGINE_ENGINE_H
#define TILEPROOF_CLI_ENGINE_ENGINE_H

#include "cli.h"
#include "engine/process.h"

enum { ENGINE_WORDS = 9 };

struct engine {
    tp_engine api; /* for tp_qualify_run_options.engine */
    struct process process;
    char *words[ENGINE_WORDS]; /* the command */
    char engine[32], threads[24];
    struct greeting greeting;
    int64_t cell;   /* number of the call */
    int bad_starts; /* in a row */
    struct answer answer; /* the last one */
};

/* By --engine and --runner; NULL where neither is given, or it is tileproof. Exit code, reason printed. */
int engine_open(const struct options *options, struct engine **engine);
void engine_close(struct engine *engine);
/* Of this process with its engine; NULL: with this library. Texts are those of both. */
void engine_identity(const struct engine *engine, const tp_identity *here, tp_identity *now);

/* call.c: 0: answered, and engine->answer says how; 1: the runner broke, for the reason. */
int engine_call(struct engine *engine, const tp_engine_call *call, tp_engine_answer *answer, char why[WIRE_WHY]);

#endif
