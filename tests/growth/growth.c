/* SPDX-License-Identifier: Apache-2.0 */
#include "growth/growth.h"

#include <math.h>
#include <stdlib.h>

#include "support/guard.h"

static struct {
    guard places[256];
    int count;
    const char *known[64];
    int known_count;
} all;

int growth_knows(const char *type) {
    for (int i = 0; i < all.known_count; i++)
        if (strcmp(all.known[i], type) == 0) return 1;
    return 0;
}

static void note(const char *type) {
    if (growth_knows(type)) return;
    assert_true(all.known_count < (int)(sizeof all.known / sizeof all.known[0]));
    all.known[all.known_count++] = type;
}

void *growth_place(size_t size, const char *type) {
    note(type);
    assert_true(all.count < (int)(sizeof all.places / sizeof all.places[0]));
    all.places[all.count] = guard_new(size);
    return memset(guard_end(&all.places[all.count++], size), 0xa5, size);
}

void growth_given(const void *given, const char *type, int has_grown) {
    uint32_t size;
    note(type);
    assert_non_null(given);
    memcpy(&size, given, sizeof size);
    assert_true(size >= 16 && size < 65536);
    assert_true(has_grown != NEWER); /* where the program is newer, the library's own lack the field */
}

void growth_free(void) {
    while (all.count > 0) guard_free(&all.places[--all.count]);
}

static void fill(float *x, int count, float step) {
    for (int i = 0; i < count; i++) x[i] = sinf(step * (float)(i + 1));
}

void growth_call_new(growth_call *c) {
    fill(c->q, sizeof c->q / sizeof(float), 0.37f);
    fill(c->k, sizeof c->k / sizeof(float), 0.53f);
    fill(c->v, sizeof c->v / sizeof(float), 0.71f);
    c->problem = PLACE(tp_problem);
    tp_problem_init(c->problem);
    assert_int_equal(c->problem->struct_size, sizeof(tp_problem));
    assert_int_equal(GROWN(c->problem), 0);
    c->problem->batch = SEQS, c->problem->q_heads = HEADS, c->problem->kv_heads = KV_HEADS;
    c->problem->q_len = ROWS, c->problem->kv_len = KEYS;
    c->problem->head_dim_qk = c->problem->head_dim_v = DIM;
    tp_problem_dtype(c->problem, TP_F32);
    assert_int_equal(tp_problem_causal(c->problem), TP_OK);
    c->tensors = PLACE(tp_tensors);
    tp_tensors_init(c->tensors, c->problem, c->q, c->k, c->v, c->o);
    assert_int_equal(c->tensors->struct_size, sizeof(tp_tensors));
    assert_int_equal(GROWN(c->tensors), 0);
    c->tensors->lse.data = c->lse;
    memset(c->o, 0xff, sizeof c->o);
    memset(c->lse, 0xff, sizeof c->lse);
}

void growth_check(growth_call *c) {
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_row rows[SEQS * ROWS * HEADS];
    double o[SEQS * ROWS * HEADS * DIM], lse[SEQS * ROWS * HEADS], bound[SEQS * ROWS * HEADS], lse_bound[SEQS * ROWS * HEADS];
    int n = 0;
    for (int s = 0; s < SEQS; s++)
        for (int r = 0; r < ROWS; r++)
            for (int h = 0; h < HEADS; h++) rows[n++] = (tp_row){s, h, r};
    GOOD(tp_reference(c->problem, c->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, n, rows, o, lse, bound, lse_bound, error));
    for (int i = 0; i < n; i++) {
        assert_true(fabs(c->lse[i] - lse[i]) <= lse_bound[i]);
        for (int x = 0; x < DIM; x++) assert_true(fabs(c->o[i * DIM + x] - o[i * DIM + x]) <= bound[i]);
    }
    memset(c->o, 0xff, sizeof c->o);
    memset(c->lse, 0xff, sizeof c->lse);
}

tp_context *growth_context(const tp_context_options *options) {
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_context *context = NULL;
    GOOD(tp_context_create(options, &context, error));
    return context;
}
