/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing a call with the reference, by the harness's oracle, and two calls with each other. */
#include "support/call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/oracle.h"

enum { ROWS_MIN = 64 };
#define WORK_MAX 3e6 /* multiplications of the reference before rows are sampled */

struct tensors call_view(const call *c) {
    struct tensors view = c->held;
    view.sequences = c->tensors.batch;
    view.style.lse = c->tensors.lse.data != NULL;
    return view;
}

/* All rows, or as many as the work allows. */
static int64_t rows_of(const call *c) {
    double work = 0, rows = 0, max = call_quick() ? WORK_MAX / 8 : WORK_MAX;
    for (int64_t s = 0; s < c->tensors.batch; s++) {
        double own = (double)(c->q_lens[s] * c->problem.q_heads);
        rows += own;
        work += own * (double)c->kv_lens[s] * (double)(c->problem.head_dim_qk + c->problem.head_dim_v);
    }
    return (int64_t)(work > max ? fmax(rows * max / work, ROWS_MIN) : rows);
}

static struct oracle *oracle_of(const call *c) {
    struct oracle *oracle = malloc(sizeof *oracle);
    struct tensors view = call_view(c);
    tp_error error = TP_ERROR_INIT;
    assert_non_null(oracle);
    if (oracle_create(oracle, &view, rows_of(c), 1, &error)) fail_msg("%s", error.text);
    oracle->strict = 1;
    return oracle;
}

void call_oracle_free(struct oracle *oracle) {
    if (oracle == NULL) return;
    oracle_destroy(oracle);
    free(oracle);
}

void call_keep(call *c) { c->keeps = 1; }

static void check(call *c, const char *what, int bounds_alone) {
    struct tensors view = call_view(c);
    struct measured_error measured;
    char reason[512];
    struct oracle *oracle = c->oracle != NULL && c->oracle->bound[c->held.arithmetic] != NULL ? c->oracle : oracle_of(c);
    if (c->keeps && c->oracle != oracle) {
        call_oracle_free(c->oracle);
        c->oracle = oracle;
    }
    oracle->bounds_alone = bounds_alone;
    if (oracle_compare(oracle, &view, c->held.arithmetic, &measured, reason, sizeof reason)) fail_msg("%s: %s", what, reason);
    if (!c->keeps) call_oracle_free(oracle);
}

void call_check(call *c, const char *what) { check(c, what, 0); }

void call_check_bounds(call *c, const char *what) { check(c, what, 1); }

void call_same_row(const call *a, int64_t a_seq, int64_t a_row, int64_t a_head, const call *b,
                   int64_t b_seq, int64_t b_row, int64_t b_head, const char *what) {
    for (int which = CALL_O; which <= CALL_LSE; which++) {
        size_t size = tp_dtype_bytes((tp_dtype)call_dtype(a, which));
        const char *x = call_at(a, which, a_seq, a_row, a_head);
        const char *y = call_at(b, which, b_seq, b_row, b_head);
        if (memcmp(x, y, (size_t)call_dim(a, which) * size) == 0) continue;
        int64_t at = 0;
        while (memcmp(x + (size_t)at * size, y + (size_t)at * size, size) == 0) at++;
        fail_msg(
            "%s: %s[%lld] of row %lld, head %lld, seq %lld is %.9g, and %.9g in row %lld, head "
            "%lld, seq %lld of the other",
            what, which == CALL_O ? "o" : "lse", (long long)at, (long long)a_row, (long long)a_head,
            (long long)a_seq, call_get(a, which, a_seq, a_row, a_head, at),
            call_get(b, which, b_seq, b_row, b_head, at), (long long)b_row, (long long)b_head,
            (long long)b_seq);
    }
}

void call_same_seq(const call *a, int64_t a_seq, const call *b, int64_t b_seq, const char *what) {
    assert_int_equal(a->q_lens[a_seq], b->q_lens[b_seq]);
    for (int64_t r = 0; r < a->q_lens[a_seq]; r++)
        for (int64_t h = 0; h < a->problem.q_heads; h++)
            call_same_row(a, a_seq, r, h, b, b_seq, r, h, what);
}

void call_same(const call *a, const call *b, const char *what) {
    assert_int_equal(a->tensors.batch, b->tensors.batch);
    for (int64_t s = 0; s < a->tensors.batch; s++) call_same_seq(a, s, b, s, what);
}
