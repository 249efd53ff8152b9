/* SPDX-License-Identifier: Apache-2.0 */
/* Whole texts of files, and their lines. */
#ifndef TILEPROOF_HARNESS_TEXT_FILE_H
#define TILEPROOF_HARNESS_TEXT_FILE_H

#include <stddef.h>
#include <stdio.h>

#include "tileproof.h"

/* The whole file, with a 0 behind it; the caller frees it. NULL, with "PATH: why" in the error's text: it has more than
   max bytes, for example, as /dev/zero has. "-" is standard input. */
char *text_read(const char *path, size_t max, size_t *size, tp_error *error);
/* The rest of a file that is open; name stands in errors. */
char *text_rest(FILE *file, const char *name, size_t max, size_t *size, tp_error *error);
/* Cuts the next line off a text that a 0 stands behind, and ends it with a 0 of its own. NULL at the end. */
char *text_line(char **at, const char *end, size_t *length);

#endif
