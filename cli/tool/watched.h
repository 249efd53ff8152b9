/* SPDX-License-Identifier: Apache-2.0 */
/* --trace and --metrics: what a context's calls leave in files. */
#ifndef TILEPROOF_CLI_TOOL_WATCHED_H
#define TILEPROOF_CLI_TOOL_WATCHED_H

#include "cli.h"
#include "tool/files.h"

struct watched {
    struct atomic_file trace, metrics;
};

/* Opens what the options ask for, and makes the context that they ask for. Exit code, reason printed. */
int watched_context(struct watched *watched, const struct options *options, tp_context **context);
/* Writes the metrics, and gives the files their names unless the code is one of usage. The exit code: that of
   the command, or of a file that could not be written. */
int watched_end(struct watched *watched, const tp_context *context, int code);

#endif
