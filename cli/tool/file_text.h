/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TILEPROOF_CLI_TOOL_FILE_TEXT_H
#define TILEPROOF_CLI_TOOL_FILE_TEXT_H

#include <stddef.h>
#include <stdio.h>

/* The whole file, with a 0 behind it, or NULL with the reason printed: it has more than `most` bytes, for example,
   as /dev/zero has. "-" is standard input. */
char *file_text(const char *path, size_t max, size_t *size);
/* The rest of a file that is open; name stands in errors. */
char *file_rest(FILE *file, const char *name, size_t max, size_t *size);
/* Cuts the next line off a text that a 0 stands behind, and ends it with a 0 of its own. NULL at the end. */
char *text_line(char **at, const char *end, size_t *length);

#endif
