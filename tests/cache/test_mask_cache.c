/* SPDX-License-Identifier: Apache-2.0 */
/* Every mask kind, and everything that changes scores, with few rows, pages, sparse indices and chunks on several
   threads: the same bits as in one stretch on one thread, and pages that no row sees may be anything. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "support/parallel.h"

static const char *const words[] = {
    "causal chunk=70", "causal prefix=30",  "prefix",           "window=40,0 first=4 causal",
    "documents",       "causal documents",  "causal spans",     "spans-and causal",
    "tree",            "bits",              "causal bits",      "callback",
    "callback causal", "positions causal",  "positions window=30,2", "mask=bits,causal,or,first:9,and",
    "softcap=3",       "alibi causal",      "bias=f32",         "bias=bf16 causal window=90,0",
    "sinks",           "qscale=0.5,4,1",    "bits sinks",       "alibi positions causal",
    "qscale=0.3,5,0 softcap=4 alibi bias=f16 sinks causal documents",
};

/* The same problem in one stretch and in pages; the second d has the smallest blocks of decode. */
static const struct {
    const char *plain, *paged;
} shapes[] = {
    {"b3 h4/2 q1 k300 d20 f32", "b3 h4/2 q1 k300 d20 f32 paged=%d"},
    {"b3 h6/3 q3 k300 d200/24 bf16", "b3 h6/3 q3 k300 d200/24 bf16 paged=%d"},
    {"h4/2 seqs=1x1/700,1x40/160,1x0/9,1x2/1300 d24 f16 packed",
     "h4/2 seqs=1x1/700,1x40/160,1x0/9,1x2/1300 d24 f16 packed-q paged=%d"},
};

static void text_of(char text[256], const char *shape, int page, const char *more) {
    int used = snprintf(text, 256, shape, page);
    snprintf(text + used, 256 - (size_t)used, " %s", more);
}

static int sees_page(const call *c, int64_t seq, int64_t slot) {
    int64_t from = slot * c->problem.page_size, to = from + c->problem.page_size;
    for (int64_t key = from; key < to && key < c->kv_lens[seq]; key++)
        for (int64_t row = 0; row < c->q_lens[seq]; row++)
            for (int64_t head = 0; head < c->problem.q_heads; head++)
                if (tp_mask_visible(&c->problem, &c->tensors, seq, head, row, key) == 1) return 1;
    return 0;
}

/* Numbers of no page where no row sees one; returns how many. */
static int spoil_tables(call *c) {
    static const int32_t numbers[] = {-1, INT32_MAX, INT32_MIN, 1 << 30};
    int spoilt = 0;
    for (int64_t seq = 0; seq < c->tensors.batch; seq++)
        for (int64_t slot = 0; slot < c->tensors.page_slots; slot++) {
            if (sees_page(c, seq, slot)) continue;
            for (int t = INDEX_K_PAGES; t <= INDEX_V_PAGES; t++)
                if (c->held.indices[t] != NULL)
                    ((int32_t *)c->held.indices[t])[seq * c->tensors.page_slots + slot] = numbers[spoilt % 4];
            spoilt++;
        }
    return spoilt;
}

static void paged_equals_contiguous(void **state) {
    (void)state;
    static const int sizes[] = {1, 7, 16, 64};
    int holes = 0;
    for (int n = 0; n < COUNT(shapes); n++)
        for (int i = 0; i < COUNT(words); i++) {
            char text[256];
            uint64_t seed = (uint64_t)(n + i);
            text_of(text, shapes[n].plain, 0, words[i]);
            call *plain = call_new(text, &(call_shape){.seed = seed});
            call_keep(plain);
            for (int s = 0; s < COUNT(sizes); s++) {
                text_of(text, shapes[n].paged, sizes[s], words[i]);
                call *paged = call_new(text, &(call_shape){.seed = seed, .two_tables = i % 2});
                call_keep(paged);
                holes += spoil_tables(paged);
                for (int k = s % 2; call_kernel(k) != NULL; k += 2) { /* each kernel has two sizes */
                    if (call_quick() && (n + i + k) % 2 != 0) continue;
                    call_run(plain, &(call_how){.kernel = call_kernel(k)}, NULL);
                    call_check(plain, text);
                    call_run(paged, &(call_how){.kernel = call_kernel(k)}, NULL);
                    call_same(plain, paged, text);
                    if (s < 2) call_check(paged, text);
                }
                call_free(paged);
            }
            call_free(plain);
        }
    assert_true(holes > 1000);
}

/* A page with one key that one row of one head sees must be there. */
static void a_seen_page_is_checked(void **state) {
    (void)state;
    static const char *const masks[] = {"window=40,0 first=4 causal", "bits", "callback", "causal documents"};
    for (int i = 0; i < COUNT(masks); i++) {
        char text[128];
        snprintf(text, sizeof text, "h4/2 q2 k300 d8 f32 paged=16 %s", masks[i]);
        int64_t slots = call_quick() ? 4 : 19;
        for (int64_t slot = 0; slot < slots; slot++) {
            call *c = call_new(text, &(call_shape){.seed = 4});
            tp_error error = TP_ERROR_INIT;
            char name[32];
            ((int32_t *)c->held.indices[INDEX_K_PAGES])[slot] = -1;
            int seen = sees_page(c, 0, slot);
            snprintf(name, sizeof name, "k_pages[0][%d] is -1", (int)slot);
            assert_int_equal(call_try(c, &(call_how){0}, NULL, &error), seen ? TP_INVALID : TP_OK);
            if (seen && strstr(error.text, name) == NULL) fail_msg("'%s' lacks '%s'", error.text, name);
            call_free(c);
        }
    }
}

static int64_t count_pairs(const call *c) {
    int64_t pairs = 0;
    for (int64_t seq = 0; seq < c->tensors.batch; seq++)
        for (int64_t head = 0; head < c->problem.q_heads; head++)
            for (int64_t row = 0; row < c->q_lens[seq]; row++)
                for (int64_t key = 0; key < c->kv_lens[seq]; key++)
                    pairs += tp_mask_visible(&c->problem, &c->tensors, seq, head, row, key);
    return pairs;
}

/* One row of long sequences, whose chunks several threads share, alone and beside others; tasks of one head
   and of many. The receipt counts every pair once. */
static void any_threads(void **state) {
    (void)state;
    static const char *const texts[] = {"h2/1 q1 k3300 d16 f32 paged=16 %s", "h9/9 q1 k2500 d16 bf16 %s",
                                        "h4/2 seqs=1x1/2600,3x1/90,1x30/200 d16 f32 packed-q paged=32 %s"};
    static const int tasks[] = {1, 2, 3, 7};
    for (int n = 0; n < COUNT(texts); n++)
        for (int i = 0; i < COUNT(words); i++) {
            char text[256];
            if (call_quick() && (n + i) % 2 != 0) continue;
            snprintf(text, sizeof text, texts[n], words[i]);
            const call_shape shape = {.seed = (uint64_t)i};
            call *one = call_new(text, &shape), *c = call_new(text, &shape);
            int64_t pairs = count_pairs(one);
            call_run(one, &(call_how){0}, NULL);
            for (int t = 0; t < COUNT(tasks); t++) {
                parallel p = {.threads = 3, .seed = (uint64_t)t};
                tp_receipt receipt;
                tp_receipt_init(&receipt);
                call_run(c, &(call_how){.threads = tasks[t], .parallel_for = parallel_threads, .user = &p},
                         &receipt);
                call_same(one, c, text);
                if (receipt.pairs_visible != pairs)
                    fail_msg("%s, %d tasks: %lld pairs, must be %lld", text, tasks[t],
                             (long long)receipt.pairs_visible, (long long)pairs);
                if (receipt.bytes_model < receipt.bytes_compulsory)
                    fail_msg("%s, %d tasks: model %lld, compulsory %lld\n", text, tasks[t],
                             (long long)receipt.bytes_model, (long long)receipt.bytes_compulsory);
            }
            call_check(one, text);
            call_free(one);
            call_free(c);
        }
}

/* NaN in keys that a row does not see reaches none of its heads, though they share the block. */
static void hidden_keys_of_few_rows(void **state) {
    (void)state;
    for (int i = 0; i < COUNT(words); i++) {
        char text[256];
        snprintf(text, sizeof text, "h8/8 q1 k200 d%d f32 %s", i % 2 ? 136 : 16, words[i]);
        const call_shape shape = {.seed = (uint64_t)i};
        call *clean = call_new(text, &shape), *c = call_new(text, &shape);
        call_run(clean, &(call_how){0}, NULL);
        for (int64_t key = 0; key < 200; key++)
            for (int64_t head = 0; head < 8; head++) {
                if (tp_mask_visible(&c->problem, &c->tensors, 0, head, 0, key) == 1) continue;
                for (int64_t x = 0; x < c->problem.head_dim_qk; x++) {
                    call_set(c, CALL_K, 0, key, head, x, __builtin_nanf(""));
                    call_set(c, CALL_V, 0, key, head, x, __builtin_inff());
                }
            }
        call_run(c, &(call_how){0}, NULL);
        call_same(clean, c, text);
        call_free(clean);
        call_free(c);
    }
}

/* The first row sees the first page, the second the last, the third one between them; then as many rows as prefill takes. */
static void a_page_between_those_of_other_rows(void **state) {
    (void)state;
    static const char *const texts[] = {"q3 k96 d8 f32 paged=16 documents", "q48 k96 d8 f32 paged=16 documents"};
    static const int32_t page_of_row[] = {0, 5, 2};
    int32_t rows[48], keys[96], pages[7] = {-1, -1, -1, -1, -1, -1, -1};
    for (int i = 0; i < 48; i++) rows[i] = page_of_row[i % 3];
    for (int j = 0; j < 96; j++) keys[j] = j / 16;
    for (int t = 0; t < COUNT(texts); t++) {
        call *c = call_new(texts[t], NULL);
        c->tensors.index_type = TP_I32;
        c->tensors.q_documents = rows;
        c->tensors.k_documents = keys;
        c->tensors.k_pages = pages;
        for (int i = 0; i < 3; i++) pages[page_of_row[i]] = (int32_t)c->held.pages[0][page_of_row[i]];
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check(c, texts[t]);
        }
        call_free(c);
    }
}

static void sparse_indices(void **state) {
    (void)state;
    static const char *const good[] = {
        "h4/2 q3 k300 d20 f32 sparse=50 softcap=3", "h4/2 q5 k300 d20 bf16 sparse-sorted=64 causal sinks",
        "h2/1 q20 k90 d8 f16 sparse=40 qscale=0.5,4,1",
        "h20/1 q2 k900 d16 f32 sparse-sorted=200 paged=16 window=500,0 softcap=4 sinks qscale=0.3,5,2"};
    static const char *const bad[] = {"chunk=4", "prefix=4", "first=4", "documents", "spans", "tree", "bits",
                                      "callback", "positions", "alibi", "bias=f32"};
    for (int i = 0; i < COUNT(good); i++) call_check_all(good[i], NULL);
    for (int i = 0; i < COUNT(bad); i++) {
        char text[128], name[16] = {0};
        tp_problem problem;
        tp_error error = TP_ERROR_INIT;
        snprintf(text, sizeof text, "q2 k40 d8 f32 sparse-sorted=6 %s", bad[i]);
        memcpy(name, bad[i], strcspn(bad[i], "="));
        assert_int_equal(tp_problem_parse(text, &problem, NULL, &error), TP_UNSUPPORTED);
        if (strncmp(error.text, name, strlen(name)) != 0 || strstr(error.text, "sparse indices") == NULL)
            fail_msg("%s: '%s'", text, error.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paged_equals_contiguous), cmocka_unit_test(a_seen_page_is_checked),
        cmocka_unit_test(any_threads),             cmocka_unit_test(hidden_keys_of_few_rows),
        cmocka_unit_test(a_page_between_those_of_other_rows), cmocka_unit_test(sparse_indices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
