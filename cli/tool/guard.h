/* SPDX-License-Identifier: Apache-2.0 */
/* One process at a time changes a file that others may change, too: whoever has the guard of PATH reads it, changes it and
   writes it, and nothing is lost. The guard is a file PATH.tileproof-guard, locked and removed when it is released. */
#ifndef TILEPROOF_CLI_TOOL_GUARD_H
#define TILEPROOF_CLI_TOOL_GUARD_H

struct guard {
    char *path; /* NULL: not taken */
    int fd;
};

/* Waits so many seconds for another process. Exit code, reason printed. */
int guard_take(struct guard *guard, const char *path, double seconds);
void guard_release(struct guard *guard);

#endif
