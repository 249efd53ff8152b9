/* SPDX-License-Identifier: Apache-2.0 */
/* One call, as docs/runner-protocol.md says. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"

enum { PAGE = 4096, MAX_LINES = 64, REQUEST = 1 << 16 };

const char *line_value(const char *line, const char *key) {
    size_t length = strlen(key);
    return !strncmp(line, key, length) && line[length] == ' ' ? line + length + 1 : NULL;
}

/* A request while it is made; what it says and what the file gets go hand in hand. */
struct request {
    struct engine *engine;
    char *text;
    size_t used;
    int64_t end; /* of the file */
    int64_t o_at, o_bytes;
    int failed;
    char *why;
};

static void say(struct request *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct request *r, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(r->text + r->used, REQUEST - r->used, format, arguments);
    va_end(arguments);
    r->used += (size_t)(n > 0 ? n : 0);
    if (r->used < REQUEST) return;
    snprintf(r->why, PROCESS_WHY, "the call has more sequences than a request can name");
    r->used = 0;
    r->failed = 1;
}

static void put(struct request *r, const char *name, const void *bytes, int64_t size) {
    if (!bytes || r->failed) return;
    int64_t at = r->end;
    say(r, "tensor %s %" PRId64 " %" PRId64 "\n", name, at, size);
    r->end = (at + size + PAGE - 1) / PAGE * PAGE;
    if (!r->failed) r->failed = process_write(&r->engine->process, bytes, (size_t)size, at, r->why);
}

static int64_t bytes_of(int64_t tokens, int64_t heads, int64_t dim, int32_t dtype) {
    return tokens * heads * dim * (int64_t)tp_dtype_bytes((tp_dtype)dtype);
}

static void put_tensors(struct request *r, const tp_engine_call *c) {
    const tp_problem *p = c->problem;
    int64_t pairs = 0;
    for (int64_t i = 0; i < c->sequences; i++) pairs += c->q_lens[i] * c->kv_lens[i];
    put(r, "q", c->q, bytes_of(c->q_tokens, p->q_heads, p->head_dim_qk, p->q_dtype));
    put(r, "k", c->k, bytes_of(c->kv_tokens, p->kv_heads, p->head_dim_qk, p->k_dtype));
    put(r, "v", c->v, bytes_of(c->kv_tokens, p->kv_heads, p->head_dim_v, p->v_dtype));
    r->o_at = r->end;
    r->o_bytes = bytes_of(c->q_tokens, p->q_heads, p->head_dim_v, p->o_dtype);
    put(r, "o", c->o, r->o_bytes);
    put(r, "visible", c->visible, pairs);
    put(r, "sinks", c->sinks, p->q_heads * 4);
    put(r, "slopes", c->slopes, c->sequences * p->q_heads * 4);
    put(r, "q_factors", c->q_factors, c->q_tokens * 4);
}

static void put_words(struct request *r, const tp_engine_call *c) {
    static const char *const masks[] = {"full", "causal", "causal_window", "visible"};
    const tp_problem *p = c->problem;
    say(r, "cell %" PRId64 "\nproblem %s\n", r->engine->cell, c->text);
    say(r, "dtypes %s %s %s %s\n", tp_dtype_name((tp_dtype)p->q_dtype), tp_dtype_name((tp_dtype)p->k_dtype),
        tp_dtype_name((tp_dtype)p->v_dtype), tp_dtype_name((tp_dtype)p->o_dtype));
    say(r, "heads %" PRId64 " %" PRId64 "\n", p->q_heads, p->kv_heads);
    say(r, "head_dims %" PRId64 " %" PRId64 "\n", p->head_dim_qk, p->head_dim_v);
    say(r, "scale %.9g\n", p->scale_set ? (double)p->scale : 1 / sqrt((double)p->head_dim_qk));
    say(r, "softcap %.9g\n", (double)p->softcap);
    say(r, "mask %s\nwindow %" PRId64 "\n", masks[c->mask], c->window);
    say(r, "sequences %" PRId64 "\nlengths", c->sequences);
    for (int64_t i = 0; i < c->sequences && !r->failed; i++) say(r, " %" PRId64 "/%" PRId64, c->q_lens[i], c->kv_lens[i]);
    say(r, "\n");
}

static int parse_number(const char *text, double max, double *number) {
    char *end;
    *number = strtod(text, &end);
    return end == text || *end || !(*number >= 0 && *number <= max);
}

static void add_reason(char reasons[ENGINE_TEXT], const char *text) {
    size_t used = strlen(reasons);
    snprintf(reasons + used, ENGINE_TEXT - used, "%s%s", used ? "; " : "", text);
}

/* What the lines of an answer have said so far. */
struct answered {
    int known; /* served, refused or failed was said */
    tp_status status;
    double written;
};

/* One line; 1: it is none of the protocol. */
static int take(struct engine *e, const char *line, tp_engine_answer *answer, struct answered *a) {
    const char *value;
    double number;
    if (!strcmp(line, "served")) {
        a->known++;
        a->status = TP_OK;
    } else if ((value = line_value(line, "refused")) || (value = line_value(line, "failed"))) {
        a->known++;
        a->status = line[0] == 'r' ? TP_UNSUPPORTED : TP_INVALID;
        add_reason(e->reasons, value);
    } else if ((value = line_value(line, "kernel"))) {
        snprintf(e->kernel, sizeof e->kernel, "%.255s", value);
    } else if ((value = line_value(line, "observed"))) {
        snprintf(e->observed, sizeof e->observed, "%.63s", value);
    } else if ((value = line_value(line, "reason"))) {
        add_reason(e->reasons, value);
    } else if ((value = line_value(line, "fused"))) {
        answer->fused = !strcmp(value, "yes") ? TP_ENGINE_FUSED : !strcmp(value, "no") ? TP_ENGINE_UNFUSED : TP_ENGINE_UNKNOWN;
        return strcmp(value, "yes") && strcmp(value, "no") && strcmp(value, "unknown");
    } else if ((value = line_value(line, "time_ns"))) {
        return parse_number(value, 1e15, &answer->time_ns);
    } else if ((value = line_value(line, "temporary"))) {
        int wrong = parse_number(value, 0x1p50, &number);
        answer->temporary = wrong ? 0 : (int64_t)number;
        return wrong;
    } else if ((value = line_value(line, "written"))) {
        return parse_number(value, 0x1p50, &a->written);
    } else {
        return 1;
    }
    return 0;
}

static int receive(struct request *r, tp_engine_answer *answer, tp_status *status) {
    struct engine *e = r->engine;
    struct answered a = {.status = TP_INVALID, .written = -1};
    char line[PROCESS_LINE] = "";
    for (int lines = 0;; lines++) {
        if (process_receive(&e->process, line, r->why)) return 1;
        if (!strcmp(line, "end")) break;
        if (lines < MAX_LINES && !take(e, line, answer, &a)) continue;
        for (char *at = line; *at; at++)
            if (*at < 0x20 || *at > 0x7E) *at = '?';
        snprintf(r->why, PROCESS_WHY, "the runner wrote '%.60s': no line of an answer%s", line,
                 lines < MAX_LINES ? "" : ", which has at most 64");
        return 1;
    }
    *status = a.status;
    if (a.known != 1) return snprintf(r->why, PROCESS_WHY, "the runner's answer says %s of served, refused and failed",
                                      a.known ? "more than one" : "none"), 1;
    if (a.status != TP_OK) return 0;
    if (a.written == (double)r->o_bytes) return 0;
    if (a.written < 0) return snprintf(r->why, PROCESS_WHY, "the runner does not say how much of o was written"), 1;
    return snprintf(r->why, PROCESS_WHY, "the runner says that it has written %.0f bytes of o: o has %" PRId64, a.written,
                    r->o_bytes), 1;
}

static int exchange(struct request *r, const tp_engine_call *call, tp_engine_answer *answer, tp_status *status) {
    struct engine *e = r->engine;
    if (process_spoke(&e->process))
        return snprintf(r->why, PROCESS_WHY, "the runner wrote, or ended, without being asked"), 1;
    if (ftruncate(e->process.file, 0)) return snprintf(r->why, PROCESS_WHY, "the file of tensors cannot be cleared"), 1;
    put_words(r, call);
    put_tensors(r, call);
    say(r, "time_ns %.0f\nend\n", call->time_ns);
    if (!r->failed && ftruncate(e->process.file, (off_t)r->end))
        return snprintf(r->why, PROCESS_WHY, "no memory for %" PRId64 " bytes of tensors", r->end), 1;
    if (r->failed || process_send(&e->process, r->text, r->used, r->why) || receive(r, answer, status)) return 1;
    return *status == TP_OK && process_read(&e->process, call->o, (size_t)r->o_bytes, r->o_at, r->why);
}

int engine_call(struct engine *e, const tp_engine_call *call, tp_engine_answer *answer, tp_status *status,
                char why[PROCESS_WHY]) {
    struct request request = {.engine = e, .text = malloc(REQUEST), .why = why};
    e->cell++;
    e->kernel[0] = e->observed[0] = e->reasons[0] = 0;
    snprintf(why, PROCESS_WHY, "out of memory");
    int failed = !request.text || exchange(&request, call, answer, status);
    free(request.text);
    answer->kernel = e->kernel;
    answer->observed = e->observed;
    answer->reasons = e->reasons;
    return failed;
}
