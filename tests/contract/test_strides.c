/* SPDX-License-Identifier: Apache-2.0 */
/* Strides beyond 2^31 elements, in reserved address space of which only the rows' pages are opened:
   the same bits as the same data laid out small. */
#include <stdio.h>
#include <string.h>

#include "support/call.h"
#include "support/guard.h"

static const char *const names[] = {"q", "k", "v", "o", "lse"};
static const char *const dims[] = {"batch", "token", "head"};

static int64_t steps(const call *c, call_tensor which, int dim) {
    int keys = which == CALL_K || which == CALL_V;
    if (dim == 0) return c->problem.batch;
    if (dim == 2) return call_heads(c, which);
    if ((keys ? c->problem.kv_layout : c->problem.q_layout) == TP_PACKED)
        return keys ? c->tensors.kv_tokens : c->tensors.q_tokens;
    return keys ? c->problem.kv_len : c->problem.q_len;
}

static void each_row(const call *far, const call *near, call_tensor which,
                     void (*visit)(void *far_row, void *near_row, size_t bytes)) {
    size_t bytes =
        (size_t)call_dim(near, which) * tp_dtype_bytes((tp_dtype)call_dtype(near, which));
    for (int64_t s = 0; s < near->problem.batch; s++)
        for (int64_t t = 0; t < call_tokens(near, which, s); t++)
            for (int64_t h = 0; h < call_heads(near, which); h++)
                visit(call_at(far, which, s, t, h), call_at(near, which, s, t, h), bytes);
}

static void open_row(void *far_row, void *near_row, size_t bytes) {
    reserve_open(far_row, bytes);
    memcpy(far_row, near_row, bytes);
}

/* work, with one tensor that has one stride far apart, against near. */
static void run_far(const call *near, const call *work, const char *kernel, call_tensor which,
                    int dim, int64_t stride) {
    call far = *work;
    tp_tensor *t = call_tensor_of(&far, which);
    tp_error error = TP_ERROR_INIT;
    size_t size = tp_dtype_bytes((tp_dtype)call_dtype(near, which));
    size_t bytes =
        near->held.buffer[which].bytes + (size_t)steps(near, which, dim) * (size_t)stride * size;
    char what[128], *base = reserve(bytes);
    snprintf(what, sizeof what, "%s: %s.stride (%s) %lld", kernel, names[which], dims[dim],
             (long long)stride);
    if (base == NULL) {
        printf("%s: not run here: no address space of %zu bytes\n", what, bytes);
        return;
    }
    t->data = base;
    t->stride[dim] = stride;
    far.held.buffer[which].memory = NULL; /* not to be poisoned as a whole */
    each_row(&far, work, which, open_row);
    if (call_try(&far, &(call_how){.kernel = kernel}, NULL, &error))
        fail_msg("%s: %s", what, error.text);
    call_same(near, &far, what);
    reserve_free(base, bytes);
}

static void check(const char *text) {
    static const int64_t strides[] = {((int64_t)1 << 31) + 24, (int64_t)1 << 32,
                                      ((int64_t)1 << 29) + 8};
    call *near = call_new(text, NULL), *work = call_new(text, NULL);
    for (int i = CALL_O; i <= CALL_LSE; i++)
        memset(work->held.buffer[i].memory, 0xff, work->held.buffer[i].bytes);
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call_run(near, &(call_how){.kernel = call_kernel(k)}, NULL);
        call_check(near, text);
        for (int which = 0; which < CALL_TENSORS; which++)
            for (int dim = near->problem.q_layout == TP_PACKED; dim < 3; dim++)
                for (int n = 0; n < COUNT(strides); n++)
                    run_far(near, work, call_kernel(k), which, dim, strides[n]);
    }
    call_free(near);
    call_free(work);
}

static void plain_batches(void **state) {
    (void)state;
    check("b2 h4/2 q3 k9 d12 f32 causal");
    check("b3 h2/1 q5 k9 d5/17 bf16");
}

static void packed_sequences(void **state) {
    (void)state;
    check("h4/2 seqs=1x3/9,1x2/4 d12 f16 packed causal");
}

/* Where there is one step, or nothing is wanted, a stride is never taken: it may be anything. Nothing may be computed
   with it, which the undefined-behaviour sanitizer sees. */
static void strides_that_are_never_taken(void **state) {
    (void)state;
    static const char *const texts[] = {"q1 k1 d12 f32", "q1 k1 d12 bf16 sinks alibi bias=f32", "q1 k1 d12 f16 bits",
                                        "seqs=1x1/1 d8 f32 packed", "q1 k0 d8 f32 bias=f16 bits alibi", "q1 k1 d8 f32 paged=1"};
    for (int n = 0; n < COUNT(texts); n++)
        for (int k = 0; call_kernel(k) != NULL; k++)
            for (int wanted = 0; wanted < 2; wanted++) {
                call *near = call_new(texts[n], NULL), *far = call_new(texts[n], NULL);
                tp_error error = TP_ERROR_INIT;
                for (int which = 0; which < CALL_TENSORS; which++)
                    for (int dim = 0; dim < 3; dim++)
                        if (far->problem.kv_layout == TP_BATCH || dim == 2)
                            call_tensor_of(far, which)->stride[dim] = INT64_MAX;
                for (int i = 0; i < 4; i++) far->tensors.bias_stride[i] = INT64_MAX;
                for (int i = 0; i < 3; i++) far->tensors.bits_stride[i] = INT64_MAX;
                far->tensors.alibi_stride = INT64_MAX;
                far->tensors.page_slots = far->problem.kv_layout == TP_PAGED ? far->tensors.page_slots : INT64_MAX;
                if (far->tensors.k_pages == NULL) far->tensors.k_pages = far->tensors.v_pages = &error;
                if (!wanted) near->tensors.lse.data = far->tensors.lse.data = NULL;
                for (int i = 0; i < 3 && !wanted; i++) far->tensors.lse.stride[i] = INT64_MIN;
                if (far->kv_lens[0] == 0) far->tensors.bias = far->tensors.bits = NULL;
                call_run(near, &(call_how){.kernel = call_kernel(k)}, NULL);
                if (call_try(far, &(call_how){.kernel = call_kernel(k)}, NULL, &error)) fail_msg("%s: %s", texts[n], error.text);
                assert_memory_equal(near->held.buffer[CALL_O].memory, far->held.buffer[CALL_O].memory,
                                    near->held.buffer[CALL_O].bytes);
                assert_memory_equal(near->held.buffer[CALL_LSE].memory, far->held.buffer[CALL_LSE].memory,
                                    near->held.buffer[CALL_LSE].bytes);
                double one[12], other[12];
                tp_row row = {0, 0, 0};
                assert_int_equal(tp_reference(&near->problem, &near->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, one, NULL,
                                              NULL, NULL, &error),
                                 0);
                if (tp_reference(&far->problem, &far->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, other, NULL, NULL, NULL,
                                 &error))
                    fail_msg("%s: reference: %s", texts[n], error.text);
                assert_memory_equal(one, other, (size_t)near->problem.head_dim_v * sizeof(double));
                call_free(near);
                call_free(far);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_batches),
        cmocka_unit_test(packed_sequences),
        cmocka_unit_test(strides_that_are_never_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
