/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are written whole or not at all: under another name beside the last one, on the disk, then renamed. A
 * symbolic link stays, and what it points to is replaced. What is no file (a pipe, /dev/null) is written as it is,
 * and so is a descriptor that the process has already (/dev/stdout, /dev/fd/5), from where it stands.
 *
 * The other name is PATH.tileproof-PID-N.part, new and locked while it is written. A kill leaves it behind; the next
 * writer of the same PATH removes those that nobody holds the lock of, and no other file.
 */
#ifndef TILEPROOF_HARNESS_ATOMIC_FILE_H
#define TILEPROOF_HARNESS_ATOMIC_FILE_H

#include <stdio.h>

#include "tileproof.h"

struct atomic_file {
    FILE *stream; /* NULL: not open */
    const char *path;
    char *target;    /* where the links end; NULL: "-", standard output */
    char *temporary; /* NULL: it is written as it is */
};

/* 0, or nonzero with "PATH: why" in the error's text. The path outlives the file. */
int atomic_file_open(struct atomic_file *file, const char *path, tp_error *error);
/* keep: the file gets its name; otherwise nothing is left of it. Does nothing when it is not open. */
int atomic_file_close(struct atomic_file *file, int keep, tp_error *error);

#endif
