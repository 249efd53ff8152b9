/* SPDX-License-Identifier: Apache-2.0 */
/* An engine by its name or by a command; the greeting of its runner; a new runner when one broke. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BAD_STARTS = 3 };
static const double default_timeout = 300;
static const char *const names[] = {"torch", "flex", "onnxruntime", "openvino", "vllm", "ggml", "flash_attn", "tileproof"};
enum { NAMES = sizeof names / sizeof *names };

static enum wire greet(struct process *process, struct greeting *g, char why[WIRE_WHY]) {
    char line[WIRE_LINE];
    enum wire found = WIRE_MORE;
    *g = (struct greeting){.name = ""};
    for (int number = 0; found == WIRE_MORE; number++) {
        if (process_receive(process, line, why)) return WIRE_WRONG;
        found = wire_greeting(g, number, line, why);
    }
    return found;
}

/* WHOLE, or why not. A runner that takes the place of another must be the same. */
static enum wire start(struct engine *e, char why[WIRE_WHY]) {
    struct greeting greeting;
    if (process_start(&e->process, e->words, why)) return WIRE_WRONG;
    enum wire found = greet(&e->process, &greeting, why);
    if (found == WIRE_WHOLE && e->greeting.name[0] && memcmp(&greeting, &e->greeting, sizeof greeting)) {
        snprintf(why, WIRE_WHY, "the runner says now that it is %.60s on %.60s, or of other versions, than at first",
                 greeting.name, greeting.device);
        found = WIRE_WRONG;
    }
    if (found == WIRE_WHOLE)
        e->greeting = greeting;
    else
        process_stop(&e->process, 0);
    return found;
}

/* In the place of what the runner said. */
static const char *reason(struct engine *e, const char why[WIRE_WHY]) {
    snprintf(e->answer.reasons, sizeof e->answer.reasons, "%s", why);
    return e->answer.reasons;
}

static tp_status run(void *user, const tp_engine_call *call, tp_engine_answer *answer) {
    struct engine *e = user;
    char why[WIRE_WHY];
    if (!e->process.pid) {
        int failed = start(e, why) != WIRE_WHOLE;
        e->bad_starts = failed ? e->bad_starts + 1 : 0;
        if (failed) {
            answer->reasons = reason(e, why);
            return e->bad_starts < MAX_BAD_STARTS ? TP_INVALID : TP_MACHINE;
        }
    }
    if (!engine_call(e, call, answer, why)) return e->answer.status;
    process_stop(&e->process, 0);
    answer->reasons = reason(e, why);
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
    char why[WIRE_WHY];
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
    int code = configure(e, options);
    enum wire found = code ? WIRE_WHOLE : start(e, why);
    if (found != WIRE_WHOLE) {
        int absent = found == WIRE_UNAVAILABLE;
        complain("%s%s: %s", absent ? "not run here: " : "", options->runner ? options->runner : options->engine, why);
        code = absent ? EXIT_REFUSED : EXIT_FAILED;
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
