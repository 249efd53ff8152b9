/* SPDX-License-Identifier: Apache-2.0 */
/* Building a call: the harness's tensors in one of a few styles, and rows that follow a request. */
#include "support/call.h"

#include <stdlib.h>

int32_t call_dtype(const call *c, call_tensor which) { return tensors_dtype(&c->held, which); }
int64_t call_heads(const call *c, call_tensor which) { return tensors_heads(&c->held, which); }
int64_t call_dim(const call *c, call_tensor which) { return tensors_dim(&c->held, which); }
int64_t call_tokens(const call *c, call_tensor which, int64_t seq) { return tensors_len(&c->held, which, seq); }

tp_tensor *call_tensor_of(call *c, call_tensor which) {
    tp_tensor *const all[] = {&c->tensors.q, &c->tensors.k, &c->tensors.v, &c->tensors.o,
                              &c->tensors.lse};
    return all[which];
}

void *call_at(const call *c, call_tensor which, int64_t seq, int64_t token, int64_t head) {
    return tensors_at(&c->held, which, seq, token, head, 0);
}

float call_get(const call *c, call_tensor which, int64_t seq, int64_t token, int64_t head,
               int64_t x) {
    return tensors_get(&c->held, which, seq, token, head, x);
}

void call_set(call *c, call_tensor which, int64_t seq, int64_t token, int64_t head, int64_t x,
              float value) {
    tensors_set(&c->held, which, seq, token, head, x, value);
}

/* A number depends on the request, the tensor and the place in it. */
static void fill(call *c, call_tensor which, const call_shape *shape, float size) {
    int64_t dim = call_dim(c, which);
    float *row = malloc((size_t)dim * sizeof *row);
    assert_non_null(row);
    for (int64_t s = 0; s < c->problem.batch; s++)
        for (int64_t t = 0; t < call_tokens(c, which, s); t++)
            for (int64_t h = 0; h < call_heads(c, which); h++) {
                int64_t request = shape->request != NULL ? shape->request[s] : s;
                uint64_t place = random_bits((uint64_t)request, (uint64_t)t, (uint64_t)h);
                for (int64_t x = 0; x < dim; x++)
                    row[x] = tensors_random(place, which, (uint64_t)x, size != 0 ? size : 1.0f);
                tensors_set_row(&c->held, which, s, t, h, row);
            }
    free(row);
}

static struct tensors_style style_of(const call_shape *shape) {
    return (struct tensors_style){.form = shape->layout == CALL_BHSD  ? FORM_HEADS
                                          : shape->layout == CALL_QKV ? FORM_QKV
                                                                      : FORM_TOKENS,
                                  .ragged = shape->layout == CALL_GAPS,
                                  .index64 = shape->index_type == TP_I64,
                                  .two_tables = shape->two_tables,
                                  .lse = 1,
                                  .short_sparse = 2,
                                  .spare = 1,
                                  .exact = 1};
}

call *call_new(const char *text, const call_shape *shape) {
    static const call_shape plain = {0};
    call *c = calloc(1, sizeof *c);
    tp_problem problem;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    tp_error error = TP_ERROR_INIT;
    assert_non_null(c);
    if (shape == NULL) shape = &plain;
    const struct tensors_style style = style_of(shape);
    if (tp_problem_parse(text, &problem, &lengths, &error)) fail_msg("%s", error.text);
    if (shape->layout == CALL_QKV) {
        assert_true(problem.k_dtype == problem.q_dtype && problem.v_dtype == problem.q_dtype);
        assert_true(problem.kv_layout == problem.q_layout && !problem.latent);
    }
    assert_int_equal(tensors_create(&c->held, &problem, &lengths, &style), 0);
    if (shape->layout == CALL_SHARED)
        c->tensors.q.stride[2] = c->tensors.k.stride[0] = c->tensors.v.stride[1] = 0;
    assert_int_equal(tensors_fill_indices(&c->held, shape->seed), 0);
    fill(c, CALL_Q, shape, shape->q_size);
    fill(c, CALL_K, shape, shape->k_size);
    if (!problem.latent) fill(c, CALL_V, shape, shape->v_size);
    return c;
}

void call_free(call *c) {
    call_oracle_free(c->oracle);
    tensors_destroy(&c->held);
    free(c);
}
