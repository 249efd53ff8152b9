/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that lie in pages, behind sparse indices, or hold their own values: the same bits as plain ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "support/parallel.h"

/* Paged equals contiguous bit for bit, whatever the page size, order, tables and layout within a page. */
static void paged_equals_contiguous(void **state) {
    (void)state;
    static const struct {
        const char *plain, *paged; /* paged takes a page size */
    } cases[] = {
        {"b3 h4/2 q1 k300 d20 f32", "b3 h4/2 q1 k300 d20 f32 paged=%d"},
        {"h4/2 seqs=2x1/70,1x40/60,1x0/9,1x3/200 d24/8 bf16 packed causal",
         "h4/2 seqs=2x1/70,1x40/60,1x0/9,1x3/200 d24/8 bf16 packed-q paged=%d causal"},
        {"h6/2 seqs=1x30/90,1x2/5,1x1/1200 d8 f16 padded causal window=20,0",
         "h6/2 seqs=1x30/90,1x2/5,1x1/1200 d8 f16 padded paged=%d causal window=20,0"},
        {"h2/1 q37 k130 d257/9 f32 causal", "h2/1 q37 k130 d257/9 f32 paged=%d causal"},
        {"h8/1 q2 k150 d16 bf16 causal invariant", "h8/1 q2 k150 d16 bf16 paged=%d causal invariant"},
    };
    static const int sizes[] = {1, 2, 3, 7, 16, 32, 64, 100, 128, 256};
    for (int n = 0; n < COUNT(cases); n++)
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call *plain = call_new(cases[n].plain, NULL);
            call_run(plain, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check(plain, cases[n].plain);
            for (int i = 0; i < COUNT(sizes); i++) {
                char text[160];
                if (call_quick() && (n + k + i) % 3 != 0) continue;
                snprintf(text, sizeof text, cases[n].paged, sizes[i]);
                call_shape shape = {.layout = i % 2 ? CALL_BHSD : i % 3 ? CALL_BSHD : CALL_GAPS,
                                    .index_type = i % 2 ? TP_I64 : TP_I32,
                                    .two_tables = i % 3 == 1};
                call *paged = call_new(text, &shape);
                call_run(paged, &(call_how){.kernel = call_kernel(k)}, NULL);
                call_same(plain, paged, text);
                call_free(paged);
            }
            call_free(plain);
        }
}

static void check_each(const char *const *texts, int count) {
    for (int n = 0; n < count; n++) {
        call_check_all(texts[n], NULL);
        call_check_all(texts[n], &(call_shape){.layout = CALL_BHSD, .index_type = TP_I64});
    }
}

/* A latent cache: v lies within k, each row is read once. */
static void latent(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h16/1 q1 k70 d576/512 bf16 latent",   "h16/1 q1 k70 d576/512 f32 latent paged=16",
        "h128/1 q1 k90 d40/32 f32 latent",     "b2 h8/1 q3 k200 d24/16 f16 latent paged=7 causal",
        "h4/2 q20 k80 d16 f32 latent causal",
    };
    check_each(texts, COUNT(texts));
    for (int few = 0; few < 2; few++) {
        call *c = call_new(few ? "h16/1 q1 k3000 d40/32 f32 latent" : "h32/1 q1 k3000 d40/32 f32 latent",
                           NULL);
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){0}, &receipt);
        int64_t rows = (few ? 16 : 32) * (40 + 32 + 1) * 4;
        assert_int_equal(receipt.bytes_model, rows + 3000 * 160);
        assert_int_equal(receipt.bytes_compulsory, receipt.bytes_model);
        call_free(c);
    }
}

/* Sparse indices: only their keys are read, in their order; several tokens each have their own. */
static void sparse_indices(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h4/2 q1 k300 d20 f32 sparse=50",
        "h4/2 q5 k300 d20 bf16 sparse-sorted=64",
        "b2 h6/1 q9 k90 d8 f16 sparse-sorted=40 causal",
        "h20/1 q7 k900 d16/12 f32 sparse=200 paged=16",
        "h8/1 seqs=1x4/100,1x1/9,1x30/40 d8 f32 packed-q paged=5 sparse-sorted=33 causal",
        "h16/1 q3 k400 d576/512 bf16 latent sparse=128 paged=64",
        "h2/1 q2 k40 d8 f32 sparse=1",
        "h2/2 q3 k5000 d8 f32 sparse-sorted=2500 window=3000,0",
        "h4/1 q9 k200 d8 bf16 paged=8 sparse-sorted=90 window=20,0",
    };
    check_each(texts, COUNT(texts));
}

/* What is told of sparse indices counts their keys that are seen, and no others of the sequence: tasks, bytes, scores. */
static void sparse_indices_are_counted_by_their_keys(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int threads; /* of 8 */
        int64_t scores;
    } cases[] = {
        {"h1 q1 k9000 d8 f32 sparse-sorted=20", 1, 20},
        {"h2/1 q3 k9000 d8 f32 sparse=20", 3, 60},
        {"h1 q2 k9 d8 f32 sparse=6000", 8, 12000},
        {"h4/2 q40 k60 d8 f32 sparse-sorted=30 causal", 8, 1200}, /* which hides some of them */
        {"h2 q3 k5000 d8 f32 paged=16 sparse-sorted=90 window=2000,0", 6, 270},
    };
    for (int n = 0; n < COUNT(cases); n++) {
        call *c = call_new(cases[n].text, NULL);
        tp_receipt receipt;
        tp_decision *decision;
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){.threads = 8, .parallel_for = parallel_reverse, .user = &(parallel){0}}, &receipt);
        if (receipt.bytes_compulsory > receipt.bytes_model || receipt.tasks != cases[n].threads)
            fail_msg("%s: %lld bytes compulsory of %lld, %d tasks at once", cases[n].text,
                     (long long)receipt.bytes_compulsory, (long long)receipt.bytes_model, receipt.tasks);
        assert_int_equal(tp_explain(call_context(), &c->problem, NULL, &decision, NULL), TP_OK);
        assert_int_equal(decision->scores_per_head, cases[n].scores);
        tp_decision_destroy(decision);
        call_free(c);
    }
}

/* A list that is not sorted may name keys again and again, and so be longer than its sequence: over the keys of
   math's matrices, over one chunk of either loop, and over what a few threads share. */
static void sparse_indices_longer_than_their_sequences(void **state) {
    (void)state;
    static const char *const texts[] = {
        "h1 q1 k4 d8 f32 sparse=65",   "h1 q1 k4 d8 f32 sparse=1025",          "h2/1 q2 k4 d8 bf16 sparse=4097 invariant",
        "h2/1 q3 k1000 d8 f16 sparse=1500", "h1 seqs=2x2/3,1x1/0,1x1/700 d8 f32 packed-q paged=2 sparse=2100",
        "h40/1 q1 k4 d8 f32 sparse=4100",
    };
    check_each(texts, COUNT(texts));
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call *one = call_new("h4/4 q1 k5 d8 f32 sparse=60000", NULL);
        call *many = call_new("h4/4 q1 k5 d8 f32 sparse=60000", NULL);
        assert_true(tensors_key(&many->held, 0, 0, 59999) >= 0); /* it does not end early */
        call_run(one, &(call_how){.kernel = call_kernel(k)}, NULL);
        call_run(many, &(call_how){.kernel = call_kernel(k), .threads = 4, .parallel_for = parallel_reverse,
                                    .user = &(parallel){0}}, NULL);
        call_same(one, many, "a long list on four threads");
        call_free(one);
        call_free(many);
    }
}

/* A list of all keys in order is the plain problem, bit for bit. */
static void a_list_of_everything(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"h4/1 q1 k1500 d16 f32", "h4/1 q1 k1500 d16 f32 sparse-sorted=1500"},
        {"h40/1 q1 k1500 d16 bf16", "h40/1 q1 k1500 d16 bf16 sparse=1500"},
    };
    for (int n = 0; n < COUNT(pairs); n++) {
        call *plain = call_new(pairs[n][0], NULL), *listed = call_new(pairs[n][1], NULL);
        for (int32_t i = 0; i < 1500; i++) ((int32_t *)listed->held.indices[INDEX_SPARSE])[i] = i;
        call_run(plain, &(call_how){0}, NULL);
        call_run(listed, &(call_how){0}, NULL);
        call_same(plain, listed, pairs[n][1]);
        call_free(plain);
        call_free(listed);
    }
}

/* What a call with one thing wrong is refused with; nothing is written. */
static void refused(call *c, const char *const parts[2]) {
    tp_error error = TP_ERROR_INIT;
    tp_status status = call_try(c, &(call_how){0}, NULL, &error);
    assert_int_equal(status, TP_INVALID);
    for (int i = 0; i < 2; i++)
        if (strstr(error.text, parts[i]) == NULL) fail_msg("'%s' lacks '%s'", error.text, parts[i]);
    for (size_t i = 0; i < c->held.buffer[CALL_O].bytes; i++)
        assert_int_equal(((unsigned char *)c->held.buffer[CALL_O].memory)[i], 0xff);
    call_free(c);
}
#define REFUSED(c, one, other) refused(c, (const char *const[2]){one, other})

static void bad_pages(void **state) {
    (void)state;
    static const char text[] = "b2 h2/1 q2 k40 d8 f32 paged=8 causal";
    call *c = call_new(text, NULL);
    int32_t *table = c->held.indices[INDEX_K_PAGES];
    table[c->tensors.page_slots + 2] = (int32_t)c->tensors.pages;
    REFUSED(c, "k_pages[1][2] is", "below pages = ");
    c = call_new(text, &(call_shape){.two_tables = 1});
    ((int32_t *)c->held.indices[INDEX_V_PAGES])[1] = -1;
    REFUSED(c, "v_pages[0][1] is -1", "below pages = ");
    c = call_new(text, NULL);
    c->tensors.page_slots = 4;
    REFUSED(c, "sequence 0 has 40 keys", "5 slots");
    c = call_new(text, NULL);
    c->tensors.k_pages = NULL;
    REFUSED(c, "k_pages is NULL", "40 keys");
    c = call_new(text, NULL);
    ((int32_t *)c->held.indices[INDEX_KV_LENS])[1] = 41;
    REFUSED(c, "kv_lens[1] is 41", "0..40");
    c = call_new(text, NULL);
    c->tensors.pages = -1;
    REFUSED(c, "pages is -1", "at least 0");
    c = call_new(text, NULL);
    c->tensors.k_pages = (const char *)c->tensors.k_pages + 1;
    REFUSED(c, "k_pages is", "aligned");
    /* a page in two places: only the deep check, which call_try asks for, sees it */
    c = call_new(text, NULL);
    table = c->held.indices[INDEX_K_PAGES];
    table[1] = table[0];
    REFUSED(c, "k_pages[0][0]", "k_pages[0][1]");
    c = call_new(text, NULL);
    table = c->held.indices[INDEX_K_PAGES];
    table[c->tensors.page_slots + 3] = table[0];
    REFUSED(c, "k_pages[0][0]", "k_pages[1][3]");
}

/* Sequences may share their beginning. */
static void shared_prefix(void **state) {
    (void)state;
    call *c = call_new("b2 h2/1 q2 k40 d8 f32 paged=8 causal", NULL);
    int32_t *table = c->held.indices[INDEX_K_PAGES];
    for (int i = 0; i < 3; i++) {
        table[c->tensors.page_slots + i] = table[i];
        c->held.pages[0][c->tensors.page_slots + i] = c->held.pages[0][i];
        c->held.pages[1][c->tensors.page_slots + i] = c->held.pages[1][i];
    }
    call_run(c, &(call_how){0}, NULL);
    call_check(c, "a shared prefix");
    call_free(c);
}

static void bad_lists(void **state) {
    (void)state;
    static const char text[] = "h2/1 q2 k40 d8 f32 sparse-sorted=6";
    call *c = call_new(text, NULL);
    int32_t *indices = c->held.indices[INDEX_SPARSE];
    indices[c->tensors.sparse_stride] = indices[c->tensors.sparse_stride + 1] = 5;
    REFUSED(c, "token 1, entry 1 is 5 after 5", "ascends");
    c = call_new("h2/1 q2 k40 d8 f32 sparse=6", NULL);
    ((int32_t *)c->held.indices[INDEX_SPARSE])[0] = 40;
    REFUSED(c, "token 0, entry 0 is 40", "below the sequence's 40 keys");
    c = call_new("h2/1 q2 k40 d8 f32 sparse=6", NULL);
    ((int32_t *)c->held.indices[INDEX_SPARSE])[0] = -2;
    REFUSED(c, "entry 0 is -2", "-1");
    c = call_new(text, NULL);
    c->tensors.sparse_indices = NULL;
    REFUSED(c, "sparse_indices is NULL", "sparse_len 6");
    c = call_new(text, NULL);
    c->tensors.sparse_stride = INT64_MAX / 2;
    REFUSED(c, "sparse_stride is", "addressable");
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_problem_parse("q2 k40 d8 f32 sparse=6 causal", &problem, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "sparse_sorted"));
}

static void bad_latent(void **state) {
    (void)state;
    call *c = call_new("h2/1 q2 k40 d8/4 f32 latent", NULL);
    c->tensors.v.data = (char *)c->tensors.v.data + 4;
    REFUSED(c, "latent needs it within 0..16", "20 bytes");
    c = call_new("h2/1 q2 k40 d8/4 f32 latent", NULL);
    c->tensors.v.stride[1]++;
    REFUSED(c, "v.stride[1] is", "equal");
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_problem_parse("q2 k40 d8/9 f32 latent", &problem, NULL, &error), TP_INVALID);
    assert_int_equal(tp_problem_parse("q2 k40 d8 f32:f32:f16 latent", &problem, NULL, &error), TP_INVALID);
    assert_int_equal(tp_problem_parse("q2 k40 d8 f32 paged=0", &problem, NULL, &error), TP_INVALID);
    assert_int_equal(tp_problem_parse("q2 k40 d8 f32 packed paged=4", &problem, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "packed-q"));
}

static void text_comes_back(void **state) {
    (void)state;
    static const char *const texts[] = {
        "decode b1 h4/2 q1 k300 d20 f32 paged=16 sparse-sorted=40 latent causal invariant",
        "prefill b2 h4/2 q20 k30 d20/8 bf16 packed-q paged=3 sparse=5",
    };
    for (int n = 0; n < COUNT(texts); n++) {
        char back[256];
        tp_problem problem;
        tp_error error = TP_ERROR_INIT;
        if (tp_problem_parse(texts[n], &problem, NULL, &error)) fail_msg("%s", error.text);
        assert_int_equal(tp_problem_print(&problem, NULL, back, sizeof back), TP_OK);
        assert_string_equal(back, texts[n]);
        call *c = call_new(texts[n], NULL);
        assert_int_equal(tp_problem_print(&c->problem, &c->tensors, back, sizeof back), TP_OK);
        assert_string_equal(back, texts[n]);
        call_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paged_equals_contiguous),
        cmocka_unit_test(latent),
        cmocka_unit_test(sparse_indices),
        cmocka_unit_test(sparse_indices_are_counted_by_their_keys),
        cmocka_unit_test(sparse_indices_longer_than_their_sequences),
        cmocka_unit_test(a_list_of_everything),
        cmocka_unit_test(bad_pages),
        cmocka_unit_test(shared_prefix),
        cmocka_unit_test(bad_lists),
        cmocka_unit_test(bad_latent),
        cmocka_unit_test(text_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
