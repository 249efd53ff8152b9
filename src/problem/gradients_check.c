/* SPDX-License-Identifier: Apache-2.0 */
/* A backward call's own tensors: are those it needs there, and are those it may ask for such as exist? */
#include "base/arena.h"
#include "base/error.h"
#include "problem/side.h"

tp__mask_array tp__gradient_array_at(const tp_problem *p, const tp_tensors *t, int index) {
    const tp_gradients *g = t->gradients;
    const int64_t unit = sizeof(float), extent[4] = {t->batch, p->q_heads, tp__rows_max(p, t), tp__keys_max(p, t)};
    int touched = t->batch > 0 && extent[2] > 0 && extent[3] > 0;
    const tp__mask_array arrays[] = {
        {"d_bias", g->d_bias, touched ? tp__span_bytes(g->d_bias_stride, extent, 4, unit, unit) : 0, unit},
        {"d_alibi_slopes", g->d_alibi_slopes,
         tp__span_bytes(&g->d_alibi_stride, &t->batch, 1, unit, p->q_heads * unit), unit},
        {"d_sinks", g->d_sinks, p->q_heads * unit, unit},
    };
    if (index >= (int)(sizeof arrays / sizeof arrays[0])) return (tp__mask_array){0};
    return arrays[index];
}

static tp_status check_arrays(const tp_problem *p, const tp_tensors *t, tp_error *error) {
    const int asked[] = {p->bias_dtype != 0, p->alibi, p->sinks};
    for (int i = 0;; i++) {
        tp__mask_array array = tp__gradient_array_at(p, t, i);
        if (array.name == NULL) return TP_OK;
        TP_REQUIRE(array.data == NULL || asked[i], error, TP_INVALID,
                   "%s is %p though the problem has no %s: it must be NULL", array.name, array.data, array.name + 2);
        TP_TRY(tp__mask_array_check(&array, error));
    }
}

tp_status tp__gradients_check(const tp_problem *p, const tp_tensors *t, tp_error *error) {
    const tp_gradients *g = t->gradients;
    TP_REQUIRE(g != NULL, error, TP_INVALID,
               "gradients is NULL: a backward call needs a tp_gradients, with d_o at least");
    TP_REQUIRE(g->reserved == 0, error, TP_INVALID, "gradients.reserved is %d: it must be 0", g->reserved);
    for (int i = 0; i < 4; i++)
        TP_REQUIRE(g->d_bias == NULL || g->d_bias_stride[i] >= 0, error, TP_INVALID,
                   "d_bias_stride[%d] is %lld: it must be at least 0", i, (long long)g->d_bias_stride[i]);
    TP_REQUIRE(g->d_alibi_slopes == NULL || g->d_alibi_stride == 0 || g->d_alibi_stride >= p->q_heads, error,
               TP_INVALID,
               "d_alibi_stride is %lld: it must be 0, to sum over sequences, or at least q_heads = %lld",
               (long long)g->d_alibi_stride, (long long)p->q_heads);
    TP_REQUIRE(g->d_alibi_slopes == NULL || g->d_alibi_stride != 0 || t->alibi_stride == 0 || t->batch <= 1, error,
               TP_INVALID,
               "d_alibi_stride is 0 though each sequence has slopes of its own: it must be at least q_heads = %lld",
               (long long)p->q_heads);
    return check_arrays(p, t, error);
}
