/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TILEPROOF_CLI_FILES_H
#define TILEPROOF_CLI_FILES_H

#include "cli.h"

/* The whole file with a 0 behind it, "-" for standard input; at most one byte more than allowed, for a parser to refuse. NULL with
   the reason printed; the caller frees it. */
char *file_read(const char *path, size_t most, size_t *size);
int model_read(const char *path, tp_model **model); /* exit code, reason printed */
const char *base_name(const char *path);
/* Writes a file beside it and renames that: nobody sees a half. fill returns 0 when all went well. Exit code. */
int file_replace(const char *path, int (*fill)(FILE *file, const void *cookie), const void *cookie);

#endif
