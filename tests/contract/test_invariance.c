/* SPDX-License-Identifier: Apache-2.0 */
/* A row's bits depend on its own q and the keys it sees and on nothing else, on every kernel. */
#include <stdio.h>
#include <string.h>

#include "support/call.h"

static call *run_new(const char *text, const call_shape *shape, const char *kernel) {
    call *c = call_new(text, shape);
    call_run(c, &(call_how){.kernel = kernel}, NULL);
    return c;
}

static void duplicate_requests_are_equal(void **state) {
    (void)state;
    static const char *const texts[] = {
        "b5 h6/2 q37 k45 d24 bf16 causal",
        "h6/2 seqs=1x37/45,1x9/70,1x37/45,1x1/4200,1x37/45 d24 f32 packed causal",
        "h6/2 seqs=1x37/45,1x9/70,1x37/45,1x80/80,1x37/45 d24 f16 padded window=11,2",
    };
    static const int64_t request[] = {7, 3, 7, 5, 7};
    for (int k = 0; call_kernel(k) != NULL; k++)
        for (int n = 0; n < COUNT(texts); n++) {
            call *c = run_new(texts[n], &(call_shape){.request = request}, call_kernel(k));
            call_check(c, texts[n]);
            call_same_seq(c, 0, c, 2, texts[n]);
            call_same_seq(c, 0, c, 4, texts[n]);
            call_free(c);
        }
}

/* Each request alone, then among others, in every form. */
static void neighbours_do_not_matter(void **state) {
    (void)state;
    static const int64_t q[] = {30, 1, 0, 65, 100}, kv[] = {41, 4150, 12, 65, 70};
    static const char *const forms[] = {"packed", "padded"};
    static const char *const masks[] = {"", "causal", "window=30,4"};
    enum { REQUESTS = 5 };
    for (int k = 0; call_kernel(k) != NULL; k++)
        for (int m = 0; m < COUNT(masks); m++) {
            call *alone[REQUESTS];
            char text[256];
            for (int r = 0; r < REQUESTS; r++) {
                int64_t request = r;
                snprintf(text, sizeof text, "h4/2 q%d k%d d20 bf16 %s", (int)q[r], (int)kv[r],
                         masks[m]);
                alone[r] = run_new(text, &(call_shape){.request = &request}, call_kernel(k));
            }
            for (int f = 0; f < COUNT(forms); f++) {
                snprintf(text, sizeof text,
                         "h4/2 seqs=1x%d/%d,1x%d/%d,1x%d/%d,1x%d/%d,1x%d/%d d20 bf16 %s %s",
                         (int)q[0], (int)kv[0], (int)q[1], (int)kv[1], (int)q[2], (int)kv[2],
                         (int)q[3], (int)kv[3], (int)q[4], (int)kv[4], forms[f], masks[m]);
                call *all = run_new(text, &(call_shape){.layout = f ? CALL_BSHD : CALL_GAPS},
                                    call_kernel(k));
                for (int r = 0; r < REQUESTS; r++) call_same_seq(alone[r], 0, all, r, text);
                call_free(all);
            }
            for (int r = 0; r < REQUESTS; r++) call_free(alone[r]);
        }
}

static void layouts_do_not_matter(void **state) {
    (void)state;
    static const char *const text = "b2 h6/3 q30 k30 d17 f16 causal";
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call *plain = run_new(text, NULL, call_kernel(k));
        for (int layout = CALL_BHSD; layout <= CALL_QKV; layout++) {
            call *c = run_new(text, &(call_shape){.layout = layout}, call_kernel(k));
            call_same(plain, c, "layout");
            call_free(c);
        }
        call_free(plain);
    }
}

/* The rows of a, which has fewer of them, are the first rows of b. */
static void same_first_rows(const call *a, const call *b, const char *what) {
    for (int64_t r = 0; r < a->q_lens[0]; r++)
        for (int64_t h = 0; h < a->problem.q_heads; h++)
            call_same_row(a, 0, r, h, b, 0, r, h, what);
}

static void appended_keys_change_no_earlier_row(void **state) {
    (void)state;
    static const int more[] = {1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 130, 600};
    static const struct {
        const char *dims;
        int q, k;
    } cases[] = {{"d24", 20, 20}, {"d300/20", 61, 61}, {"d24", 500, 505}, {"d5", 4090, 4090}};
    for (int k = 0; call_kernel(k) != NULL; k++)
        for (int n = 0; n < COUNT(cases); n++) {
            char text[128];
            const char *dims = cases[n].dims;
            int q = cases[n].q, keys = cases[n].k, grow = q > 4000 ? 10 : 0;
            if (call_quick() && q > 100) continue;
            /* top-left: new keys are right of every row */
            snprintf(text, sizeof text, "q%d k%d %s f32 top-left causal", q, q, dims);
            call *before = run_new(text, NULL, call_kernel(k));
            /* bottom-right: rows and keys grow together */
            snprintf(text, sizeof text, "q%d k%d %s f32 causal invariant", grow ? grow : q, keys, dims);
            call *aligned = run_new(text, NULL, call_kernel(k));
            for (int i = 0; i < COUNT(more); i++) {
                if (q > 400 && i % 4 != 0) continue;
                snprintf(text, sizeof text, "q%d k%d %s f32 top-left causal", q, q + more[i], dims);
                call *after = run_new(text, NULL, call_kernel(k));
                same_first_rows(before, after, text);
                call_free(after);
                snprintf(text, sizeof text, "q%d k%d %s f32 causal invariant", (grow ? grow : q) + more[i],
                         keys + more[i], dims);
                after = run_new(text, NULL, call_kernel(k));
                same_first_rows(aligned, after, text);
                call_free(after);
            }
            call_free(before);
            call_free(aligned);
        }
}

/* Rows from..to-1 of c in a call of their own, with the keys they can see. Outputs go to `part`. */
static void run_rows(const call *c, call *part, int64_t from, int64_t to, const char *kernel) {
    call cut = *c;
    cut.problem.q_len = to - from;
    cut.problem.kv_len = c->kv_lens[0] - (c->q_lens[0] - to);
    cut.tensors.q_len = cut.problem.q_len;
    cut.tensors.kv_len = cut.problem.kv_len;
    cut.tensors.q.data = call_at(c, CALL_Q, 0, from, 0);
    cut.tensors.o.data = call_at(part, CALL_O, 0, from, 0);
    cut.tensors.lse.data = call_at(part, CALL_LSE, 0, from, 0);
    cut.held.buffer[CALL_O].memory = cut.held.buffer[CALL_LSE].memory = NULL;
    tp_error error = TP_ERROR_INIT;
    if (call_try(&cut, &(call_how){.kernel = kernel}, NULL, &error)) fail_msg("%s", error.text);
}

/* Bottom-right causal: a prompt taken in two pieces. */
static void prefill_in_two_calls(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int every; /* cut points: all, or those around borders */
    } cases[] = {
        {"h3/1 q40 k40 d24 bf16 causal invariant", 1},
        {"h2/1 q140 k140 d300/20 f32 causal invariant", 0},
        {"h2/2 q140 k200 d257/8 f16 causal window=70,-1 invariant", 0},
        {"h2/1 q12 k4102 d5 f32 causal invariant", 1},
        {"q10 k8196 d3 f32 causal window=4097,0 invariant", 1},
        {"h2/1 q530 k530 d8 f32 causal invariant", 0},
    };
    for (int n = 0; n < COUNT(cases); n++)
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call *whole = run_new(cases[n].text, NULL, call_kernel(k));
            call *part = call_new(cases[n].text, NULL);
            call_check(whole, cases[n].text);
            for (int64_t cut = 1; cut < whole->q_lens[0]; cut++) {
                int near = 0;
                for (int64_t c = cut - 1; c <= cut + 1; c++)
                    near |= c < 18 || c % 64 == 0 || c % 96 == 0 || c == whole->q_lens[0] - 1;
                if ((!cases[n].every && !near) || (call_quick() && cut % 3 != 0)) continue;
                for (int i = CALL_O; i <= CALL_LSE; i++)
                    memset(part->held.buffer[i].memory, 0xff, part->held.buffer[i].bytes);
                run_rows(whole, part, 0, cut, call_kernel(k));
                run_rows(whole, part, cut, whole->q_lens[0], call_kernel(k));
                call_same(whole, part, cases[n].text);
            }
            call_free(whole);
            call_free(part);
        }
}

/* A query head, and a row, alone: strips of the whole call hold several of each. */
static void heads_and_rows_alone(void **state) {
    (void)state;
    static const int groups[] = {1, 2, 3, 5, 7, 8, 71};
    for (int k = 0; call_kernel(k) != NULL; k++)
        for (int g = 0; g < COUNT(groups); g++) {
            char text[128];
            snprintf(text, sizeof text, "h%d/2 q%d k30 d20 bf16 causal invariant", 2 * groups[g],
                     groups[g] > 8 ? 5 : 23);
            call *all = run_new(text, NULL, call_kernel(k)), *part = call_new(text, NULL);
            call_check(all, text);
            for (int64_t h = 0; h < all->problem.q_heads; h++) {
                call one = *part;
                one.problem.q_heads = one.problem.kv_heads = 1;
                one.tensors.q.data = call_at(all, CALL_Q, 0, 0, h);
                one.tensors.k.data = call_at(all, CALL_K, 0, 0, h / groups[g]);
                one.tensors.v.data = call_at(all, CALL_V, 0, 0, h / groups[g]);
                one.tensors.o.data = call_at(part, CALL_O, 0, 0, h);
                one.tensors.lse.data = call_at(part, CALL_LSE, 0, 0, h);
                one.held.buffer[CALL_O].memory = one.held.buffer[CALL_LSE].memory = NULL;
                assert_int_equal(call_try(&one, &(call_how){.kernel = call_kernel(k)}, NULL, NULL),
                                 TP_OK);
            }
            call_same(all, part, "a head alone");
            for (int64_t r = 0; r < all->q_lens[0]; r++)
                run_rows(all, part, r, r + 1, call_kernel(k));
            call_same(all, part, "a row alone");
            call_free(all);
            call_free(part);
        }
}

/* Row 0's sum underflows to -0. The key that only row 1 sees must not make it +0, although 0 * v is
   added to both rows of the strip. */
static void the_sign_of_zero_is_the_rows_own(void **state) {
    (void)state;
    static const char *const text = "q2 k66 d257/3 f32 causal scale=1"; /* blocks of 64 keys */
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call *c = call_new(text, &(call_shape){.q_size = 0x1p-140f}), *part = call_new(text, NULL);
        for (int64_t r = 0; r < 2; r++) call_set(c, CALL_Q, 0, r, 0, 0, 1);
        for (int64_t j = 0; j < 66; j++) {
            call_set(c, CALL_K, 0, j, 0, 0, j == 64 ? 100 : 0);
            for (int64_t x = 0; x < 3; x++)
                call_set(c, CALL_V, 0, j, 0, x, j == 0 ? -1e-38f : j == 65 ? 1.0f : -0.0f);
        }
        call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
        run_rows(c, part, 0, 1, call_kernel(k));
        run_rows(c, part, 1, 2, call_kernel(k));
        call_same(c, part, "a zero");
        call_free(c);
        call_free(part);
    }
}

/* What the workspace and the outputs held before does not matter, nor does a second run. */
static void runs_are_equal(void **state) {
    (void)state;
    static const char *const texts[] = {"b2 h6/2 q101 k120 d33 bf16 causal",
                                        "h3/1 q5 k4300 d9 f32 window=4200,-1"};
    static const int fills[] = {0xff, 0x01, 0x7f, 0x80};
    for (int k = 0; call_kernel(k) != NULL; k++)
        for (int n = 0; n < COUNT(texts); n++) {
            call *first = run_new(texts[n], NULL, call_kernel(k)),
                 *again = call_new(texts[n], NULL);
            for (int f = 0; f < COUNT(fills); f++) {
                call_run(again, &(call_how){.kernel = call_kernel(k), .fill = fills[f]}, NULL);
                call_same(first, again, "a second run");
            }
            call_free(first);
            call_free(again);
        }
}

/* A plan with wider bounds, as the cache of tp_attention keeps, gives the same bits. */
static void bounds_do_not_matter(void **state) {
    (void)state;
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call *exact = run_new("b2 h6/2 q50 k60 d20 f32 causal", NULL, call_kernel(k));
        call *wide = call_new("b2 h6/2 q50 k60 d20 f32 causal", NULL);
        wide->problem.q_len = 700;
        wide->problem.kv_len = 9000;
        wide->problem.batch = 3;
        call_run(wide, &(call_how){.kernel = call_kernel(k)}, NULL);
        call_same(exact, wide, "wider bounds");
        call_free(exact);
        call_free(wide);
    }
}

/* Every ISA that fuses multiply and add gives the same bits: chains over d and keys, blocks, chunks and
   the 16-lane sum are the same, whatever the width. generic does not fuse and is not among them. */
static void fused_isas_agree(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h4/2 q130 k200 d64 f32 causal",    "h2/1 q77 k1100 d128 bf16 window=300,7",
        "h3/1 q9 k9000 d80 f16->f32",       "h2 q65 k65 d192/128 f32 top-left causal",
        "h2 q40 k300 d576/1 f32",           "h5/1 q31 k600 d33 bf16 causal",
        "b3 h4/4 q16 k16 d64 f32",
    };
    const char *wide[4];
    int count = 0;
    for (int k = 0; call_kernel(k) != NULL; k++)
        if (strncmp(call_kernel(k), "avx", 3) == 0 && count < COUNT(wide)) wide[count++] = call_kernel(k);
    if (count < 2) printf("not run here: this host has %d ISA that fuses\n", count);
    for (int n = 0; count > 1 && n < COUNT(texts); n++) {
        call *first = run_new(texts[n], NULL, wide[0]), *other = call_new(texts[n], NULL);
        for (int i = 1; i < count; i++) {
            call_run(other, &(call_how){.kernel = wide[i]}, NULL);
            call_same(first, other, wide[i]);
        }
        call_free(first);
        call_free(other);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_isas_agree),
        cmocka_unit_test(duplicate_requests_are_equal),
        cmocka_unit_test(neighbours_do_not_matter),
        cmocka_unit_test(layouts_do_not_matter),
        cmocka_unit_test(appended_keys_change_no_earlier_row),
        cmocka_unit_test(prefill_in_two_calls),
        cmocka_unit_test(heads_and_rows_alone),
        cmocka_unit_test(the_sign_of_zero_is_the_rows_own),
        cmocka_unit_test(runs_are_equal),
        cmocka_unit_test(bounds_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
