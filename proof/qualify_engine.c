/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cell on an engine. Its output is judged by the oracle's rule for foreign arithmetic. Then the call is made again with
 * inputs that must not matter, and what is seen of that are properties: nobody promised them, so they fail a cell only where
 * they are required.
 *
 *     deterministic   the same call once more: the same bits, or it varies
 *     contained       NaN in the keys that the middle row does not see: rows that see none of them keep their bits, or it leaks.
 *                     NaN in all sequences but one: the rows of that one, likewise
 *     empty rows      fewer keys than rows under a causal mask: rows that see nothing are 0, or it leaks
 */
#include "qualify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct trier {
    tp__trial *t;
    tp__dense d;
    char *clean; /* o of the first call */
} trier;

/* What an engine says may stand in a journal: other bytes than those of printable ASCII are not taken over. */
static const char *put_text(char *to, size_t size, const char *from) {
    snprintf(to, size, "%s", from);
    for (char *at = to; *at; at++)
        if (*at < 0x20 || *at > 0x7E) *at = '?';
    return to;
}

static size_t row_bytes(const tp__dense *d) {
    return (size_t)(d->problem.q_heads * d->problem.head_dim_v) * tp_dtype_bytes((tp_dtype)d->problem.o_dtype);
}

static size_t output_bytes(const tp__dense *d) { return (size_t)d->call.q_tokens * row_bytes(d); }

/* One call; `with` says on which inputs. 1: a verdict, or none is possible. */
static int ask(tp__trial *t, tp__dense *d, double time_ns, const char *with, tp_engine_answer *answer) {
    tp_engine_answer given = TP_ENGINE_ANSWER_INIT;
    tp_error error = TP_ERROR_INIT;
    char reason[768];
    d->call.time_ns = time_ns;
    tp_status status = t->engine->run(t->engine->user, &d->call, &given);
    if (tp__take(&tp__answer_shape, &given, answer, &error) != TP_OK)
        return tp__trial_fail(t, TP_CELL_NUMERIC_FAIL, "%sthe engine's answer: %s", with, error.text);
    put_text(reason, sizeof reason, answer->reasons);
    if (!tp__is_verdict(status)) return tp__trial_break(t, status, "%s%s", with, reason);
    if (status == TP_UNSUPPORTED) return tp__trial_fail(t, TP_CELL_UNSUPPORTED, "%s%s", with, reason);
    if (status != TP_OK) return tp__trial_fail(t, TP_CELL_NUMERIC_FAIL, "%s%s", with, reason);
    return 0;
}

/* The worst of what was seen of a property; it fails the cell where it is required. */
static int note(tp__trial *t, int32_t *property, tp_kept seen, uint32_t required, const char *what) {
    static const char *const names[] = {"", "contained", "deterministic", "", "empty"};
    if ((int32_t)seen > *property) *property = (int32_t)seen;
    if (seen == TP_KEPT_YES || !(t->engine->require & required)) return 0;
    return tp__trial_fail(t, TP_CELL_NUMERIC_FAIL, "%s, and %s was required", what, names[required]);
}

static int deterministic(trier *r) {
    tp_engine_answer answer;
    tp__dense_load(&r->d, &r->t->tensors);
    if (ask(r->t, &r->d, 0, "the same call again: ", &answer)) return 1;
    int same = !memcmp(r->clean, r->d.bytes[TENSOR_O], output_bytes(&r->d));
    return note(r->t, &r->t->cell.deterministic, same ? TP_KEPT_YES : TP_KEPT_VARIES, TP_REQUIRE_DETERMINISTIC,
                "the same call gave other bits");
}

/* Tokens of a sequence, all heads, to NaN. */
static void poison(const tp__dense *d, enum tensor_id id, int64_t token, int64_t count) {
    const tp_problem *p = &d->problem;
    int keys = id != TENSOR_Q;
    int32_t dtype = id == TENSOR_Q ? p->q_dtype : id == TENSOR_K ? p->k_dtype : p->v_dtype;
    int64_t heads = keys ? p->kv_heads : p->q_heads, dim = id == TENSOR_V ? p->head_dim_v : p->head_dim_qk;
    size_t bytes = (size_t)(heads * dim) * tp_dtype_bytes((tp_dtype)dtype);
    memset(d->bytes[id] + (size_t)token * bytes, 0xFF, (size_t)count * bytes);
}

static int is_nan(const char *at, int32_t dtype) {
    uint32_t wide = 0;
    uint16_t half = 0;
    if (dtype == TP_F32)
        memcpy(&wide, at, sizeof wide);
    else
        memcpy(&half, at, sizeof half);
    return (wide & 0x7FFFFFFFu) > 0x7F800000u || (half & 0x7FFF) > (dtype == TP_F16 ? 0x7C00 : 0x7F80);
}

/* Rows of o have other bits than at first; where bits vary anyway: they have NaN. */
static int rows_differ(const trier *r, size_t at, size_t bytes) {
    const char *now = r->d.bytes[TENSOR_O] + at;
    int32_t dtype = r->d.problem.o_dtype;
    if (r->t->cell.deterministic == TP_KEPT_YES) return memcmp(r->clean + at, now, bytes) != 0;
    for (size_t i = 0; i < bytes; i += tp_dtype_bytes((tp_dtype)dtype))
        if (is_nan(now + i, dtype)) return 1;
    return 0;
}

static int sees_any(const uint8_t *row, const uint8_t *middle, int64_t keys) {
    for (int64_t key = 0; key < keys; key++)
        if (row[key] && !middle[key]) return 1;
    return 0;
}

static int hidden(trier *r) {
    const tp_engine_call *c = &r->d.call;
    const uint8_t *visible = c->visible;
    tp_engine_answer answer;
    int64_t poisoned = 0, first = 0;
    int kept = 1;
    tp__dense_load(&r->d, &r->t->tensors);
    for (int64_t seq = 0; seq < c->sequences; visible += c->q_lens[seq] * c->kv_lens[seq], first += c->kv_lens[seq], seq++)
        for (int64_t key = 0; c->q_lens[seq] && key < c->kv_lens[seq]; key++) {
            if (visible[c->q_lens[seq] / 2 * c->kv_lens[seq] + key]) continue;
            poison(&r->d, TENSOR_K, first + key, 1);
            poison(&r->d, TENSOR_V, first + key, 1);
            poisoned++;
        }
    if (!poisoned) return 0;
    if (ask(r->t, &r->d, 0, "with NaN in keys that rows do not see: ", &answer)) return 1;
    size_t bytes = row_bytes(&r->d), at = 0;
    visible = c->visible;
    for (int64_t seq = 0; seq < c->sequences; seq++) {
        int64_t keys = c->kv_lens[seq];
        const uint8_t *middle = visible + c->q_lens[seq] / 2 * keys;
        for (int64_t row = 0; row < c->q_lens[seq]; row++, visible += keys, at += bytes)
            if (!sees_any(visible, middle, keys) && rows_differ(r, at, bytes)) kept = 0;
    }
    return note(r->t, &r->t->cell.contained, kept ? TP_KEPT_YES : TP_KEPT_LEAKS, TP_REQUIRE_CONTAINED,
                "NaN in keys that a row does not see reached it");
}

static int neighbours(trier *r) {
    const tp_engine_call *c = &r->d.call;
    tp_engine_answer answer;
    int64_t longest = 0, rows = 0, keys = 0, before = 0;
    for (int64_t seq = 1; seq < c->sequences; seq++)
        if (c->q_lens[seq] > c->q_lens[longest]) longest = seq;
    if (c->sequences < 2 || !c->q_lens[longest]) return 0;
    tp__dense_load(&r->d, &r->t->tensors);
    for (int64_t seq = 0; seq < c->sequences; rows += c->q_lens[seq], keys += c->kv_lens[seq], seq++) {
        if (seq == longest) {
            before = rows;
            continue;
        }
        poison(&r->d, TENSOR_Q, rows, c->q_lens[seq]);
        poison(&r->d, TENSOR_K, keys, c->kv_lens[seq]);
        poison(&r->d, TENSOR_V, keys, c->kv_lens[seq]);
    }
    if (ask(r->t, &r->d, 0, "with NaN in the other sequences: ", &answer)) return 1;
    size_t bytes = row_bytes(&r->d);
    int kept = !rows_differ(r, (size_t)before * bytes, (size_t)c->q_lens[longest] * bytes);
    return note(r->t, &r->t->cell.contained, kept ? TP_KEPT_YES : TP_KEPT_LEAKS, TP_REQUIRE_CONTAINED,
                "NaN in other sequences reached a row");
}

enum { FEW_ROWS = 16 };

static int is_zero(const struct tensors *t, int64_t rows) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < t->problem.q_heads; head++)
            for (int64_t x = 0; x < t->problem.head_dim_v; x++)
                if (tensors_get(t, TENSOR_O, 0, row, head, x) != 0) return 0;
    return 1;
}

/* The problem with half as many keys as rows, by itself. */
static int empty(trier *r) {
    tp__trial *t = r->t;
    tp_problem problem = t->problem;
    tp_error error = TP_ERROR_INIT;
    tp_engine_answer answer;
    struct tensors_style style = {.gain = t->cell.gain};
    struct tensors tensors;
    tp__dense d = {.lengths = NULL};
    char text[512];
    if (r->d.call.mask != TP_ENGINE_CAUSAL || r->d.call.sequences != 1 || problem.q_len > FEW_ROWS ||
        problem.q_len != problem.kv_len || problem.q_len < 2)
        return 0;
    problem.kv_len = problem.q_len / 2;
    if (tp_problem_print(&problem, NULL, text, sizeof text) != TP_OK) return 0;
    if (tensors_create(&tensors, &problem, NULL, &style) || tensors_fill(&tensors, TP_QUALIFY_SEED)) {
        tensors_destroy(&tensors);
        return tp__trial_break(t, TP_NO_MEMORY, "no memory for the tensors of a cell: %s", text);
    }
    tp_status status = tp__dense_make(&d, &tensors, text, &error);
    int failed = status != TP_OK && tp__trial_break(t, status, "%s", error.text);
    tp_cell before = t->cell;
    char reason[sizeof t->reason];
    memcpy(reason, t->reason, sizeof reason);
    if (!failed) {
        tp__dense_load(&d, &tensors);
        failed = ask(t, &d, 0, "with rows that see no key: ", &answer);
    }
    if (failed && t->broken == TP_OK && t->cell.status == TP_CELL_UNSUPPORTED) { /* another problem, so it may refuse it */
        t->cell = before;
        memcpy(t->reason, reason, sizeof reason);
        failed = 0;
    } else if (!failed) {
        tp__dense_store(&d, &tensors);
        int zero = is_zero(&tensors, problem.q_len - problem.kv_len);
        failed =
            note(t, &t->cell.empty_rows, zero ? TP_KEPT_YES : TP_KEPT_LEAKS, TP_REQUIRE_EMPTY, "a row that sees no key is not 0");
    }
    tp__dense_free(&d);
    tensors_destroy(&tensors);
    return failed;
}

/* What a thread of a fused kernel may keep at a time: 256 rows and 512 keys of scores in float, and the rows' outputs. */
static const double tiles_of_a_thread = 1 << 20;

/* Does the memory that a call took fit the name of its kernel? It says something only where the scores take more than
   all inputs and the output would as floats, and more was taken than tiles of all threads. */
static void judge_memory(tp__trial *t, const tp__dense *d, int32_t fused) {
    const tp_engine_call *c = &d->call;
    const tp_problem *p = &d->problem;
    double scores = 0, width = (double)(p->head_dim_qk + p->head_dim_v), peak = (double)t->cell.temporary;
    for (int64_t i = 0; i < c->sequences; i++) scores += (double)(c->q_lens[i] * c->kv_lens[i]);
    scores *= (double)p->q_heads * (double)tp_dtype_bytes((tp_dtype)p->q_dtype);
    double floats = 4 * width * ((double)c->q_tokens * (double)p->q_heads + (double)c->kv_tokens * (double)p->kv_heads);
    if (t->cell.temporary <= 0 || scores <= floats) return;
    double tiles = tiles_of_a_thread * tp_context_threads(t->context);
    int contradicts = fused == TP_ENGINE_UNFUSED ? peak < scores / 2 : peak >= scores && peak > tiles;
    if (!contradicts) return;
    snprintf(t->doubt, sizeof t->doubt, "a call took %.4g MB of temporary memory, its scores would take %.4g MB: %s", peak * 1e-6,
             scores * 1e-6,
             fused == TP_ENGINE_UNFUSED ? "they were not written whole, whatever the kernel's name says"
             : fused == TP_ENGINE_FUSED ? "they were written, though the kernel's name says fused"
                                        : "they were written");
    t->cell.doubt = t->doubt;
}

/* Why an engine's right result is a fallback; "": it is none. */
static const char *why_fallback(const tp_cell *cell, int32_t fused) {
    return fused == TP_ENGINE_UNFUSED ? (cell->engine_reasons[0] ? cell->engine_reasons : "the kernel is not fused")
                                      : cell->doubt;
}

static int first_call(trier *r) {
    tp__trial *t = r->t;
    tp_cell *cell = &t->cell;
    tp_engine_answer answer = TP_ENGINE_ANSWER_INIT;
    tp__dense_load(&r->d, &t->tensors);
    if (ask(t, &r->d, t->time_ns, "", &answer)) return 1;
    cell->kernel = put_text(t->kernel, sizeof t->kernel, answer.kernel);
    cell->observed = put_text(t->observed, sizeof t->observed, answer.kernel[0] ? answer.observed : "not observable");
    cell->engine_reasons = put_text(t->engine_reasons, sizeof t->engine_reasons, answer.reasons);
    snprintf(t->rule, sizeof t->rule, "2 x naive in %s", tp_dtype_name((tp_dtype)t->problem.q_dtype));
    cell->rule = t->rule;
    cell->time_ns = answer.time_ns > 0 && answer.time_ns < 1e15 ? answer.time_ns : 0;
    cell->temporary = answer.temporary > 0 ? answer.temporary : 0;
    tensors_poison_outputs(&t->tensors, 0xFF);
    tp__dense_store(&r->d, &t->tensors);
    memcpy(r->clean, r->d.bytes[TENSOR_O], output_bytes(&r->d));
    if (tp__trial_compare(t)) return 1;
    judge_memory(t, &r->d, answer.fused);
    const char *why = why_fallback(cell, answer.fused);
    cell->status = TP_CELL_QUALIFIED;
    if (*why) tp__trial_fail(t, TP_CELL_QUALIFIED_FALLBACK, "not fused: %s", why);
    return 0;
}

int tp__trial_engine(tp__trial *t) {
    trier r = {.t = t};
    tp_error error = TP_ERROR_INIT;
    if (tp__trial_make(t)) return 1;
    tp_status status = tp__dense_make(&r.d, &t->tensors, t->cell.problem, &error);
    int failed = status == TP_UNSUPPORTED ? tp__trial_fail(t, TP_CELL_UNSUPPORTED, "%s", error.text)
                 : status != TP_OK        ? tp__trial_break(t, status, "%s", error.text)
                                          : 0;
    if (!failed && !(r.clean = malloc(output_bytes(&r.d) + 1)))
        failed = tp__trial_break(t, TP_NO_MEMORY, "no memory for the outputs of a cell: %s", t->cell.problem);
    failed = failed || first_call(&r) || deterministic(&r) || hidden(&r) || neighbours(&r) || empty(&r);
    free(r.clean);
    tp__dense_free(&r.d);
    return failed;
}
