/* SPDX-License-Identifier: Apache-2.0 */
/* Every mask kind and many trees: parts and bits against the definition, counts against brute force, results
   against the reference; and every rule of the data that masks read. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mask_words.h"
#include "masks/mask.h"
#include "problem/sequence.h"
#include "support/call.h"

/* Every word of the library's table of kinds, and two that move positions; which kind is it? */
static int kind_at(int index, char text[40]) {
    static const char *const more[] = {"positions", "top-left"};
    struct mask_word word;
    int words = 0;
    while (mask_word_at(words, &word)) words++;
    if (index >= words + COUNT(more)) return 0;
    if (index >= words) {
        snprintf(text, 40, "%s", more[index - words]);
        return index;
    }
    mask_word_at(index, &word);
    snprintf(text, 40, "%s", word.text);
    return -word.info->kind;
}

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

static void each_tree(void (*check)(const char *words, uint64_t seed)) {
    static const char *const trees[] = {"mask=causal,first:9,or", "mask=bits,causal,or,window:30:4,and",
                                        "mask=window:5:5,first:3,or,documents,spans,or,and",
                                        "mask=first:2,chunk:16,or,window:0:0,or,prefix:60,and",
                                        "causal window=4,0 spans documents", "window=4,0 first=2 causal"};
    char words[128], one[40], other[40];
    int kind, second;
    for (int i = 0; (kind = kind_at(i, one)) != 0; i++)
        for (int k = i; (second = kind_at(k, other)) != 0; k++) {
            if (k > i && kind == second) continue; /* two words for one kind */
            snprintf(words, sizeof words, "%s %s", one, k > i ? other : "");
            check(words, (uint64_t)(i + k));
        }
    for (int i = 0; i < COUNT(trees); i++)
        for (uint64_t seed = 0; seed < 3; seed++) check(trees[i], seed);
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

static void check_result(const char *words, uint64_t seed) {
    char text[256];
    if (call_quick() && seed % 3 != 0) return;
    snprintf(text, sizeof text, "b2 h4/2 q40 k150 d260 f32 %s", words);
    call_check_all(text, &(call_shape){.seed = seed});
}

static void results_are_the_references(void **state) {
    (void)state;
    static const char *const scores[] = {
        "softcap=2 causal", "alibi", "alibi positions causal", "bias=f32", "bias=f16 bits", "sinks causal", "sinks bits",
        "qscale=0.5,8,1", "qscale=-3,2,0 softcap=30 alibi bias=bf16 sinks causal documents positions"};
    each_tree(check_result);
    for (int i = 0; i < COUNT(scores); i++)
        for (uint64_t seed = 0; seed < 3; seed++) check_result(scores[i], seed * 3);
}

/* A row that sees no key but has a sink: o is 0 and lse the sink, to the bit. Sinks that are
   not finite: -inf is none, the others spoil the rows of their head. */
static void sinks_stand_alone(void **state) {
    (void)state;
    call *c = call_new("h4/2 q6 k2 d8 f32 causal sinks", NULL);
    float sinks[4] = {1.5f, -INFINITY, NAN, INFINITY};
    c->tensors.sinks = sinks;
    for (int k = 0; call_kernel(k) != NULL; k++) {
        call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
        for (int64_t row = 0; row < 6; row++)
            for (int64_t head = 0; head < 4; head++) {
                float o = call_get(c, CALL_O, 0, row, head, 3), lse = call_get(c, CALL_LSE, 0, row, head, 0);
                if (head >= 2) assert_true(isnan(o) && isnan(lse));
                if (head >= 2 || row >= 4) continue; /* rows 0..3 see nothing */
                assert_true(o == 0.0f);
                assert_true(head == 0 ? lse == 1.5f : lse == -INFINITY);
            }
    }
    call_free(c);
    c = call_new("h500 q2 k1 d8 f32 causal sinks", NULL);
    float many[500];
    c->tensors.sinks = many;
    for (int i = 0; i < (call_quick() ? 4 : 40); i++) /* the lse of a row that sees nothing is the sink, to the bit */
        for (int k = 0; call_kernel(k) != NULL; k++) {
            for (int h = 0; h < 500; h++)
                many[h] = ldexpf((float)((i * 500 + h) * 2654435761u % 2000003) / 1e6f - 1, (i * 500 + h) % 9 - 3);
            many[7] = 3e38f;
            many[8] = -FLT_MAX;
            many[9] = FLT_MAX;
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            for (int64_t h = 0; h < 500; h++) {
                assert_true(call_get(c, CALL_LSE, 0, 0, h, 0) == many[h] && call_get(c, CALL_O, 0, 0, h, 3) == 0);
                assert_true(isfinite(call_get(c, CALL_LSE, 0, 1, h, 0)));
            }
        }
    call_free(c);
}

/* A bias of -inf hides a key as a mask does: NaN in it reaches nothing. */
static void a_bias_hides(void **state) {
    (void)state;
    call *clean = call_new("h2/1 q20 k40 d24 f32 bias=f32", &(call_shape){.seed = 1});
    call *spoilt = call_new("h2/1 q20 k40 d24 f32 bias=f32", &(call_shape){.seed = 1});
    float *bias[2] = {(float *)(uintptr_t)clean->tensors.bias, (float *)(uintptr_t)spoilt->tensors.bias};
    for (int i = 0; i < 2; i++) { /* row 7 and 9 do not see key 13; the others do */
        call *c = i ? spoilt : clean;
        for (int64_t head = 0; head < 2; head++)
            for (int64_t row = 0; row < 20; row++)
                bias[i][head * c->tensors.bias_stride[1] + row * c->tensors.bias_stride[2] + 13] =
                    row == 7 || row == 9 ? -INFINITY : 0.25f;
    }
    for (int which = CALL_K; which <= CALL_V; which++)
        for (int k = 0; call_kernel(k) != NULL; k++) {
            float before = call_get(spoilt, which, 0, 13, 0, 5);
            call_run(clean, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_set(spoilt, which, 0, 13, 0, 5, NAN);
            call_run(spoilt, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_set(spoilt, which, 0, 13, 0, 5, before);
            for (int64_t head = 0; head < 2; head++) {
                call_same_row(clean, 0, 7, head, spoilt, 0, 7, head, "hidden by bias");
                call_same_row(clean, 0, 9, head, spoilt, 0, 9, head, "hidden by bias");
                assert_true(isnan(call_get(spoilt, CALL_O, 0, 8, head, 5)));
            }
        }
    call_free(clean);
    call_free(spoilt);
}

/* Strides that are not 1 between keys, and 0. */
static void bias_strides(void **state) {
    (void)state;
    call *c = call_new("h2/1 q20 k40 d24 bf16->f32 bias=f16 causal", NULL);
    static uint16_t bias[64 * 7];
    for (int i = 0; i < COUNT(bias); i++) tp_from_float(TP_F16, (float)(i * 37 % 64) / 16 - 2, &bias[i]);
    static const int64_t strides[][4] = {{0, 0, 0, 7}, {0, 3, 1, 7}, {0, 1, 2, 0}, {0, 0, 0, 0}, {0, 5, 2, 1}};
    c->tensors.bias = bias;
    for (int i = 0; i < COUNT(strides); i++) {
        memcpy(c->tensors.bias_stride, strides[i], sizeof strides[i]);
        for (int k = 0; call_kernel(k) != NULL; k++) {
            call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
            call_check_bounds(c, call_kernel(k));
        }
    }
    call_free(c);
}

static int64_t asked;
static int ask(void *user, int64_t seq, int64_t row, int64_t key) {
    (void)user, (void)seq;
    asked++;
    return (row + key) % 2 == 0;
}

static void a_callback_is_asked_once(void **state) {
    (void)state;
    call *c = call_new("b2 h4/2 q30 k70 d24 f32 callback", NULL);
    c->tensors.callback = ask;
    for (int k = 0; call_kernel(k) != NULL; k++) {
        asked = 0;
        call_run(c, &(call_how){.kernel = call_kernel(k)}, NULL);
        assert_int_equal(asked, 2 * 30 * 70);
        call_check(c, call_kernel(k));
    }
    call_free(c);
}

static void bytes_become_bits(void **state) {
    (void)state;
    uint8_t bytes[3 * 20], bits[3 * 4];
    tp_error error = TP_ERROR_INIT;
    for (int i = 0; i < 60; i++) bytes[i] = i % 3 == 0 ? (uint8_t)(i + 1) : 0;
    memset(bits, 0xee, sizeof bits);
    assert_int_equal(tp_mask_pack(3, 19, bytes, 20, bits, 4, &error), TP_OK);
    for (int row = 0; row < 3; row++) {
        for (int key = 0; key < 19; key++)
            assert_int_equal(bits[row * 4 + key / 8] >> (key % 8) & 1, bytes[row * 20 + key] != 0);
        assert_int_equal(bits[row * 4 + 3], 0xee);
    }
    assert_int_equal(tp_mask_pack(3, 19, bytes, 20, bits, 2, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "bits_row_bytes is 2"));
    assert_int_equal(tp_mask_pack(3, 19, NULL, 20, bits, 3, &error), TP_INVALID);
    assert_int_equal(tp_mask_pack(-1, 19, bytes, 20, bits, 3, &error), TP_INVALID);
    assert_int_equal(tp_mask_pack(0, 0, NULL, 0, NULL, 0, NULL), TP_OK);
    assert_int_equal(tp_mask_pack(3, 19, bytes, INT64_MAX / 2, bits, 4, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "row_stride is 4611686018427387903"));
    assert_int_equal(tp_mask_pack(3, 19, bytes, 20, bits, INT64_MAX / 2, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "bits_row_bytes is 4611686018427387903"));
    assert_int_equal(tp_mask_pack(INT64_MAX, INT64_MAX, bytes, 20, bits, INT64_MAX, &error), TP_INVALID);
    assert_int_equal(tp_mask_pack(1, 19, bytes, INT64_MAX, bits, INT64_MAX, &error), TP_OK); /* of one row no step */
}

/* Refused with index and value, and nothing is written. */
static void refused(call *c, const char *names) {
    tp_error error = TP_ERROR_INIT;
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    assert_int_equal(call_try(c, &(call_how){.kernel = call_kernel(0)}, &receipt, &error), TP_INVALID);
    if (strstr(error.text, names) == NULL) fail_msg("'%s' does not name '%s'", error.text, names);
    double o[64];
    tp_row row = {0, 0, 0};
    assert_int_equal(tp_reference(&c->problem, &c->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, o, NULL, NULL, NULL, &error),
                     TP_INVALID);
}

static void bad_data(void **state) {
    (void)state;
    call *c = call_new("h2/1 q6 k9 d8 f32 spans", NULL);
    int32_t offsets[] = {0, 2}, overlap[] = {2, 5, 4, 7}, empty[] = {2, 2, 4, 7}, far[] = {2, 5, 6, 7};
    c->tensors.k_spans = c->tensors.q_spans = NULL;
    c->tensors.span_offsets = NULL;
    refused(c, "span_offsets is NULL");
    c->tensors.span_offsets = offsets;
    c->tensors.spans = NULL;
    refused(c, "spans is NULL");
    c->tensors.spans = overlap;
    refused(c, "spans[1] of sequence 0 is [4, 7) after one that ends at 5");
    c->tensors.spans = empty;
    refused(c, "spans[0] of sequence 0 is [2, 2)");
    c->tensors.spans = far;
    offsets[0] = 3;
    refused(c, "span_offsets[0..1] is 3..2");
    call_free(c);

    c = call_new("h2/1 q6 k9 d8 f32 spans", NULL);
    c->tensors.k_spans = c->tensors.q_spans = NULL;
    c->tensors.spans = far;
    c->tensors.span_offsets = (char *)offsets + 2;
    refused(c, "span_offsets is");
    refused(c, "aligned to its elements of 4 bytes");
    call_free(c);

    /* sizes that leave int64, and elements that stand where bytes may, too */
    c = call_new("h2/1 seqs=1x6/9 d8 f32 packed positions causal bits documents", &(call_shape){.index_type = TP_I64});
    tp_tensors kept = c->tensors;
    c->tensors.kv_tokens = (int64_t)1 << 61;
    c->tensors.k.stride[1] = c->tensors.v.stride[1] = 0;
    refused(c, "k_positions spans");
    c->tensors = kept;
    c->tensors.k_documents = c->tensors.bits = (const char *)c->tensors.k_documents + 1;
    refused(c, "k_documents is");
    call_free(c);
    /* a list of spans reaches as far as any sequence's do */
    c = call_new("h2/1 seqs=1x2/9,1x0/9 d8 f32 padded spans", NULL);
    int32_t fall[] = {0, 2, 0};
    int32_t *spans = c->tensors.o.data;
    spans[0] = 0, spans[1] = 4, spans[2] = 4, spans[3] = 9;
    c->tensors.k_spans = c->tensors.q_spans = NULL;
    c->tensors.span_offsets = fall;
    c->tensors.spans = spans;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_check_deep(&c->problem, &c->tensors, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "may overlap spans"));
    call_free(c);

    c = call_new("h2/1 q4 k9 d8 f32 tree", NULL);
    int32_t parents[] = {-1, 0, 2, 1};
    c->tensors.parents = parents;
    refused(c, "parents[2], row 2 of sequence 0, is 2");
    parents[2] = -2;
    refused(c, "is -2");
    c->tensors.parents = NULL;
    refused(c, "parents is NULL");
    call_free(c);
    c = call_new("h2/1 q9 k4 d8 f32 tree", NULL);
    refused(c, "9 rows and 4 keys");
    call_free(c);

    c = call_new("q2 k3 d8 f32 positions causal", &(call_shape){.index_type = TP_I64});
    int64_t q_positions[] = {0, ((int64_t)1 << 40) + 1}, k_positions[] = {0, 1, 2};
    c->tensors.q_positions = q_positions;
    c->tensors.k_positions = k_positions;
    refused(c, "q_positions[1] is 1099511627777");
    q_positions[1] = 1;
    k_positions[2] = INT64_MIN;
    refused(c, "k_positions[2] is -9223372036854775808");
    c->tensors.k_positions = NULL;
    refused(c, "k_positions is NULL");
    call_free(c);

    c = call_new("h2/1 q6 k9 d8 f32 bias=f32 bits alibi sinks prefix callback documents", NULL);
    tp_tensors good = c->tensors;
    float slopes[] = {1, NAN};
#define BAD(field, value, names)   \
    c->tensors = good;             \
    c->tensors.field = (value);    \
    refused(c, names)
    BAD(bias, NULL, "bias is NULL");
    BAD(bias_stride[3], -1, "bias_stride[3] is -1");
    BAD(bias_stride[2], INT64_MAX / 2, "bias spans");
    BAD(bias, (const char *)good.bias + 1, "bias is");
    BAD(bias, good.o.data, "may overlap bias");
    BAD(bits, NULL, "bits is NULL");
    BAD(bits_stride[0], -8, "bits_stride[0] is -8");
    BAD(bits, good.o.data, "may overlap bits");
    BAD(alibi_slopes, NULL, "alibi_slopes is NULL");
    BAD(alibi_slopes, slopes, "head 1 is nan");
    BAD(alibi_stride, -1, "alibi_stride[0] is -1");
    BAD(sinks, NULL, "sinks is NULL");
    BAD(prefix_lens, NULL, "prefix_lens is NULL");
    BAD(callback, NULL, "callback is NULL");
    BAD(k_documents, NULL, "k_documents is NULL");
    BAD(k_documents, (const char *)good.k_documents + 1, "aligned");
#undef BAD
    c->tensors = good;
    call_run(c, &(call_how){.kernel = call_kernel(0)}, NULL);
    call_free(c);
}

static void bad_problems(void **state) {
    (void)state;
    tp_problem p;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_problem_parse("q4 k4 d8 f32", &p, NULL, NULL), TP_OK);
    const tp_problem good = p;
#define BAD(field, value, names)                                 \
    p = good;                                                    \
    p.field = (value);                                           \
    assert_int_equal(tp_problem_check(&p, &error), TP_INVALID);  \
    assert_non_null(strstr(error.text, names))
    BAD(softcap, -1, "softcap is -1");
    BAD(softcap, NAN, "softcap is nan");
    BAD(qscale_beta, INFINITY, "qscale_beta is inf");
    BAD(qscale_length, -1, "qscale_length is -1");
    BAD(qscale_offset, -1, "qscale_offset is -1");
    BAD(positions, 2, "positions is 2");
    BAD(alibi, 7, "alibi is 7");
    BAD(sinks, -1, "sinks is -1");
    BAD(bias_dtype, 9, "bias_dtype is 9");
#undef BAD
    p = good;
    assert_int_equal(tp_problem_mask(&p, TP_MASK_AND, TP_MASK_CHUNK, 0, 0), TP_INVALID);
    assert_int_equal(tp_problem_mask(&p, TP_MASK_AND, TP_MASK_CHUNK, 4, 1), TP_INVALID);
    assert_int_equal(tp_problem_mask(&p, TP_MASK_CAUSAL, TP_MASK_CAUSAL, 0, 0), TP_INVALID);
    assert_int_equal(tp_problem_mask(&p, TP_MASK_OR, TP_MASK_PREFIX, -2, 0), TP_INVALID);
    assert_int_equal(tp_problem_mask(&p, TP_MASK_OR, TP_MASK_DOCUMENTS, 1, 0), TP_INVALID);
    assert_memory_equal(&p, &good, sizeof p);
}

static void texts_go_round(void **state) {
    (void)state;
    static const char *const texts[][2] = {
        {"chunk=64 causal", "chunk=64 causal"},
        {"prefix=5 causal", "causal prefix=5"},
        {"causal prefix", "causal prefix"},
        {"spans window=3,0 causal documents", "window=3,0 causal spans documents"},
        {"causal spans-and", "causal spans-and"},
        {"first=4 causal window=9,0", "window=9,0 first=4 causal"},
        {"spans", "spans"},
        {"mask=causal,window:3:0,and,spans,or", "causal window=3,0 spans"},
        {"mask=causal,prefix:5,and", "mask=causal,prefix:5,and"},
        {"mask=causal,prefix,and", "mask=causal,prefix,and"},
        {"mask=bits,callback,or,tree,and", "mask=bits,callback,or,tree,and"},
        {"tree bits callback documents", "tree bits callback documents"},
        {"sinks bias=bf16 alibi softcap=50 qscale=0.1,8192,1 positions scale=2",
         "positions scale=2 qscale=0.100000001,8192,1 softcap=50 alibi bias=bf16 sinks"},
    };
    for (int i = 0; i < COUNT(texts); i++) {
        char text[256], expected[256], printed[512];
        tp_problem p, again;
        tp_error error = TP_ERROR_INIT;
        snprintf(text, sizeof text, "q4 k4 d8 f32 %s", texts[i][0]);
        snprintf(expected, sizeof expected, "prefill b1 h1/1 q4 k4 d8 f32 %s", texts[i][1]);
        if (tp_problem_parse(text, &p, NULL, &error)) fail_msg("%s", error.text);
        assert_int_equal(tp_problem_print(&p, NULL, printed, sizeof printed), TP_OK);
        assert_string_equal(printed, expected);
        assert_int_equal(tp_problem_parse(printed, &again, NULL, NULL), TP_OK);
        assert_memory_equal(&p, &again, sizeof p);
    }
    static const char *const bad[] = {"chunk=0", "chunk=", "chunk", "prefix=-1", "first=x", "causal=3", "bits bits",
                                      "prefix=3 prefix", "spans spans-and", "mask=", "mask=and", "mask=causal,bits",
                                      "mask=causal,", "mask=window:3", "mask=causal causal", "bias=i8", "bias=",
                                      "softcap=0", "softcap=-1", "qscale=1", "qscale=1,0,0", "qscale=1,2,-1",
                                      "documents=2", "mask=or", "mask=causal,causal,xor"};
    for (int i = 0; i < COUNT(bad); i++) {
        char text[128];
        tp_problem p;
        tp_error error = TP_ERROR_INIT;
        snprintf(text, sizeof text, "q4 k4 d8 f32 %s", bad[i]);
        if (tp_problem_parse(text, &p, NULL, &error) != TP_INVALID) fail_msg("'%s' was taken", text);
        assert_non_null(strstr(error.text, "word '"));
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
        cmocka_unit_test(parts_and_bits_are_right),      cmocka_unit_test(pairs_are_counted),
        cmocka_unit_test(pairs_of_every_kind),           cmocka_unit_test(counts_say_whether_they_are_exact),
        cmocka_unit_test(numbers_stay),
        cmocka_unit_test(results_are_the_references),    cmocka_unit_test(sinks_stand_alone),
        cmocka_unit_test(a_bias_hides),                  cmocka_unit_test(bias_strides),
        cmocka_unit_test(a_callback_is_asked_once),      cmocka_unit_test(bytes_become_bits),
        cmocka_unit_test(bad_data),                      cmocka_unit_test(bad_problems),
        cmocka_unit_test(texts_go_round),                cmocka_unit_test(chunks_below_zero),
        cmocka_unit_test(ids_that_come_back),            cmocka_unit_test(ids_by_position),
        cmocka_unit_test(tiles_that_differ_by_a_key),    cmocka_unit_test(blocks_in_a_hole_are_not_packed),
        cmocka_unit_test(tiles_between_what_rows_see),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
