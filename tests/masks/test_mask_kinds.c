/* SPDX-License-Identifier: Apache-2.0 */
/* Every mask kind and tree: parts and bits against the definition, counts of pairs, ids, tiles that receipts count. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "masks/trees.h"
#include "masks/mask.h"
#include "problem/sequence.h"

static int covers(const tp__parts *parts, int64_t key) {
    for (int i = 0; i < parts->count; i++)
        if (key >= parts->part[i].lo && key < parts->part[i].hi) return 1;
    return 0;
}

/* Parts are ascending, apart and within the keys; exact, or else a superset. Bits are exact. */
static void check_sets(const call *c, int64_t seq, int looked) {
    tp__sequence at = tp__sequence_at(&c->problem, &c->tensors, seq);
    tp__mask_view view = tp__sequence_view(&c->problem, &at);
    if (looked) tp__mask_look(&view);
    for (int64_t row = 0; row < at.q_len; row++) {
        tp__parts parts;
        int exact = tp__mask_parts(&view, row, &parts);
        int64_t end = -1;
        assert_true(parts.count <= tp__mask_parts_max(&c->problem));
        for (int i = 0; i < parts.count; i++) {
            assert_true(parts.part[i].lo > end && parts.part[i].hi > parts.part[i].lo);
            end = parts.part[i].hi;
        }
        assert_true(end <= at.kv_len);
        for (int64_t head = 0; head < c->problem.q_heads; head++)
            for (int64_t first = 0; first < at.kv_len; first += 64) {
                uint64_t words[TP__MASK_WORDS];
                int64_t count = at.kv_len - first < 128 ? at.kv_len - first : 128;
                memset(words, 0xff, sizeof words);
                tp__mask_words(&view, head, row, first, count, words);
                for (int64_t j = 0; j < (count + 63) / 64 * 64; j++) {
                    int allowed = j < count && tp__mask_allowed(&view, head, row, first + j);
                    assert_int_equal(tp__word_bit(words, j), allowed);
                    if (j >= count) continue;
                    assert_int_equal(tp_mask_visible(&c->problem, &c->tensors, seq, head, row, first + j),
                                     allowed);
                    assert_true(exact ? covers(&parts, first + j) == allowed
                                      : covers(&parts, first + j) || !allowed);
                }
            }
    }
}

static void check_tree(const char *words, uint64_t seed) {
    static const char *const shapes[] = {"b3 h2/1 q9 k70 d4 f32", "h2/2 seqs=1x3/70,1x20/20,1x1/9 d4 f32 packed"};
    for (int i = 0; i < COUNT(shapes); i++) {
        char text[256];
        snprintf(text, sizeof text, "%s %s", shapes[i], words);
        call *c = call_new(text, &(call_shape){.seed = seed, .index_type = i});
        for (int64_t s = 0; s < c->tensors.batch; s++)
            for (int looked = 0; looked < 2; looked++) check_sets(c, s, looked);
        call_free(c);
    }
}

static void parts_and_bits_are_right(void **state) {
    (void)state;
    each_tree(check_tree);
}

/* Pairs of a text at these lengths against brute force. */
static void count_pairs(const char *words, int q, int kv) {
    tp_problem p;
    tp_error error = TP_ERROR_INIT;
    char text[160];
    int64_t pairs = 0;
    int exact;
    snprintf(text, sizeof text, "q%d k%d d4 f32 %s", q, kv, words);
    if (tp_problem_parse(text, &p, NULL, &error) != TP_OK) fail_msg("%s", error.text);
    for (int row = 0; row < q; row++)
        for (int key = 0; key < kv; key++) pairs += tp_mask_allowed(&p, q, kv, row, key);
    int64_t counted = tp__mask_pairs(&p, q, kv, &exact);
    if (counted != pairs || !exact) fail_msg("%s: %lld pairs, must be %lld", text, (long long)counted, (long long)pairs);
}

/* At lengths around what the words name. */
static void pairs_are_counted(void **state) {
    (void)state;
    static const char *const words[] = {"causal chunk=4", "chunk=3 top-left", "causal prefix=5", "first=3 window=2,0",
                                        "first=3 window=1,1 causal", "causal window=3,0 chunk=5 prefix=2",
                                        "mask=causal,first:4,or,window:3:3,and", "prefix=4 top-left causal",
                                        "mask=window:2:0,chunk:4,or"};
    for (int i = 0; i < COUNT(words); i++)
        for (int q = 0; q <= 14; q++)
            for (int kv = 0; kv <= 14; kv++) count_pairs(words[i], q, kv);
}

/* "window=19,5" as a leaf of a postfix tree: "window:19:5". */
static const char *leaf_of(struct mask_word *word) {
    for (char *c = word->text; *c != 0; c++)
        if (*c == '=' || *c == ',') *c = ':';
    return word->text;
}

/* Every kind that needs no data, alone and joined with every other: a kind with holes cannot be counted by its ends. */
static void pairs_of_every_kind(void **state) {
    (void)state;
    static const int lengths[][2] = {{0, 5}, {5, 0}, {1, 70}, {64, 64}, {40, 90}, {90, 40}, {30, 1100}};
    struct mask_word one, other;
    char words[128];
    for (int i = 0; mask_word_at(i, &one); i++) {
        if (one.info->reads == TP_MASK_READS_DATA || one.again) continue;
        for (int n = 0; n < COUNT(lengths); n++) {
            snprintf(words, sizeof words, "mask=%s", leaf_of(&one));
            count_pairs(words, lengths[n][0], lengths[n][1]);
            for (int k = 0; mask_word_at(k, &other); k++) {
                if (other.info->reads == TP_MASK_READS_DATA || other.again) continue;
                for (int join = 0; join < 4; join++) {
                    snprintf(words, sizeof words, "mask=%s,%s,%s%s", one.text, leaf_of(&other), join & 1 ? "or" : "and",
                             join & 2 ? " top-left" : "");
                    count_pairs(words, lengths[n][0], lengths[n][1]);
                }
            }
        }
    }
}

static int64_t pairs_of(const char *text, int *exact) {
    tp_problem p;
    assert_int_equal(tp_problem_parse(text, &p, NULL, NULL), TP_OK);
    return tp__mask_pairs(&p, p.q_len, p.kv_len, exact);
}

/* At once, at any length; and what is no count is not called one. */
static void counts_say_whether_they_are_exact(void **state) {
    (void)state;
    int exact;
    assert_int_equal(pairs_of("q1000000000 k1000000000 d4 f32 chunk=1000 causal", &exact), (int64_t)1000000 * 500500);
    assert_false(exact); /* a million chunks are too many pieces, though the estimate is right */
    assert_int_equal(pairs_of("q500000000 k500000000 d4 f32 chunk=1000 causal", &exact), (int64_t)500000 * 500500);
    assert_true(exact);
    assert_true(pairs_of("q1099511627776 k4194304 d1 f32 chunk=1", &exact) >= 0);
    assert_false(exact);
    /* without what needs data: the others as if it were not there */
    assert_int_equal(pairs_of("q64 k64 d4 f32 causal documents", &exact), 64 * 65 / 2);
    assert_false(exact);
    assert_int_equal(pairs_of("q64 k64 d4 f32 mask=prefix,causal,or,bits,callback,or,and", &exact), 64 * 65 / 2);
    assert_false(exact);
    assert_int_equal(pairs_of("q64 k64 d4 f32 documents", &exact), 64 * 64);
    assert_false(exact);
    assert_int_equal(pairs_of("q64 k64 d4 f32 causal positions", &exact), 64 * 65 / 2);
    assert_false(exact);
    tp_problem p;
    assert_int_equal(tp_problem_parse("q4 k4 d4 f32 documents", &p, NULL, NULL), TP_OK);
    assert_int_equal(tp_mask_allowed(&p, 4, 4, 0, 0), -1); /* needs data */
}

/* Numbers are fixed for ever: locks, callers and files hold them. New ones come behind. */
static void numbers_stay(void **state) {
    (void)state;
    static const char *const names[] = {"causal",    "window", "chunk", "prefix", "first",
                                        "documents", "spans",  "tree",  "bits",   "callback"};
    for (int i = 0; i < COUNT(names); i++) {
        assert_string_equal(tp_mask_at(i)->name, names[i]);
        assert_int_equal(tp_mask_at(i)->kind, 16 + i);
    }
    for (int i = COUNT(names); tp_mask_at(i) != NULL; i++) assert_true(tp_mask_at(i)->kind > 25);
}

/* Positions below 0, as rows before the first key have: chunks go on there. */
static void chunks_below_zero(void **state) {
    (void)state;
    tp_problem p;
    assert_int_equal(tp_problem_parse("q12 k4 d8 f32 chunk=4", &p, NULL, NULL), TP_OK);
    for (int64_t row = 0; row < 12; row++)
        for (int64_t key = 0; key < 4; key++) assert_int_equal(tp_mask_allowed(&p, 12, 4, row, key), row >= 8);
}

/* An id that comes back behind keys of no document is not one run. */
static void ids_that_come_back(void **state) {
    (void)state;
    int64_t ids[] = {1, 1, -1, 1, 2, 2, -1, -1, 2, 3};
    call *c = call_new("h2/1 q10 k10 d8 f32 documents", &(call_shape){.index_type = TP_I64});
    c->tensors.q_documents = NULL;
    c->tensors.k_documents = ids;
    check_sets(c, 0, 1);
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
        call_check_bounds(c, call_kernel(k));
    }
    call_free(c);
}

/* Without ids of its own, a row has those of the key at its position: of the first one there, and of none where
   there is none; wherever that key lies. */
static void ids_by_position(void **state) {
    (void)state;
    static const char *const words[] = {"documents", "spans-and"};
    /*                          0   1   2   3   4   5   6   7   8   9 */
    int64_t ids[] =            {1,  1,  2,  2, -1,  3,  3,  1,  4,  4};
    int64_t sorted[] =         {10, 11, 12, 12, 13, 20, 21, 22, 22, 30};
    int64_t mixed[] =          {30, 12, 10, 22, 11, 20, 12, 13, 21, 22};
    int64_t rows[] =           {12, 22, 13, 5, 30, 21};
    static const int64_t want[2][6] = {{2, 1, -1, -1, 4, 3}, {1, 2, 1, -1, 1, 4}};
    for (int w = 0; w < COUNT(words); w++)
        for (int order = 0; order < 2; order++) {
            char text[96];
            snprintf(text, sizeof text, "h2/1 q6 k10 d8 f32 positions %s", words[w]);
            call *c = call_new(text, &(call_shape){.index_type = TP_I64});
            c->tensors.q_documents = c->tensors.q_spans = c->tensors.spans = c->tensors.span_offsets = NULL;
            c->tensors.k_documents = c->tensors.k_spans = ids;
            c->tensors.q_positions = rows;
            c->tensors.k_positions = order == 0 ? sorted : mixed;
            for (int64_t row = 0; row < 6; row++)
                for (int64_t key = 0; key < 10; key++)
                    assert_int_equal(tp_mask_visible(&c->problem, &c->tensors, 0, 0, row, key),
                                     want[order][row] >= 0 && ids[key] == want[order][row]);
            check_sets(c, 0, 0);
            check_sets(c, 0, 1);
            for (int k = 0; call_kernel(k) != NULL; k++) {
                call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
                call_check_bounds(c, call_kernel(k));
            }
            call_free(c);
        }
}

/* By hand, because kernels and reference read both by the same lines. */
static void listed_spans_and_bits_of_heads(void **state) {
    (void)state;
    int32_t spans[] = {2, 5, 5, 7, 9, 10, 0, 3}, offsets[] = {0, 3, 4};
    static const int own[2][10] = {{-1, -1, 0, 0, 0, 1, 1, -1, -1, 2}, {0, 0, 0, -1, -1, -1, -1, -1, -1, -1}};
    call *c = call_new("b2 h2/1 q10 k10 d8 f32 mask=spans", NULL);
    c->tensors.index_type = TP_I32;
    c->tensors.q_spans = c->tensors.k_spans = NULL;
    c->tensors.spans = spans;
    c->tensors.span_offsets = offsets;
    for (int64_t i = 0; i < 2 * 10 * 10; i++) {
        int64_t seq = i / 100, row = i / 10 % 10, key = i % 10;
        assert_int_equal(tp_mask_visible(&c->problem, &c->tensors, seq, 0, row, key),
                         own[seq][row] >= 0 && own[seq][row] == own[seq][key]);
    }
    call_free(c);
    uint8_t bits[2][4][3][2];
    c = call_new("b2 h4/2 q3 k10 d8 f32 bits", NULL);
    for (size_t i = 0; i < sizeof bits; i++) ((uint8_t *)bits)[i] = (uint8_t)(i * 37 + 11);
    const int64_t strides[] = {4 * 3 * 2, 3 * 2, 2};
    c->tensors.bits = (const uint8_t *)bits;
    memcpy(c->tensors.bits_stride, strides, sizeof strides);
    for (int64_t i = 0; i < 2 * 4 * 3 * 10; i++) {
        int64_t seq = i / 120, head = i / 30 % 4, row = i / 10 % 3, key = i % 10;
        assert_int_equal(tp_mask_visible(&c->problem, &c->tensors, seq, head, row, key),
                         bits[seq][head][row][key / 8] >> key % 8 & 1);
    }
    call_free(c);
}

/* Tiles whose rows see a key less than the first tile's: no block may be taken for full. */
static void tiles_that_differ_by_a_key(void **state) {
    (void)state;
    call_check_all("h24/1 q2 k60 d8 f32 window=20,-1 chunk=4096", NULL);
    call_check_all("h120/1 q2 k60 d8 f32 window=20,-1 chunk=4096", NULL);
    call_check_all("h120/1 q2 k60 d8 f32 mask=window:20:-1,bits,or", NULL);
}

/* Every second row sees the first sixteen keys, the others sixteen far behind them: no row meets more than one
   interval, and yet the tiles in between are seen by none. */
static void tiles_between_what_rows_see(void **state) {
    (void)state;
    static const char *const texts[] = {"q48 k190 d300 f32 documents", "q48 k190 d300 f32 bits",
                                        "q48 k190 d64 f32 documents", "q48 k190 d64 f32 bits"};
    int32_t q_documents[48], k_documents[190];
    uint8_t bits[48 * 24] = {0};
    for (int i = 0; i < 48; i++) q_documents[i] = i % 2;
    for (int j = 0; j < 190; j++) k_documents[j] = j < 16 ? 0 : j >= 150 && j < 166 ? 1 : 2;
    for (int i = 0; i < 48; i++)
        for (int j = i % 2 ? 150 : 0; j < (i % 2 ? 166 : 16); j++) bits[i * 24 + j / 8] |= (uint8_t)(1 << (j % 8));
    for (int t = 0; t < COUNT(texts); t++) {
        call *c = call_new(texts[t], NULL);
        c->tensors.index_type = TP_I32;
        if (c->tensors.bits != NULL) {
            c->tensors.bits = bits;
            c->tensors.bits_stride[2] = 24;
        } else {
            c->tensors.q_documents = q_documents;
            c->tensors.k_documents = k_documents;
        }
        for (int k = 0; call_kernel(k) != NULL; k++) {
            const tp_kernel_info *info = call_kernel_info(k);
            tp_receipt receipt;
            if (strcmp(info->name, "math") == 0) continue;
            int64_t seen = 0, panels = (190 + info->nr - 1) / info->nr;
            for (int64_t p = 0; p < panels; p++)
                seen += p * info->nr < 16 || (p * info->nr < 166 && (p + 1) * info->nr > 150);
            tp_receipt_init(&receipt);
            call_run(c, &(call_how){.kernel = info->name}, &receipt);
            call_check(c, texts[t]);
            assert_int_equal(receipt.panels_partial + receipt.panels_full, seen * (48 / info->mr));
        }
        call_free(c);
    }
}

static int64_t packed_blocks(const char *text, const char *kernel) {
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    call *c = call_new(text, NULL);
    call_run(c, &(call_how){.kernel = kernel}, &receipt);
    call_free(c);
    return call_count_of(&receipt, "tp_pack_k_");
}

/* The first keys and a window near the end: two blocks of seventeen, and the one the window may begin in. */
static void blocks_in_a_hole_are_not_packed(void **state) {
    (void)state;
    for (int i = 0; call_kernel(i) != NULL; i++) {
        if (strcmp(call_kernel(i), "math") == 0) continue;
        int64_t all = packed_blocks("q60 k4352 d128 f32 causal", call_kernel(i));
        int64_t some = packed_blocks("q60 k4352 d128 f32 causal window=99,0 first=4", call_kernel(i));
        assert_int_equal(all, 4352 / tp_block_keys(128));
        assert_in_range(some, 2, 3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_and_bits_are_right),
        cmocka_unit_test(pairs_are_counted),
        cmocka_unit_test(pairs_of_every_kind),
        cmocka_unit_test(counts_say_whether_they_are_exact),
        cmocka_unit_test(numbers_stay),
        cmocka_unit_test(chunks_below_zero),
        cmocka_unit_test(ids_that_come_back),
        cmocka_unit_test(ids_by_position),
        cmocka_unit_test(listed_spans_and_bits_of_heads),
        cmocka_unit_test(tiles_that_differ_by_a_key),
        cmocka_unit_test(blocks_in_a_hole_are_not_packed),
        cmocka_unit_test(tiles_between_what_rows_see),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
