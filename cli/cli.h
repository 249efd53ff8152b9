/* SPDX-License-Identifier: Apache-2.0 */
/* What every subcommand shares: exit codes, options, and the way it talks. */
#ifndef TILEPROOF_CLI_H
#define TILEPROOF_CLI_H

#include <stdint.h>
#include <stdio.h>

#include "tileproof_backend.h"
#include "tileproof_proof.h"

enum exit_code {
    EXIT_FINE = 0,
    EXIT_FAILED = 1,   /* a check failed, a result is wrong, or a run broke; it is slower */
    EXIT_USAGE = 2,    /* bad words, bad problem text, bad file */
    EXIT_REFUSED = 3,  /* only a fallback would serve, or nothing serves; nothing to do, or what it takes is not here */
    EXIT_AMBIGUOUS = 4, /* a comparison that cannot be decided */
    EXIT_LOCK = 5      /* something is not as a lock says */
};

/* Which subcommands take an option; also the index of the subcommand's bit. */
enum command_bit {
    COMMAND_INFO = 1,
    COMMAND_EXPLAIN = 2,
    COMMAND_RUN = 4,
    COMMAND_CHECK = 8,
    COMMAND_DEMO = 16,
    COMMAND_BENCH = 32,
    COMMAND_COMPARE = 64,
    COMMAND_PLOT = 128,
    COMMAND_MODEL = 512,
    COMMAND_QUALIFY = 1024,
    COMMAND_CANARY = 2048,
    COMMAND_TRACE = 4096,
    COMMAND_REPLAY = 8192,
    COMMAND_CAPACITY = 16384,
    COMMAND_LOCK = 32768,
    COMMAND_REPORT = 65536,
    COMMAND_COMPLETION = 1 << 17,
    COMMAND_MANUAL = 1 << 18, /* the build makes man pages by it; in no help */
    COMMAND_SIMULATED_RUN = 256 /* bench --bytes runs it under valgrind; in no help */
};

struct options {
    char disable[256]; /* several --disable are joined by commas */
    char problem[512]; /* the words that are no options, joined by blanks */
    char **files;      /* words that are no options, of commands that take files */
    int file_count;
    const char *fallback;
    const char *kernel;
    const char *strategy; /* bench: a list */
    const char *machine_file;
    const char *device; /* tool/device.h */
    const char *record; /* check: a lock that it writes; info: one that it reads */
    const char *mask;
    const char *case_name;
    /* bench: comma lists, see bench/lists.c */
    const char *shapes, *heads, *head_dims, *dtypes, *causals, *windows, *thread_list, *pages;
    const char *seconds, *format, *match, *goals_file, *against;
    const char *kv_cache; /* qualify, canary, lock, capacity, replay: the cache's format, in the words of tp_cache_format_name */
    const char *phases, *lock, *reason, *journal, *declare, *budget, *drill, *save; /* qualify, canary */
    const char *name, *wait; /* qualify: what the lock calls the model; lock too: how long another update is waited for */
    const char *model;       /* canary: the deployed config */
    int64_t keep, cells;     /* qualify: revisions of a model; lengths a phase */
    int accept_unsupported;
    const char *trace_file, *metrics_file; /* run, replay: watched.h */
    const char *assume;                    /* model, qualify: the family of a file whose model_type is not known */
    const char *engine, *runner, *require, *timeout, *python; /* qualify, canary: engine/engine.h */
    const char *models;                    /* model, qualify, replay: where models are found by name */
    int64_t layers, sample, steps, requests; /* replay */
    int64_t context, concurrency, limit;     /* capacity */
    int generate, modelled, observed;
    const char *fail_above;
    int64_t threads;
    int64_t seed;
    int64_t repeat;
    int64_t random; /* check; -1: not given */
    int64_t attempts, read_mib, cache_bytes;
    int json, verify, quick, list, verbose, goals, cliffs, bytes, memory, help;
    int update, resume, if_changed, progress;
};

struct command {
    const char *name;
    const char *words; /* what follows the name in the usage line */
    const char *help;  /* one line; NULL: not for people */
    const char *examples;
    enum command_bit bit;
    int (*function)(const struct options *options);
};

const struct command *command_at(int index); /* main.c; NULL behind the last */

/* help.c */
extern const char help_exit[];
void help_problem(FILE *out);
void help_tool(FILE *out);
void help_command(FILE *out, const struct command *command);

/* An option as a command has it. */
struct option_view {
    const char *letter;   /* "-o"; "" without one */
    const char *name;     /* "--output" */
    const char *argument; /* NULL: a flag. "a|b|c": one of these */
    const char *help;
};
/* Nonzero behind the last. */
int option_at(enum command_bit bit, int index, struct option_view *view);

/* options.c: exit code 0, or EXIT_USAGE with the reason already printed. */
int options_parse(struct options *options, const struct command *command, int count, char **words);
void options_print_help(FILE *out, enum command_bit bit);
int options_policy(const struct options *options);
/* --dtype of a cache, and --paged; what is not given is left as it is. Exit code, reason printed. */
int options_dtype(const struct options *options, int32_t *dtype);
int options_page(const struct options *options, int64_t *tokens);
/* The whole name of --kv-cache's format; 64 bytes. Exit code, reason printed. */
int options_cache(const struct options *options, char name[64]);
/* "60s" or "2m"; NULL: 0. Exit code, reason printed. */
int parse_seconds(const char *option, const char *text, double *seconds);
/* The context the options ask for; the second with more that they do not know of. */
int options_context(const struct options *options, tp_context **context);
int options_context_like(const struct options *options, const tp_context_options *more, tp_context **context);
/* Parses the problem words, shape grammar included. Exit code, reason printed. */
int options_problem(const struct options *options, tp_problem *problem, tp_lengths *lengths);
tp_choice options_choice(const struct options *options);

/* output.c */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line of a file that breaks a rule: "FILE:LINE: ...". Returns EXIT_USAGE. */
struct place {
    const char *file;
    int line;
};
int complain_at(const struct place *place, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Prints it, with the option that would help where there is one, and returns the exit code of its status. */
int complain_status(const tp_error *error);
const char *option_for(const tp_error *error); /* "; on the command line: --fallback permit", or "" */
int exit_code_of(tp_status status);
int write_to_file(void *cookie, const char *bytes, size_t size); /* a tp_write for a FILE * */
enum { TERMINAL_COLUMNS = 80 };
/* A line of which so many columns are used goes on with the words of the text; more lines begin with so many blanks. */
void print_wrapped(FILE *out, int used, int indent, const char *text);
void print_json_text(FILE *out, const char *text);               /* with quotes and escapes */
int is_utf8(const char *text);
int utf8_size(const char *text); /* bytes of the first character; 0: they are no UTF-8 */
/* To "avx2+math", unless it is one of them or "". Names for which there is no room are left out whole, and "+.." says so. */
void add_name(char *list, size_t size, const char *name);
/* amounts.c */
const char *grouped(int64_t value, char text[32]);       /* 67,108,864 */
const char *readable_bytes(double bytes, char text[32]); /* 128 MiB */

/* tool/models.c: the model of a file, or of a name in the directory that --models says; exit code, reason printed. */
int model_read(const struct options *options, const char *name, tp_model **model);
int model_known(const struct options *options, const char *name); /* would it find one? */
void models_print(const struct options *options, FILE *out);      /* the names that it would find, one a line */

int command_info(const struct options *options);
int command_explain(const struct options *options);
int command_run(const struct options *options);
int command_check(const struct options *options);
int command_demo(const struct options *options);
int command_bench(const struct options *options);
int command_compare(const struct options *options);
int command_plot(const struct options *options);
int command_simulated_run(const struct options *options);
int command_model(const struct options *options);
int command_qualify(const struct options *options);
int command_canary(const struct options *options);
int command_trace(const struct options *options);
int command_replay(const struct options *options);
int command_lock(const struct options *options);
int command_capacity(const struct options *options);
int command_report(const struct options *options);
int command_completion(const struct options *options);
int command_manual(const struct options *options);

#endif
