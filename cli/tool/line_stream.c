/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/line_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "terminal/terminal.h"

enum { ROOM = LINES_MAX_LINE + (1 << 18) };

int line_stream_open(struct line_stream *stream, line_source source, void *user) {
    *stream = (struct line_stream){.source = source, .user = user, .buffer = malloc(ROOM)};
    return !stream->buffer;
}

void line_stream_close(struct line_stream *stream) {
    free(stream->buffer);
    stream->buffer = NULL;
}

/* Behind what is there; bytes, 0 at the end, -1. */
static ssize_t read_more(struct line_stream *s) {
    ssize_t got;
    if (s->start) {
        memmove(s->buffer, s->buffer + s->start, s->end - s->start);
        s->end -= s->start;
        s->start = 0;
    }
    do {
        if (stop_asked()) {
            errno = EINTR;
            return -1;
        }
        got = s->source(s->user, s->buffer + s->end, ROOM - s->end);
    } while (got < 0 && errno == EINTR);
    if (got > 0) s->end += (size_t)got;
    return got;
}

/* The rest of a line whose beginning fills the buffer: only its length is kept. */
static int skip_rest(struct line_stream *s) {
    static const char beginning[] = "";
    s->length = 0;
    for (;;) {
        const char *newline = memchr(s->buffer + s->start, '\n', s->end - s->start);
        size_t here = newline ? (size_t)(newline - s->buffer) - s->start : s->end - s->start;
        s->length += here;
        s->bytes += (int64_t)here + (newline != NULL);
        s->start += here + (newline != NULL);
        s->line = beginning;
        if (newline) return 1;
        if (s->length > LINE_STREAM_MAX) {
            errno = EFBIG;
            return -1;
        }
        ssize_t got = read_more(s);
        if (got <= 0) return got < 0 ? -1 : 1;
    }
}

int line_stream_next(struct line_stream *s) {
    size_t looked = 0; /* bytes without a newline */
    for (;;) {
        const char *from = s->buffer + s->start, *newline = memchr(from + looked, '\n', s->end - s->start - looked);
        if (newline) {
            s->line = from;
            s->length = (size_t)(newline - from);
            s->start += s->length + 1;
            s->bytes += (int64_t)s->length + 1;
            s->number++;
            return 1;
        }
        looked = s->end - s->start;
        if (looked > LINES_MAX_LINE) {
            int found = skip_rest(s);
            s->number += found > 0;
            return found;
        }
        ssize_t got = read_more(s);
        if (got < 0) return -1;
        if (got > 0) continue;
        if (!looked) return 0;
        s->line = s->buffer + s->start; /* the last line, without a newline */
        s->length = looked;
        s->start = s->end;
        s->bytes += (int64_t)looked;
        s->number++;
        return 1;
    }
}
