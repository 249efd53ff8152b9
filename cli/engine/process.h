/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A runner as a child process, in a process group of its own. It has a socket at descriptor 3, by which lines go both ways, and
 * a file without a name at descriptor 4, for tensors; what it prints goes to stderr. It cannot harm the tool: the file is read
 * and written and never mapped here, a broken socket is no signal, and every wait has an end.
 */
#ifndef TILEPROOF_CLI_ENGINE_PROCESS_H
#define TILEPROOF_CLI_ENGINE_PROCESS_H

#include <sys/types.h>

#include "engine/wire.h"

struct process {
    pid_t pid; /* 0: there is none */
    int socket, file;
    double timeout; /* seconds that it may take for a line */
    struct wire_bytes bytes;
};

/* Functions that return an int: 0, or 1 and `why` says what the runner did. */
int process_start(struct process *process, char *const words[], char why[WIRE_WHY]);
/* Whole lines. */
int process_send(struct process *process, const char *text, size_t size, char why[WIRE_WHY]);
/* The next line, without its end. */
int process_receive(struct process *process, char line[WIRE_LINE], char why[WIRE_WHY]);
/* Has it said something that nobody asked for? */
int process_spoke(struct process *process);
int process_write(struct process *process, const void *bytes, size_t size, int64_t at, char why[WIRE_WHY]);
int process_read(struct process *process, void *bytes, size_t size, int64_t at, char why[WIRE_WHY]);
/* Ends it and all that it started. gently: it may end by itself within a second first. */
void process_stop(struct process *process, int gently);

#endif
