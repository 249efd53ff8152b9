/* SPDX-License-Identifier: Apache-2.0 */
#include "terminal/terminal.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"
#include "harness/stats.h"

enum { LINE = 512 };
/* Seconds: on a terminal soon, so that nobody wonders; in a file seldom. */
static const double first_here = 0.5, every_here = 0.2, first_elsewhere = 2, every_elsewhere = 10;

static struct {
    const char *what, *unit; /* what NULL: there is none */
    double of, done, before; /* before: what was done when it began */
    double begin, next, left;
    int terminal, shown, started;
    char remark[LINE]; /* what is at hand */
} bar;
static int asked_for;

int is_capable(FILE *out) {
    const char *term = getenv("TERM");
    return isatty(fileno(out)) && term && *term && strcmp(term, "dumb");
}

void progress_ask(int asked) { asked_for = asked; }

void progress_begin(const char *what, double of, const char *unit) {
    progress_end();
    bar.terminal = is_capable(stderr);
    bar.of = of, bar.unit = unit, bar.done = 0, bar.before = 0, bar.started = 0, bar.left = -1;
    bar.begin = now_seconds();
    bar.next = bar.begin + (bar.terminal ? first_here : first_elsewhere);
    bar.what = bar.terminal || asked_for ? what : NULL;
}

void progress_clear(void) {
    if (bar.shown && bar.terminal) fputs("\r\033[K", stderr), fflush(stderr);
    bar.shown = 0;
}

void progress_end(void) {
    progress_clear();
    bar.what = NULL;
}

void progress_left(double seconds) { bar.left = seconds; }

const char *about_time(double seconds, char text[32]) {
    if (seconds < 100)
        snprintf(text, 32, "%.0f s", fmax(1, seconds));
    else if (seconds < 100 * 60)
        snprintf(text, 32, "%.0f min", ceil(seconds / 60));
    else
        snprintf(text, 32, "%.1f h", seconds / 3600);
    return text;
}

static const char *amount(double value, char text[32]) {
    return bar.unit ? grouped((int64_t)value, text) : readable_bytes(value, text);
}

static void append(char line[LINE], const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(char line[LINE], const char *format, ...) {
    va_list arguments;
    size_t used = strlen(line);
    va_start(arguments, format);
    vsnprintf(line + used, LINE - used, format, arguments);
    va_end(arguments);
}

static int columns(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col < 20 ? 80 : size.ws_col;
}

static void show(double at) {
    char line[LINE] = "", text[32];
    double gone = at - bar.begin, made = bar.done - bar.before, rate = gone > 0 ? made / gone : 0;
    double left = bar.left >= 0 ? bar.left : bar.of > 0 && rate > 0 ? (bar.of - bar.done) / rate : -1;
    append(line, "%s: %s", bar.what, amount(bar.done, text));
    if (bar.of > 0) append(line, " of %s", amount(bar.of, text));
    if (bar.unit) append(line, " %s", bar.unit);
    if (rate > 0 && bar.unit) append(line, rate < 10 ? ", %.2g/s" : ", %.0f/s", rate);
    if (rate > 0 && !bar.unit) append(line, ", %s/s", readable_bytes(rate, text));
    if (left >= 0) append(line, ", about %s left", about_time(left, text));
    if (*bar.remark && bar.terminal) append(line, "  %s", bar.remark);
    if (bar.terminal)
        fprintf(stderr, "\r%.*s\033[K", columns() - 1, line);
    else
        fprintf(stderr, "%s\n", line);
    fflush(stderr);
    bar.shown = 1;
    bar.next = at + (bar.terminal ? every_here : every_elsewhere);
}

void progress_tick(void) {
    double at = bar.what ? now_seconds() : 0;
    if (bar.what && at >= bar.next) show(at);
}

static void tell(double done, const char *format, va_list arguments) {
    if (!bar.what) return;
    if (!bar.started) bar.before = done, bar.started = 1;
    bar.done = done;
    vsnprintf(bar.remark, sizeof bar.remark, format, arguments);
    progress_tick();
}

void progress_at(double done, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    tell(done, format, arguments);
    va_end(arguments);
}

void progress_next(int done, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    tell(bar.done + done, format, arguments);
    va_end(arguments);
}
