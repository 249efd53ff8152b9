/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "terminal/terminal.h"
#include "tool/line_stream.h"
#include "trace/summary.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ssize_t read_file(void *user, char *to, size_t room) { return read(*(int *)user, to, room); }

/* Of a regular file; 0: not known. */
static double size_of(int file) {
    struct stat about;
    return !fstat(file, &about) && S_ISREG(about.st_mode) ? (double)about.st_size : 0;
}

/* Why there is no next line. */
static int read_failed(const struct line_stream *stream, const char *path, int why) {
    char before[64] = "";
    if (stream->number) snprintf(before, sizeof before, "; head -n %lld has the lines before it", (long long)stream->number);
    if (why == EFBIG)
        complain("%s:%lld: the line has more than %u bytes: in a trace each call has a line, of at most %u%s", path,
                 (long long)stream->number + 1, LINE_STREAM_MAX, LINES_MAX_LINE, before);
    else
        complain("%s: %s", path, strerror(why));
    return EXIT_USAGE;
}

static int read_all(struct summary *s, struct line_stream *stream, int file, const char *path) {
    char lines[32];
    int got = 0, failed = 0;
    progress_begin("trace summary", size_of(file), NULL);
    progress_at(0, "no line");
    stop_watch();
    while (!stop_asked() && (got = line_stream_next(stream)) > 0) {
        failed = summary_line(s, stream->line, stream->length, stream->number);
        if (failed) break;
        if (stream->number % 64 == 0) progress_at((double)stream->bytes, "%s lines", grouped(stream->number, lines));
    }
    int why = errno;
    progress_end();
    if (got < 0 && !stop_asked()) return read_failed(stream, path, why);
    if (failed) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    return EXIT_FINE;
}

/* A trace in which no line is right is no trace. */
static int check(const struct summary *s, const char *path) {
    if (s->lines) return EXIT_FINE;
    if (!s->wrong)
        complain("%s: the file holds no line", path);
    else
        complain("%s: none of its %lld lines is a call; line %lld: %s", path, (long long)s->wrong, (long long)s->fault[0].first,
                 s->fault[0].shown);
    return EXIT_USAGE;
}

static int say_no_call(int64_t read) {
    if (!read) return stop_say("", "no line was read");
    return stop_say("", "the first %lld line%s no call", (long long)read, read == 1 ? " is" : "s are");
}

static int open_file(const char *path) {
    int file = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    struct stat about;
    if (file >= 0 && !fstat(file, &about) && S_ISDIR(about.st_mode)) {
        close(file);
        errno = EISDIR;
        file = -1;
    }
    if (file < 0) complain("%s: %s", path, strerror(errno));
    return file;
}

int trace_summary(const char *path, const char *format) {
    struct summary summary;
    struct line_stream stream;
    if (!format) format = "text";
    if (strcmp(format, "text") && strcmp(format, "json") && strcmp(format, "md")) {
        complain("--output is '%s': it must be text, json or md", format);
        return EXIT_USAGE;
    }
    int file = open_file(path);
    if (file < 0) return EXIT_USAGE;
    int code = summary_open(&summary) | line_stream_open(&stream, read_file, &file) ? EXIT_FAILED : EXIT_FINE;
    if (code) complain("out of memory");
    if (!code) code = read_all(&summary, &stream, file, path);
    if (!code && stop_asked() && !summary.lines) code = say_no_call(stream.number);
    if (!code) code = check(&summary, path);
    if (!code) {
        summary_sort(&summary);
        code = summary_report(&summary, path, stream.bytes, format);
        if (!code && stop_asked())
            code = stop_say("", "the first %lld line%s summed up", (long long)stream.number,
                            stream.number == 1 ? " is" : "s are");
    }
    line_stream_close(&stream);
    summary_close(&summary);
    if (file != STDIN_FILENO) close(file);
    return code;
}
