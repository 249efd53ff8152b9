/* SPDX-License-Identifier: Apache-2.0 */
/* Masks by brute force: visibility, intervals, pair counts, and the classes of tiles that receipts
 * count.
 */
#include <stdio.h>
#include <string.h>

#include "masks/mask.h"
#include "support/call.h"

/* The definition, written once more, from the header's words. */
typedef struct mask {
    int causal, windows;
    int64_t left[2], right[2];
    int align;
} mask;

static int oracle(const mask *m, int64_t q_len, int64_t kv_len, int64_t row, int64_t key) {
    int64_t position = m->align == TP_TOP_LEFT ? row : row + kv_len - q_len;
    if (m->causal && key > position) return 0;
    for (int w = 0; w < m->windows; w++) {
        if (m->left[w] >= 0 && key < position - m->left[w]) return 0;
        if (m->right[w] >= 0 && key > position + m->right[w]) return 0;
    }
    return 1;
}

static tp_problem problem_of(const mask *m) {
    tp_problem p;
    tp_problem_init(&p);
    p.head_dim_qk = p.head_dim_v = 1;
    p.align = m->align;
    if (m->windows > 0) assert_int_equal(tp_problem_window(&p, m->left[0], m->right[0]), TP_OK);
    if (m->causal) assert_int_equal(tp_problem_causal(&p), TP_OK);
    if (m->windows > 1) assert_int_equal(tp_problem_window(&p, m->left[1], m->right[1]), TP_OK);
    assert_int_equal(tp_problem_check(&p, NULL), TP_OK);
    return p;
}

static void each_mask(int64_t max, void (*test)(const mask *)) {
    for (int causal = 0; causal < 2; causal++)
        for (int align = 0; align < 2; align++) {
            mask m = {.causal = causal, .align = align};
            test(&m);
            for (int64_t l = -1; l <= max; l++)
                for (int64_t r = -1; r <= max; r++) {
                    m = (mask){
                        .causal = causal, .align = align, .windows = 1, .left = {l}, .right = {r}};
                    test(&m);
                    m.windows = 2; /* and another that cuts the other way */
                    m.left[1] = r;
                    m.right[1] = l + 1;
                    test(&m);
                }
        }
}

enum { LENGTH_MAX = 7 };

static void check_intervals(const mask *m) {
    tp_problem p = problem_of(m);
    for (int64_t q = 0; q <= LENGTH_MAX; q++)
        for (int64_t kv = 0; kv <= LENGTH_MAX; kv++) {
            int64_t pairs = 0, first = tp__mask_first_position(&p, q, kv);
            tp__mask_view view = tp__mask_view_plain(&p, q, kv);
            for (int64_t row = 0; row < q; row++) {
                tp__interval seen = tp__mask_interval(&p, first + row, kv);
                for (int64_t key = 0; key < kv; key++) {
                    int allowed = oracle(m, q, kv, row, key);
                    pairs += allowed;
                    if (tp_mask_allowed(&p, q, kv, row, key) != allowed ||
                        tp__mask_allowed(&view, 0, row, key) != allowed ||
                        (key >= seen.lo && key < seen.hi) != allowed)
                        fail_msg(
                            "causal %d align %d windows %d (%d,%d): q%d k%d row %d key %d is %d: "
                            "allowed %d, interval %d..%d",
                            m->causal, m->align, m->windows, (int)m->left[0], (int)m->right[0],
                            (int)q, (int)kv, (int)row, (int)key, allowed,
                            tp_mask_allowed(&p, q, kv, row, key), (int)seen.lo, (int)seen.hi);
                }
                assert_true(seen.lo >= 0 && seen.hi <= kv && seen.lo <= seen.hi);
            }
            int exact;
            assert_int_equal(tp__mask_pairs(&p, q, kv, &exact), pairs);
            assert_true(exact);
        }
}

static void intervals_and_pairs_are_right(void **state) {
    (void)state;
    each_mask(call_quick() ? 2 : LENGTH_MAX + 1, check_intervals);
}

static void large_counts_are_exact(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t pairs;
    } cases[] = {
        {"q131072 k131072 d64 f32 causal", (int64_t)131072 * 131073 / 2},
        {"q131072 k131072 d64 f32", (int64_t)131072 * 131072},
        {"q1000000 k1000000 d64 f32 causal window=4095,0",
         (int64_t)4096 * 1000000 - (int64_t)4095 * 4096 / 2},
        {"q1000000 k1000000 d64 f32 window=3,2", (int64_t)6 * 1000000 - 6 - 3},
        {"q1 k1048576 d64 f32 causal", 1048576},
        {"q1048576 k1 d64 f32 causal", 1},
        {"q1048576 k1 d64 f32 top-left causal", 1048576},
    };
    for (int n = 0; n < COUNT(cases); n++) {
        tp_problem p;
        assert_int_equal(tp_problem_parse(cases[n].text, &p, NULL, NULL), TP_OK);
        int exact;
        assert_int_equal(tp__mask_pairs(&p, p.q_len, p.kv_len, &exact), cases[n].pairs);
        assert_true(exact);
    }
}

static void indices_out_of_range(void **state) {
    (void)state;
    tp_problem p;
    tp_problem_init(&p);
    assert_int_equal(tp_mask_allowed(&p, 3, 4, 2, 3), 1);
    assert_int_equal(tp_mask_allowed(&p, 3, 4, 3, 3), -1);
    assert_int_equal(tp_mask_allowed(&p, 3, 4, 2, 4), -1);
    assert_int_equal(tp_mask_allowed(&p, 3, 4, -1, 0), -1);
    assert_int_equal(tp_mask_allowed(&p, 3, 4, 0, -1), -1);
    assert_int_equal(tp_mask_allowed(&p, 0, 0, 0, 0), -1);
    assert_int_equal(tp_mask_allowed(NULL, 3, 4, 0, 0), -1);
}

static void expect_refused(tp_problem *p, const char *names) {
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_problem_check(p, &error), TP_INVALID);
    if (strstr(error.text, names) == NULL) fail_msg("'%s' does not name %s", error.text, names);
}

static void trees_keep_their_rules(void **state) {
    (void)state;
    static const mask plain = {.causal = 1, .windows = 1, .left = {3}, .right = {-1}};
    tp_problem p = problem_of(&plain);
    assert_int_equal(p.mask_nodes, 3);
    assert_int_equal(p.mask[2].kind, TP_MASK_AND);
    p.mask_nodes = 2;
    expect_refused(&p, "unjoined");
    p.mask_nodes = 16;
    expect_refused(&p, "16");
    p.mask_nodes = -1;
    expect_refused(&p, "-1");
    p = problem_of(&plain);
    p.mask[0].kind = TP_MASK_AND;
    expect_refused(&p, "mask[0]");
    p = problem_of(&plain);
    p.mask[2].kind = TP_MASK_OR;
    assert_int_equal(tp_problem_check(&p, NULL), TP_OK);
    p.mask[0].kind = TP_MASK_OR;
    expect_refused(&p, "mask[0] is an OR");
    p = problem_of(&plain);
    p.mask[2].kind = 3;
    expect_refused(&p, "mask[2].kind is 3");
    p = problem_of(&plain);
    int count = 0;
    while (tp_mask_at(count) != NULL) count++;
    p.mask[1].kind = tp_mask_at(count - 1)->kind + 1;
    char names[64];
    snprintf(names, sizeof names, "%s (%d)", tp_mask_at(count - 1)->name, tp_mask_at(count - 1)->kind);
    expect_refused(&p, names);
    p = problem_of(&plain);
    p.mask[1].reserved = 5;
    expect_refused(&p, "reserved is 5");
    p = problem_of(&plain);
    p.mask[0].a = -2;
    expect_refused(&p, "-2");
    p = problem_of(&plain);
    p.mask[0].b = ((int64_t)1 << 40) + 1;
    expect_refused(&p, "right");
    p = problem_of(&plain);
    p.mask[1].a = 1;
    expect_refused(&p, "causal");

    tp_problem_init(&p);
    for (int i = 0; i < 8; i++) assert_int_equal(tp_problem_window(&p, i, i), TP_OK);
    assert_int_equal(p.mask_nodes, TP_MAX_MASK_NODES);
    tp_problem before = p;
    assert_int_equal(tp_problem_causal(&p), TP_INVALID); /* full */
    assert_int_equal(tp_problem_window(&p, -2, 0), TP_INVALID);
    assert_memory_equal(&p, &before, sizeof p);
}

typedef struct tiles {
    int64_t full, partial, skipped, visible, computed, keys;
} tiles;

/* Strips of mr merged rows against panels of nr keys of one KV head of one sequence. */
static void count_tiles(const call *c, const tp_kernel_info *kernel, int64_t seq, tiles *t) {
    int64_t group = c->problem.q_heads / c->problem.kv_heads, q = c->q_lens[seq],
            kv = c->kv_lens[seq];
    for (int64_t strip = 0; strip < q * group; strip += kernel->mr)
        for (int64_t panel = 0; panel < kv; panel += kernel->nr) {
            int64_t rows = q * group - strip < kernel->mr ? q * group - strip : kernel->mr,
                    seen = 0, half = kernel->nr / 2, first = rows, last = -1;
            int lower = 0, upper = 0; /* a half of the panel that no row sees is not computed */
            for (int64_t r = strip; r < strip + rows; r++)
                for (int64_t key = panel; key < panel + kernel->nr && key < kv; key++) {
                    int sees = tp_mask_visible(&c->problem, &c->tensors, seq, 0, r / group, key);
                    seen += sees;
                    lower |= sees && key < panel + half;
                    upper |= sees && key >= panel + half;
                    if (sees && r - strip < first) first = r - strip; /* nor for rows before and behind those that see any */
                    if (sees) last = r - strip;
                }
            t->visible += seen;
            if (seen > 0) t->computed += (last - first + 1) * half * (lower + upper);
            t->full += seen == rows * kernel->nr;
            t->partial += seen > 0 && seen < rows * kernel->nr;
            t->skipped += seen == 0;
        }
    for (int64_t key = 0; key < kv; key++) {
        int any = 0;
        for (int64_t r = 0; r < q; r++)
            any |= tp_mask_visible(&c->problem, &c->tensors, seq, 0, r, key) == 1;
        t->keys += any;
    }
}

/* Whether every sequence goes by prefill's loop, whose tiles are counted here. */
static int prefills(const call *c) {
    for (int64_t s = 0; s < c->tensors.batch; s++)
        if (!c->problem.invariant &&
            c->q_lens[s] * c->problem.q_heads / c->problem.kv_heads <=
                tp_decode_rows((tp_dtype)c->problem.k_dtype))
            return 0;
    return 1;
}

static void check_receipt(const char *text) {
    call *c = call_new(text, NULL);
    for (int k = 0; call_kernel(k) != NULL; k++) {
        const tp_kernel_info *info = call_kernel_info(k);
        const tp_problem *p = &c->problem;
        tp_receipt receipt;
        tiles t = {0};
        int64_t rows = 0;
        tp_receipt_init(&receipt);
        call_run(c, &(call_how){.kernel = info->name}, &receipt);
        tp_kernel_info whole = *info; /* math has no tiles: one that covers everything */
        if (info->mr == 0) whole.mr = whole.nr = 1 << 20;
        for (int64_t s = 0; s < c->tensors.batch; s++) {
            rows += c->q_lens[s];
            count_tiles(c, &whole, s, &t);
        }
        assert_int_equal(receipt.pairs_visible, t.visible * p->kv_heads);
        assert_true(receipt.pairs_computed >= receipt.pairs_visible);
        if (info->mr > 0) {
            if (receipt.panels_full != t.full * p->kv_heads ||
                receipt.panels_partial != t.partial * p->kv_heads ||
                receipt.panels_skipped != t.skipped * p->kv_heads)
                fail_msg(
                    "%s: %s: tiles %lld full, %lld partial, %lld skipped: must be %lld, %lld, %lld",
                    text, info->name, (long long)receipt.panels_full,
                    (long long)receipt.panels_partial, (long long)receipt.panels_skipped,
                    (long long)(t.full * p->kv_heads), (long long)(t.partial * p->kv_heads),
                    (long long)(t.skipped * p->kv_heads));
            if (prefills(c)) assert_int_equal(receipt.pairs_computed, t.computed * p->kv_heads);
            assert_int_equal(receipt.scores_written, 0);
        }
        int64_t row_bytes = p->head_dim_qk * (int64_t)tp_dtype_bytes((tp_dtype)p->q_dtype) +
                            p->head_dim_v * (int64_t)tp_dtype_bytes((tp_dtype)p->o_dtype) + 4;
        int64_t key_bytes = p->head_dim_qk * (int64_t)tp_dtype_bytes((tp_dtype)p->k_dtype) +
                            p->head_dim_v * (int64_t)tp_dtype_bytes((tp_dtype)p->v_dtype);
        assert_int_equal(receipt.bytes_compulsory,
                         rows * p->q_heads * row_bytes + t.keys * p->kv_heads * key_bytes);
        assert_true(receipt.bytes_model >= receipt.bytes_compulsory);
        int64_t q_bytes = p->head_dim_qk * (int64_t)tp_dtype_bytes((tp_dtype)p->q_dtype);
        int64_t written = rows * p->q_heads * (row_bytes - q_bytes);
        if (info->mr > 0)
            assert_int_equal(receipt.bytes_model_written, written);
        else /* scores, probabilities, and the copies of q and o at least */
            assert_true(receipt.bytes_model_written >=
                        written + 8 * receipt.scores_written +
                            4 * rows * p->q_heads * (p->head_dim_qk + p->head_dim_v));
    }
    call_free(c);
}

static void receipts_count_tiles(void **state) {
    (void)state;
    static const char *const texts[] = {
        "q64 k64 d8 f32",
        "h6/2 q37 k53 d8 bf16->f32 causal",
        "h5/1 q40 k100 d300/4 f16 causal",
        "b2 h2/2 q50 k50 d8 f32 window=7,0",
        "h3/1 q50 k300 d8 f32 window=9,9",
        "h3/1 q50 k30 d8 f32 causal top-left window=20,-1",
        "q90 k7 d8 f32 causal",
        "q9 k4200 d4 f32 causal window=100,0",
        "h7/1 seqs=1x20/33,1x1/9,1x0/5,1x5/0 d8 f32 packed causal",
        "h2/1 seqs=1x20/33,1x1/9,1x0/5,1x5/0 d8/4 f16 padded window=3,5",
        "h71/1 q3 k40 d8 f32 causal",
        "h3/1 q50 k300 d8 f32 window=9,0 first=4 causal",
        "b2 h6/2 q37 k153 d300 f32 documents",
        "b3 h6/2 q37 k153 d300 f32 causal spans documents",
        "h7/1 seqs=1x20/33,1x1/9,1x5/90 d300 f32 packed chunk=32",
        "h2/1 q20 k90 d8 f32 tree",
        "b2 h2/1 q20 k190 d300 f32 callback",
        "b3 h2/1 q20 k190 d300 f32 causal positions",
    };
    for (int n = 0; n < COUNT(texts); n++) {
        char text[160];
        snprintf(text, sizeof text, "%s invariant", texts[n]);
        check_receipt(texts[n]);
        check_receipt(text);
    }
}

/* The classes of tiles as the kernels find them: skip, full and partial, over many small masks. */
static void receipts_count_the_tiles_of_small_masks(void **state) {
    (void)state;
    static const char *const forms[] = {"", "causal", "top-left", "top-left causal"};
    static const int lengths[][2] = {{1, 1}, {9, 17}, {17, 9}, {24, 24}, {5, 40}};
    static const int sides[] = {-1, 0, 1, 4, 7, 8, 9, 15, 30};
    for (int f = 0; f < COUNT(forms); f++)
        for (int n = 0; n < COUNT(lengths); n++)
            for (int l = 0; l < COUNT(sides); l++)
                for (int r = 0; r < COUNT(sides); r++) {
                    char text[128];
                    if (call_quick() && (f + n + l + r) % 5 != 0) continue;
                    snprintf(text, sizeof text, "h%d/1 q%d k%d d4 f32 %s window=%d,%d",
                             1 + (l + r) % 3, lengths[n][0], lengths[n][1], forms[f], sides[l],
                             sides[r]);
                    check_receipt(text);
                }
}

/* Likewise where rows see what data say: strips at borders, rows with holes. */
static void receipts_of_masks_with_data_count_tiles(void **state) {
    (void)state;
    static const char *const masks[] = {"causal documents", "documents", "causal spans", "tree", "positions causal",
                                        "window=9,0 first=30 causal", "causal chunk=40 documents"};
    for (int i = 0; i < COUNT(masks); i++)
        for (int group = 1; group <= 3; group += 2) {
            char text[128];
            snprintf(text, sizeof text, "h%d/1 q%d k330 d4 f32 %s", group, i % 2 ? 330 : 290, masks[i]);
            check_receipt(text);
        }
}

/* What a mask hides is not paid for: with a narrow window almost every tile is skipped. */
static void hidden_tiles_cost_nothing(void **state) {
    (void)state;
    call *c = call_new("q512 k512 d8 f32 window=0,0", NULL);
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    call_run(c, &(call_how){.kernel = call_kernel(0)}, &receipt);
    const tp_kernel_info *info = call_kernel_info(0);
    assert_int_equal(receipt.pairs_visible, 512);
    assert_true(receipt.pairs_computed <= 512 * 2 * info->nr);
    call_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intervals_and_pairs_are_right),
        cmocka_unit_test(large_counts_are_exact),
        cmocka_unit_test(indices_out_of_range),
        cmocka_unit_test(trees_keep_their_rules),
        cmocka_unit_test(receipts_count_tiles),
        cmocka_unit_test(receipts_count_the_tiles_of_small_masks),
        cmocka_unit_test(receipts_of_masks_with_data_count_tiles),
        cmocka_unit_test(hidden_tiles_cost_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
