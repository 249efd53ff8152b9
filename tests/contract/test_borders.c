/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel against the reference where tiles, blocks, chunks, windows and sizes have their
 * edges. */
#include <math.h>
#include <stdio.h>

#include "support/call.h"

static const char *const masks[] = {"", "causal", "causal top-left", "window=7,3",
                                    "causal window=20,-1"};

typedef struct borders {
    int64_t at[64];
    int count;
} borders;

static void around(borders *b, int64_t value) {
    for (int64_t n = value - 1; n <= value + 1; n++) {
        int known = n < 1 || b->count == COUNT(b->at);
        for (int i = 0; i < b->count; i++) known |= b->at[i] == n;
        if (!known) b->at[b->count++] = n;
    }
}

/* Rows of a strip and of a tile of strips, keys of a panel, of every kernel there is. */
static void row_borders(borders *b) {
    for (int i = 0; tp_kernel_at(i) != NULL; i++) around(b, tp_kernel_at(i)->mr);
    around(b, 96);
}

static void key_borders(borders *b) {
    for (int i = 0; tp_kernel_at(i) != NULL; i++) around(b, tp_kernel_at(i)->nr);
    around(b, 16);
}

static void lengths_around_tiles_and_blocks(void **state) {
    (void)state;
    static const int dims[] = {257, 129, 65, 64};
    int mask = 0;
    for (int d = 0; d < COUNT(dims); d++) {
        int block = tp_block_keys(dims[d]);
        borders q = {.count = 0}, k = {.count = 0};
        row_borders(&q);
        key_borders(&k);
        around(&k, block);
        around(&k, 2 * block);
        for (int i = 0; i < q.count; i++)
            for (int j = 0; j < k.count; j++) {
                char text[128];
                /* one head dim in full, the others along both edges; all masks in turn */
                if ((d > 0 || call_quick()) && i % 4 != 1 && k.at[j] != block + 1) continue;
                if (k.at[j] > 200 && q.at[i] > 16 && d > 0) continue;
                snprintf(text, sizeof text, "h2 q%d k%d d%d/%d f32 %s", (int)q.at[i], (int)k.at[j],
                         dims[d], 9, masks[mask++ % COUNT(masks)]);
                call_check_all(text, NULL);
            }
    }
}

static void lengths_around_chunks(void **state) {
    (void)state;
    static const char *const chunk_masks[] = {"", "causal", "window=4096,0", "window=4094,-1"};
    borders k = {.count = 0};
    around(&k, TP_CHUNK_KEYS);
    around(&k, 2 * TP_CHUNK_KEYS);
    for (int j = 0; j < k.count; j++)
        for (int m = 0; m < COUNT(chunk_masks); m++) {
            char text[128];
            if (call_quick() && (j + m) % 3 != 0) continue;
            snprintf(text, sizeof text, "h2/1 q3 k%d d5 %s %s", (int)k.at[j],
                     m % 2 ? "bf16" : "f32", chunk_masks[m]);
            call_check_all(text, NULL);
        }
}

/* More rows than one task takes. */
static void rows_around_a_range(void **state) {
    (void)state;
    borders q = {.count = 0};
    around(&q, 2016);
    around(&q, 2048);
    for (int i = 0; i < q.count; i++) {
        char text[128];
        if (call_quick() && i > 1) continue;
        snprintf(text, sizeof text, "q%d k33 d8 f32 top-left window=3000,9", (int)q.at[i]);
        call_check_all(text, NULL);
        snprintf(text, sizeof text, "h7/1 q%d k33 d8 f32 top-left window=300,9",
                 (int)q.at[i] / 7 + 1);
        call_check_all(text, NULL);
    }
}

static void windows_around_tiles_and_lengths(void **state) {
    (void)state;
    static const char *const kinds[] = {"", "causal", "top-left"};
    enum { S = 50 };
    borders side = {.at = {-1, 0}, .count = 2};
    key_borders(&side);
    around(&side, S);
    for (int kind = 0; kind < COUNT(kinds); kind++)
        for (int l = 0; l < side.count; l++)
            for (int r = 0; r < side.count; r++) {
                char text[128];
                if (call_quick() && (l + r + kind) % 7 != 0) continue;
                snprintf(text, sizeof text, "q%d k%d d8 f32 %s window=%d,%d", kind == 1 ? S - 9 : S,
                         kind == 2 ? S - 9 : S, kinds[kind], (int)side.at[l], (int)side.at[r]);
                call_check_all(text, NULL);
            }
}

static void windows_around_blocks(void **state) {
    (void)state;
    int block = tp_block_keys(257);
    borders side = {.count = 0};
    around(&side, block);
    for (int l = 0; l < side.count; l++)
        for (int r = 0; r < side.count; r++) {
            char text[128];
            snprintf(text, sizeof text, "q%d k%d d257/3 f32 window=%d,%d", 3 * block, 3 * block,
                     (int)side.at[l], (int)side.at[r]);
            call_check_all(text, NULL);
        }
}

static void head_dims(void **state) {
    (void)state;
    static const char *const dims[] = {"1",     "2",       "3",       "40",      "59",
                                       "111",   "192/128", "128/192", "576/512", "1/576",
                                       "576/1", "16",      "17",      "31/33",   "575/576"};
    static const char *const dtypes[] = {"f32",
                                         "f16",
                                         "bf16",
                                         "f16->f32",
                                         "f32->bf16",
                                         "bf16->f16",
                                         "f32:bf16:f16->f32",
                                         "bf16:f16:f32->bf16"};
    for (int d = 0; d < COUNT(dims); d++)
        for (int t = 0; t < COUNT(dtypes); t++) {
            char text[128];
            if (call_quick() && (d + t) % 4 != 0) continue;
            snprintf(text, sizeof text, "h4/2 q13 k37 d%s %s %s", dims[d], dtypes[t],
                     masks[(d + t) % COUNT(masks)]);
            call_check_all(text, NULL);
        }
}

static void layouts(void **state) {
    (void)state;
    static const char *const texts[] = {
        "b3 h6/2 q21 k21 d12 bf16 causal",
        "h6/2 seqs=1x21/30,1x1/9,2x5/5 d12/12 bf16 padded causal",
        "h6/2 seqs=1x21/30,1x1/9,2x5/5 d12/20 f16 packed causal",
        "h6/2 seqs=1x21/30,1x1/30,2x5/30 d12/20 f32 packed-q",
        "h6/3 seqs=1x21/30,1x21/2,2x21/33 d9 f32 packed-kv top-left causal",
        "h6/3 seqs=1x21/30,1x3/2,2x7/33 d9 f32 packed-kv padded causal",
    };
    for (int t = 0; t < COUNT(texts); t++)
        for (int layout = 0; layout < CALL_LAYOUTS; layout++)
            for (int index = TP_I32; index <= TP_I64; index++) {
                call_shape shape = {.layout = layout, .index_type = index};
                if (layout == CALL_QKV && t >= 3) continue; /* q and k differ in their layout */
                call_check_all(texts[t], &shape);
            }
}

static void groups(void **state) {
    (void)state;
    static const char *const heads[] = {"1/1", "2/1", "6/3", "10/2", "14/2", "16/2", "71/1"};
    for (int h = 0; h < COUNT(heads); h++) {
        char text[128];
        snprintf(text, sizeof text, "b2 h%s q11 k29 d20 bf16 causal", heads[h]);
        call_check_all(text, NULL);
    }
}

static void sizes_of_zero(void **state) {
    (void)state;
    static const char *const texts[] = {
        "b0 h2 q5 k5 d8 f32", "h2 q0 k5 d8 f32",         "h2 q5 k0 d8 f32",
        "h2 q0 k0 d8 f32",    "h2 q5 k0 d8 bf16 causal",
    };
    for (int t = 0; t < COUNT(texts); t++) call_check_all(texts[t], NULL);
    static const char *const forms[] = {"packed", "padded"};
    for (int f = 0; f < 2; f++)
        for (int index = TP_I32; index <= TP_I64; index++) {
            char text[160];
            call_shape shape = {.index_type = index};
            snprintf(text, sizeof text, "h2/1 seqs=1x0/7,1x3/5,1x4/0,2x2/9,1x0/0 d8 f16 %s causal",
                     forms[f]);
            call_check_all(text, &shape);
            snprintf(text, sizeof text, "h2/1 seqs=3x0/7,2x0/0 d8 f16 %s", forms[f]);
            call_check_all(text, &shape);
            snprintf(text, sizeof text, "h2/1 seqs=3x7/0,2x2/0 d8 f16 %s", forms[f]);
            call_check_all(text, &shape);
        }
}

/* A run may hold fewer sequences than its plan allows. */
static void fewer_sequences_than_planned(void **state) {
    (void)state;
    call *c = call_new("b3 h2 q5 k6 d8 f32", NULL);
    for (c->tensors.batch = 0; c->tensors.batch <= 3; c->tensors.batch++)
        for (int i = 0; call_kernel(i) != NULL; i++) {
            call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
            call_check(c, "fewer sequences");
        }
    call_free(c);
}

static void rows_that_see_nothing(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t first, last; /* rows that see no key */
    } cases[] = {
        {"h2/1 q9 k4 d8 f32 causal", 0, 4},
        {"h2/1 q9 k4 d8 bf16 top-left window=1,0", 5, 8},
        {"h2/1 q40 k4 d8 f16 top-left causal window=1,0", 5, 39},
        {"h2/1 q7 k0 d8 f32", 0, 6},
        {"h2/1 q40 k9 d8 f32 window=-1,0", 0, 30},
    };
    for (int n = 0; n < COUNT(cases); n++) {
        call *c = call_new(cases[n].text, NULL);
        for (int i = 0; call_kernel(i) != NULL; i++) {
            call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
            call_check(c, cases[n].text);
            for (int64_t r = 0; r < c->q_lens[0]; r++)
                for (int64_t h = 0; h < 2; h++) {
                    int nothing = r >= cases[n].first && r <= cases[n].last;
                    assert_int_equal(call_get(c, CALL_LSE, 0, r, h, 0) == -INFINITY, nothing);
                    for (int64_t x = 0; x < 8 && nothing; x++) {
                        float o = call_get(c, CALL_O, 0, r, h, x);
                        assert_true(o == 0 && !signbit(o));
                    }
                }
        }
        call_free(c);
    }
}

static void no_lse_wanted(void **state) {
    (void)state;
    call *c = call_new("b2 h4/2 q9 k12 d24 bf16 causal", NULL);
    c->tensors.lse.data = NULL;
    for (int i = 0; call_kernel(i) != NULL; i++) {
        call_run(c, &(call_how){.kernel = call_kernel(i)}, NULL);
        call_check(c, "no lse");
    }
    call_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_around_tiles_and_blocks),
        cmocka_unit_test(lengths_around_chunks),
        cmocka_unit_test(rows_around_a_range),
        cmocka_unit_test(windows_around_tiles_and_lengths),
        cmocka_unit_test(windows_around_blocks),
        cmocka_unit_test(head_dims),
        cmocka_unit_test(layouts),
        cmocka_unit_test(groups),
        cmocka_unit_test(sizes_of_zero),
        cmocka_unit_test(fewer_sequences_than_planned),
        cmocka_unit_test(rows_that_see_nothing),
        cmocka_unit_test(no_lse_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
