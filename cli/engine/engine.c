/* SPDX-License-Identifier: Apache-2.0 */
/* An engine by its name or by a command; the greeting of its runner; a new runner when one broke. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BAD_STARTS = 3, MAX_LINES = 64 };
static const double default_timeout = 300;
static const char first_line[] = "tileproof-runner 1";
static const char *const names[] = {"torch", "flex", "onnxruntime", "openvino", "vllm", "ggml", "flash_attn", "tileproof"};
enum { NAMES = sizeof names / sizeof *names };

/* Another line "name=value", whole or not at all. 1: it is none. */
static int add_version(char *list, size_t size, const char *value) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
    size_t used = strlen(list), name = strspn(value, letters), length = strlen(value);
    if (!name || value[name] != '=' || !value[name + 1] || length > 255 || used + length + 2 > size) return 1;
    snprintf(list + used, size - used, "%s%s", used ? "\n" : "", value);
    return 0;
}

static void print_ascii(char *text) {
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7E) *text = '?';
}

/* One line of a greeting; 1: it is none. */
static int take(struct greeting *g, const char *line) {
    const char *value;
    if ((value = line_value(line, "engine")))
        snprintf(g->name, sizeof g->name, "%.63s", value);
    else if ((value = line_value(line, "device")))
        snprintf(g->device, sizeof g->device, "%.63s", value);
    else if ((value = line_value(line, "mode")))
        snprintf(g->mode, sizeof g->mode, "%.63s", value);
    else if ((value = line_value(line, "version")))
        return add_version(g->versions, sizeof g->versions, value);
    else if ((value = line_value(line, "host")))
        return add_version(g->host, sizeof g->host, value);
    else
        return 1;
    return 0;
}

/* 0; 1: why; -1: the engine cannot run here, why. */
static int greet(struct process *process, struct greeting *g, char why[PROCESS_WHY]) {
    char line[PROCESS_LINE];
    const char *value;
    int lines = 0;
    *g = (struct greeting){.name = ""};
    for (;; lines++) {
        if (process_receive(process, line, why)) return 1;
        print_ascii(line);
        if (lines && !strcmp(line, "end")) break;
        value = lines ? line_value(line, "unavailable") : NULL;
        if (value) snprintf(why, PROCESS_WHY, "%.250s", value);
        if (value) return -1;
        if (lines < MAX_LINES && (lines ? !take(g, line) : !strcmp(line, first_line))) continue;
        snprintf(why, PROCESS_WHY, "the runner wrote '%.60s': %s", line,
                 lines ? "no line of a greeting" : "it must begin with 'tileproof-runner 1'");
        return 1;
    }
    if (g->name[0] && g->device[0]) return 0;
    snprintf(why, PROCESS_WHY, "the runner's greeting does not name its %s", g->name[0] ? "device" : "engine");
    return 1;
}

/* As greet(). A runner that takes the place of another must be the same. */
static int start(struct engine *e, char why[PROCESS_WHY]) {
    struct greeting greeting;
    if (process_start(&e->process, e->words, why)) return 1;
    int failed = greet(&e->process, &greeting, why);
    if (!failed && e->greeting.name[0] && memcmp(&greeting, &e->greeting, sizeof greeting)) {
        snprintf(why, PROCESS_WHY, "the runner says now that it is %.60s on %.60s, or of other versions, than at first",
                 greeting.name, greeting.device);
        failed = 1;
    }
    if (failed)
        process_stop(&e->process, 0);
    else
        e->greeting = greeting;
    return failed;
}

static tp_status run(void *user, const tp_engine_call *call, tp_engine_answer *answer) {
    struct engine *e = user;
    char why[PROCESS_WHY];
    tp_status status = TP_OK;
    if (!e->process.pid) {
        int failed = start(e, why);
        e->bad_starts = failed ? e->bad_starts + 1 : 0;
        if (failed) {
            snprintf(e->reasons, sizeof e->reasons, "%s", why);
            answer->reasons = e->reasons;
            return e->bad_starts < MAX_BAD_STARTS ? TP_INVALID : TP_MACHINE;
        }
    }
    if (!engine_call(e, call, answer, &status, why)) return status;
    process_stop(&e->process, 0);
    snprintf(e->reasons, sizeof e->reasons, "%s", why);
    return TP_INVALID;
}

static int parse_require(const char *text, uint32_t *require) {
    static const char *const words[] = {"contained", "deterministic", "empty"};
    while (text && *text) {
        size_t length = strcspn(text, ",");
        int found = -1;
        for (int i = 0; i < 3; i++)
            if (strlen(words[i]) == length && !memcmp(words[i], text, length)) found = i;
        if (found < 0) {
            complain("--require has '%.*s': it must be contained, deterministic or empty", (int)length, text);
            return EXIT_USAGE;
        }
        *require |= 1u << found;
        text += length + (text[length] == ',');
    }
    return EXIT_FINE;
}

/* torch:cuda on 2 threads becomes python3 -m tileproof.engines torch --device cuda --threads 2. */
static int name_command(struct engine *e, const struct options *options) {
    const char *colon = strchr(options->engine, ':');
    size_t length = colon ? (size_t)(colon - options->engine) : strlen(options->engine);
    int known = 0, word = 0;
    for (int i = 0; i < NAMES; i++) known |= strlen(names[i]) == length && !memcmp(names[i], options->engine, length);
    if (!known || (colon && strcmp(colon, ":cpu") && strcmp(colon, ":cuda"))) {
        complain(
            "--engine is '%s': it must be torch, flex, onnxruntime, openvino, vllm, ggml, flash_attn or tileproof, with :cpu or "
            ":cuda behind it or not; --runner CMD is for others",
            options->engine);
        return EXIT_USAGE;
    }
    snprintf(e->engine, sizeof e->engine, "%.*s", (int)length, options->engine);
    snprintf(e->threads, sizeof e->threads, "%lld", (long long)options->threads);
    const char *const words[] = {options->python ? options->python : "python3", "-m", "tileproof.engines", e->engine,
                                 "--threads", e->threads, colon ? "--device" : NULL, colon ? colon + 1 : NULL};
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++) e->words[word++] = (char *)(uintptr_t)words[i];
    return EXIT_FINE;
}

static int shell_command(struct engine *e, const char *command) {
    const char *const words[] = {"/bin/sh", "-c", command};
    for (int i = 0; i < 3; i++) e->words[i] = (char *)(uintptr_t)words[i];
    return EXIT_FINE;
}

static int configure(struct engine *e, const struct options *options) {
    int code = parse_require(options->require, &e->api.require);
    if (!code) code = parse_seconds("--timeout", options->timeout, &e->process.timeout);
    if (!options->timeout) e->process.timeout = default_timeout;
    if (!code) code = options->runner ? shell_command(e, options->runner) : name_command(e, options);
    return code;
}

int engine_open(const struct options *options, struct engine **engine) {
    char why[PROCESS_WHY];
    *engine = NULL;
    int none = !options->runner && (!options->engine || !strcmp(options->engine, "tileproof"));
    if (none && (options->require || options->timeout)) {
        complain("%s is for --engine and --runner", options->require ? "--require" : "--timeout");
        return EXIT_USAGE;
    }
    if (none) return EXIT_FINE;
    if (options->runner && options->engine) {
        complain("--runner and --engine: one of them says what runs the cells");
        return EXIT_USAGE;
    }
    struct engine *e = calloc(1, sizeof *e);
    if (!e) {
        complain("out of memory");
        return EXIT_FAILED;
    }
    e->api = (tp_engine)TP_ENGINE_INIT;
    e->api.run = run;
    e->api.user = e;
    e->process.socket = e->process.file = -1;
    int code = configure(e, options), failed = code ? 0 : start(e, why);
    if (failed) {
        complain("%s%s: %s", failed < 0 ? "not run here: " : "", options->runner ? options->runner : options->engine, why);
        code = failed < 0 ? EXIT_REFUSED : EXIT_FAILED;
    }
    if (code)
        engine_close(e);
    else
        *engine = e;
    return code;
}

void engine_close(struct engine *e) {
    if (!e) return;
    process_stop(&e->process, 1);
    free(e);
}

void engine_identity(const struct engine *e, const tp_identity *here, tp_identity *now) {
    *now = *here;
    now->struct_size = sizeof *now;
    if (!e) return;
    now->version = now->build = now->compiler = now->isa = ""; /* of this library */
    now->engine = e->greeting.name;
    now->mode = e->greeting.mode;
    now->device = e->greeting.device;
    now->versions = e->greeting.versions;
    now->host = e->greeting.host;
}
