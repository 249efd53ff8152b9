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

enum { PAGE = 4096, REQUEST = 1 << 16 };

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
    snprintf(r->why, WIRE_WHY, "the call has more sequences than a request can name");
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
    say(r, "cell %" PRId64 "\nproblem %s\nseed %d\n", r->engine->cell, c->text, TP_QUALIFY_SEED);
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

static int receive(struct request *r) {
    struct engine *e = r->engine;
    char line[WIRE_LINE];
    enum wire found = WIRE_MORE;
    for (int number = 0; found == WIRE_MORE; number++) {
        if (process_receive(&e->process, line, r->why)) return 1;
        found = wire_answer(&e->answer, number, line, r->o_bytes, r->why);
    }
    return found != WIRE_WHOLE;
}

static int exchange(struct request *r, const tp_engine_call *call) {
    struct engine *e = r->engine;
    if (process_spoke(&e->process))
        return snprintf(r->why, WIRE_WHY, "the runner wrote, or ended, without being asked"), 1;
    if (ftruncate(e->process.file, 0)) return snprintf(r->why, WIRE_WHY, "the file of tensors cannot be cleared"), 1;
    put_words(r, call);
    put_tensors(r, call);
    say(r, "time_ns %.0f\nend\n", call->time_ns);
    if (!r->failed && ftruncate(e->process.file, (off_t)r->end))
        return snprintf(r->why, WIRE_WHY, "no memory for %" PRId64 " bytes of tensors", r->end), 1;
    if (r->failed || process_send(&e->process, r->text, r->used, r->why) || receive(r)) return 1;
    return e->answer.status == TP_OK && process_read(&e->process, call->o, (size_t)r->o_bytes, r->o_at, r->why);
}

int engine_call(struct engine *e, const tp_engine_call *call, tp_engine_answer *answer, char why[WIRE_WHY]) {
    struct request request = {.engine = e, .text = malloc(REQUEST), .why = why};
    e->cell++;
    e->answer = (struct answer){.written = -1};
    snprintf(why, WIRE_WHY, "out of memory");
    int failed = !request.text || exchange(&request, call);
    free(request.text);
    answer->fused = e->answer.fused;
    answer->kernel = e->answer.kernel;
    answer->observed = e->answer.observed;
    answer->reasons = e->answer.reasons;
    answer->time_ns = e->answer.time_ns;
    answer->temporary = e->answer.temporary;
    return failed;
}
