/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are written whole or not at all: under another name beside the last one, then renamed. */
#ifndef TILEPROOF_CLI_WHOLE_H
#define TILEPROOF_CLI_WHOLE_H

#include <stdio.h>

struct whole {
    FILE *file; /* NULL: not open */
    const char *path;
    char *temporary; /* NULL: standard output, which "-" means */
};

/* Exit codes, with the reason printed. */
int whole_open(struct whole *whole, const char *path);
/* keep: the file gets its name; otherwise nothing is left of it. Does nothing when it is not open. */
int whole_close(struct whole *whole, int keep);

#endif
