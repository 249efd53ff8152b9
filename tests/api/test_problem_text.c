/* SPDX-License-Identifier: Apache-2.0 */
/* The text form of a problem, there and back: words, lengths, any order, texts that break a rule, damaged texts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/problem_texts.h"
#include "problem/sequence.h"

static void test_text(void **state) {
    (void)state;
    canonical("prefill b2 h32/8 q512 k4096 d128 bf16 causal window=4095,0",
              "prefill b2 h32/8 q512 k4096 d128 bf16 causal window=4095,0");
    canonical("q1 k77 d64", "decode b1 h1/1 q1 k77 d64 f32");
    canonical("d64 q100", "prefill b1 h1/1 q100 k100 d64 f32");
    canonical(" \tcausal  f16\nd192/128 k5 h8 q3 b0 decode\n",
              "decode b0 h8/8 q3 k5 d192/128 f16 causal");
    canonical("q9 d64 bf16->f32", "prefill b1 h1/1 q9 k9 d64 bf16->f32");
    canonical("q9 d64 bf16:bf16:bf16", "prefill b1 h1/1 q9 k9 d64 bf16");
    canonical("q9 d64 f32:bf16:bf16", "prefill b1 h1/1 q9 k9 d64 f32:bf16:bf16->f32");
    canonical("q9 d64 f32:bf16:f16->f16", "prefill b1 h1/1 q9 k9 d64 f32:bf16:f16->f16");
    canonical("q9 d64 packed top-left", "prefill b1 h1/1 q9 k9 d64 f32 packed top-left");
    canonical("q9 d64 packed-q", "prefill b1 h1/1 q9 k9 d64 f32 packed-q");
    canonical("q9 d64 packed-kv padded", "prefill b1 h1/1 q9 k9 d64 f32 packed-kv");
    canonical("q9 d64 scale=0.5e-1", "prefill b1 h1/1 q9 k9 d64 f32 scale=0.0500000007");
    canonical("q9 d64 scale=-0", "prefill b1 h1/1 q9 k9 d64 f32 scale=-0");
    canonical("q9 d64 window=-1,3 causal window=2,2",
              "prefill b1 h1/1 q9 k9 d64 f32 window=-1,3 causal window=2,2");
    canonical("b1099511627776 q0 d1048576 h1048576/1",
              "prefill b1099511627776 h1048576/1 q0 k0 d1048576 f32");
    tp_problem p = plain();
    char text[256];
    tp_problem_causal(&p);
    tp_problem_causal(&p); /* the same mask twice is printed once */
    assert_int_equal(tp_problem_print(&p, NULL, text, sizeof text), TP_OK);
    assert_string_equal(text, "prefill b1 h1/1 q8 k8 d64 f32 causal");
}

static void test_lengths(void **state) {
    (void)state;
    tp_problem p;
    tp_lengths l;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(
        tp_problem_parse("mixed seqs=2x512/4096,32x1/1024 d128 packed b34", &p, &l, &error), TP_OK);
    assert_int_equal(l.struct_size, sizeof l);
    assert_int_equal(l.count, 2);
    assert_int_equal(l.padded, 0);
    assert_int_equal(l.seq[1].repeat, 32);
    assert_int_equal(l.seq[1].kv_len, 1024);
    assert_int_equal(p.batch, 34);
    assert_int_equal(p.q_len, 512);
    assert_int_equal(p.kv_len, 4096);
    assert_int_equal(p.q_layout, TP_PACKED);
    assert_int_equal(tp_problem_parse("d8 decode padded seqs=1x1/9,2x1/9,1x1/3", &p, &l, NULL),
                     TP_OK);
    assert_int_equal(l.padded, 1);
    assert_int_equal(l.count, 2); /* equal neighbours merge */
    assert_int_equal(l.seq[0].repeat, 3);
    assert_int_equal(p.q_layout, TP_BATCH);
    assert_int_equal(tp_problem_parse("d8 q4 padded", &p, &l, NULL), TP_OK);
    assert_int_equal(l.padded, 1);
    assert_int_equal(l.count, 0);
    assert_int_equal(tp_problem_parse("d8 packed-q seqs=1x3/9,1x4/9", &p, &l, NULL), TP_OK);
    assert_int_equal(tp_problem_parse("d8 packed-q padded seqs=1x3/9,1x4/8", &p, &l, NULL), TP_OK);
}

static const struct {
    const char *text, *first, *second;
    int without_lengths;
} bad_texts[] = {
    {"", "'d'", "missing", 0},
    {"q4", "'d'", "missing", 0},
    {"d64", "'q'", "missing", 0},
    {"d64 k4", "'q'", "missing", 0},
    {"d64 q4 q4", "'q4'", "repeated", 0},
    {"d64 q4 d32", "'d32'", "repeated", 0},
    {"d64 q4 f16 bf16", "'bf16'", "repeated", 0},
    {"d64 q4 causal causal", "'causal'", "repeated", 0},
    {"d64 q4 prefill decode", "'decode'", "repeated", 0},
    {"d64 q4 packed packed-q", "'packed-q'", "repeated", 0},
    {"d64 q4 window=1,1 window=1,1", "'window=1,1'", "twice", 0},
    {"d64 q4 scale=1 scale=1", "'scale=1'", "repeated", 0},
    {"d64 q4 banana", "'banana'", "unknown", 0},
    {"d64 q4 f64", "'f64'", "unknown", 0},
    {"d64 q4 q", "'q'", "unknown", 0},
    {"d64 q4 Causal", "'Causal'", "unknown", 0},
    {"d64 q4 causal=1", "'causal=1'", "unknown", 0},
    {"d64 q4 prefills", "'prefills'", "unknown", 0},
    {"d64 q4 \xff\x01", "unknown", "words are", 0},
    {"d64 q-1", "'q-1'", "0..2^40", 0},
    {"d64 q+1", "'q+1'", "0..2^40", 0},
    {"d64 q4x", "'q4x'", "0..2^40", 0},
    {"d64 q4,", "'q4,'", "0..2^40", 0},
    {"d64 q1099511627777", "'q1099511627777'", "0..2^40", 0},
    {"d64 q99999999999999999999999", "99999999999999999999999", "0..2^40", 0},
    {"d64 q4 k4.5", "'k4.5'", "0..2^40", 0},
    {"d64 q4 b-2", "'b-2'", "0..2^40", 0},
    {"d0 q4", "'d0'", "1..1048576", 0},
    {"d64/ q4", "'d64/'", "1..1048576", 0},
    {"d64/0 q4", "'d64/0'", "1..1048576", 0},
    {"d64/32/16 q4", "'d64/32/16'", "N/N", 0},
    {"d64 q4 h0", "'h0'", "1..1048576", 0},
    {"d64 q4 h8/3", "q_heads is 8", "multiple", 0},
    {"d64 q4 h1048577", "'h1048577'", "1..1048576", 0},
    {"d64 q4 bf16->", "'bf16->'", "q:k:v->o", 0},
    {"d64 q4 bf16-f32", "'bf16-f32'", "q:k:v->o", 0},
    {"d64 q4 bf16:f32", "'bf16:f32'", "q:k:v->o", 0},
    {"d64 q4 bf16:f32:f32:f32", "'bf16:f32:f32:f32'", "q:k:v->o", 0},
    {"d64 q4 bf16->f99", "'bf16->f99'", "q:k:v->o", 0},
    {"d64 q4 bf16x", "'bf16x'", "q:k:v->o", 0},
    {"d64 q4 decode", "'decode'", "prefill", 0},
    {"d64 q1 prefill", "'prefill'", "decode", 0},
    {"d64 q4 mixed", "'mixed'", "prefill", 0},
    {"d64 decode packed seqs=1x512/512,1x1/9", "'decode'", "mixed", 0},
    {"d64 q4 window=", "'window='", "left,right", 0},
    {"d64 q4 window=1", "'window=1'", "left,right", 0},
    {"d64 q4 window=1,", "'window=1,'", "left,right", 0},
    {"d64 q4 window=-2,0", "'window=-2,0'", "-1 (unbounded)", 0},
    {"d64 q4 window=1,2,3", "'window=1,2,3'", "left,right", 0},
    {"d64 q4 window=1,1099511627777", "1099511627777", "0..2^40", 0},
    {"d64 q4 window=0,0 window=0,1 window=0,2 window=0,3 window=0,4 window=0,5 window=0,6 "
     "window=0,7 window=0,8",
     "'window=0,8'", "at most 15", 0},
    {"d64 q4 window=0,0 window=0,1 window=0,2 window=0,3 window=0,4 window=0,5 window=0,6 "
     "window=0,7 causal",
     "'causal'", "at most 15", 0},
    {"d64 q4 scale=", "'scale='", "finite", 0},
    {"d64 q4 scale=inf", "'scale=inf'", "finite", 0},
    {"d64 q4 scale=nan", "'scale=nan'", "finite", 0},
    {"d64 q4 scale=0x1p3", "'scale=0x1p3'", "decimal", 0},
    {"d64 q4 scale=1.", "'scale=1.'", "decimal", 0},
    {"d64 q4 scale=.5", "'scale=.5'", "decimal", 0},
    {"d64 q4 scale=1e", "'scale=1e'", "decimal", 0},
    {"d64 q4 scale=1,5", "'scale=1,5'", "decimal", 0},
    {"d64 q4 scale=1e99", "'scale=1e99'", "finite", 0},
    {"d64 q4 scale=3e38", "scale is 3e+38", "log2(e)", 0},
    {"d64 q4 packed padded", "'padded'", "'packed'", 0},
    {"d64 seqs=2x4/4", "seqs=", "'packed', 'padded' or 'paged='", 0},
    {"d64 seqs=2x4/4 packed", "seqs=", "tp_lengths", 1},
    {"d64 seqs=2x4/4 packed q4", "seqs=", "instead of", 0},
    {"d64 seqs=2x4/4 packed k4", "seqs=", "instead of", 0},
    {"d64 seqs=2x4/4 packed b3", "'b3'", "holds 2", 0},
    {"d64 seqs= packed", "'seqs='", "COUNTxQ/K", 0},
    {"d64 seqs=4/4 packed", "'seqs=4/4'", "COUNTxQ/K", 0},
    {"d64 seqs=0x4/4 packed", "'seqs=0x4/4'", "1..2^40", 0},
    {"d64 seqs=2x4 packed", "'seqs=2x4'", "COUNTxQ/K", 0},
    {"d64 seqs=2x4/4, packed", "'seqs=2x4/4,'", "COUNTxQ/K", 0},
    {"d64 seqs=2x4/4;1x1/1 packed", "';1x1/1'", "left over", 0},
    {"d64 seqs=2x-4/4 packed", "'seqs=2x-4/4'", "0..2^40", 0},
    {"d64 seqs=1099511627776x4/4,1x4/4 packed", "seqs=1099511627776", "add up", 0},
    {"d64 seqs=#57:9f3a000000000000 packed", "'seqs=#57", "cannot be replayed", 0},
    {"d64 packed seqs=1x1/1,1x2/2,1x1/1,1x2/2,1x1/1,1x2/2,1x1/1,1x2/2,1x1/1,1x2/2,1x1/1,1x2/2,"
     "1x1/1,1x2/2,1x1/1,1x2/2,1x1/1",
     "seqs=", "more than 16", 0},
    {"d64 packed-q seqs=1x1/1,1x1/2", "seqs=", "'padded' too", 0},
    {"d64 packed-kv seqs=1x1/2,1x2/2", "seqs=", "'padded' too", 0},
};

static void test_bad_texts(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_texts / sizeof bad_texts[0]; i++) {
        tp_error error = TP_ERROR_INIT;
        tp_problem p = plain(), before = p;
        tp_lengths l = {.count = 77};
        const char *text = bad_texts[i].text;
        tp_status status =
            tp_problem_parse(text, &p, bad_texts[i].without_lengths ? NULL : &l, &error);
        if (status != TP_INVALID) fail_msg("%s: status %d", text, status);
        if (strstr(error.text, bad_texts[i].first) == NULL ||
            strstr(error.text, bad_texts[i].second) == NULL)
            fail_msg("%s: %s", text, error.text);
        assert_memory_equal(&p, &before, sizeof p);
        assert_int_equal(l.count, 77);
    }
    tp_error error = TP_ERROR_INIT;
    tp_problem p;
    assert_int_equal(tp_problem_parse("d64 q4 e4m3", &p, NULL, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "e4m3"));
    assert_int_equal(tp_problem_parse(NULL, &p, NULL, &error), TP_INVALID);
    assert_int_equal(tp_problem_parse("d64 q4", NULL, NULL, &error), TP_INVALID);
    char endless[4096];
    memset(endless, 'z', sizeof endless - 1);
    endless[sizeof endless - 1] = 0;
    assert_int_equal(tp_problem_parse(endless, &p, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "unknown"));
}

static uint64_t next(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static int64_t below(uint64_t *seed, int64_t bound) {
    return (int64_t)(next(seed) % (uint64_t)bound);
}

/* Small numbers mostly, sometimes one of any size. */
static int64_t some_length(uint64_t *seed, int large_log2) {
    return below(seed, (int64_t)1 << (1 + below(seed, below(seed, 8) ? 12 : large_log2)));
}

static tp_problem some_problem(uint64_t *seed) {
    tp_problem p;
    tp_problem_init(&p);
    p.batch = some_length(seed, 12);
    p.q_len = some_length(seed, 20);
    p.kv_len = below(seed, 3) ? p.q_len : some_length(seed, 20);
    p.kv_heads = 1 + some_length(seed, 5) % 64;
    p.q_heads = p.kv_heads * (1 + below(seed, 8));
    p.head_dim_qk = 1 + some_length(seed, 10) % 1024;
    p.head_dim_v = below(seed, 2) ? p.head_dim_qk : 1 + some_length(seed, 9) % 512;
    p.q_dtype = 1 + (int32_t)below(seed, 3);
    p.k_dtype = below(seed, 2) ? p.q_dtype : 1 + (int32_t)below(seed, 3);
    p.v_dtype = below(seed, 2) ? p.k_dtype : 1 + (int32_t)below(seed, 3);
    p.o_dtype = below(seed, 2) ? p.q_dtype : 1 + (int32_t)below(seed, 3);
    p.q_layout = (int32_t)below(seed, 2);
    p.kv_layout = (int32_t)below(seed, 2);
    p.align = (int32_t)below(seed, 2);
    if (below(seed, 3) == 0) {
        uint32_t bits = (uint32_t)next(seed);
        p.scale_set = 1;
        memcpy(&p.scale, &bits, sizeof bits);
        if (!isfinite(p.scale) || fabsf(p.scale) > 2e38f) p.scale = 0.0883883461f;
    }
    int64_t masks = below(seed, 4), causal_at = below(seed, 6);
    for (int64_t i = 0; i < masks; i++) {
        if (i == causal_at)
            tp_problem_causal(&p);
        else
            tp_problem_window(&p, i * 1000 + below(seed, 1000), below(seed, 100) - 1);
    }
    return p;
}

static void test_round_trip(void **state) {
    (void)state;
    uint64_t seed = 20240607;
    for (int i = 0; i < 20000; i++) {
        tp_problem p = some_problem(&seed), back;
        tp_error error = TP_ERROR_INIT;
        char text[512], again[512];
        memset(&back, 0xa5, sizeof back);
        if (tp_problem_check(&p, &error) != TP_OK) fail_msg("case %d: %s", i, error.text);
        assert_int_equal(tp_problem_print(&p, NULL, text, sizeof text), TP_OK);
        if (tp_problem_parse(text, &back, NULL, &error) != TP_OK)
            fail_msg("case %d: %s: %s", i, text, error.text);
        assert_memory_equal(&back, &p, sizeof p);
        assert_int_equal(tp_problem_print(&back, NULL, again, sizeof again), TP_OK);
        assert_string_equal(again, text);
    }
}

/* Words in any order mean the same. */
static void test_any_order(void **state) {
    (void)state;
    uint64_t seed = 99;
    for (int i = 0; i < 5000; i++) {
        tp_problem p = some_problem(&seed), back;
        char text[512], mixed[512] = "", *words[32];
        int count = 0;
        p.mask_nodes = p.mask_nodes > 0; /* the order of several masks is the tree's */
        memset(p.mask + p.mask_nodes, 0, sizeof p.mask - sizeof p.mask[0] * (size_t)p.mask_nodes);
        assert_int_equal(tp_problem_print(&p, NULL, text, sizeof text), TP_OK);
        for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " "))
            words[count++] = word;
        while (count > 0) {
            int64_t pick = below(&seed, count);
            strcat(strcat(mixed, words[pick]), below(&seed, 2) ? " " : "  ");
            words[pick] = words[--count];
        }
        assert_int_equal(tp_problem_parse(mixed, &back, NULL, NULL), TP_OK);
        assert_memory_equal(&back, &p, sizeof p);
    }
}

/* Parsing damaged texts: any status, but never out of bounds (the sanitizers watch). */
static void test_damaged_texts(void **state) {
    (void)state;
    uint64_t seed = 4711;
    const char alphabet[] = "0123456789-+x/,.:=>#bhqkdsefpacwntilr \t";
    for (int i = 0; i < 20000; i++) {
        tp_problem p = some_problem(&seed), back;
        tp_lengths l;
        char text[512], again[2048];
        tp_problem_print(&p, NULL, text, sizeof text);
        if (i % 3 == 0) strcat(text, " seqs=2x3/4,5x1/9,1x7/7 packed");
        size_t size = strlen(text);
        for (int64_t n = 1 + below(&seed, 4); n > 0; n--)
            text[below(&seed, (int64_t)size)] = alphabet[below(&seed, sizeof alphabet - 1)];
        if (below(&seed, 4) == 0) text[below(&seed, (int64_t)size)] = 0;
        if (tp_problem_parse(text, &back, &l, NULL) != TP_OK) continue;
        assert_int_equal(tp_problem_check(&back, NULL), TP_OK);
        assert_int_equal(tp_problem_print(&back, NULL, again, sizeof again), TP_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_damaged_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
