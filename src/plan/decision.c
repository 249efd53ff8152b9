/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/decision.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define PIECE_BYTES 4096

typedef struct reason {
    tp_reason shown;
    struct reason *next;
} reason;

typedef struct candidate {
    tp_candidate shown;
    uint32_t codes;
    reason *first, **last;
} candidate;

/* Memory of reasons and texts. It does not move. */
typedef struct piece {
    struct piece *next;
    size_t used, size;
    max_align_t bytes[];
} piece;

typedef struct made {
    tp_decision shown;
    atomic_int holders;
    int failed;
    piece *pieces;
    candidate candidate[];
} made;

tp_decision *tp__decision_create(int candidates) {
    made *m = calloc(1, sizeof *m + (size_t)candidates * sizeof *m->candidate);
    if (m == NULL) return NULL;
    m->shown = (tp_decision){.struct_size = sizeof m->shown, .chosen = -1, .candidate_count = candidates,
                             .hint = "", .problem = "", .problem_class = "", .numerics_id = ""};
    atomic_init(&m->holders, 1);
    for (int i = 0; i < candidates; i++) {
        m->candidate[i].shown.struct_size = sizeof m->candidate[i].shown;
        m->candidate[i].last = &m->candidate[i].first;
    }
    return &m->shown;
}

tp_decision *tp__decision_hold(const tp_decision *decision) {
    made *m = (made *)(uintptr_t)decision;
    atomic_fetch_add_explicit(&m->holders, 1, memory_order_relaxed);
    return &m->shown;
}

void tp_decision_destroy(tp_decision *decision) {
    made *m = (made *)decision;
    if (m == NULL || atomic_fetch_sub_explicit(&m->holders, 1, memory_order_acq_rel) > 1) return;
    for (piece *p = m->pieces, *next; p != NULL; p = next) {
        next = p->next;
        free(p);
    }
    free(m);
}

int tp__decision_failed(const tp_decision *decision) { return ((const made *)decision)->failed; }

static void *take(made *m, size_t bytes) {
    piece *p = m->pieces;
    bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    if (p == NULL || p->size - p->used < bytes) {
        size_t size = bytes > PIECE_BYTES ? bytes : PIECE_BYTES;
        p = malloc(sizeof *p + size);
        if (p == NULL) {
            m->failed = 1;
            return NULL;
        }
        *p = (piece){m->pieces, 0, size};
        m->pieces = p;
    }
    p->used += bytes;
    return (char *)p->bytes + p->used - bytes;
}

static const char *text_of(made *m, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = length < 0 ? NULL : take(m, (size_t)length + 1);
    if (text != NULL) vsnprintf(text, (size_t)length + 1, format, arguments);
    return text != NULL ? text : "";
}

const char *tp__decision_text(tp_decision *decision, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const char *text = text_of((made *)decision, format, arguments);
    va_end(arguments);
    return text;
}

tp_candidate *tp__decision_at(tp_decision *decision, int index) {
    return &((made *)decision)->candidate[index].shown;
}

void tp__refuse(const tp__why *why, tp_reason_code code, int64_t have, int64_t need, const char *format, ...) {
    made *m = (made *)why->decision;
    candidate *c = &m->candidate[why->index];
    reason *r = take(m, sizeof *r);
    va_list arguments;
    if (r == NULL) return;
    va_start(arguments, format);
    *r = (reason){{sizeof r->shown, code, have, need, text_of(m, format, arguments)}, NULL};
    va_end(arguments);
    *c->last = r;
    c->last = &r->next;
    c->shown.reason_count++;
    c->codes |= 1u << code;
}

uint32_t tp__decision_codes(const tp_decision *decision, int index) {
    return ((const made *)decision)->candidate[index].codes;
}

tp__reasons tp__reasons_of(const tp_decision *decision) {
    tp__reasons why = {{0}};
    for (int i = 0; i < decision->candidate_count; i++) why.codes[i] = tp__decision_codes(decision, i);
    return why;
}

const tp_candidate *tp_decision_candidate(const tp_decision *decision, int index) {
    if (decision == NULL || index < 0 || index >= decision->candidate_count) return NULL;
    return &((const made *)decision)->candidate[index].shown;
}

const tp_reason *tp_candidate_reason(const tp_candidate *shown, int index) {
    if (shown == NULL || index < 0) return NULL;
    const reason *r = ((const candidate *)shown)->first;
    while (r != NULL && index-- > 0) r = r->next;
    return r != NULL ? &r->shown : NULL;
}
