/* SPDX-License-Identifier: Apache-2.0 */
/* Results under every mask tree are the reference's; sinks, biases, callbacks. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "masks/trees.h"

static void check_result(const char *words, uint64_t seed) {
    char text[256];
    if (call_quick() && seed % 3 != 0) return;
    snprintf(text, sizeof text, "b2 h4/2 q40 k150 d260 f32 %s", words);
    call_check_all(text, &(call_shape){.seed = seed});
}

static void results_are_the_references(void **state) {
    (void)state;
    static const char *const scores[] = {
        "softcap=2 causal", "alibi", "alibi positions causal", "bias=f32", "bias=f16 bits", "sinks causal", "sinks bits",
        "qscale=0.5,8,1", "qscale=-3,2,0 softcap=30 alibi bias=bf16 sinks causal documents positions"};
    each_tree(check_result);
    for (int i = 0; i < COUNT(scores); i++)
        for (uint64_t seed = 0; seed < 3; seed++) check_result(scores[i], seed * 3);
}

/* In the second block the first rows of a strip begin, and the others go on with what they saw of the first: rows that meet
   values apart keep factors of their own. */
static void a_later_document_of_earlier_rows(void **state) {
    (void)state;
    static const char *const texts[] = {"q60 k600 d128 f32 documents", "q60 k600 d128 bf16 documents",
                                        "q60 k600 d128 bf16 documents p=bf16"};
    int32_t rows[60], keys[600];
    for (int i = 0; i < 60; i++) rows[i] = i < 5 ? 2 : 1;
    for (int j = 0; j < 600; j++) keys[j] = j < 300 ? 1 : j < 400 ? 2 : 0;
    for (int t = 0; t < COUNT(texts); t++) {
        call *c = call_new(texts[t], NULL);
        c->tensors.index_type = TP_I32;
        c->tensors.q_documents = rows;
        c->tensors.k_documents = keys;
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check(c, texts[t]);
        }
        call_run(c, &(call_how){0}, NULL); /* by the kernel that p=bf16 has */
        call_check_bounds(c, texts[t]);
        call_free(c);
    }
}

/* A row that sees no key but has a sink: o is 0 and lse the sink, to the bit. Sinks that are
   not finite: -inf is none, the others spoil the rows of their head. */
static void sinks_stand_alone(void **state) {
    (void)state;
    call *c = call_new("h4/2 q6 k2 d8 f32 causal sinks", NULL);
    float sinks[4] = {1.5f, -INFINITY, NAN, INFINITY};
    c->tensors.sinks = sinks;
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
        for (int64_t row = 0; row < 6; row++)
            for (int64_t head = 0; head < 4; head++) {
                float o = call_get(c, CALL_O, 0, row, head, 3), lse = call_get(c, CALL_LSE, 0, row, head, 0);
                if (head >= 2) assert_true(isnan(o) && isnan(lse));
                if (head >= 2 || row >= 4) continue; /* rows 0..3 see nothing */
                assert_true(o == 0.0f);
                assert_true(head == 0 ? lse == 1.5f : lse == -INFINITY);
            }
    }
    call_free(c);
    c = call_new("h500 q2 k1 d8 f32 causal sinks", NULL);
    float many[500];
    c->tensors.sinks = many;
    for (int i = 0; i < (call_quick() ? 4 : 40); i++) /* the lse of a row that sees nothing is the sink, to the bit */
        for (int k = 0; call_kernel(k) != NULL; k++) {
            for (int h = 0; h < 500; h++)
                many[h] = ldexpf((float)((i * 500 + h) * 2654435761u % 2000003) / 1e6f - 1, (i * 500 + h) % 9 - 3);
            many[7] = 3e38f;
            many[8] = -FLT_MAX;
            many[9] = FLT_MAX;
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            for (int64_t h = 0; h < 500; h++) {
                assert_true(call_get(c, CALL_LSE, 0, 0, h, 0) == many[h] && call_get(c, CALL_O, 0, 0, h, 3) == 0);
                assert_true(isfinite(call_get(c, CALL_LSE, 0, 1, h, 0)));
            }
        }
    call_free(c);
}

/* A bias of -inf hides a key as a mask does: NaN in it reaches nothing. Many rows, and few. */
static void a_bias_hides(void **state) {
    (void)state;
    static const char *const texts[] = {"h2/1 q20 k40 d24 f32 bias=f32", "h2/1 q3 k40 d24 f32 bias=f32"};
    for (int n = 0; n < COUNT(texts); n++) {
        call *clean = call_new(texts[n], &(call_shape){.seed = 1}), *spoilt = call_new(texts[n], &(call_shape){.seed = 1});
        call *const both[] = {clean, spoilt};
        int64_t rows = clean->problem.q_len;
        for (int i = 0; i < 2; i++) /* every second row does not see key 13 */
            for (int64_t at = 0; at < 2 * rows; at++) {
                const int64_t *stride = both[i]->tensors.bias_stride;
                float *bias = (float *)(uintptr_t)both[i]->tensors.bias;
                bias[at % 2 * stride[1] + at / 2 * stride[2] + 13] = at / 2 % 2 ? -INFINITY : 0.25f;
            }
        for (int which = CALL_K; which <= CALL_V; which++)
            for (int k = 0; call_kernel(k) != NULL; k++) {
                float before = call_get(spoilt, which, 0, 13, 0, 5);
                call_run(clean, &(call_how){.kernel = call_kernel(k)}, NULL);
                call_set(spoilt, which, 0, 13, 0, 5, NAN);
                call_run(spoilt, &(call_how){.kernel = call_kernel(k)}, NULL);
                call_set(spoilt, which, 0, 13, 0, 5, before);
                for (int64_t at = 0; at < 2 * rows; at++)
                    if (at / 2 % 2)
                        call_same_row(clean, 0, at / 2, at % 2, spoilt, 0, at / 2, at % 2, "hidden by bias");
                    else
                        assert_true(isnan(call_get(spoilt, CALL_O, 0, at / 2, at % 2, 5)));
            }
        call_free(clean);
        call_free(spoilt);
    }
}

/* Strides that are not 1 between keys, and 0. */
static void bias_strides(void **state) {
    (void)state;
    call *c = call_new("h2/1 q20 k40 d24 bf16->f32 bias=f16 causal", NULL);
    static uint16_t bias[64 * 7];
    for (int i = 0; i < COUNT(bias); i++) tp_from_float(TP_F16, (float)(i * 37 % 64) / 16 - 2, &bias[i]);
    static const int64_t strides[][4] = {{0, 0, 0, 7}, {0, 3, 1, 7}, {0, 1, 2, 0}, {0, 0, 0, 0}, {0, 5, 2, 1}};
    c->tensors.bias = bias;
    for (int i = 0; i < COUNT(strides); i++) {
        memcpy(c->tensors.bias_stride, strides[i], sizeof strides[i]);
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check_bounds(c, call_kernel(k));
        }
    }
    call_free(c);
}

static int64_t asked;
static int ask(void *user, int64_t seq, int64_t row, int64_t key) {
    (void)user, (void)seq;
    asked++;
    return (row + key) % 2 == 0;
}

static void a_callback_is_asked_once(void **state) {
    (void)state;
    call *c = call_new("b2 h4/2 q30 k70 d24 f32 callback", NULL);
    c->tensors.callback = ask;
    for (int k = 0; call_kernel(k) != NULL; k++) {
        asked = 0;
        call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
        assert_int_equal(asked, 2 * 30 * 70);
        call_check(c, call_kernel(k));
    }
    call_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_later_document_of_earlier_rows),
        cmocka_unit_test(results_are_the_references),
        cmocka_unit_test(sinks_stand_alone),
        cmocka_unit_test(a_bias_hides),
        cmocka_unit_test(bias_strides),
        cmocka_unit_test(a_callback_is_asked_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
