/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel set on top of the table that serves bf16 alone and lacks most functions (bf16_only.c): problems of other dtypes
 * are decided as by the library without it, which is loaded beside; its own are served with functions that it borrows.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/set.h"
#include "support/call.h"

#define NAME "bf16_only"

/* What the test asks of a library. */
typedef struct library {
    tp_status (*context_create)(const tp_context_options *, tp_context **, tp_error *);
    void (*context_destroy)(tp_context *);
    tp_status (*explain)(tp_context *, const tp_problem *, const tp_choice *, tp_decision **, tp_error *);
    void (*decision_destroy)(tp_decision *);
    const tp_candidate *(*candidate)(const tp_decision *, int);
    const tp_reason *(*reason)(const tp_candidate *, int);
} library;

static const library now = {tp_context_create,   tp_context_destroy,    tp_explain,
                            tp_decision_destroy, tp_decision_candidate, tp_candidate_reason};
static library before;

static int load(void **state) {
    static const char *const names[] = {"tp_context_create",   "tp_context_destroy",    "tp_explain",
                                        "tp_decision_destroy", "tp_decision_candidate", "tp_candidate_reason"};
    (void)state;
    void *handle = dlopen(LIBRARY_BEFORE, RTLD_NOW | RTLD_LOCAL), *symbol;
    if (handle == NULL) fail_msg("%s", dlerror());
    for (size_t i = 0; i < COUNT(names); i++) {
        symbol = dlsym(handle, names[i]);
        assert_non_null(symbol);
        memcpy((char *)&before + i * sizeof symbol, &symbol, sizeof symbol);
    }
    assert_ptr_not_equal(before.explain, now.explain);
    return 0;
}

static const char *const machines[] = {
    "x86-64 isa=none threads=2 l1d=32768 l2=0 l3=0 name=recorded, bare",
    "x86-64 isa=avx2 threads=8 l1d=32768 l2=262144 l3=0 name=recorded, AVX2",
    "x86-64 isa=avx2,avx512 threads=64 l1d=49152 l2=2097152 l3=0 name=recorded, AVX-512",
};

/* Of the rules above a choice: nothing, each name disabled or asked for, a drill. */
static const struct {
    int32_t policy;
    const char *disable, *kernel;
} choices[] = {
    {TP_REFUSE, NULL, NULL},      {TP_PERMIT, NULL, NULL},        {TP_REFUSE, "avx512", NULL},
    {TP_PERMIT, "avx512", NULL},  {TP_PERMIT, "avx512,avx2", NULL}, {TP_PERMIT, NULL, "generic"},
    {TP_REFUSE, NULL, "generic"}, {TP_PERMIT, NULL, "math"},      {TP_REFUSE, "head_dim=64", NULL},
    {TP_PERMIT, "head_dim=64", NULL}, {TP_PERMIT, "avx512,avx2,generic", NULL}, {TP_LOCKED, NULL, NULL},
};

static tp_decision *explain(const library *of, const char *machine_text, int choice, const char *more_disabled,
                            const char *text, tp_context **context) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_choice how = TP_CHOICE_INIT;
    tp_machine machine;
    tp_problem problem;
    tp_decision *decision = NULL;
    tp_error error = TP_ERROR_INIT;
    options.threads = 1;
    assert_int_equal(tp_machine_parse(machine_text, &machine, &error), TP_OK);
    assert_int_equal(tp_problem_parse(text, &problem, NULL, &error), TP_OK);
    options.machine = &machine;
    options.disable = more_disabled;
    how.policy = choices[choice].policy;
    how.disable = choices[choice].disable;
    how.kernel = choices[choice].kernel;
    if (of->context_create(&options, context, &error) != TP_OK) fail_msg("%s", error.text);
    tp_status status = of->explain(*context, &problem, &how, &decision, &error);
    if (decision == NULL) fail_msg("%s: %s", text, error.text);
    assert_int_equal(status, decision->status);
    return decision;
}

static uint32_t codes_of(const library *of, const tp_candidate *candidate) {
    const tp_reason *why;
    uint32_t codes = 0;
    for (int i = 0; (why = of->reason(candidate, i)) != NULL; i++) codes |= 1u << why->code;
    return codes;
}

/* The same but for one candidate more, which is `refused` for just this code. */
static void expect_same(const tp_decision *a, const tp_decision *b, int code, const char *what) {
    assert_int_equal(a->candidate_count + 1, b->candidate_count);
    const tp_candidate *extra = now.candidate(b, 0);
    assert_string_equal(extra->kernel, NAME);
    if (!(codes_of(&now, extra) >> code & 1)) fail_msg("%s: " NAME " lacks %s", what, tp_reason_name(code));
    if (a->status != b->status || a->fallback != b->fallback || strcmp(a->numerics_id, b->numerics_id) ||
        strcmp(a->hint, b->hint) || (a->chosen >= 0) != (b->chosen >= 0) || (a->chosen >= 0 && a->chosen + 1 != b->chosen))
        fail_msg("%s: %d %d '%s' '%s' became %d %d '%s' '%s'", what, a->status, a->fallback, a->numerics_id, a->hint,
                 b->status, b->fallback, b->numerics_id, b->hint);
    for (int i = 0; i < a->candidate_count; i++) {
        const tp_candidate *x = before.candidate(a, i), *y = now.candidate(b, i + 1);
        assert_string_equal(x->kernel, y->kernel);
        assert_string_equal(x->strategy, y->strategy);
        int judged = x->arithmetic == TP_ARITHMETIC_F32; /* one that nobody permitted has no tier to speak of */
        if ((judged && x->tier != y->tier) || codes_of(&before, x) != codes_of(&now, y))
            fail_msg("%s: %s was tier %d, is tier %d", what, x->kernel, x->tier, y->tier);
    }
}

static void other_problems_do_not_move(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int code; /* why the set refuses it */
    } cases[] = {
        {"h4/2 q64 k64 d64 f32 causal", TP_WHY_DTYPE},
        {"h4/2 q64 k64 d64 f16 causal", TP_WHY_DTYPE},
        {"h4/2 q1 k64 d64 f32", TP_WHY_DTYPE},
        {"h4/2 q64 k64 d64 f32:bf16:bf16->f32", TP_WHY_DTYPE},
        {"h4/2 q64 k64 d64 bf16:bf16:f16->f32", TP_WHY_DTYPE},
        {"h4/2 q64 k64 d64 bf16:f16:bf16->f32", TP_WHY_DTYPE},
        {"backward h4/2 q64 k64 d64 f32", TP_WHY_DTYPE},
        {"backward h4/2 q64 k64 d64 bf16", TP_WHY_OP},
        {"h4/2 q64 k64 d640 f32", TP_WHY_DTYPE},
    };
    for (int m = 0; m < COUNT(machines); m++)
        for (int c = 0; c < COUNT(choices); c++)
            for (int n = 0; n < COUNT(cases); n++) {
                tp_context *context[2];
                char what[256];
                tp_decision *a = explain(&before, machines[m], c, NULL, cases[n].text, &context[0]);
                tp_decision *b = explain(&now, machines[m], c, NULL, cases[n].text, &context[1]);
                snprintf(what, sizeof what, "machine %d, choice %d, %s", m, c, cases[n].text);
                expect_same(a, b, cases[n].code, what);
                before.decision_destroy(a);
                now.decision_destroy(b);
                before.context_destroy(context[0]);
                now.context_destroy(context[1]);
            }
}

static void the_reason_names_the_dtype(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
        int have;
    } cases[] = {{"q9 k9 d8 f32", "q is f32, need bf16", TP_F32},
                 {"q9 k9 d8 bf16:f16:f32->f32", "k is f16, need bf16", TP_F16},
                 {"q9 k9 d8 bf16:bf16:f32->f32", "v is f32, need bf16", TP_F32}};
    for (int n = 0; n < COUNT(cases); n++) {
        tp_context *context;
        tp_decision *d = explain(&now, machines[2], 1, NULL, cases[n].text, &context);
        const tp_reason *why = tp_candidate_reason(tp_decision_candidate(d, 0), 0);
        assert_int_equal(why->code, TP_WHY_DTYPE);
        assert_string_equal(tp_reason_name(TP_WHY_DTYPE), "dtype");
        assert_int_equal(why->have, cases[n].have);
        assert_int_equal(why->need, 1u << TP_BF16);
        assert_string_equal(why->text, cases[n].words);
        tp_decision_destroy(d);
        tp_context_destroy(context);
    }
}

/* Which candidate, of which tier, serves its own problems. */
static void its_own_problems_are_served(void **state) {
    (void)state;
    static const char *const texts[] = {"h4/2 q64 k64 d64 bf16 causal", "h4/2 q1 k64 d64 bf16->f32"};
    for (int m = 0; m < COUNT(machines); m++)
        for (int n = 0; n < COUNT(texts); n++) {
            tp_context *context;
            tp_decision *d = explain(&now, machines[m], 0, NULL, texts[n], &context);
            assert_int_equal(d->status, TP_OK);
            assert_int_equal(d->chosen, 0);
            assert_int_equal(d->fallback, 0);
            assert_non_null(strstr(d->numerics_id, "fused/" NAME "-"));
            for (int i = 0; i < d->candidate_count; i++) {
                const tp_candidate *c = tp_decision_candidate(d, i);
                int lacks = (codes_of(&now, c) >> TP_WHY_ISA & 1) != 0, math = strcmp(c->kernel, "math") == 0;
                assert_int_equal(lacks, (tp_kernel_at(i)->needs & ~tp_context_machine(context)->isa) != 0);
                assert_int_equal(c->tier, math ? TP_TIER_MATH : i == 0 ? TP_TIER_BEST : TP_TIER_LOWER);
            }
            tp_decision_destroy(d);
            tp_context_destroy(context);
        }
}

/* Disabled by hand it still counts as what the host could do: for bf16, and for nothing else. */
static void disabled_it_makes_others_a_fallback(void **state) {
    (void)state;
    for (int m = 0; m < COUNT(machines); m++) {
        tp_context *context, *other;
        tp_decision *d = explain(&now, machines[m], 0, NAME, "q64 k64 d64 bf16", &context);
        assert_int_equal(d->status, TP_FALLBACK_REFUSED);
        assert_string_equal(d->hint, "enable " NAME " and it serves this");
        tp_decision_destroy(d);
        tp_context_destroy(context);
        d = explain(&now, machines[m], 1, NAME, "q64 k64 d64 bf16", &context);
        tp_decision *without = explain(&before, machines[m], 1, NULL, "q64 k64 d64 bf16", &other);
        assert_int_equal(d->fallback, 1);
        assert_int_equal(without->fallback, 0);
        assert_int_equal(d->chosen, without->chosen + 1);
        assert_int_equal(tp_decision_candidate(d, d->chosen)->tier, TP_TIER_LOWER);
        assert_string_equal(d->numerics_id, without->numerics_id); /* the same kernel, the same bits */
        tp_decision_destroy(d);
        before.decision_destroy(without);
        tp_context_destroy(context);
        before.context_destroy(other);
        d = explain(&now, machines[m], 0, NAME, "q64 k64 d64 f32", &context);
        assert_int_equal(d->status, TP_OK);
        assert_int_equal(d->fallback, 0);
        tp_decision_destroy(d);
        tp_context_destroy(context);
    }
}

/* Of a call's functions: those that are its own, those of generic, and no others. */
static void expect_functions(const tp_receipt *receipt, const char *own, const char *borrowed, const char *what) {
    const char *name;
    int64_t calls, sum[2] = {0, 0};
    for (int i = 0; tp_receipt_function(receipt, i, &name, &calls); i++) {
        int listed = 0;
        char word[80];
        snprintf(word, sizeof word, " %s ", name);
        for (int j = 0; tp_kernel_function(j) != NULL; j++) listed += strcmp(tp_kernel_function(j), name) == 0;
        assert_int_equal(listed, 1);
        int mine = strstr(own, word) != NULL, lent = strstr(borrowed, word) != NULL;
        if (mine == lent) fail_msg("%s: %s ran %lld times", what, name, (long long)calls);
        sum[lent] += calls > 0;
    }
    const char *const lists[] = {own, borrowed};
    for (int n = 0; n < 2; n++) {
        int64_t words = 0;
        for (const char *at = lists[n]; (at = strstr(at, "tp_")) != NULL; at++) words++;
        if (sum[n] != words) fail_msg("%s: %lld of '%s' ran", what, (long long)sum[n], lists[n]);
    }
}

#define PREFILL_OWN " tp_pack_k_bf16_bf16_only tp_pack_v_bf16_bf16_only tp_attend_f32_bf16_only "
static const struct {
    const char *text, *own, *borrowed;
} calls[] = {
    {"b2 h4/2 q40 k40 d19/13 bf16 causal", PREFILL_OWN,
     " tp_load_q_bf16_generic tp_attend_f32_generic tp_store_o_bf16_generic "},
    {"h2/1 q33 k70 d3/5 bf16->f32 window=20,3 softcap=4 alibi", PREFILL_OWN,
     " tp_load_q_bf16_generic tp_attend_f32_generic tp_store_o_f32_generic "},
    {"h2/1 q33 k5000 d8 bf16 bits dropout=0.2", PREFILL_OWN,
     " tp_load_q_bf16_generic tp_attend_f32_generic tp_merge_state_f32_generic tp_store_o_bf16_generic "},
    {"h2/1 q33 k70 d64 bf16 paged=16 bias=bf16", PREFILL_OWN,
     " tp_load_q_bf16_generic tp_attend_f32_generic tp_store_o_bf16_generic "},
    {"b3 h4/2 q1 k70 d37 bf16", " tp_attend_f32_bf16_only ",
     " tp_load_q_bf16_generic tp_qk_bf16_generic tp_attend_f32_generic tp_pv_bf16_generic tp_store_o_bf16_generic "},
    {"b3 h4/2 q2 k3000 d37 bf16 causal", " tp_pack_v_bf16_bf16_only tp_attend_f32_bf16_only ",
     " tp_load_q_bf16_generic tp_qk_bf16_generic tp_attend_f32_generic tp_pv_bf16_generic tp_merge_state_f32_generic "
     "tp_store_o_bf16_generic "},
};

/* The receipt names what ran; results are right, and those of the set that lends. */
static void receipts_name_what_is_borrowed(void **state) {
    (void)state;
    for (int n = 0; n < COUNT(calls); n++) {
        call *own = call_new(calls[n].text, NULL), *lender = call_new(calls[n].text, NULL);
        tp_receipt receipt, other;
        tp_receipt_init(&receipt);
        tp_receipt_init(&other);
        call_run(own, &(call_how){0}, &receipt);
        call_run(lender, &(call_how){.kernel = "generic"}, &other);
        call_check(own, calls[n].text);
        for (int64_t s = 0; s < own->tensors.batch; s++) call_same_seq(own, s, lender, s, calls[n].text);
        assert_string_equal(receipt.kernel, NAME);
        assert_string_equal(other.kernel, "generic");
        assert_int_equal(receipt.fallback, 0);
        assert_int_equal(other.fallback, 1);
        assert_int_equal(receipt.pairs_computed, other.pairs_computed);
        assert_int_equal(call_count_of(&other, NAME), 0);
        expect_functions(&receipt, calls[n].own, calls[n].borrowed, calls[n].text);
        call_free(own);
        call_free(lender);
    }
}

static void receipts_of_others_do_not_name_it(void **state) {
    (void)state;
    static const char *const texts[] = {"h4/2 q40 k40 d19 f32 causal", "h4/2 q1 k40 d19 f16"};
    for (int n = 0; n < COUNT(texts); n++) {
        call *c = call_new(texts[n], NULL);
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){0}, &receipt);
        call_check(c, texts[n]);
        assert_int_equal(receipt.fallback, 0);
        assert_int_equal(call_count_of(&receipt, NAME), 0);
        assert_true(call_count_of(&receipt, receipt.kernel) > 0);
        call_free(c);
    }
}

/* The reason that counts of fallbacks have is that of the kernel that could have served. */
static void counts_name_the_reason(void **state) {
    (void)state;
    static const struct {
        const char *text, *disable, *reason;
    } cases[] = {{"h2 q20 k20 d8 f32", "avx512,avx2,generic", "disabled"},
                 {"h2 q20 k20 d8 bf16", NAME, "disabled"},
                 {"h2 q20 k20 d640 f32", NULL, "head_dim"},
                 {"h2 q20 k20 d640 bf16", NULL, "head_dim"}};
    for (int n = 0; n < COUNT(cases); n++) {
        tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
        tp_context *context;
        tp_count count;
        int64_t at = 0, fallbacks = 0;
        options.threads = 1;
        options.policy = TP_PERMIT;
        options.disable = cases[n].disable;
        assert_int_equal(tp_context_create(&options, &context, NULL), TP_OK);
        call *c = call_new(cases[n].text, NULL);
        assert_int_equal(tp_attention(context, &c->problem, NULL, &c->tensors, NULL, NULL), TP_OK);
        while (tp_context_count_next(context, &at, &count)) {
            if (count.kind != TP_COUNT_FALLBACKS) continue;
            assert_string_equal(count.reason, cases[n].reason);
            fallbacks += count.count;
        }
        assert_int_equal(fallbacks, 1);
        call_free(c);
        tp_context_destroy(context);
    }
}

/* What a set serves it has, by itself or lent; and what was lent fits. */
static void sets_are_whole(void **state) {
    (void)state;
    for (int i = 0; i < TP__SETS; i++) {
        tp__kernel_set whole = tp__kernel_set_whole(i);
        for (int dtype = TP_F32; dtype <= TP_BF16; dtype++) {
            assert_non_null(whole.store_o[dtype]);
            if (!(whole.dtypes >> dtype & 1)) continue;
            assert_true(whole.load_q[dtype] && whole.pack_k[dtype] && whole.pack_v[dtype]);
            assert_true(whole.qk[dtype] && whole.pv[dtype]);
        }
        assert_int_equal(tp_kernel_at(i)->ops, (whole.attend ? 1u << TP_FORWARD : 0) | (whole.backward ? 1u << TP_BACKWARD : 0));
        assert_true(whole.merge_state && whole.peak && whole.read && whole.exp2 && whole.tanh);
        if (i == 0) continue;
        if (whole.arithmetic == TP_ARITHMETIC_F32)
            assert_memory_equal(&whole, tp__kernel_sets[i], sizeof whole); /* they lack nothing */
    }
    tp__kernel_set own = tp__kernel_set_whole(0), generic = tp__kernel_set_whole(TP__SETS - 1);
    assert_ptr_equal(own.load_q[TP_BF16], generic.load_q[TP_BF16]);
    assert_ptr_equal(own.store_o[TP_F32], generic.store_o[TP_F32]);
    assert_int_equal(own.row_step, generic.row_step);
    assert_null(own.backward); /* an op is not lent */
    assert_null(own.math);
    assert_null(own.pack_k[TP_F32]); /* of another form */
    assert_int_equal(tp_kernel_at(0)->dtypes, 1u << TP_BF16);
    int own_functions = 0;
    for (int i = 0; tp_kernel_function(i) != NULL; i++) own_functions += strstr(tp_kernel_function(i), NAME) != NULL;
    assert_int_equal(own_functions, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_problems_do_not_move),
        cmocka_unit_test(the_reason_names_the_dtype),
        cmocka_unit_test(its_own_problems_are_served),
        cmocka_unit_test(disabled_it_makes_others_a_fallback),
        cmocka_unit_test(receipts_name_what_is_borrowed),
        cmocka_unit_test(receipts_of_others_do_not_name_it),
        cmocka_unit_test(counts_name_the_reason),
        cmocka_unit_test(sets_are_whole),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
