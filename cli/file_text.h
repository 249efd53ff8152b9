/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TILEPROOF_CLI_FILE_TEXT_H
#define TILEPROOF_CLI_FILE_TEXT_H

#include <stddef.h>

/* The whole file, with a 0 behind it, or NULL with the reason printed. "-" is standard input. One byte more than
   `most` may come, for the reader to refuse. */
char *file_text(const char *path, size_t most, size_t *size);

#endif
