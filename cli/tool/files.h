/* SPDX-License-Identifier: Apache-2.0 */
/* Files that the options name: read, written whole, and told apart. Exit codes, reasons printed. */
#ifndef TILEPROOF_CLI_TOOL_FILES_H
#define TILEPROOF_CLI_TOOL_FILES_H

#include <jansson.h>

#include "harness/atomic_file.h"

/* text_read of harness/text_file.h; NULL with the reason printed. */
char *file_text(const char *path, size_t max, size_t *size);
/* atomic_file_open and atomic_file_close. */
int file_open(struct atomic_file *file, const char *path);
int file_close(struct atomic_file *file, int keep);
/* The value as JSON and a newline, by jansson's flags. It takes the value; NULL: there was no memory for it. */
int file_write_json(const char *path, json_t *value, size_t flags);

/* A file of a run, and what it is: "--save", or "the config". */
struct named_file {
    const char *what, *path; /* NULL, or "-", which is a stream: no such file */
};
/* What is written must not be another file of the run. */
int file_clash(const struct named_file *written, const struct named_file *other);

#endif
