/* SPDX-License-Identifier: Apache-2.0 */
#include "terminal/terminal.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

enum { LINE = 8192 };
static volatile sig_atomic_t stopped;
static pid_t watcher; /* its children hear the signal, too, and keep quiet */
static char line[LINE]; /* the command, for a shell; empty: too long */

static void on_stop(int number) {
    static const char text[] = "\nstopping after what is at hand; once more: at once\n";
    stopped = number;
    if (getpid() == watcher && isatty(STDERR_FILENO)) (void)!write(STDERR_FILENO, text, sizeof text - 1);
}

int stop_asked(void) { return stopped; }

void stop_watch(void) {
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND};
    watcher = getpid();
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* Quoted where a shell would read it otherwise. */
static void add_word(const char *word) {
    size_t used = strlen(line), plain = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./,:=@%+");
    int quoted = word[plain] || !*word;
    if (used) line[used++] = ' ';
    if (quoted) line[used++] = '\'';
    for (; *word && used + 8 < LINE; word++) {
        if (*word == '\'') memcpy(line + used, "'\\'", 3), used += 3;
        line[used++] = *word;
    }
    if (quoted) line[used++] = '\'';
    line[used] = 0;
}

void stop_remember(int count, char **words) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += 4 * strlen(words[i]) + 8;
    for (int i = 0; i < count && size < LINE; i++) add_word(words[i]);
}

int stop_say(const char *more, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    complain("stopped: %s", text);
    if (!more) return EXIT_AMBIGUOUS;
    const char *how = *more ? "to go on" : "from the beginning", *what = *line ? line : "the same command";
    int given = !*more || strstr(line, more) != NULL;
    complain("%s: %s%s%s", how, what, given ? "" : " ", given ? "" : more);
    return EXIT_AMBIGUOUS;
}

pid_t stop_wait(pid_t child, int *status) {
    static const struct timespec moment = {.tv_nsec = 20000000};
    pid_t got;
    while (!(got = waitpid(child, status, WNOHANG)) || (got < 0 && errno == EINTR)) {
        if (stop_asked()) kill(child, SIGKILL);
        progress_tick();
        nanosleep(&moment, NULL);
    }
    return got;
}
