/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char first_line[] = "tileproof-runner 1";
static const double max_time_ns = 1e15, max_bytes = 0x1p50;

/* ---- lines ---- */

enum wire wire_line(struct wire_bytes *b, char line[WIRE_LINE], char why[WIRE_WHY]) {
    char *newline = memchr(b->received, '\n', b->used);
    if (!newline && b->used < sizeof b->received) return WIRE_MORE;
    if (!newline) return snprintf(why, WIRE_WHY, "the runner wrote a line of 4,096 bytes or more"), WIRE_WRONG;
    size_t length = (size_t)(newline - b->received);
    for (size_t i = 0; i < length; i++) {
        char c = b->received[i];
        line[i] = (char)(c < 0x20 || c > 0x7E ? '?' : c);
    }
    line[length] = 0;
    b->used -= length + 1;
    memmove(b->received, newline + 1, b->used);
    return WIRE_WHOLE;
}

/* The value of a line "key value", or NULL: a key without a value says nothing. */
static const char *value_of(const char *line, const char *key) {
    size_t length = strlen(key);
    return !strncmp(line, key, length) && line[length] == ' ' && line[length + 1] ? line + length + 1 : NULL;
}

static enum wire wrong(char why[WIRE_WHY], const char *line, const char *rule) {
    snprintf(why, WIRE_WHY, "the runner wrote '%.60s': %s", line, rule);
    return WIRE_WRONG;
}

/* ---- the greeting ---- */

/* A word, whole or not at all. 1: it is too long. */
static int take_word(char *to, size_t size, const char *value) {
    if (strlen(value) >= size) return 1;
    snprintf(to, size, "%s", value);
    return 0;
}

/* Another line "name=value", whole or not at all. 1: it is none. */
static int take_version(char *list, size_t size, const char *value) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-";
    size_t used = strlen(list), name = strspn(value, letters), length = strlen(value);
    if (!name || value[name] != '=' || !value[name + 1] || length > 255 || used + length + 2 > size) return 1;
    snprintf(list + used, size - used, "%s%s", used ? "\n" : "", value);
    return 0;
}

static int take_mode(struct greeting *g, const char *value) {
    if (strcmp(value, "eager") && strcmp(value, "compiled") && strcmp(value, "graph")) return 1;
    return take_word(g->mode, sizeof g->mode, value);
}

/* 1: it is no line of a greeting. */
static int take_greeting(struct greeting *g, const char *line) {
    const char *value;
    if ((value = value_of(line, "engine"))) return take_word(g->name, sizeof g->name, value);
    if ((value = value_of(line, "device"))) return take_word(g->device, sizeof g->device, value);
    if ((value = value_of(line, "mode"))) return take_mode(g, value);
    if ((value = value_of(line, "version"))) return take_version(g->versions, sizeof g->versions, value);
    if ((value = value_of(line, "host"))) return take_version(g->host, sizeof g->host, value);
    return 1;
}

enum wire wire_greeting(struct greeting *g, int number, const char *line, char why[WIRE_WHY]) {
    if (!number) return strcmp(line, first_line) ? wrong(why, line, "it must begin with 'tileproof-runner 1'") : WIRE_MORE;
    const char *value = value_of(line, "unavailable");
    if (value) {
        snprintf(why, WIRE_WHY, "%.250s", value);
        return WIRE_UNAVAILABLE;
    }
    if (strcmp(line, "end"))
        return number >= WIRE_MAX_LINES || take_greeting(g, line) ? wrong(why, line, "no line of a greeting") : WIRE_MORE;
    if (g->name[0] && g->device[0]) return WIRE_WHOLE;
    snprintf(why, WIRE_WHY, "the runner's greeting does not name its %s", g->name[0] ? "device" : "engine");
    return WIRE_WRONG;
}

/* ---- an answer ---- */

static int take_number(double *to, double max, const char *value) {
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end || !(number >= 0 && number <= max)) return 1;
    *to = number;
    return 0;
}

static int take_reason(struct answer *a, const char *value) {
    size_t used = strlen(a->reasons);
    snprintf(a->reasons + used, sizeof a->reasons - used, "%s%s", used ? "; " : "", value);
    return 0;
}

static int take_verdict(struct answer *a, tp_status status, const char *reason) {
    a->verdicts++;
    a->status = status;
    return reason ? take_reason(a, reason) : 0;
}

static int take_fused(struct answer *a, const char *value) {
    static const struct {
        const char *word;
        int32_t fused;
    } words[] = {{"yes", TP_ENGINE_FUSED}, {"no", TP_ENGINE_UNFUSED}, {"unknown", TP_ENGINE_UNKNOWN}};
    for (int i = 0; i < 3; i++)
        if (!strcmp(value, words[i].word)) return a->fused = words[i].fused, 0;
    return 1;
}

static int take_temporary(struct answer *a, const char *value) {
    double number = 0;
    int none = take_number(&number, max_bytes, value);
    if (!none) a->temporary = (int64_t)number;
    return none;
}

/* 1: it is no line of an answer. */
static int take_answer(struct answer *a, const char *line) {
    const char *value;
    if (!strcmp(line, "served")) return take_verdict(a, TP_OK, NULL);
    if ((value = value_of(line, "refused"))) return take_verdict(a, TP_UNSUPPORTED, value);
    if ((value = value_of(line, "failed"))) return take_verdict(a, TP_INVALID, value);
    if ((value = value_of(line, "kernel"))) return snprintf(a->kernel, sizeof a->kernel, "%s", value) < 0;
    if ((value = value_of(line, "observed"))) return snprintf(a->observed, sizeof a->observed, "%s", value) < 0;
    if ((value = value_of(line, "reason"))) return take_reason(a, value);
    if ((value = value_of(line, "fused"))) return take_fused(a, value);
    if ((value = value_of(line, "time_ns"))) return take_number(&a->time_ns, max_time_ns, value);
    if ((value = value_of(line, "temporary"))) return take_temporary(a, value);
    if ((value = value_of(line, "written"))) return take_number(&a->written, max_bytes, value);
    return 1;
}

enum wire wire_answer(struct answer *a, int number, const char *line, int64_t o_bytes, char why[WIRE_WHY]) {
    if (strcmp(line, "end") && number >= WIRE_MAX_LINES) return wrong(why, line, "no line of an answer, which has at most 64");
    if (strcmp(line, "end")) return take_answer(a, line) ? wrong(why, line, "no line of an answer") : WIRE_MORE;
    if (a->verdicts != 1)
        snprintf(why, WIRE_WHY, "the runner's answer says %s of served, refused and failed",
                 a->verdicts ? "more than one" : "none");
    else if (a->status != TP_OK || a->written == (double)o_bytes)
        return WIRE_WHOLE;
    else if (a->written < 0)
        snprintf(why, WIRE_WHY, "the runner does not say how much of o was written");
    else
        snprintf(why, WIRE_WHY, "the runner says that it has written %.0f bytes of o: o has %" PRId64, a->written, o_bytes);
    return WIRE_WRONG;
}
