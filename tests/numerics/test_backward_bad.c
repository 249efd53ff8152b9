/* SPDX-License-Identifier: Apache-2.0 */
/* Backward calls that meet NaN, wrong arguments, or the end of their memory; and what is said of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/back.h"
#include "support/guard.h"

/* ---- a NaN reaches what depends on it, and nothing else ---- */

enum poison { IN_Q, IN_K, IN_V, IN_DO, POISONS };

static void put(back *b, enum poison where, int64_t seq, int64_t token, int64_t head, int64_t x, float value) {
    if (where == IN_DO)
        back_set(b, BACK_DO, seq, token, head, x, value);
    else
        call_set(b->c, (call_tensor)(CALL_Q + (int)where), seq, token, head, x, value);
}

static int visible(const back *b, int64_t s, int64_t head, int64_t row, int64_t key) {
    return tp_mask_visible(&b->c->problem, &b->c->tensors, s, head, row, key) == 1;
}

/* Is the row's result spoilt by the token that was poisoned? */
static int row_is_hit(const back *b, enum poison where, int64_t s, int64_t token, int64_t head, int64_t row,
                      int64_t row_head) {
    int64_t group = b->problem.q_heads / b->problem.kv_heads;
    if (where == IN_K || where == IN_V) return row_head / group == head && visible(b, s, row_head, row, token);
    if (row != token || row_head != head) return 0;
    for (int64_t j = 0; j < b->c->kv_lens[s]; j++)
        if (visible(b, s, head, row, j)) return 1;
    return 0;
}

static int key_is_hit(const back *b, enum poison where, int64_t s, int64_t token, int64_t head, int64_t key,
                      int64_t kv_head) {
    int64_t group = b->problem.q_heads / b->problem.kv_heads;
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (int64_t r = 0; r < b->c->q_lens[s]; r++)
            if (row_is_hit(b, where, s, token, head, r, h) && visible(b, s, h, r, key)) return 1;
    return 0;
}

static int has_nan(const back *b, back_tensor which, int64_t s, int64_t token, int64_t head) {
    int64_t dim = which == BACK_DV ? b->problem.head_dim_v : b->problem.head_dim_qk;
    for (int64_t x = 0; x < dim; x++)
        if (isnan(back_get(b, which, s, token, head, x))) return 1;
    return 0;
}

static int same_row(const back *a, const back *b, back_tensor which, int64_t s, int64_t token, int64_t head) {
    int64_t dim = which == BACK_DV ? b->problem.head_dim_v : b->problem.head_dim_qk;
    return memcmp(back_at(a, which, s, token, head), back_at(b, which, s, token, head),
                  (size_t)dim * sizeof(float)) == 0;
}

static void compare(const back *clean, const back *b, enum poison where, int64_t s, int64_t token, int64_t head,
                    const char *text) {
    const tp_problem *p = &b->problem;
    for (int64_t r = 0; r < b->c->q_lens[s]; r++)
        for (int64_t h = 0; h < p->q_heads; h++) {
            int hit = row_is_hit(b, where, s, token, head, r, h);
            if (hit ? !has_nan(b, BACK_DQ, s, r, h) : !same_row(clean, b, BACK_DQ, s, r, h))
                fail_msg("%s: poison %d at %lld %s d_q of row %lld, head %lld", text, where, (long long)token,
                         hit ? "does not reach" : "reaches", (long long)r, (long long)h);
        }
    for (int64_t j = 0; j < b->c->kv_lens[s]; j++)
        for (int64_t h = 0; h < p->kv_heads; h++) {
            int hit = key_is_hit(b, where, s, token, head, j, h);
            if (hit ? !has_nan(b, BACK_DK, s, j, h)
                    : !same_row(clean, b, BACK_DK, s, j, h) || !same_row(clean, b, BACK_DV, s, j, h))
                fail_msg("%s: poison %d at %lld %s d_k or d_v of key %lld, head %lld", text, where, (long long)token,
                         hit ? "does not reach" : "reaches", (long long)j, (long long)h);
        }
}

static void poison(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h4/2 q21 k40 d12 f32 causal",   "h2/1 q9 k5 d6 f32 causal",
        "h2/1 q130 k210 d8 f32 causal window=40,0", "h2/1 q30 k70 d8/20 f32 bits",
        "h2 q40 k60 d8 f32 causal softcap=3 alibi",
    };
    for (int n = 0; n < COUNT(texts); n++)
        for (int k = 0; back_kernel(k) != NULL; k++) {
            const call_how how = {.kernel = back_kernel(k)};
            back *clean = back_new(texts[n], 0), *b = back_new(texts[n], 0);
            back_run(clean, &how, NULL);
            for (int where = 0; where < POISONS; where++) {
                int keys = where == IN_K || where == IN_V;
                int64_t len = keys ? b->c->kv_lens[0] : b->c->q_lens[0], places[] = {0, len / 2, len - 1};
                for (int i = 0; i < COUNT(places); i++) {
                    int64_t head = keys ? b->problem.kv_heads - 1 : b->problem.q_heads - 1;
                    put(b, (enum poison)where, 0, places[i], head, 1, i == 1 ? INFINITY : NAN);
                    back_run(b, &how, NULL);
                    if (i != 1) /* an infinity may turn into a NaN or stay one: what it may not reach is the same */
                        compare(clean, b, (enum poison)where, 0, places[i], head, texts[n]);
                    float value = where == IN_DO ? back_get(clean, BACK_DO, 0, places[i], head, 1)
                                                 : call_get(clean->c, (call_tensor)(CALL_Q + where), 0, places[i],
                                                            head, 1);
                    put(b, (enum poison)where, 0, places[i], head, 1, value);
                }
            }
            back_free(clean);
            back_free(b);
        }
}

/* Rows that see nothing have d_q 0, keys that nobody sees d_k and d_v 0: whatever stands in them. */
static void unseen(void **state) {
    (void)state;
    for (int k = 0; back_kernel(k) != NULL; k++) {
        back *b = back_new("h2/1 q20 k300 d8 f32 window=0,0 sinks", BACK_D_LSE);
        for (int64_t j = 0; j < 280; j++)
            for (int64_t x = 0; x < 8; x++) {
                call_set(b->c, CALL_K, 0, j, 0, x, NAN);
                call_set(b->c, CALL_V, 0, j, 0, x, INFINITY);
            }
        back_run(b, &(call_how){.kernel = back_kernel(k)}, NULL);
        for (int64_t j = 0; j < 300; j++)
            for (int64_t x = 0; x < 8; x++) {
                float dk = back_get(b, BACK_DK, 0, j, 0, x), dv = back_get(b, BACK_DV, 0, j, 0, x);
                assert_true(j < 280 ? dk == 0 && dv == 0 && !signbit(dk) : isfinite(dk) && isfinite(dv));
            }
        back_free(b);
        b = back_new("h2/1 q20 k6 d8 f32 causal sinks", BACK_D_LSE);
        for (int64_t x = 0; x < 8; x++) {
            call_set(b->c, CALL_Q, 0, 3, 1, x, NAN);
            back_set(b, BACK_DO, 0, 3, 1, x, NAN);
        }
        back_run(b, &(call_how){.kernel = back_kernel(k)}, NULL);
        for (int64_t r = 0; r < 14; r++)
            for (int64_t x = 0; x < 16; x++) assert_true(back_get(b, BACK_DQ, 0, r, x / 8, x % 8) == 0);
        assert_true(isfinite(b->d_sinks[0]) && isfinite(b->d_sinks[1]));
        back_free(b);
    }
}

/* ---- wrong arguments ---- */

static void expect(back *b, tp_status status, const char *part) {
    tp_error error = TP_ERROR_INIT;
    tp_status got = back_try(b, &(call_how){0}, NULL, &error);
    if (got != status || strstr(error.text, part) == NULL)
        fail_msg("expected %s with '%s', got %s: %s", tp_status_name(status), part, tp_status_name(got), error.text);
    for (int i = BACK_DQ; i <= BACK_DV; i++)
        for (size_t at = 0; at < b->rows.buffer[i].bytes; at++)
            assert_int_equal(((unsigned char *)b->rows.buffer[i].memory)[at], 0xff);
}

static void bad_tensors(void **state) {
    (void)state;
    back *b = back_new("b2 h4/2 q20 k30 d8 f32 causal alibi sinks bias=f32", BACK_D_LSE);
    call_run(b->c, &(call_how){0}, NULL);
    const tp_gradients good = b->gradients;
    const tp_tensors tensors = b->c->tensors;
#define BAD(change, part)                                                                                 \
    do {                                                                                                  \
        change;                                                                                           \
        expect(b, TP_INVALID, part);                                                                      \
        b->gradients = good;                                                                              \
        b->c->tensors = tensors;                                                                          \
    } while (0)
    BAD(b->c->tensors.gradients = NULL, "gradients is NULL");
    BAD(b->c->tensors.lse.data = NULL, "lse.data is NULL");
    BAD(b->c->tensors.o.data = NULL, "o.data is NULL");
    BAD(b->gradients.d_o.data = NULL, "d_o.data is NULL");
    BAD(b->gradients.struct_size = 8, "tp_gradients.struct_size is 8");
    BAD(b->gradients.reserved = 1, "gradients.reserved is 1");
    BAD(b->gradients.d_o.stride[1] = -1, "d_o.stride[1] is -1");
    BAD(b->gradients.d_q.stride[1] = 0, "output rows must not overlap");
    BAD(b->gradients.d_k.stride[2] = 1, "output rows must not overlap");
    BAD(b->gradients.d_q.data = b->c->tensors.q.data, "may overlap");
    BAD(b->gradients.d_q.data = b->c->tensors.o.data, "may overlap");
    BAD(b->gradients.d_v.data = b->gradients.d_k.data, "may overlap");
    BAD(b->gradients.d_k.data = b->gradients.d_o.data, "may overlap");
    BAD(b->gradients.d_v.data = (char *)good.d_v.data + 2, "aligned");
    BAD(b->gradients.d_sinks = (float *)b->gradients.d_k.data, "may overlap");
    BAD(b->gradients.d_sinks = (float *)((char *)b->d_sinks + 1), "d_sinks is");
    BAD(b->gradients.d_bias = (float *)b->c->tensors.q.data, "may overlap");
    BAD(b->gradients.d_bias_stride[2] = -3, "d_bias_stride[2] is -3");
    BAD(b->gradients.d_bias_stride[0] = INT64_MAX, "d_bias spans");
    BAD(b->gradients.d_alibi_stride = 3, "d_alibi_stride is 3");
    back_free(b);

    b = back_new("h2 q20 k30 d8 f32", 0);
    call_run(b->c, &(call_how){0}, NULL);
    const tp_gradients plain = b->gradients;
    float one;
    b->gradients.d_bias = &one;
    expect(b, TP_INVALID, "d_bias");
    b->gradients = plain;
    b->gradients.d_sinks = &one;
    expect(b, TP_INVALID, "though the problem has no sinks");
    back_free(b);
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
        tp_status status;
    } bad[] = {
        {"backward h2 q4 k40 d8 f32 paged=16", "paged with op TP_BACKWARD", TP_UNSUPPORTED},
        {"backward h2 q4 k40 d8 f32 sparse=16", "sparse indices with op TP_BACKWARD", TP_UNSUPPORTED},
        {"backward h2 q4 k40 d8 f32 latent", "latent with op TP_BACKWARD", TP_UNSUPPORTED},
        {"backward h2 q4 k40 d8 f32 invariant", "invariant with op TP_BACKWARD", TP_UNSUPPORTED},
        {"backward prefill h2 q40 k40 d8 f32", "repeated", TP_INVALID},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        tp_problem problem;
        tp_error error = TP_ERROR_INIT;
        assert_int_equal(tp_problem_parse(bad[i].text, &problem, NULL, &error), bad[i].status);
        if (strstr(error.text, bad[i].part) == NULL) fail_msg("%s: %s", bad[i].text, error.text);
    }
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    tp_decision *decision;
    tp_choice choice = TP_CHOICE_INIT;
    assert_int_equal(tp_problem_parse("backward h2 q4 k40 d8 f32", &problem, NULL, &error), TP_OK);
    choice.strategy = "decode";
    assert_int_equal(tp_explain(call_context(), &problem, &choice, &decision, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "backward"));
    choice = (tp_choice)TP_CHOICE_INIT;
    choice.kernel = "math";
    choice.policy = TP_PERMIT;
    assert_int_equal(tp_explain(call_context(), &problem, &choice, &decision, &error), TP_UNSUPPORTED);
    const tp_candidate *math = tp_decision_candidate(decision, decision->candidate_count - 1);
    assert_int_equal(tp_candidate_reason(math, 0)->code, TP_WHY_OP);
    assert_string_equal(tp_reason_name(TP_WHY_OP), "op");
    tp_decision_destroy(decision);
    problem.op = 2;
    assert_int_equal(tp_problem_check(&problem, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "op is 2"));
    problem.op = TP_BACKWARD;
    problem.head_dim_v = 640;
    assert_int_equal(tp_explain(call_context(), &problem, NULL, &decision, &error), TP_UNSUPPORTED);
    tp_decision_destroy(decision);
}

/* ---- what is said before and after ---- */

static void words(void **state) {
    (void)state;
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    tp_decision *decision;
    char text[512];
    const char *form = "backward b1 h8/8 q2048 k2048 d64 f32 causal";
    assert_int_equal(tp_problem_parse(form, &problem, NULL, &error), TP_OK);
    assert_int_equal(problem.op, TP_BACKWARD);
    assert_int_equal(tp_problem_print(&problem, NULL, text, sizeof text), TP_OK);
    assert_string_equal(text, form);
    assert_int_equal(tp_explain(call_context(), &problem, NULL, &decision, &error), TP_OK);
    assert_string_equal(decision->problem, form);
    assert_true(decision->flops == 10.0 * 64 * (double)decision->pairs);
    assert_string_equal(tp_decision_candidate(decision, 0)->strategy, "backward");
    assert_non_null(strstr(decision->numerics_id, "backward/"));
    assert_non_null(strstr(decision->numerics_id, "bk384 r96"));
    /* three copies of a head's rows, and a block of keys: nothing that grows with q_len * kv_len */
    assert_true(decision->workspace_bytes > 3 * 2048 * 64 * 4 && decision->workspace_bytes < 4 << 20);
    tp_decision_destroy(decision);
}

static void receipts(void **state) {
    (void)state;
    back *b = back_new("b2 h4/2 q100 k300 d24 bf16 causal window=50,0", 0);
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    back_run(b, &(call_how){.threads = 2}, &receipt);
    assert_true(receipt.pairs_visible == 2 * 4 * 100 * 51);
    assert_true(receipt.pairs_computed >= receipt.pairs_visible && receipt.pairs_computed < 3 * receipt.pairs_visible);
    assert_true(receipt.panels_skipped > 0 && receipt.panels_full > 0 && receipt.panels_partial > 0);
    assert_int_equal(receipt.scores_written, 0);
    assert_true(call_count_of(&receipt, "tp_backward_f32_") > 0 && call_count_of(&receipt, "tp_delta_bf16_") > 0 &&
                call_count_of(&receipt, "tp_store_d_bf16_") > 0);
    /* q, o, d_o, d_q of each row and its lse; k and v that are seen, and their gradients */
    assert_int_equal(receipt.bytes_compulsory, 2 * 4 * 100 * (4 * 24 * 2 + 4) + 2 * 2 * 150 * (4 * 24 * 2));
    back_free(b);
}

/* Exactly the workspace that was asked for, no access beyond it; one byte less is refused. */
static void workspace(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h1 q1 k1 d1 f32",
        "b2 h4/2 q130 k401 d40 f32 causal alibi sinks bias=f32 dropout=0.2",
        "seqs=1x30/40,2x5/600,1x0/7,1x9/0 h4/2 d24/70 bf16 packed bits",
        "h2 q70 k385 d16 f32 causal documents",
        "h1 q97 k200 d576 f32 callback",
    };
    guard capacity = guard_new(32 << 20);
    for (int n = 0; n < COUNT(texts); n++) {
        back *b = back_new(texts[n], 0);
        for (int k = 0; back_kernel(k) != NULL; k++)
            for (int threads = 1; threads <= 3; threads += 2) {
                tp_choice choice = TP_CHOICE_INIT;
                tp_exec exec = TP_EXEC_INIT;
                tp_error error = TP_ERROR_INIT;
                tp_plan *plan;
                choice.policy = TP_PERMIT;
                choice.kernel = back_kernel(k);
                call_run(b->c, &(call_how){0}, NULL);
                assert_int_equal(tp_plan_create(call_context(), &b->problem, &choice, &plan, &error), TP_OK);
                exec.threads = threads;
                exec.workspace_size = tp_plan_workspace(plan, threads);
                assert_true(exec.workspace_size <= capacity.bytes);
                exec.workspace = guard_end(&capacity, exec.workspace_size);
                memset(exec.workspace, 0xff, exec.workspace_size);
                if (tp_plan_run(plan, &b->c->tensors, &exec, NULL, &error)) fail_msg("%s", error.text);
                back_check(b, texts[n]);
                exec.workspace_size = tp_plan_workspace(plan, 1) - 1;
                exec.threads = 1;
                assert_int_equal(tp_plan_run(plan, &b->c->tensors, &exec, NULL, &error), TP_WORKSPACE);
                tp_plan_destroy(plan);
            }
        back_free(b);
    }
    guard_free(&capacity);
}

/* The one call: the same bits as plan and run, whatever op the problem says. */
static void one_call(void **state) {
    (void)state;
    const char *text = "b2 h4/2 q70 k90 d24 f32 causal";
    back *a = back_new(text, 0), *b = back_new(text, 0);
    tp_error error = TP_ERROR_INIT;
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    back_run(a, &(call_how){0}, NULL);
    call_run(b->c, &(call_how){0}, NULL);
    assert_int_equal(tp_backward(call_context(), &b->c->problem, NULL, &b->c->tensors, &receipt, &error), TP_OK);
    assert_non_null(strstr(receipt.problem, "backward "));
    back_same(a, b, text);
    assert_int_equal(tp_backward(call_context(), NULL, NULL, &b->c->tensors, NULL, &error), TP_INVALID);
    back_free(a);
    back_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poison), cmocka_unit_test(unseen),   cmocka_unit_test(bad_tensors),
        cmocka_unit_test(refused), cmocka_unit_test(words),   cmocka_unit_test(receipts),
        cmocka_unit_test(workspace), cmocka_unit_test(one_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
