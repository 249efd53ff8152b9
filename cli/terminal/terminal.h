/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A person at a terminal, for every command.
 *
 *     progress.c  one line on stderr: how far, how fast, how long still
 *     stop.c      Ctrl-C: the command ends what is at hand, says what is done and how to go on
 *     colour.c    colours, where they are welcome
 */
#ifndef TILEPROOF_CLI_TERMINAL_TERMINAL_H
#define TILEPROOF_CLI_TERMINAL_TERMINAL_H

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* A terminal that takes control sequences, so that a line can be written over: TERM is set, and not dumb. */
int is_capable(FILE *out);

/* ---- progress. On a capable terminal a line that is written over; elsewhere nothing, or with --progress a line now and then.
   One at a time; threads that share it take turns. ---- */

void progress_ask(int asked);
/* "check: 120 of 4,124 cases, 300/s, about 13 s left". of 0: how many is not known. unit NULL: they are bytes. */
void progress_begin(const char *what, double of, const char *unit);
/* So many are done; the format says what is being done now. Cheap: most calls print nothing. */
void progress_at(double done, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* So many more are done, 0 or 1; the format says what is being done now. */
void progress_next(int done, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* An estimate of the time left, for callers that have a better one than the mean of what is done; below 0: the mean again. */
void progress_left(double seconds);
void progress_tick(void); /* nothing new is done: only the clock moves on */
void progress_clear(void); /* what is printed next begins a line */
void progress_end(void);
const char *about_time(double seconds, char text[32]); /* "40 s", "6 min" */

/* ---- stopping: SIGINT and SIGTERM set a mark that commands look at; the second one ends the process at once ---- */

void stop_remember(int count, char **words); /* the command line, as given */
void stop_watch(void);
int stop_asked(void);
/* "stopped: ", on stderr; then the command line that goes on: with `more`, or "" where it begins anew. NULL: no such line.
   Returns the exit code of a run that was stopped. */
int stop_say(const char *more, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* waitpid, with progress meanwhile; a child is killed when a stop is asked for. */
pid_t stop_wait(pid_t child, int *status);

/* ---- colours: on a capable terminal, unless NO_COLOR is set ---- */

enum colour { COLOUR_NONE, COLOUR_GREEN, COLOUR_YELLOW, COLOUR_RED, COLOUR_MAGENTA, COLOUR_BLUE };
void print_coloured(FILE *out, enum colour colour, const char *text);

#endif
