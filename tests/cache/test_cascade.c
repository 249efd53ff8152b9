/* SPDX-License-Identifier: Apache-2.0 */
/* Shared prefixes: computed once, counted once, refused by name where what is said of them is not so. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"
#include "tileproof_cache.h"

enum { KV_HEADS = 2, GROUP = 2, Q_HEADS = KV_HEADS * GROUP, DIM = 16, PAGE = 16, MAX = 12, TOKENS = 9000 };

/* A pool of pages, and sequences that begin as others do. */
typedef struct prefixes {
    tp_context *context;
    tp_problem problem;
    tp_tensors tensors;
    int64_t with[MAX], lens[MAX], kv_lens[MAX], table[MAX][TOKENS / PAGE + 1];
    float *k, *v, *q, *o, *lse, sinks[Q_HEADS];
} prefixes;

static float noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

static float *floats(int64_t count, uint64_t seed) {
    float *all = malloc((size_t)count * sizeof *all);
    assert_non_null(all);
    for (int64_t i = 0; i < count; i++) all[i] = noise(&seed);
    return all;
}

/* with, shared and own keys of each sequence; own < 0 ends them. */
typedef struct sequence {
    int64_t with, shared, own;
} sequence;

static prefixes *make(const sequence *all, int64_t q_len, const char *words) {
    prefixes *p = calloc(1, sizeof *p);
    char text[200];
    int64_t count = 0, pages = 0;
    assert_non_null(p);
    for (; all[count].own >= 0; count++) {
        int64_t shared = all[count].shared, keys = shared + all[count].own;
        p->with[count] = all[count].with;
        p->lens[count] = shared;
        p->kv_lens[count] = keys;
        for (int64_t slot = 0; slot * PAGE < keys; slot++)
            p->table[count][slot] = slot * PAGE < shared ? p->table[all[count].with][slot] : pages++;
    }
    snprintf(text, sizeof text, "b%d h%d/%d q%d k%d d%d f32 paged=%d cascade=%d %s", (int)count, Q_HEADS, KV_HEADS, (int)q_len,
             TOKENS, DIM, PAGE, TOKENS, words);
    tp_error error = TP_ERROR_INIT;
    if (tp_problem_parse(text, &p->problem, NULL, &error) != TP_OK) fail_msg("%s: %s", text, error.text);
    assert_int_equal(tp_context_create(NULL, &p->context, NULL), TP_OK);
    p->k = floats(pages * PAGE * KV_HEADS * DIM, 1);
    p->v = floats(pages * PAGE * KV_HEADS * DIM, 2);
    p->q = floats(count * q_len * Q_HEADS * DIM, 3);
    p->o = floats(count * q_len * Q_HEADS * DIM, 4);
    p->lse = floats(count * q_len * Q_HEADS, 5);
    tp_tensors *t = &p->tensors;
    tp_tensors_init(t, &p->problem, p->q, p->k, p->v, p->o);
    t->lse.data = p->lse;
    t->sinks = p->sinks;
    t->index_type = TP_I64;
    t->k_pages = p->table;
    t->page_slots = TOKENS / PAGE + 1;
    t->pages = pages;
    t->kv_lens = p->kv_lens;
    t->shared_with = p->with;
    t->shared_lens = p->lens;
    return p;
}

static void unmake(prefixes *p) {
    tp_context_destroy(p->context);
    free(p->k), free(p->v), free(p->q), free(p->o), free(p->lse), free(p);
}

static tp_receipt run(prefixes *p, int threads) {
    tp_receipt receipt;
    tp_error error = TP_ERROR_INIT;
    tp_plan *plan;
    tp_receipt_init(&receipt);
    if (tp_plan_create(p->context, &p->problem, NULL, &plan, &error) != TP_OK) fail_msg("%s", error.text);
    tp_exec exec = TP_EXEC_INIT;
    exec.threads = threads;
    exec.workspace_size = tp_plan_workspace(plan, threads);
    assert_int_equal(posix_memalign(&exec.workspace, 64, exec.workspace_size), 0);
    memset(exec.workspace, 0x7F, exec.workspace_size);
    if (tp_plan_run(plan, &p->tensors, &exec, &receipt, &error) != TP_OK) fail_msg("%s", error.text);
    free(exec.workspace);
    receipt.decision = NULL;
    tp_plan_destroy(plan);
    return receipt;
}

/* Both runs of one call: shared, then each sequence by itself. Gives the shared one's receipt. */
static tp_receipt both(prefixes *p, int threads, int same_bits) {
    size_t size = (size_t)(p->problem.batch * p->problem.q_len * Q_HEADS * DIM);
    float *o = malloc(size * sizeof *o);
    assert_non_null(o);
    tp_receipt shared = run(p, threads);
    memcpy(o, p->o, size * sizeof *o);
    int64_t cascade = p->problem.cascade;
    p->problem.cascade = 0;
    tp_receipt alone = run(p, threads);
    p->problem.cascade = cascade;
    assert_int_equal(shared.pairs_visible, alone.pairs_visible);
    assert_int_equal(alone.pairs_shared, 0);
    if (same_bits) assert_memory_equal(o, p->o, size * sizeof *o);
    for (size_t i = 0; i < size; i++)
        if (!(fabsf(o[i] - p->o[i]) < 1e-5f)) fail_msg("element %zu is %g and alone %g", i, (double)o[i], (double)p->o[i]);
    /* keys that are shared are read, and compulsory, once */
    int64_t key_bytes = 2 * DIM * (int64_t)sizeof(float), saved = alone.bytes_compulsory - shared.bytes_compulsory;
    assert_int_equal(saved % key_bytes, 0);
    if (threads == 1) assert_int_equal(alone.bytes_model - shared.bytes_model, saved); /* others may pack a block each */
    if (threads == 1) assert_int_equal(shared.bytes_model, shared.bytes_compulsory);
    free(o);
    return shared;
}

/* Pairs that must have been computed for several sequences: rows of sharers times keys, by hand. */
typedef struct expected {
    const char *words;
    int64_t q_len;
    int64_t keys; /* summed over sharers */
} expected;

static void check_shared(const sequence *all, const expected *e, int count) {
    for (int i = 0; i < count; i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            prefixes *p = make(all, e[i].q_len, e[i].words);
            tp_receipt receipt = both(p, threads, p->problem.invariant);
            if (receipt.pairs_shared != e[i].keys * e[i].q_len * Q_HEADS)
                fail_msg("%s: %lld pairs shared, expected %lld", receipt.problem, (long long)receipt.pairs_shared,
                         (long long)(e[i].keys * e[i].q_len * Q_HEADS));
            unmake(p);
        }
}

/* In units of 16 keys, or with `invariant` of blocks: 512 here. */
static void prefixes_are_computed_once(void **state) {
    (void)state;
    const sequence flat[] = {{-1, 0, 1200}, {0, 1008, 5}, {0, 1008, 77}, {0, 1008, 0}, {-1, 0, 40}, {0, 1008, 300}, {0, 0, -1}};
    const expected of_flat[] = {
        {"causal", 1, 5 * 1008}, {"", 7, 5 * 1008}, {"causal invariant", 1, 5 * 512}, {"invariant", 3, 5 * 512},
        /* few rows that use each key well: a prefix that a cache holds is not worth it, but for `invariant` */
        {"", 2, 0}, {"", 3, 0},
        /* first rows of the second and fourth sequence see less: all have 992 in common, and the two with more are few rows */
        {"causal", 7, 5 * 992},
        {"causal softcap=3 sinks qscale=0.3,64,1", 1, 5 * 1008},
        {"causal softcap=3 sinks qscale=0.3,64,1 invariant", 1, 5 * 512},
        /* 1,000 rows a head, by three threads cut within sequences, whose rows have scales of their own */
        {"qscale=0.3,16,1", 100, 5 * 1008},
        /* no window reaches the first key; one that does, of all but the two longest */
        {"causal window=500,0", 1, 0}, {"causal window=1190,0", 1, 3 * 1008}};
    check_shared(flat, of_flat, COUNT(of_flat));
}

static void prefixes_of_prefixes(void **state) {
    (void)state;
    /* 600 keys of all; 1,500 of 0, 2 and 3; 2,100 of 2 and 3; 4,200 of the last two, which share nothing with others */
    const sequence tree[] = {{-1, 0, 1600}, {0, 608, 30},   {0, 1504, 700},  {2, 2112, 9},
                             {0, 608, 90},  {-1, 0, 4300}, {5, 4208, 4000}, {0, 0, -1}};
    const expected of_tree[] = {{"causal", 1, 5 * 608 + 3 * (1504 - 608) + 2 * (2112 - 1504) + 2 * 4208},
                                {"causal invariant", 1, 5 * 512 + 3 * (1024 - 512) + 2 * (2048 - 1024) + 2 * 4096}};
    check_shared(tree, of_tree, COUNT(of_tree));
    /* the cut lies in a chunk behind the first one, and stays open */
    const sequence open[] = {{-1, 0, 5200}, {0, 5136, 3400}, {1, 8208, 8}, {0, 5136, 1}, {0, 0, -1}};
    const expected of_open[] = {{"causal", 1, 4 * 5136 + 2 * (8208 - 5136)},
                                {"causal invariant", 1, 4 * 5120 + 2 * (8192 - 5120)}};
    check_shared(open, of_open, COUNT(of_open));
    /* four levels: the deepest is each sequence's own */
    const sequence deep[] = {{-1, 0, 160}, {0, 32, 100}, {0, 64, 100}, {0, 96, 100}, {0, 128, 100}, {0, 0, -1}};
    const expected of_deep[] = {{"causal", 1, 5 * 32 + 4 * 32 + 3 * 32}};
    check_shared(deep, of_deep, COUNT(of_deep));
}

/* Rows of a sequence that are many pack their own keys. */
static void many_rows_go_alone(void **state) {
    (void)state;
    const sequence two[] = {{-1, 0, 700}, {0, 512, 300}, {0, 0, -1}};
    const expected of_two[] = {{"", 128, 2 * 512}, {"", 129, 0}};
    check_shared(two, of_two, COUNT(of_two));
}

static void refused(prefixes *p, tp_status status, const char *text) {
    tp_error error = TP_ERROR_INIT;
    float before = p->o[0];
    assert_int_equal(tp_attention(p->context, &p->problem, NULL, &p->tensors, NULL, &error), status);
    if (strstr(error.text, text) == NULL) fail_msg("'%s' does not say '%s'", error.text, text);
    assert_true(p->o[0] == before);
}

static void wrong_prefixes_are_refused(void **state) {
    (void)state;
    const sequence two[] = {{-1, 0, 700}, {0, 512, 30}, {0, 0, -1}};
    prefixes *p = make(two, 1, "causal");
    p->with[1] = 1;
    refused(p, TP_INVALID, "shared_with[1] is 1: it must be an earlier sequence, or -1");
    p->with[1] = -2;
    refused(p, TP_INVALID, "shared_with[1] is -2: it must be an earlier sequence, or -1");
    p->with[1] = 0, p->lens[1] = 543;
    refused(p, TP_INVALID, "shared_lens[1] is 543: it must be in 0..542");
    p->lens[1] = -1;
    refused(p, TP_INVALID, "shared_lens[1] is -1: it must be in 0..542");
    p->lens[1] = 513;
    refused(p, TP_INVALID, "sequences 1 and 0 share 513 keys by shared_lens, and must have the same pages");
    p->lens[1] = 512;
    p->tensors.v_pages = p->table;
    p->problem.cascade = 511;
    refused(p, TP_INVALID, "shared_lens[1] is 512: it must be at most the problem's cascade = 511");
    p->problem.cascade = 512;
    p->tensors.shared_lens = NULL;
    refused(p, TP_INVALID, "shared_lens is NULL: cascade 512 needs it");
    p->tensors.shared_lens = (const char *)p->lens + 1;
    refused(p, TP_INVALID, "shared_lens is 0x");
    p->tensors.shared_lens = p->o; /* what it would write over */
    refused(p, TP_INVALID, "shared_lens");
    p->tensors.shared_lens = p->lens;
    p->with[1] = -1, p->lens[1] = 12345; /* is not looked at */
    assert_int_equal(tp_attention(p->context, &p->problem, NULL, &p->tensors, NULL, NULL), TP_OK);
    unmake(p);
    tp_problem problem;
    tp_error error = TP_ERROR_INIT;
    const char *const words[][2] = {
        {"cascade=8", "cascade is 8 though kv_layout is not TP_PAGED"},
        {"paged=8 cascade=8 alibi", "alibi with cascade 8: shared prefixes go with"},
        {"paged=8 cascade=8 bias=f32", "bias with cascade"},
        {"paged=8 cascade=8 positions", "positions with cascade"},
        {"paged=8 cascade=8 dropout=0.1", "dropout with cascade"},
        {"paged=8 cascade=8 sparse=4", "sparse indices with cascade"},
        {"paged=8 cascade=8 tree", "a mask that may leave holes with cascade"},
        {"paged=8 cascade=0", "word 'cascade=0': it takes one whole number in 1..2^40"}};
    for (int i = 0; i < COUNT(words); i++) {
        char text[128];
        snprintf(text, sizeof text, "q1 k30 d8 f32 %s", words[i][0]);
        assert_int_not_equal(tp_problem_parse(text, &problem, NULL, &error), TP_OK);
        if (strstr(error.text, words[i][1]) == NULL) fail_msg("'%s' does not say '%s'", error.text, words[i][1]);
    }
}

/* What says that it ran: text, class, numerics id, counters, metrics. */
static int collect(void *cookie, const char *bytes, size_t size) {
    strncat(cookie, bytes, size);
    return 0;
}

static void it_is_named(void **state) {
    (void)state;
    const sequence two[] = {{-1, 0, 700}, {0, 512, 30}, {0, 0, -1}};
    prefixes *p = make(two, 1, "causal");
    tp_receipt receipt = run(p, 1);
    assert_non_null(strstr(receipt.problem, " cascade=9000"));
    assert_non_null(strstr(receipt.numerics_id, " cascade16"));
    char text[512], metrics[65536] = "", want[96];
    assert_int_equal(tp_problem_class(&p->problem, text, sizeof text), TP_OK);
    assert_non_null(strstr(text, " causal cascade"));
    assert_null(strstr(text, "cascade="));
    tp_counters counters;
    assert_int_equal(tp_context_counters(p->context, &counters), TP_OK);
    assert_int_equal(counters.pairs_shared, receipt.pairs_shared);
    assert_int_equal(receipt.pairs_shared, 2 * 512 * Q_HEADS);
    assert_int_equal(tp_metrics_write(p->context, collect, metrics), TP_OK);
    snprintf(want, sizeof want, "\ntileproof_pairs_shared_total %lld\n", (long long)receipt.pairs_shared);
    assert_non_null(strstr(metrics, want));
    /* with `invariant` the bits, and so the id, are those of sequences that share nothing */
    p->problem.invariant = 1;
    receipt = run(p, 1);
    assert_int_equal(receipt.pairs_shared, 2 * 512 * Q_HEADS);
    assert_null(strstr(receipt.numerics_id, "cascade"));
    /* math computes each sequence by itself */
    tp_choice choice = TP_CHOICE_INIT;
    choice.kernel = "math", choice.policy = TP_PERMIT;
    assert_int_equal(tp_attention(p->context, &p->problem, &choice, &p->tensors, &receipt, NULL), TP_OK);
    assert_int_equal(receipt.pairs_shared, 0);
    unmake(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_are_computed_once), cmocka_unit_test(prefixes_of_prefixes),
        cmocka_unit_test(many_rows_go_alone),         cmocka_unit_test(wrong_prefixes_are_refused),
        cmocka_unit_test(it_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
