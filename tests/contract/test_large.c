/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finite values as large as a float holds: biases, slopes, sinks and factors near FLT_MAX. A finite bias is never a
 * mask: a row whose every key has the lowest finite bias, as programs write padding, is the mean of its values.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "support/call.h"

static void set_bias(call *c, int64_t row, int64_t key, float value) {
    tp_dtype dtype = (tp_dtype)c->problem.bias_dtype;
    const int64_t *stride = c->tensors.bias_stride;
    for (int64_t h = 0; h < c->problem.q_heads; h++)
        tp_from_float(dtype, value,
                      (char *)(uintptr_t)c->tensors.bias +
                          (h * stride[1] + row * stride[2] + key * stride[3]) * (int64_t)tp_dtype_bytes(dtype));
}

static double mean_of(const call *c, int64_t head, int64_t x) {
    double sum = 0;
    for (int64_t j = 0; j < c->problem.kv_len; j++) sum += call_get(c, CALL_V, 0, j, head / 2, x);
    return sum / (double)c->problem.kv_len;
}

static void expect_mean(const call *c, int64_t row, float lse, const char *what) {
    for (int64_t h = 0; h < c->problem.q_heads; h++) {
        if (call_get(c, CALL_LSE, 0, row, h, 0) != lse)
            fail_msg("%s: the lse of row %lld is %g, not %g", what, (long long)row,
                     (double)call_get(c, CALL_LSE, 0, row, h, 0), (double)lse);
        for (int64_t x = 0; x < c->problem.head_dim_v; x++)
            if (!(fabs(call_get(c, CALL_O, 0, row, h, x) - mean_of(c, h, x)) < 1e-6))
                fail_msg("%s: o[%lld] of row %lld is %g, the mean %g", what, (long long)x, (long long)row,
                         (double)call_get(c, CALL_O, 0, row, h, x), mean_of(c, h, x));
    }
}

/* Even rows see some keys and have the lowest bias elsewhere, odd rows have it everywhere. */
static void the_lowest_bias_is_no_mask(void **state) {
    (void)state;
    static const char *const texts[] = {"h4/2 q40 k77 d24 f32->f32 bias=f32", "h4/2 q40 k77 d24 bf16->f32 bias=bf16",
                                        "h4/2 q3 k1100 d16 f32 bias=f32", "h4/2 q20 k600 d260/8 f16->f32 bias=f32"};
    static const float lowest[] = {-FLT_MAX, -3e38f, -0x1.fep127f}; /* the last is bf16's */
    for (int t = 0; t < COUNT(texts); t++)
        for (int l = 0; l < COUNT(lowest); l++) {
            float low = t == 1 ? lowest[2] : lowest[l];
            call *c = call_new(texts[t], NULL), *masked = call_new(texts[t], NULL);
            for (int64_t r = 0; r < c->problem.q_len; r++)
                for (int64_t j = 0; j < c->problem.kv_len; j++) {
                    int sees = r % 2 == 0 && (j * 7 + r) % 3 == 0;
                    set_bias(c, r, j, sees ? 0.5f : low);
                    set_bias(masked, r, j, sees ? 0.5f : -INFINITY);
                }
            for (int k = 0; call_kernel(k) != NULL; k++) {
                char what[160];
                snprintf(what, sizeof what, "%s, %s, bias %g", texts[t], call_kernel(k), (double)low);
                call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
                call_run(masked, &(call_how){.kernel = call_kernel(k)}, NULL);
                for (int64_t r = 0; r < c->problem.q_len; r++) {
                    if (r % 2) expect_mean(c, r, low, what);
                    for (int64_t h = 0; r % 2 == 0 && h < c->problem.q_heads; h++)
                        call_same_row(c, 0, r, h, masked, 0, r, h, what);
                }
                call_check_bounds(c, what);
            }
            call_free(c);
            call_free(masked);
        }
}

/* One key's bias is far above all others. */
static void the_highest_bias_takes_all(void **state) {
    (void)state;
    call *c = call_new("h4/2 q40 k77 d24 f32 bias=f32", NULL);
    for (int64_t r = 0; r < 40; r++)
        for (int64_t j = 0; j < 77; j++) set_bias(c, r, j, j == r + 9 ? 3e38f : j % 2 ? 0.0f : -3e38f);
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
        for (int64_t r = 0; r < 40; r++)
            for (int64_t h = 0; h < 4; h++) {
                assert_true(call_get(c, CALL_LSE, 0, r, h, 0) == 3e38f);
                for (int64_t x = 0; x < 24; x++)
                    assert_true(call_get(c, CALL_O, 0, r, h, x) == call_get(c, CALL_V, 0, r + 9, h / 2, x));
            }
        call_check_bounds(c, call_kernel(k));
    }
    call_free(c);
}

/* Slopes and factors that overflow where they meet a large number, and must not where they meet 0. */
static void nothing_times_much_is_nothing(void **state) {
    (void)state;
    static const struct {
        const char *text;
        float slope;
    } calls[] = {{"h4/2 q40 k40 d24 f32 window=0,0 alibi", 3e38f},
                 {"h4/2 q40 k40 d24 f32 window=0,0 alibi", -FLT_MAX},
                 {"h4/2 q40 k77 d24 f32 qscale=3e38,64,1 scale=0", 0},
                 {"h4/2 q3 k1100 d24 bf16 qscale=-3e38,600,0 scale=0", 0},
                 {"h4/2 q40 k77 d24 f32 scale=1e36 window=0,0", 0},
                 {"h4/2 q40 k77 d24 f32 alibi causal", 3e35f}};
    for (int i = 0; i < COUNT(calls); i++) {
        call *c = call_new(calls[i].text, NULL);
        float slopes[4] = {calls[i].slope, calls[i].slope, calls[i].slope, calls[i].slope};
        if (c->problem.alibi) c->tensors.alibi_slopes = slopes;
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check_bounds(c, calls[i].text);
        }
        call_free(c);
    }
}

static void sinks_of_any_size(void **state) {
    (void)state;
    static const char *const texts[] = {"h4/2 q40 k77 d24 f32 causal sinks", "h4/2 q3 k1100 d24 bf16 sinks",
                                        "h4/2 q40 k77 d24 f32 softcap=20 sinks"};
    float sinks[4] = {3e38f, -3e38f, FLT_MAX, -FLT_MAX};
    for (int t = 0; t < COUNT(texts); t++) {
        call *c = call_new(texts[t], NULL);
        c->tensors.sinks = sinks;
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check_bounds(c, texts[t]);
            for (int64_t r = 0; r < c->problem.q_len; r++)
                for (int64_t h = 0; h < 4; h += 2)
                    assert_true(call_get(c, CALL_LSE, 0, r, h, 0) == sinks[h] &&
                                call_get(c, CALL_O, 0, r, h, 5) == 0);
        }
        call_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lowest_bias_is_no_mask),
        cmocka_unit_test(the_highest_bias_takes_all),
        cmocka_unit_test(nothing_times_much_is_nothing),
        cmocka_unit_test(sinks_of_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
