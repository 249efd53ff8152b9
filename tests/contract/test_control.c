/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's floating-point environment (rounding mode, flush to zero, exceptions that trap) changes nothing at any
   entry point, and is given back as it was. */
#define _GNU_SOURCE /* feenableexcept */
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/back.h"
#include "tileproof_rope.h"
#include "support/parallel.h"

/* What every entry point gave, byte by byte. */
typedef struct answers {
    size_t used;
    unsigned char bytes[1 << 17];
} answers;

static void note(answers *to, const void *bytes, size_t size) {
    assert_true(to->used + size <= sizeof to->bytes);
    memcpy(to->bytes + to->used, bytes, size);
    to->used += size;
}

static void ask_conversions(answers *to) {
    for (uint32_t i = 0; i < 4000; i++) {
        uint32_t pattern = i * 2654435761u;
        uint16_t out;
        float value;
        if (i % 2) pattern = 0x33000000u + i * 2999u; /* what f16 keeps as a subnormal */
        memcpy(&value, &pattern, sizeof value);
        tp_from_float(i % 4 < 2 ? TP_F16 : TP_BF16, value, &out);
        note(to, &out, sizeof out);
        value = tp_to_float(TP_F16, &out);
        note(to, &value, sizeof value); /* a NaN, too, by its bits */
    }
}

static void ask_texts(answers *to) {
    static const char *const texts[] = {"q4 k4 d8 scale=0.1",
                                        "q4 k4 d8 scale=3e-42",
                                        "q4 k4 d8 softcap=33.3333333 dropout=0.7",
                                        "q4 k4 d8 scale=-1.000000119 qscale=0.3,4,1",
                                        "q4 k4 d8 scale=3e38",
                                        "q4 k4 d8 scale=1e99"};
    for (int i = 0; i < COUNT(texts); i++) {
        tp_problem p;
        char text[256] = "";
        tp_status status = tp_problem_parse(texts[i], &p, NULL, NULL);
        note(to, &status, sizeof status);
        if (status == TP_OK) tp_problem_print(&p, NULL, text, sizeof text);
        note(to, text, sizeof text);
        if (status == TP_OK) note(to, &p.scale, sizeof p.scale);
    }
    tp_problem p; /* scale * log2(e) overflows */
    tp_problem_init(&p);
    p.q_len = p.kv_len = p.head_dim_qk = p.head_dim_v = 4;
    p.scale_set = 1, p.scale = 3e38f;
    tp_status status = tp_problem_check(&p, NULL);
    note(to, &status, sizeof status);
    tp_error error = TP_ERROR_INIT; /* of more digits than are printed */
    p.scale_set = 0, p.softcap = 1.23456789e30f;
    assert_int_equal(tp_problem_check(&p, &error), TP_INVALID);
    note(to, error.text, strlen(error.text));
}

static void ask_merge(answers *to) {
    float o[3][12], lse[3][3], merged[12], merged_lse[3];
    const float *o_parts[] = {o[0], o[1], o[2]}, *lse_parts[] = {lse[0], lse[1], lse[2]};
    /* all exact: the test itself computes in the caller's environment */
    for (int i = 0; i < 36; i++) o[i / 12][i % 12] = i % 5 ? (float)(i * 37 % 101) / 8 : 0x1p-140f;
    for (int i = 0; i < 9; i++) lse[i / 3][i % 3] = (float)(i * 13 % 17) / 4;
    tp_status status = tp_merge(3, 3, 4, o_parts, lse_parts, merged, merged_lse, NULL);
    note(to, &status, sizeof status);
    note(to, merged, sizeof merged);
    note(to, merged_lse, sizeof merged_lse);
}

static void ask_reference(answers *to, const call *c) {
    double o[2 * 8], lse[2], bound[2], lse_bound[2];
    const tp_row rows[] = {{0, 1, 2}, {1, 0, 7}};
    for (int precision = TP_DOUBLE; precision <= TP_NAIVE; precision++) {
        memset(bound, 0, sizeof bound), memset(lse_bound, 0, sizeof lse_bound);
        tp_status status = tp_reference(&c->problem, &c->tensors, (tp_precision)precision, TP_ARITHMETIC_F32, 2, rows, o, lse,
                                        bound, lse_bound, NULL);
        note(to, &status, sizeof status);
        note(to, o, sizeof o);
        note(to, lse, sizeof lse);
        note(to, bound, sizeof bound);
        note(to, lse_bound, sizeof lse_bound);
    }
    double d_q[9 * 2 * 8];
    tp_tensors t = c->tensors;
    tp_gradients g = TP_GRADIENTS_INIT;
    g.d_o = t.o, g.d_o.data = t.q.data;
    t.gradients = &g;
    tp_reference_gradients out = {.struct_size = sizeof out, .d_q = d_q};
    tp_status status = tp_reference_backward(&c->problem, &t, TP_DOUBLE, 0, 0, &out, NULL);
    assert_int_equal(status, TP_OK);
    note(to, d_q, sizeof d_q);
}

/* The gradients, with those that are summed when all tasks are done. */
static void ask_backward(answers *to, back *b) {
    for (int threads = 1; threads <= 2; threads++) {
        parallel p = {.threads = 2};
        tp_status status =
            back_try(b, &(call_how){.threads = threads, .parallel_for = parallel_threads, .user = &p}, NULL, NULL);
        note(to, &status, sizeof status);
        for (int i = BACK_DQ; i <= BACK_DV; i++) note(to, b->rows.buffer[i].memory, b->rows.buffer[i].bytes);
        note(to, b->d_slopes, (size_t)b->slope_count * sizeof(float));
        note(to, b->d_sinks, (size_t)b->problem.q_heads * sizeof(float));
    }
}

static int note_text(void *cookie, const char *text, size_t size) {
    note(cookie, text, size);
    return 0;
}

static void ask_rope(answers *to) {
    tp_rope_options options = TP_ROPE_OPTIONS_INIT;
    tp_rope_rows rows = TP_ROPE_ROWS_INIT;
    options.head_dim = 32, options.kind = TP_ROPE_LLAMA3, options.factor = 8, options.original_length = 8192;
    options.low_freq_factor = 1, options.high_freq_factor = 4;
    rows.dtype = TP_F32, rows.tokens = rows.heads = 1;
    for (int64_t i = 0; i < 40; i++) {
        tp_rotary *rotary = NULL;
        float row[32], weight[32];
        int64_t position = i * i * 1009;
        options.theta = (double)(10007 + i), options.angle = (int32_t)i % 2; /* exact: nothing traps here */
        for (int x = 0; x < 32; x++) row[x] = x % 5 ? (float)(x - 7) : 3e-42f, weight[x] = x % 2 ? 0.3f : -1.7f;
        rows.in.data = rows.out.data = row, rows.positions = &position, rows.norm_weight = i % 3 ? weight : NULL;
        rows.norm_eps = 1e-6f;
        tp_status made = tp_rope_create(&options, &rotary, NULL), turned = tp_rope_apply(rotary, &rows, NULL);
        note(to, &made, sizeof made);
        note(to, &turned, sizeof turned);
        note(to, row, sizeof row);
        tp_rope_destroy(rotary);
    }
}

/* How fast it is differs from call to call; that it is a number does not. */
static void ask_measure(answers *to, const char *kernel) {
    double speed = -1;
    tp_status status = tp_measure_fma(call_context(), kernel, 1, &speed, NULL);
    int fast = speed > 0;
    note(to, &status, sizeof status);
    note(to, &fast, sizeof fast);
}

/* A plan, a decision and a run that is cut into tasks. */
static void ask_runs(answers *to, call *c) {
    for (int threads = 1; threads <= 2; threads++) {
        parallel p = {.threads = 2};
        tp_status status =
            call_try(c, &(call_how){.threads = threads, .parallel_for = parallel_threads, .user = &p}, NULL, NULL);
        note(to, &status, sizeof status);
        note(to, c->held.buffer[CALL_O].memory, c->held.buffer[CALL_O].bytes);
        note(to, c->held.buffer[CALL_LSE].memory, c->held.buffer[CALL_LSE].bytes);
    }
    tp_decision *decision;
    tp_status status = tp_explain(call_context(), &c->problem, NULL, &decision, NULL);
    note(to, &status, sizeof status);
    note(to, &decision->flops, sizeof decision->flops);
    note(to, &decision->flops_usual, sizeof decision->flops_usual);
    decision->flops = 123456789012345.67; /* of more digits than are printed */
    for (int format = TP_TEXT; format <= TP_JSON; format++)
        tp_decision_write(decision, (tp_format)format, note_text, to);
    ask_measure(to, tp_decision_candidate(decision, decision->chosen)->kernel);
    tp_decision_destroy(decision);
}

static answers *ask(call *c, back *b) {
    answers *a = calloc(1, sizeof *a);
    ask_conversions(a);
    ask_texts(a);
    ask_merge(a);
    ask_rope(a);
    ask_reference(a, c);
    ask_runs(a, c);
    ask_backward(a, b);
    return a;
}

static void every_entry_point_gives_the_same(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int rounding, traps;
        unsigned word; /* of MXCSR */
    } cases[] = {
        {"round up", FE_UPWARD, 0, 0},
        {"round down", FE_DOWNWARD, 0, 0},
        {"round to zero", FE_TOWARDZERO, 0, 0},
        {"overflow, division by zero and invalid trap", FE_TONEAREST, FE_OVERFLOW | FE_DIVBYZERO | FE_INVALID, 0},
        {"every exception traps", FE_TONEAREST, FE_ALL_EXCEPT, 0},
        {"flush to zero", FE_TONEAREST, 0, 0x8040},
        {"all at once", FE_UPWARD, FE_OVERFLOW | FE_INEXACT, 0x8040},
    };
    call *c = call_new("b2 h4/2 q9 k70 d8 f32 scale=0.3 softcap=5 sinks", NULL);
    call_set(c, CALL_V, 0, 3, 0, 0, 3e-42f);
    call_context();
    back *b = back_new("b2 h4/2 q9 k70 d8 f32 scale=0.3 alibi sinks", BACK_D_LSE);
    back_run(b, &(call_how){0}, NULL);
    answers *plain = ask(c, b);
    for (int n = 0; n < COUNT(cases); n++) {
        fenv_t before;
        assert_int_equal(fegetenv(&before), 0);
        feclearexcept(FE_ALL_EXCEPT);
        fesetround(cases[n].rounding);
#if defined(__SSE__)
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | cases[n].word);
#endif
        feenableexcept(cases[n].traps);
        answers *got = ask(c, b);
        int rounding = fegetround(), traps = fegetexcept();
        fesetenv(&before);
        assert_int_equal(rounding, cases[n].rounding);
        assert_int_equal(traps, cases[n].traps);
        assert_int_equal(got->used, plain->used);
        for (size_t i = 0; i < plain->used; i++)
            if (got->bytes[i] != plain->bytes[i])
                fail_msg("%s: byte %zu of %zu differs", cases[n].name, i, plain->used);
        free(got);
    }
    free(plain);
    back_free(b);
    call_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_entry_point_gives_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
