/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients where something is NaN: what the reference says is NaN is NaN, and everything else is within its bound. The
 * places are random, a few at a time, so that NaN rows meet hidden keys, dropped pairs, sinks, rows that see nothing
 * and scores of -inf, in the same block of keys and in another one.
 */
#include <math.h>
#include <stdio.h>

#include "support/back.h"

static uint64_t state_of_draw;

static int64_t draw(int64_t below) {
    state_of_draw = state_of_draw * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state_of_draw >> 33) % (uint64_t)below);
}

/* One element, of a random kind at a random place. Returns a letter for it. */
static char poison(back *b) {
    const tp_problem *p = &b->problem;
    int64_t row = draw(p->q_len), key = draw(p->kv_len), head = draw(p->q_heads), kv_head = draw(p->kv_heads);
    int64_t x = draw(p->head_dim_qk), y = draw(p->head_dim_v);
    /* with a softcap a score of -inf is finite, and its bound is not */
    switch (draw(p->softcap > 0 ? 5 : 6)) {
    case 0: call_set(b->c, CALL_Q, 0, row, head, x, NAN); return 'q';
    case 1: call_set(b->c, CALL_K, 0, key, kv_head, x, NAN); return 'k';
    case 2: call_set(b->c, CALL_V, 0, key, kv_head, y, NAN); return 'v';
    case 3: back_set(b, BACK_DO, 0, row, head, y, NAN); return 'o';
    case 4: back_set(b, BACK_DLSE, 0, row, head, 0, NAN); return 'l';
    default: call_set(b->c, CALL_K, 0, key, kv_head, x, -INFINITY); return 'i';
    }
}

static void nan_is_where_the_reference_has_it(void **state) {
    (void)state;
    static const char *const texts[] = { /* beyond a head dim of 256 a block has 64 keys */
        "h2/1 q100 k150 d260/3 f32 causal documents",
        "h2/1 q100 k150 d260/3 f32 causal documents dropout=0.4",
        "h2/1 q40 k150 d260/3 bf16 bits bias=f32 sinks",
        "q40 k40 d8 f32 causal dropout=0.9",
        "h2/1 q40 k40 d8 f32 causal softcap=3 dropout=0.5 sinks",
        "h2/1 q70 k130 d260/3 f32 window=9,3 alibi",
        "h2/1 q20 k6 d8 f32 causal sinks dropout=0.5",
        "h2/1 q50 k70 d16 f32 tree qscale=0.5,4,1",
    };
    for (int t = 0; t < COUNT(texts); t++)
        for (int k = 0; back_kernel(k) != NULL; k++) {
            state_of_draw = (uint64_t)t + 17;
            for (int round = 0; round < (call_quick() ? 6 : 20); round++) {
                back *b = back_new(texts[t], BACK_D_LSE);
                char what[160];
                int n = snprintf(what, sizeof what, "%s, %s, round %d: ", texts[t], back_kernel(k), round);
                for (int64_t left = 1 + draw(3); left > 0; left--) what[n++] = poison(b);
                what[n] = 0;
                back_run(b, &(call_how){.kernel = back_kernel(k)}, NULL);
                back_check(b, what);
                back_free(b);
            }
        }
}

/* A key that is NaN makes its document's rows NaN, and none of another document in the same tile of rows and the same
   block of keys: there the hidden pairs' probabilities come from an lse of NaN. */
static void another_document_is_not_reached(void **state) {
    (void)state;
    enum { TOKENS = 600, BORDER = 387 };
    int32_t document[TOKENS];
    for (int i = 0; i < TOKENS; i++) document[i] = i >= BORDER;
    for (int n = 0; back_kernel(n / 2) != NULL; n++) {
        int k = n / 2;
        const char *text = n % 2 ? "q600 k600 d16 f32 causal documents dropout=0.4" : "q600 k600 d16 f32 causal documents";
        back *clean = back_new(text, 0), *b = back_new(text, 0);
        back *const both[] = {clean, b};
        call_set(b->c, CALL_K, 0, 5, 0, 3, NAN);
        for (int i = 0; i < 2; i++) {
            both[i]->c->tensors.q_documents = both[i]->c->tensors.k_documents = document;
            both[i]->c->tensors.index_type = TP_I32;
            back_run(both[i], &(call_how){.kernel = back_kernel(k)}, NULL);
        }
        for (int which = BACK_DQ; which <= BACK_DV; which++)
            for (int64_t i = 0; i < TOKENS; i++)
                for (int64_t x = 0; x < 16; x++) {
                    float was = back_get(clean, (back_tensor)which, 0, i, 0, x);
                    float is = back_get(b, (back_tensor)which, 0, i, 0, x);
                    if (i >= BORDER ? is != was : i > 5 && !isnan(is))
                        fail_msg("%s: gradient %d of token %d is %g, and was %g", back_kernel(k), which, (int)i,
                                 (double)is, (double)was);
                }
        back_free(clean);
        back_free(b);
    }
}

/* Every d_o is NaN: with one key, most of whose pairs are dropped, o is 0 and D is NaN all the same; where every score
   is -inf nothing is. */
static void d_o_counts_where_a_key_is_seen(void **state) {
    (void)state;
    for (int n = 0; back_kernel(n / 2) != NULL; n++) {
        back *b = back_new(n % 2 ? "q40 k1 d8 f32 dropout=0.9" : "q40 k6 d8 f32", 0);
        for (int64_t r = 0; r < 40; r++) {
            call_set(b->c, CALL_Q, 0, r, 0, 0, 1);
            for (int64_t x = 0; x < 8; x++) back_set(b, BACK_DO, 0, r, 0, x, NAN);
        }
        for (int64_t j = 0; n % 2 == 0 && j < 6; j++) call_set(b->c, CALL_K, 0, j, 0, 0, -INFINITY);
        back_run(b, &(call_how){.kernel = back_kernel(n / 2)}, NULL);
        back_check(b, back_kernel(n / 2));
        for (int64_t r = 0; r < 40; r++)
            assert_true(n % 2 ? isnan(back_get(b, BACK_DQ, 0, r, 0, 1)) : back_get(b, BACK_DQ, 0, r, 0, 1) == 0);
        back_free(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_is_where_the_reference_has_it),
        cmocka_unit_test(another_document_is_not_reached),
        cmocka_unit_test(d_o_counts_where_a_key_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
