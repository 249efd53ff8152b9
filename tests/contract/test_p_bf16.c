/* SPDX-License-Identifier: Apache-2.0 */
/*
 * p=bf16: what it permits and what it does not. A kernel that rounds probabilities to bf16 serves where the problem says so, its
 * receipt names the arithmetic, every row keeps that arithmetic's bound, and a row's bits depend on its own q and keys alone: not
 * on neighbours, threads, or elements that it does not see, however small or large these are. Where all rows take the decode
 * loop, which rounds nothing, the arithmetic is float32.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/call.h"

static const char *const machines[] = {
    "x86-64 isa=none threads=2 l1d=32768 l2=0 l3=0 name=recorded, bare",
    "x86-64 isa=avx2,avx512 threads=64 l1d=49152 l2=2097152 l3=0 name=recorded, AVX-512",
    "x86-64 isa=avx2,avx512,avx512_bf16 threads=64 l1d=49152 l2=2097152 l3=0 name=recorded, AVX512-BF16",
    "x86-64 isa=avx2,avx512,avx512_bf16,amx_bf16 threads=64 l1d=49152 l2=2097152 l3=0 name=recorded, AMX",
};

static tp_decision *explain(const char *machine_text, const char *text, const char *strategy, tp_context **context) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_choice choice = TP_CHOICE_INIT;
    tp_machine machine;
    tp_problem problem;
    tp_decision *decision = NULL;
    tp_error error = TP_ERROR_INIT;
    options.threads = 1;
    if (tp_machine_parse(machine_text, &machine, &error) || tp_problem_parse(text, &problem, NULL, &error))
        fail_msg("%s", error.text);
    options.machine = &machine;
    choice.strategy = strategy;
    if (tp_context_create(&options, context, &error)) fail_msg("%s", error.text);
    tp_explain(*context, &problem, &choice, &decision, &error);
    if (decision == NULL) fail_msg("%s: %s", text, error.text);
    return decision;
}

static const tp_kernel_info *info_of(const char *kernel) {
    for (int i = 0; tp_kernel_at(i) != NULL; i++)
        if (strcmp(tp_kernel_at(i)->name, kernel) == 0) return tp_kernel_at(i);
    return NULL;
}

static int has_instructions(const tp_context *context, const char *kernel) {
    const tp_kernel_info *info = info_of(kernel);
    return info != NULL && (info->needs & ~tp_context_machine(context)->isa) == 0;
}

static void assert_told(const tp_candidate *c, const char *why, const char *text) {
    for (int i = 0; i < c->reason_count; i++)
        if (strcmp(tp_candidate_reason(c, i)->text, why) == 0) return;
    fail_msg("%s: nothing of %s says '%s'", text, c->kernel, why);
}

/* Which problems take a rounding kernel on which machine; those of others are decided as if it were not there. */
static void the_problem_permits(void **state) {
    (void)state;
    static const struct {
        const char *text, *why; /* NULL: it serves, where there are the instructions */
        const char *strategy;
        int few;                /* all rows take the decode loop */
    } cases[] = {
        {"h4/2 q64 k64 d64 bf16 causal p=bf16", NULL, NULL, 0},
        {"h4/2 q64 k64 d64 bf16->f32 p=bf16", NULL, NULL, 0},
        {"h4/2 q1 k64 d64 bf16 p=bf16", NULL, NULL, 1},
        {"h4/2 q12 k64 d64 bf16 p=bf16", NULL, NULL, 1}, /* 24 rows of a KV head */
        {"h4/2 q13 k64 d64 bf16 p=bf16", NULL, NULL, 0},
        {"h4/2 q1 k64 d64 bf16 p=bf16", NULL, "prefill", 0},
        {"h4/2 q64 k64 d64 bf16 p=bf16", NULL, "decode", 1},
        {"h4/2 q1 k64 d64 bf16 p=bf16 invariant", NULL, NULL, 0}, /* prefill's loop */
        {"h4/2 q64 k64 d64 bf16 sparse=8 p=bf16", NULL, NULL, 1}, /* every token on its own */
        {"h25/1 q64 k64 d64 bf16 sparse=8 p=bf16", NULL, NULL, 0},
        {"b24 h4/2 q1 k64 d64 bf16 paged=16 causal cascade=32 p=bf16", NULL, NULL, 1}, /* 48 rows that share */
        {"b25 h4/2 q1 k64 d64 bf16 paged=16 causal cascade=32 p=bf16", NULL, NULL, 0},
        {"b25 h4/2 q1 k64 d64 bf16 paged=16 causal cascade=32 p=bf16", NULL, "decode", 1},
        {"b2 h4/2 q1 k64 d64 bf16 paged=16 causal cascade=32 p=bf16 invariant", NULL, NULL, 0},
        {"backward h4/2 q64 k64 d64 bf16 p=bf16", NULL, NULL, 0},
        {"backward h4/2 q1 k64 d64 bf16 p=bf16", NULL, NULL, 0}, /* it has one loop */
        {"backward h4/2 q64 k64 d64 bf16->f32 p=bf16", "o is f32, need bf16", NULL, 0},
        {"h4/2 q64 k64 d64 bf16 causal", "p is f32, need p=bf16", NULL, 0},
        {"h4/2 q1 k64 d64 bf16 causal", "p is f32, need p=bf16", NULL, 0},
        {"h4/2 q64 k64 d64 bf16 causal p=f32", "p is f32, need p=bf16", NULL, 0},
        {"h4/2 q64 k64 d64 f16 p=bf16", "q is f16, need bf16", NULL, 0},
        {"h4/2 q64 k64 d64 bf16:bf16:f32->f32 p=bf16", "v is f32, need bf16", NULL, 0},
    };
    for (int m = 0; m < COUNT(machines); m++)
        for (int n = 0; n < COUNT(cases); n++) {
            tp_context *context;
            tp_decision *d = explain(machines[m], cases[n].text, cases[n].strategy, &context);
            int back = strncmp(cases[n].text, "backward", 8) == 0, rounding = 0, served = 0;
            for (int i = 0; i < d->candidate_count; i++) {
                const tp_candidate *c = tp_decision_candidate(d, i);
                if (info_of(c->kernel)->arithmetic != TP_ARITHMETIC_P_BF16) {
                    assert_int_equal(c->arithmetic, TP_ARITHMETIC_F32);
                    continue;
                }
                assert_int_equal(c->arithmetic, cases[n].few ? TP_ARITHMETIC_F32 : TP_ARITHMETIC_P_BF16);
                int tiles = strncmp(c->kernel, "amx_bf16", 8) == 0;
                int serves = has_instructions(context, c->kernel) && cases[n].why == NULL && !(tiles && back);
                rounding++;
                if (strcmp(c->kernel, "avx512_bf16") == 0) assert_int_equal(serves, m >= 2 && cases[n].why == NULL);
                if (strcmp(c->kernel, "amx_bf16") == 0) assert_int_equal(serves, m == 3 && cases[n].why == NULL && !back);
                assert_int_equal(c->chosen, serves && !served); /* the first one that serves */
                served |= serves;
                if (cases[n].why != NULL) assert_told(c, cases[n].why, cases[n].text);
                if (tiles && back) assert_told(c, "op backward, need forward", cases[n].text);
            }
            if (rounding == 0) { /* built for another architecture */
                printf("not run here: kernels that round\n");
                skip();
            }
            assert_int_equal(d->status, TP_OK);
            assert_int_equal(d->fallback, 0);
            assert_int_equal(d->arithmetic, served && !cases[n].few ? TP_ARITHMETIC_P_BF16 : TP_ARITHMETIC_F32);
            assert_int_equal(strstr(d->numerics_id, " p=bf16") != NULL, served && !cases[n].few);
            tp_decision_destroy(d);
            tp_context_destroy(context);
        }
}

/* Kernels without that arithmetic keep their bits and their id. */
static void others_do_not_round(void **state) {
    (void)state;
    static const char *const texts[] = {"h4/2 q30 k300 d40 bf16 causal", "h4/2 q1 k300 d40 bf16", "h4/2 q30 k70 d40 f32"};
    for (int k = 0; call_kernel(k) != NULL; k++)
        for (int n = 0; n < COUNT(texts); n++) {
            tp_receipt plain, permitted;
            call *a = call_new(texts[n], NULL), *b = call_new(texts[n], NULL);
            tp_receipt_init(&plain);
            tp_receipt_init(&permitted);
            b->problem.p_dtype = TP_BF16;
            call_run(a, &(call_how){.kernel = call_kernel(k)}, &plain);
            call_run(b, &(call_how){.kernel = call_kernel(k)}, &permitted);
            call_same(a, b, texts[n]);
            assert_string_equal(plain.numerics_id, permitted.numerics_id);
            assert_int_equal(permitted.arithmetic, TP_ARITHMETIC_F32);
            call_free(a);
            call_free(b);
        }
}

/* Kernels that round, and run here. */
static const char *rounding_kernel(int index) {
    uint32_t isa = tp_context_machine(call_context())->isa;
    for (int i = 0; tp_kernel_at(i) != NULL; i++) {
        if (tp_kernel_at(i)->arithmetic != TP_ARITHMETIC_P_BF16) continue;
        if ((tp_kernel_at(i)->needs & ~isa) != 0) {
            printf("not run here: %s\n", tp_kernel_at(i)->name);
            continue;
        }
        if (index-- == 0) return tp_kernel_at(i)->name;
    }
    return NULL;
}

/* Rows of a strip see different keys; odd and even lengths and head dims; blocks and chunks; few rows, among many too. */
static const char few_rows[] = "h4/1 q3 k150 d33 bf16 causal p=bf16";
static const char *const texts[] = {
    "b2 h4/2 q41 k60 d12 bf16 causal p=bf16",
    "h3/1 q30 k141 d257/5 bf16 window=9,3 p=bf16",
    "h2/1 q29 k4110 d3 bf16 causal p=bf16",
    "h2/1 q25 k33 d17/49 bf16->f32 p=bf16",
    "h2/1 q40 k1030 d64 bf16 bits p=bf16",
    few_rows,
    "h4/2 seqs=1x40/90,2x1/300 d24 bf16 packed causal p=bf16",
    "h2/1 q50 k90 d20 bf16 softcap=5 alibi bias=bf16 sinks dropout=0.3 p=bf16",
    "h2/1 q70 k200 d33/70 bf16 mask=chunk:48 p=bf16", /* rows that all see the same keys, up to the middle of a step */
};

static void results_keep_their_bound(void **state) {
    (void)state;
    const char *kernel;
    for (int k = 0; (kernel = rounding_kernel(k)) != NULL; k++)
        for (int n = 0; n < COUNT(texts); n++) {
            tp_receipt receipt;
            call *c = call_new(texts[n], NULL);
            tp_receipt_init(&receipt);
            call_run(c, &(call_how){.kernel = kernel}, &receipt);
            assert_string_equal(tp_arithmetic_name((tp_arithmetic)receipt.arithmetic), texts[n] == few_rows ? "f32" : "p=bf16");
            call_check(c, texts[n]);
            for (int threads = 2; threads <= 3; threads++) {
                call *other = call_new(texts[n], NULL);
                call_run(other, &(call_how){.kernel = kernel, .threads = threads, .fill = 0x11}, NULL);
                call_same(c, other, texts[n]);
                call_free(other);
            }
            call_free(c);
        }
}

/* The set whose functions the decode loop of a kernel that rounds takes. */
static const char *plain_kernel(const char *kernel) { return strstr(kernel, "_emulated") ? "avx512_emulated" : "avx512"; }

/* Where all rows take the decode loop, the permission changes neither bits nor arithmetic, and the bound is float32's. */
static void few_rows_are_not_rounded(void **state) {
    (void)state;
    static const struct {
        const char *text, *strategy;
    } cases[] = {
        {"h8/2 q1 k1030 d128 bf16->f32", NULL},
        {"h4/1 q3 k150 d33 bf16->f32 causal", NULL},
        {"h4/2 seqs=2x1/2100,1x12/300,1x5/40 d40 bf16->f32 packed-q paged=16 causal", NULL},
        {"h4/2 q9 k200 d64 bf16->f32 bits", NULL},
        {"h2/1 q40 k90 d20 bf16->f32 causal softcap=5 sinks dropout=0.3", "decode"},
    };
    const char *kernel;
    for (int k = 0; (kernel = rounding_kernel(k)) != NULL; k++)
        for (int n = 0; n < COUNT(cases); n++) {
            const char *text = cases[n].text;
            tp_receipt receipt;
            call *permitted = call_new(text, NULL), *plain = call_new(text, NULL);
            tp_receipt_init(&receipt);
            permitted->problem.p_dtype = TP_BF16;
            call_run(permitted, &(call_how){.kernel = kernel, .strategy = cases[n].strategy}, &receipt);
            call_run(plain, &(call_how){.kernel = plain_kernel(kernel), .strategy = cases[n].strategy}, NULL);
            call_same(permitted, plain, text);
            assert_string_equal(receipt.kernel, kernel);
            assert_int_equal(receipt.arithmetic, TP_ARITHMETIC_F32);
            assert_null(strstr(receipt.numerics_id, "p=bf16"));
            call_check(permitted, text);
            call_free(permitted);
            call_free(plain);
        }
}

/* There too a weight more than 58 below the maximum may be lost: float32's bound knows where the problem permits rounding. The
   second value is as large as its weight is small. */
static void small_weights_may_be_lost(void **state) {
    (void)state;
    const char *kernel;
    for (int k = 0; (kernel = rounding_kernel(k)) != NULL; k++)
        for (int n = 0; n < 2; n++) {
            call *c = call_new("q1 k2 d2/1 bf16->f32 scale=1 p=bf16", NULL);
            for (int x = 0; x < 2; x++) call_set(c, CALL_Q, 0, 0, 0, x, x == 0);
            for (int key = 0; key < 2; key++) {
                for (int x = 0; x < 2; x++) call_set(c, CALL_K, 0, key, 0, x, key == 0 && x == 0 ? 48 : 0); /* 2^69.25 */
                call_set(c, CALL_V, 0, key, 0, 0, key == 0 ? 1 : 0x1p69f);
            }
            call_run(c, &(call_how){.kernel = n == 0 ? kernel : plain_kernel(kernel)}, NULL);
            assert_int_equal(c->held.arithmetic, TP_ARITHMETIC_F32);
            call_check_bounds(c, "a small weight");
            call_free(c);
        }
}

/* Elements that the instruction takes for 0 or spreads, one at a time, in k, v and q: rows that do not see the element keep their
   bits, those that do keep their bound. */
static void elements_of_every_size(void **state) {
    (void)state;
    static const float sizes[] = {0x1p-133f, 0x1.8p-127f, 0x1p-126f, 0x1p-60f, -0x1.fcp-53f, 0x1p-52f, 0x1p40f, 0x1p100f};
    static const float bad[] = {INFINITY, NAN};
    const char *kernel;
    for (int k = 0; (kernel = rounding_kernel(k)) != NULL; k++)
        for (int n = 0; n < COUNT(texts); n++) {
            call *clean = call_new(texts[n], NULL), *c = call_new(texts[n], NULL);
            int64_t seq = c->tensors.batch - 1, rows = c->q_lens[seq], keys = c->kv_lens[seq];
            call_run(clean, &(call_how){.kernel = kernel}, NULL);
            for (int which = CALL_Q; which <= CALL_V; which++)
                for (int s = 0; s < COUNT(sizes) + COUNT(bad); s++) {
                    int finite = s < COUNT(sizes);
                    int64_t token = which == CALL_Q ? rows / 2 : keys - 1 - s % 3, head = 0;
                    int64_t x = s * 13 % (which == CALL_V ? c->problem.head_dim_v : c->problem.head_dim_qk); /* any lane */
                    float was = call_get(c, which, seq, token, head, x), value = finite ? sizes[s] : bad[s - COUNT(sizes)];
                    if (which != CALL_V && finite && fabsf(value) > 1) value = 0x1p20f; /* its products must not overflow */
                    call_set(c, which, seq, token, head, x, value);
                    call_run(c, &(call_how){.kernel = kernel}, NULL);
                    int64_t group = c->problem.q_heads / c->problem.kv_heads;
                    for (int64_t r = 0; r < rows; r++)
                        for (int64_t h = 0; h < c->problem.q_heads; h++) {
                            int mine = h / group == head;
                            int sees = which == CALL_Q ? r == token && h == head
                                                       : mine && tp_mask_visible(&c->problem, &c->tensors, seq, h, r, token);
                            if (!sees) call_same_row(clean, seq, r, h, c, seq, r, h, texts[n]);
                        }
                    if (finite) call_check_bounds(c, texts[n]);
                    call_set(c, which, seq, token, head, x, was);
                }
            call_free(clean);
            call_free(c);
        }
}

/* Q K^T loses nothing: the product of a subnormal and a large element is there, and so is a score as small as that, wherever in
   the head dim they meet. */
static void small_products_count(void **state) {
    (void)state;
    static const int places[] = {0, 1, 9, 31, 37};
    const char *kernel;
    for (int k = 0; (kernel = rounding_kernel(k)) != NULL; k++)
        for (int n = 0; n < COUNT(places) * 2; n++) {
            const int small = n % 2, place = places[n / 2];
            call *c = call_new("q26 k1 d40/2 bf16->f32 scale=1 p=bf16", NULL);
            for (int x = 0; x < 40; x++) {
                for (int64_t r = 0; r < 26; r++) call_set(c, CALL_Q, 0, r, 0, x, x != place ? 0 : small ? 0x1p-130f : 0x1p127f);
                call_set(c, CALL_K, 0, 0, 0, x, x != place ? 0 : small ? 0x1p120f : 0x1p-127f);
            }
            call_run(c, &(call_how){.kernel = kernel, .strategy = "prefill"}, NULL);
            for (int64_t r = 0; r < 26; r++) {
                assert_true(call_get(c, CALL_LSE, 0, r, 0, 0) == (small ? 0x1p-10f : 1.0f));
                for (int x = 0; x < 2; x++) assert_true(call_get(c, CALL_O, 0, r, 0, x) == call_get(c, CALL_V, 0, 0, 0, x));
            }
            call_free(c);
        }
}

/* Values of any size: what is lost is what rounding p loses, also where every v is subnormal. */
static void small_values_count(void **state) {
    (void)state;
    static const float sizes[] = {0x1p-120f, 0x1p-60f, 0x1p-30f, 0x1p60f};
    const char *kernel;
    for (int k = 0; (kernel = rounding_kernel(k)) != NULL; k++)
        for (int s = 0; s < COUNT(sizes); s++) {
            call *c = call_new("h2/1 q40 k700 d24 bf16->f32 p=bf16", &(call_shape){.v_size = sizes[s], .q_size = 6});
            call_run(c, &(call_how){.kernel = kernel}, NULL);
            call_check(c, "small values");
            call_free(c);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_problem_permits),      cmocka_unit_test(others_do_not_round),
        cmocka_unit_test(results_keep_their_bound), cmocka_unit_test(few_rows_are_not_rounded),
        cmocka_unit_test(small_weights_may_be_lost), cmocka_unit_test(elements_of_every_size),
        cmocka_unit_test(small_products_count),     cmocka_unit_test(small_values_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
