/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "tool/line_stream.h"
#include "trace/summary.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ssize_t read_file(void *user, char *to, size_t room) { return read(*(int *)user, to, room); }

/* How far it is: on a terminal twice a second on one line, elsewhere a line every five seconds. */
struct progress {
    int terminal, shown;
    double begin, next;
    int64_t size; /* of the file; 0: not known */
};

static void progress_begin(struct progress *p, int file) {
    struct stat about;
    *p = (struct progress){.terminal = isatty(STDERR_FILENO), .begin = now()};
    if (!fstat(file, &about) && S_ISREG(about.st_mode)) p->size = about.st_size;
    p->next = p->begin + (p->terminal ? 0.5 : 5);
}

static void progress_tell(struct progress *p, const struct line_stream *stream) {
    char done[32], all[32], lines[32], rate[32];
    double time = now();
    if (time < p->next) return;
    p->next = time + (p->terminal ? 0.5 : 5);
    p->shown = 1;
    readable_bytes((double)stream->bytes, done);
    readable_bytes((double)stream->bytes / (time - p->begin), rate);
    fprintf(stderr, "%strace summary: %s%s%s, %s lines, %s/s%s", p->terminal ? "\r" : "", done, p->size ? " of " : "",
            p->size ? readable_bytes((double)p->size, all) : "", grouped(stream->number, lines), rate,
            p->terminal ? "\033[K" : "\n");
}

static void progress_end(const struct progress *p) {
    if (p->terminal && p->shown) fputs("\r\033[K", stderr);
}

static int read_all(struct summary *s, struct line_stream *stream, int file, const char *path) {
    struct progress progress;
    int got, failed = 0;
    progress_begin(&progress, file);
    while ((got = line_stream_next(stream)) > 0) {
        failed = summary_line(s, stream->line, stream->length, stream->number);
        if (failed) break;
        if (stream->number % 64 == 0 || progress.size == 0) progress_tell(&progress, stream);
    }
    progress_end(&progress);
    if (got < 0) {
        complain("%s: %s", path, strerror(errno));
        return EXIT_USAGE;
    }
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
    if (!code) code = check(&summary, path);
    if (!code) {
        summary_sort(&summary);
        code = summary_report(&summary, path, stream.bytes, format);
    }
    line_stream_close(&stream);
    summary_close(&summary);
    if (file != STDIN_FILENO) close(file);
    return code;
}
