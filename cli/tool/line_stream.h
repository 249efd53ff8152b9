/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of a file of any size, one at a time, in memory for the longest that is allowed. */
#ifndef TILEPROOF_CLI_TOOL_LINE_STREAM_H
#define TILEPROOF_CLI_TOOL_LINE_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tool/lines.h"

/* As read(2): bytes, 0 at the end, -1 with errno. */
typedef ssize_t (*line_source)(void *user, char *to, size_t room);

struct line_stream {
    line_source source;
    void *user;
    char *buffer;
    size_t start, end;     /* what has been read and not been given */
    int64_t number, bytes; /* of lines given whole */
    const char *line;      /* the line, without its newline; "" for one that is too long */
    size_t length;         /* of the whole line */
};

/* 0, or nonzero when memory ran out. */
int line_stream_open(struct line_stream *stream, line_source source, void *user);
/* The longest line whose end is looked for: what other readers take of a whole file. */
#define LINE_STREAM_MAX LINES_MAX_BYTES

/* 1: there is a line; 0: the end; -1: errno says why reading failed: EFBIG where the line behind `number` is longer than
   LINE_STREAM_MAX, EINTR where a stop was asked for. */
int line_stream_next(struct line_stream *stream);
void line_stream_close(struct line_stream *stream);

#endif
