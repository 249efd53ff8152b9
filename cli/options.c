/* SPDX-License-Identifier: Apache-2.0 */
/* One table of options; each row says which subcommands take it. */
#include "cli.h"
#include "harness/text_file.h"
#include "tool/device.h"
#include "tool/files.h"
#include "tool/nearest.h"
#include "tool/shape.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_MAX_BYTES = 1 << 16 };
enum option_kind { FLAG, NUMBER, UNITS, TEXT, JOINED }; /* UNITS: a number with k, m, g or t behind it, or not */

struct option_row {
    const char *name, *argument, *help;
    enum option_kind kind;
    size_t offset;
    unsigned commands;
};

enum {
    PLANNING = COMMAND_EXPLAIN | COMMAND_RUN,
    PROOF = COMMAND_QUALIFY | COMMAND_CANARY,
    WATCHED = COMMAND_RUN | COMMAND_REPLAY,
    FILES = COMMAND_COMPARE | COMMAND_PLOT | COMMAND_MODEL | COMMAND_TRACE | COMMAND_REPLAY | COMMAND_CAPACITY | COMMAND_LOCK |
            COMMAND_REPORT | PROOF,
    LONG = COMMAND_RUN | COMMAND_CHECK | COMMAND_DEMO | COMMAND_BENCH | COMMAND_COMPARE | COMMAND_TRACE | COMMAND_REPLAY | PROOF,
    EVERY = COMMAND_INFO | PLANNING | COMMAND_CHECK | COMMAND_DEMO | COMMAND_BENCH | COMMAND_COMPLETION | FILES
};

#define FIELD(name) offsetof(struct options, name)
static const struct option_row rows[] = {
    {"--disable", "NAME[,NAME]", "kernels that may not serve", JOINED, FIELD(disable),
     PLANNING | COMMAND_REPLAY | COMMAND_QUALIFY | COMMAND_CAPACITY},
    {"--fallback", "refuse|permit|serve", "may a lower tier serve? default refuse", TEXT, FIELD(fallback),
     PLANNING | COMMAND_REPLAY | COMMAND_CAPACITY | PROOF},
    {"--kernel", "NAME", "only this kernel", TEXT, FIELD(kernel), PLANNING},
    {"--strategy", "prefill|decode", "this loop for every sequence; default by its rows", TEXT,
     FIELD(strategy), PLANNING},
    {"--device", "opencl[:N]", "on a device of tileproof info, by its kernels alone; default the CPU", TEXT, FIELD(device),
     PLANNING | COMMAND_CHECK | COMMAND_CAPACITY | COMMAND_LOCK | PROOF},
    {"--record", "LOCK", "with --device: that all cases passed there, for `tileproof info`", TEXT, FIELD(record), COMMAND_CHECK},
    {"--record", "LOCK", "where OpenCL kernels were checked: a lock of check --record", TEXT, FIELD(record), COMMAND_INFO},
    {"--kernel", "RE", "kernels whose name matches", TEXT, FIELD(kernel), COMMAND_CHECK},
    {"--mask", "RE", "cases whose masks match: none, top-left, or names of tileproof info", TEXT, FIELD(mask),
     COMMAND_CHECK},
    {"--case", "RE", "cases whose name matches", TEXT, FIELD(case_name), COMMAND_CHECK},
    {"--threads", "N", "threads; default what affinity and cgroup allow", NUMBER, FIELD(threads),
     PLANNING | COMMAND_CHECK | COMMAND_REPLAY | COMMAND_CAPACITY | PROOF},
    {"--trace", "FILE", "one line of JSON for every call", TEXT, FIELD(trace_file), WATCHED},
    {"--metrics", "FILE", "counts at the end, as Prometheus text; -: standard output", TEXT,
     FIELD(metrics_file), WATCHED},
    {"--threads", "N", "threads; default 1", NUMBER, FIELD(threads), COMMAND_DEMO},
    {"--machine", "FILE", "plan for the machine recorded in FILE", TEXT, FIELD(machine_file),
     COMMAND_EXPLAIN},
    {"--seed", "N", "seed of the random data; default 1", NUMBER, FIELD(seed),
     COMMAND_RUN | COMMAND_CHECK | COMMAND_DEMO | COMMAND_BENCH | COMMAND_SIMULATED_RUN | COMMAND_CANARY},
    {"--repeat", "N", "run N times, print all times; default 1", NUMBER, FIELD(repeat),
     COMMAND_RUN},
    {"--verify", NULL, "compare sampled rows with the double reference", FLAG, FIELD(verify),
     COMMAND_RUN | COMMAND_BENCH},
    {"--quick", NULL, "every hostile case, a tenth of the grid", FLAG, FIELD(quick), COMMAND_CHECK},
    {"--quick", NULL, "with --cliffs: fewer points", FLAG, FIELD(quick), COMMAND_BENCH},
    {"--list", NULL, "print the names of the cases and stop", FLAG, FIELD(list), COMMAND_CHECK},
    {"--random", "N", "N problems drawn over all words instead of the cases", NUMBER, FIELD(random), COMMAND_CHECK},
    {"--budget", "SECONDS", "10m: draw problems for so long instead", TEXT, FIELD(budget), COMMAND_CHECK},
    {"-v", NULL, "print every case", FLAG, FIELD(verbose), COMMAND_CHECK},
    {"--shape", "LIST", "q2k, 8q1s4k, 2q2k_32q1s1k; default q1k,q4k", TEXT, FIELD(shapes),
     COMMAND_BENCH},
    {"--heads", "LIST", "query heads / KV heads; default 4/4", TEXT, FIELD(heads),
     COMMAND_BENCH},
    {"--head-dim", "LIST", "64-128+8, 192/128; default 64,128", TEXT, FIELD(head_dims),
     COMMAND_BENCH},
    {"--dtype", "LIST", "f32 f16 bf16 bf16->f32; default f32", TEXT, FIELD(dtypes),
     COMMAND_BENCH},
    {"--causal", "LIST", "0, 1 or 0,1; default 0,1", TEXT, FIELD(causals), COMMAND_BENCH},
    {"--window", "LIST", "keys with the row's own, or LEFT/RIGHT; 0: none", TEXT,
     FIELD(windows), COMMAND_BENCH},
    {"--kernel", "LIST", "names, or best; default best", TEXT, FIELD(kernel),
     COMMAND_BENCH | COMMAND_SIMULATED_RUN},
    {"--strategy", "LIST", "auto, prefill, decode; default auto", TEXT, FIELD(strategy),
     COMMAND_BENCH},
    {"--paged", "LIST", "tokens of a page; 0: not paged", TEXT, FIELD(pages), COMMAND_BENCH},
    {"--threads", "LIST", "default 1", TEXT, FIELD(thread_list), COMMAND_BENCH},
    {"--repeat", "N", "spaced attempts a row; default 5", NUMBER, FIELD(attempts),
     COMMAND_BENCH},
    {"--seconds", "S", "time a row, over all attempts; default 0.1 or one run each", TEXT,
     FIELD(seconds), COMMAND_BENCH},
    {"--output", "md|csv|json|jsonl", "what is printed; default md", TEXT, FIELD(format),
     COMMAND_BENCH | COMMAND_COMPARE},
    {"--against", "WHAT", "a verdict on each row: against this kernel, or this problem", TEXT,
     FIELD(against), COMMAND_BENCH},
    {"--context", "N", "tokens of a sequence, prompt and output: 8192, 128k", UNITS, FIELD(context), COMMAND_CAPACITY},
    {"--concurrency", "N", "sequences at once", UNITS, FIELD(concurrency), COMMAND_CAPACITY},
    {"--limit", "BYTES", "64g: exit 1 when it does not fit; default this host's memory", UNITS, FIELD(limit), COMMAND_CAPACITY},
    {"--dtype", "f32|f16|bf16", "of the cache; default the model's", TEXT, FIELD(dtypes), COMMAND_CAPACITY},
    {"--paged", "N", "tokens of a page; default no pages", TEXT, FIELD(pages), COMMAND_CAPACITY},
    {"--output", "text|json|md", "what is printed; default text", TEXT, FIELD(format),
     COMMAND_MODEL | COMMAND_CAPACITY},
    {"--output", "text|json", "what is printed; default text", TEXT, FIELD(format), COMMAND_LOCK},
    {"--match", "RE", "rows, or goals, whose text matches", TEXT, FIELD(match), COMMAND_BENCH},
    {"--read-mib", "N", "buffer of the read limit; default 512, 0: not measured", NUMBER,
     FIELD(read_mib), COMMAND_BENCH | COMMAND_CAPACITY},
    {"--goals", NULL, "measure the goals; exit 1 when a floor is not met", FLAG, FIELD(goals),
     COMMAND_BENCH},
    {"--goals-file", "FILE", "goals of FILE instead of the built-in ones", TEXT, FIELD(goals_file),
     COMMAND_BENCH},
    {"--cliffs", NULL, "scan lengths and head dims by 1; exit 1 when one is a cliff", FLAG,
     FIELD(cliffs), COMMAND_BENCH},
    {"--bytes", NULL, "main-memory bytes under valgrind: simulated, no prefetcher", FLAG,
     FIELD(bytes), COMMAND_BENCH},
    {"--cache", "BYTES", "with --bytes: simulate a last cache of so many; 2m, 512k", UNITS,
     FIELD(cache_bytes), COMMAND_BENCH | COMMAND_SIMULATED_RUN},
    {"--memory", NULL, "peak temporary memory, each row in a process of its own", FLAG,
     FIELD(memory), COMMAND_BENCH},
    {"--output", "DIR", "where the plots go; default .", TEXT, FIELD(format), COMMAND_PLOT},
    {"--assume", "FAMILY", "read a model_type that is not known as this decoder: llama", TEXT, FIELD(assume),
     COMMAND_MODEL | PROOF | COMMAND_CAPACITY},
    {"--phases", "LIST", "prefill,decode,varlen,mixed,multimodal; default all", TEXT, FIELD(phases),
     COMMAND_QUALIFY},
    {"--quick", NULL, "fewer lengths a phase", FLAG, FIELD(quick), COMMAND_QUALIFY},
    {"--cells", "N", "at most N lengths a phase; 1: the main one alone; default all", NUMBER, FIELD(cells), COMMAND_QUALIFY},
    {"--quick", NULL, "with --model: fewer lengths of a new revision; fewer rows compared", FLAG, FIELD(quick), COMMAND_CANARY},
    {"--dtype", "f32|f16|bf16", "where a file names none; default bf16", TEXT, FIELD(dtypes),
     COMMAND_QUALIFY},
    {"--paged", "N", "tokens of a page, where keys lie in pages; default 16", TEXT, FIELD(pages),
     COMMAND_QUALIFY},
    {"--kv-cache", "FORMAT", "keys and values as i8, i8/q8_0, i4, e4m3, e4m3/token or K:V; default plain", TEXT, FIELD(kv_cache),
     COMMAND_QUALIFY | COMMAND_CAPACITY | COMMAND_REPLAY},
    {"--kv-cache", "FORMAT", "cells with this cache; default of any, and with --model plain", TEXT, FIELD(kv_cache),
     COMMAND_CANARY},
    {"--kv-cache", "FORMAT", "list, show, diff, drop: revisions with this cache; default of any", TEXT, FIELD(kv_cache),
     COMMAND_LOCK},
    {"--output", "md|csv|json|jsonl", "what is printed; default a short table", TEXT, FIELD(format),
     COMMAND_QUALIFY},
    {"-v", NULL, "every layer group by phase, as -o md", FLAG, FIELD(verbose), COMMAND_QUALIFY},
    {"--output", "md|csv|json|jsonl", "what is printed; default md", TEXT, FIELD(format), COMMAND_CANARY},
    {"--lock", "FILE", "hold the cells against it; with --update write it", TEXT, FIELD(lock),
     COMMAND_QUALIFY},
    {"--update", NULL, "write the lock; demands --reason", FLAG, FIELD(update), COMMAND_QUALIFY},
    {"--reason", "TEXT", "why the lock changes; its history keeps it", TEXT, FIELD(reason),
     COMMAND_QUALIFY | COMMAND_LOCK},
    {"--name", "NAME", "what the lock calls the model; default its file, or the folder of a config.json", TEXT, FIELD(name),
     COMMAND_QUALIFY | COMMAND_CANARY},
    {"--keep", "N", "with --update: revisions of a model that stay in the lock; default 3", NUMBER, FIELD(keep), COMMAND_QUALIFY},
    {"--accept-unsupported", NULL, "with --update: cells that are refused, too", FLAG, FIELD(accept_unsupported),
     COMMAND_QUALIFY},
    {"--wait", "SECONDS", "for another process that changes the lock; default 60s", TEXT, FIELD(wait),
     COMMAND_QUALIFY | COMMAND_LOCK},
    {"--declare", "NAME=VERSION[,..]", "versions of yours that make a lock stale", TEXT, FIELD(declare),
     PROOF | COMMAND_LOCK},
    {"--engine", "NAME[:cpu|:cuda]", "run by torch, flex, onnxruntime, openvino, vllm, ggml or flash_attn", TEXT, FIELD(engine),
     PROOF},
    {"--runner", "CMD", "run by any other engine: a program that speaks docs/runner-protocol.md", TEXT, FIELD(runner),
     PROOF},
    {"--require", "LIST", "contained,deterministic,empty: engines that are not so fail", TEXT, FIELD(require),
     PROOF},
    {"--timeout", "SECONDS", "60s, 2m: for each answer of a runner; default 300s", TEXT, FIELD(timeout), PROOF},
    {"--python", "CMD", "the Python that has the package and the engine; default python3", TEXT, FIELD(python),
     PROOF},
    {"--save", "FILE", "the rows as JSON, beside what is printed", TEXT, FIELD(save), COMMAND_QUALIFY},
    {"--journal", "FILE", "finished cells; default beside the lock", TEXT, FIELD(journal),
     COMMAND_QUALIFY},
    {"--resume", NULL, "take finished cells from the journal", FLAG, FIELD(resume), COMMAND_QUALIFY},
    {"--if-changed", NULL, "nothing is run where this host is one of the lock's and each --model one of its revisions", FLAG,
     FIELD(if_changed), COMMAND_CANARY},
    {"--model", "CONFIG...", "the deployed configs, folders or names: are they revisions of the lock? If not, what differs", TEXT,
     FIELD(model), COMMAND_CANARY},
    {"--metrics", "FILE", "success time, verdicts and lock state, for node-exporter's textfile collector", TEXT,
     FIELD(metrics_file), COMMAND_CANARY},
    {"--against", "OLD.so", "speed: that library against this tool's", TEXT, FIELD(against),
     COMMAND_CANARY},
    {"--budget", "SECONDS", "60s, 2m: what does not fit is not run, exit 4; default all", TEXT,
     FIELD(budget), COMMAND_CANARY},
    {"--drill", "WHAT", "no:HEAD_DIM=96, no:KERNEL or slow:KERNEL=1.2 (simulated)", TEXT, FIELD(drill),
     COMMAND_CANARY},
    {"--output", "FILE", "of convert where the events go, default standard output; of summary text, json or md", TEXT,
     FIELD(format),
     COMMAND_TRACE},
    {"--output", "FILE", "the report as JSON; with --generate: the requests", TEXT, FIELD(format),
     COMMAND_REPLAY},
    {"--output", "FILE", "the page; default report.html", TEXT, FIELD(format), COMMAND_REPORT},
    {"--models", "DIR", "where a model NAME is NAME.json; default models, or the installed ones", TEXT,
     FIELD(models), COMMAND_REPLAY | COMMAND_MODEL | PROOF | COMMAND_CAPACITY},
    {"--layers", "N", "layers of a group that are run; the rest count as they did; default 1", NUMBER,
     FIELD(layers), COMMAND_REPLAY},
    {"--sample", "N", "run N of the requests, evenly spaced; default all", NUMBER, FIELD(sample),
     COMMAND_REPLAY},
    {"--steps", "N", "decode steps of a request that are run; default 2", NUMBER, FIELD(steps), COMMAND_REPLAY},
    {"--modelled", NULL, "costs from bytes and flops of the receipts instead of time", FLAG, FIELD(modelled),
     COMMAND_REPLAY},
    {"--observed", NULL, "nothing is run: ttft_ms, queue_ms, tpot_ms and kernel of a log", FLAG, FIELD(observed), COMMAND_REPLAY},
    {"--against", "REPORT", "what changed since an earlier report", TEXT, FIELD(against), COMMAND_REPLAY},
    {"--fail-above", "FACTOR", "with --against: exit 1 when a p99 has grown by more; 1.5", TEXT, FIELD(fail_above),
     COMMAND_REPLAY},
    {"--generate", NULL, "write a long-tailed trace of requests instead", FLAG, FIELD(generate),
     COMMAND_REPLAY},
    {"--requests", "N", "with --generate: how many; default 200", NUMBER, FIELD(requests), COMMAND_REPLAY},
    {"--seed", "N", "of --generate; default 1", NUMBER, FIELD(seed), COMMAND_REPLAY},
    {"--json", NULL, "JSON instead of text", FLAG, FIELD(json), COMMAND_INFO | PLANNING},
    {"--progress", NULL, "how far it is, on standard error; default on a terminal alone", FLAG, FIELD(progress), LONG},
    {"--help", NULL, "this help", FLAG, FIELD(help), EVERY},
};
enum { ROW_COUNT = sizeof rows / sizeof *rows };

/* Short names, for the commands that have the long one. */
static const struct {
    char letter[3];
    const char *name;
} letters[] = {{"-s", "--shape"},  {"-H", "--heads"},  {"-d", "--head-dim"}, {"-t", "--dtype"},
               {"-c", "--causal"}, {"-w", "--window"}, {"-k", "--kernel"},   {"-j", "--threads"},
               {"-r", "--repeat"}, {"-o", "--output"}, {"-S", "--strategy"}, {"-p", "--paged"}};

/* Nonzero: the command takes short names. */
static int has_letters(enum command_bit bit) { return bit & (COMMAND_BENCH | FILES); }

int option_at(enum command_bit bit, int index, struct option_view *view) {
    for (int i = 0; i < ROW_COUNT; i++) {
        if (!(rows[i].commands & bit) || index--) continue;
        *view = (struct option_view){"", rows[i].name, rows[i].argument, rows[i].help};
        for (size_t l = 0; l < sizeof letters / sizeof *letters && has_letters(bit); l++)
            if (!strcmp(letters[l].name, rows[i].name)) view->letter = letters[l].letter;
        return 0;
    }
    return 1;
}

void options_print_help(FILE *out, enum command_bit bit) {
    struct option_view view;
    for (int i = 0; !option_at(bit, i, &view); i++) {
        char left[256];
        snprintf(left, sizeof left, "%s%s%s %s", view.letter, *view.letter ? ", " : "", view.name,
                 view.argument ? view.argument : "");
        fprintf(out, strlen(left) > 24 ? "  %s\n%27s" : "  %-24s%s ", left, "");
        print_wrapped(out, 27, 27, view.help);
    }
}

static const struct option_row *find_row(const char *word, size_t length, enum command_bit bit) {
    for (size_t i = 0; length == 2 && i < sizeof letters / sizeof *letters; i++)
        if (!memcmp(letters[i].letter, word, 2) && has_letters(bit)) {
            word = letters[i].name;
            length = strlen(word);
            break;
        }
    for (int i = 0; i < ROW_COUNT; i++)
        if ((rows[i].commands & bit) && strlen(rows[i].name) == length &&
            !memcmp(rows[i].name, word, length))
            return &rows[i];
    return NULL;
}

static int complain_option(const char *word, size_t length, const struct command *command) {
    char given[80];
    snprintf(given, sizeof given, "%.*s", (int)length, word);
    struct nearest nearest = nearest_to(given);
    for (int i = 0; i < ROW_COUNT; i++)
        if (rows[i].commands & command->bit) nearest_try(&nearest, rows[i].name);
    complain("unknown option '%s' for %s: tileproof help %s lists them%s", given, command->name, command->name,
             nearest_question(&nearest));
    return EXIT_USAGE;
}

/* Appends with a separator; nonzero when it does not fit. */
static int append(char *text, size_t size, char separator, const char *word) {
    size_t used = strlen(text);
    if (used + strlen(word) + 2 > size) return 1;
    if (used) text[used++] = separator;
    strcpy(text + used, word);
    return 0;
}

static int store(struct options *options, const struct option_row *row, const char *value) {
    void *field = (char *)options + row->offset;
    switch (row->kind) {
    case FLAG: *(int *)field = 1; return 0;
    case TEXT: *(const char **)field = value; return 0;
    case JOINED:
        if (!append(field, sizeof options->disable, ',', value)) return 0;
        complain("%s is too long: at most %zu characters", row->name, sizeof options->disable - 1);
        return EXIT_USAGE;
    case NUMBER:
    case UNITS: break;
    }
    char *end;
    errno = 0;
    long long number = strtoll(value, &end, 10), unit = 1;
    static const char prefixes[] = "kmgt";
    const char *prefix = row->kind == UNITS && end != value && *end ? strchr(prefixes, *end) : NULL;
    if (prefix) {
        unit <<= 10 * (prefix - prefixes + 1);
        end++;
    }
    if (end == value || *end || number < 0 || errno || number > INT64_MAX / unit) {
        complain("%s is '%s': it must be a whole number of at least 0%s", row->name, value,
                 row->kind == UNITS ? ", with k, m, g or t behind it or not" : "");
        return EXIT_USAGE;
    }
    number *= unit;
    *(int64_t *)field = number;
    return 0;
}

static int check_values(const struct options *options) {
    const char *fallback = options->fallback;
    if (fallback && strcmp(fallback, "refuse") && strcmp(fallback, "permit") && strcmp(fallback, "serve")) {
        complain("--fallback is '%s': it must be refuse, permit or serve", fallback);
        return EXIT_USAGE;
    }
    if (options->repeat < 1 || options->repeat > 100000) {
        complain("--repeat is %lld: it must be in 1..100000", (long long)options->repeat);
        return EXIT_USAGE;
    }
    if (options->random == 0) {
        complain("--random is 0: it must be at least 1");
        return EXIT_USAGE;
    }
    if (options->keep < 1 || options->keep > 1000) {
        complain("--keep is %lld: it must be in 1..1000", (long long)options->keep);
        return EXIT_USAGE;
    }
    if (options->threads > 1024) {
        complain("--threads is %lld: it must be in 0..1024", (long long)options->threads);
        return EXIT_USAGE;
    }
    return 0;
}

int options_parse(struct options *options, const struct command *command, int count, char **words) {
    memset(options, 0, sizeof *options);
    options->seed = 1;
    options->random = -1; /* not asked for */
    options->repeat = 1;
    options->attempts = 5;
    options->read_mib = 512;
    options->layers = 1;
    options->steps = 2;
    options->requests = 200;
    options->keep = TP_LOCK_KEEP;
    options->files = words;
    int only_words = 0;
    for (int i = 0; i < count; i++) {
        const char *word = words[i];
        if (only_words || word[0] != '-' || !word[1]) {
            if (!*command->words) {
                complain("%s takes no words: '%s' is one too many", command->name, word);
                return EXIT_USAGE;
            }
            if (command->bit & FILES) {
                words[options->file_count++] = words[i]; /* files; never ahead of i */
                continue;
            }
            if (append(options->problem, sizeof options->problem, ' ', word)) {
                complain("the problem is too long: at most %zu characters",
                         sizeof options->problem - 1);
                return EXIT_USAGE;
            }
            continue;
        }
        if (!strcmp(word, "--")) {
            only_words = 1;
            continue;
        }
        if (!strcmp(word, "-h")) word = "--help";
        size_t length = strcspn(word, "=");
        const struct option_row *row = find_row(word, length, command->bit);
        if (!row) return complain_option(word, length, command);
        const char *value = word[length] ? word + length + 1 : NULL;
        if (row->kind == FLAG && value) {
            complain("%s takes no value: '%s' is one too many", row->name, value);
            return EXIT_USAGE;
        }
        if (row->kind != FLAG && !value) {
            if (++i == count) {
                complain("%s needs a value: %s %s", row->name, row->name, row->argument);
                return EXIT_USAGE;
            }
            value = words[i];
        }
        int code = store(options, row, value);
        if (code) return code;
    }
    return check_values(options);
}

int options_dtype(const struct options *options, int32_t *dtype) {
    if (!options->dtypes) return EXIT_FINE;
    for (int i = TP_F32; i <= TP_BF16; i++)
        if (!strcmp(options->dtypes, tp_dtype_name((tp_dtype)i))) {
            *dtype = i;
            return EXIT_FINE;
        }
    complain("--dtype is '%s': it must be f32, f16 or bf16", options->dtypes);
    return EXIT_USAGE;
}

int options_page(const struct options *options, int64_t *tokens) {
    char *end;
    if (!options->pages) return EXIT_FINE;
    *tokens = strtoll(options->pages, &end, 10);
    if (!*end && *tokens >= 1 && *tokens <= 4096) return EXIT_FINE;
    complain("--paged is '%s': it must be in 1..4096", options->pages);
    return EXIT_USAGE;
}

int options_cache(const struct options *options, char name[64]) {
    tp_error error = TP_ERROR_INIT;
    if (tp_cache_format_name(options->kv_cache, name, 64, &error) == TP_OK) return EXIT_FINE;
    complain("--kv-%s", error.text); /* "cache is 'fp8': it must be ..." */
    return EXIT_USAGE;
}

int parse_seconds(const char *option, const char *text, double *seconds) {
    char *end;
    *seconds = 0;
    if (!text) return EXIT_FINE;
    double number = strtod(text, &end);
    if (end != text && *end == 'm') number *= 60;
    if (end != text && (*end == 's' || *end == 'm')) end++;
    if (end != text && !*end && number > 0 && number <= 86400) {
        *seconds = number;
        return EXIT_FINE;
    }
    complain("%s is '%s': it must be seconds, as 60s or 2m, at most a day", option, text);
    return EXIT_USAGE;
}

int options_policy(const struct options *options) {
    if (!options->fallback || !strcmp(options->fallback, "refuse")) return TP_REFUSE;
    return !strcmp(options->fallback, "permit") ? TP_PERMIT : TP_SERVE;
}

tp_choice options_choice(const struct options *options) {
    tp_choice choice = TP_CHOICE_INIT;
    choice.policy = options_policy(options);
    choice.kernel = options->kernel;
    choice.strategy = options->strategy;
    choice.device = device_number();
    return choice;
}

/* A recorded machine is the first line that is not empty and no '#' remark. */
static int read_machine(const char *path, tp_machine *machine) {
    tp_error error = TP_ERROR_INIT;
    size_t size, length;
    char *text = file_text(path, MACHINE_MAX_BYTES, &size), *at = text, *line = NULL;
    if (!text) return EXIT_USAGE;
    do
        line = text_line(&at, text + size, &length);
    while (line && (line[strspn(line, " \t\r")] == 0 || line[0] == '#'));
    if (line) line[strcspn(line, "\r")] = 0;
    int code = !line ? EXIT_USAGE : tp_machine_parse(line, machine, &error) == TP_OK ? EXIT_FINE : complain_status(&error);
    if (!line) complain("--machine %s: it holds no machine text", path);
    free(text);
    return code;
}

int options_context(const struct options *options, tp_context **context) {
    static const tp_context_options none = TP_CONTEXT_OPTIONS_INIT;
    return options_context_like(options, &none, context);
}

int options_context_like(const struct options *options, const tp_context_options *more, tp_context **context) {
    tp_context_options wanted = *more;
    tp_machine machine;
    wanted.threads = (int32_t)options->threads;
    wanted.policy = options_policy(options);
    wanted.disable = options->disable[0] ? options->disable : NULL;
    if (options->machine_file) {
        int code = read_machine(options->machine_file, &machine);
        if (code) return code;
        wanted.machine = &machine;
    }
    tp_error error = TP_ERROR_INIT;
    int code = device_open(options);
    if (code) return code;
    wanted.backend = device_backend();
    return tp_context_create(&wanted, context, &error) == TP_OK ? 0 : complain_status(&error);
}

int options_problem(const struct options *options, tp_problem *problem, tp_lengths *lengths) {
    tp_error error = TP_ERROR_INIT;
    char text[1024], reason[256];
    if (!options->problem[0]) {
        complain("no problem given: for example q4k h32/8 d128 bf16 causal");
        return EXIT_USAGE;
    }
    if (shape_expand(options->problem, text, sizeof text, reason, sizeof reason)) {
        complain("%s", reason);
        return EXIT_USAGE;
    }
    memset(lengths, 0, sizeof *lengths);
    lengths->struct_size = sizeof *lengths;
    return tp_problem_parse(text, problem, lengths, &error) == TP_OK ? 0 : complain_status(&error);
}
