/* SPDX-License-Identifier: Apache-2.0 */
#include "support/back.h"

#include <stdlib.h>
#include <string.h>

tp_tensor *back_tensor_of(back *b, back_tensor which) {
    tp_tensor *const all[] = {&b->gradients.d_q, &b->gradients.d_k, &b->gradients.d_v, &b->gradients.d_o,
                              &b->gradients.d_lse};
    return all[which];
}

struct gradients back_view(const back *b) {
    struct gradients view = b->held;
    tp_tensors *held = &view.held.call;
    view.held.sequences = b->c->tensors.batch;
    held->q = b->gradients.d_q, held->k = b->gradients.d_k, held->v = b->gradients.d_v;
    held->o = b->gradients.d_o, held->lse = b->gradients.d_lse;
    return view;
}

void *back_at(const back *b, back_tensor which, int64_t seq, int64_t token, int64_t head) {
    struct gradients view = back_view(b);
    return tensors_at(&view.held, which, seq, token, head, 0);
}

float back_get(const back *b, back_tensor which, int64_t seq, int64_t token, int64_t head, int64_t x) {
    struct gradients view = back_view(b);
    return tensors_get(&view.held, which, seq, token, head, x);
}

void back_set(back *b, back_tensor which, int64_t seq, int64_t token, int64_t head, int64_t x, float value) {
    struct gradients view = back_view(b);
    tensors_set(&view.held, which, seq, token, head, x, value);
}

back *back_new(const char *text, int flags) {
    back *b = calloc(1, sizeof *b);
    tp_lengths lengths = {.struct_size = sizeof lengths};
    assert_non_null(b);
    b->c = call_new(text, NULL);
    b->problem = b->c->problem;
    b->problem.op = TP_BACKWARD;
    tp_problem again;
    assert_int_equal(tp_problem_parse(text, &again, &lengths, NULL), TP_OK);
    if (flags & BACK_SHARE_SLOPES) b->c->tensors.alibi_stride = 0;
    struct tensors like = b->c->held; /* gradients lie like these; the other pointer to them is not needed */
    if (flags & BACK_SLICES) like.style.form = FORM_QKV;
    assert_int_equal(gradients_create(&b->held, &like, &lengths, flags & BACK_D_LSE ? 1 : 0), 0);
    if (flags & BACK_SHARE_BIAS && b->d_bias != NULL) {
        const int64_t rows = b->problem.q_len, keys = b->problem.kv_len, strides[4] = {0, 0, keys, 1};
        guarded_free(GUARDED_NOT, b->d_bias);
        b->bias_count = rows * keys;
        b->gradients.d_bias = b->d_bias =
            guarded_take(GUARDED_NOT, (size_t)b->bias_count * sizeof(float), sizeof(float), 0xff);
        memcpy(b->gradients.d_bias_stride, strides, sizeof strides);
    }
    b->c->tensors.gradients = &b->gradients;
    return b;
}

void back_free(back *b) {
    back_forget(b);
    gradients_destroy(&b->held);
    call_free(b->c);
    free(b);
}

const char *back_kernel(int index) {
    const tp_kernel_info *info = call_kernel_info(index);
    return info != NULL && strcmp(info->strategy, "math") != 0 ? info->name : NULL;
}

static void poison(void *cookie, int byte) { gradients_poison(&((back *)cookie)->held, byte); }

tp_status back_try(back *b, const call_how *how, tp_receipt *receipt, tp_error *error) {
    return call_plan_run(&b->problem, &b->c->tensors, how, poison, b, receipt, error);
}

/* What lies outside the rows of an output keeps its poison. */
static void check_untouched(const back *b) {
    static const char *const names[] = {"d_q", "d_k", "d_v"};
    struct gradients view = back_view(b);
    char reason[256];
    for (int i = BACK_DQ; i <= BACK_DV; i++)
        if (tensors_one_badly_written(&view.held, (back_tensor)i, names[i], reason, sizeof reason)) fail_msg("%s", reason);
}

void back_run(back *b, const call_how *how, tp_receipt *receipt) {
    tp_error error = TP_ERROR_INIT;
    call_run(b->c, how, NULL);
    if (back_try(b, how, receipt, &error))
        fail_msg("%s: %s", how->kernel != NULL ? how->kernel : "any kernel", error.text);
    check_untouched(b);
}

void back_same(const back *a, const back *b, const char *what) {
    for (int i = BACK_DQ; i <= BACK_DV; i++) {
        if (a->rows.buffer[i].memory == NULL) continue;
        assert_int_equal(a->rows.buffer[i].bytes, b->rows.buffer[i].bytes);
        if (memcmp(a->rows.buffer[i].memory, b->rows.buffer[i].memory, a->rows.buffer[i].bytes) != 0)
            fail_msg("%s: gradient %d differs", what, i);
    }
    const struct {
        const float *a, *b;
        int64_t count;
    } sums[] = {{a->d_bias, b->d_bias, a->bias_count},
                {a->d_slopes, b->d_slopes, a->slope_count},
                {a->d_sinks, b->d_sinks, a->d_sinks ? a->problem.q_heads : 0}};
    for (int i = 0; i < COUNT(sums); i++)
        if (sums[i].count > 0 && memcmp(sums[i].a, sums[i].b, (size_t)sums[i].count * sizeof(float)) != 0)
            fail_msg("%s: sum %d differs", what, i);
}
