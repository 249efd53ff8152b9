/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every feature of the OpenCL kernels against the double oracle, at the edges of their tiles.
 *     values [small | brief]     small: a handful of tiny calls, for oclgrind, which looks at every access
 *                                brief: every feature with few compiled kernels, until one is wrong, for planted bugs
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "opencl/rig.h"

static rig r;
static int opens(void **state) {
    (void)state;
    r = rig_open(NULL);
    return 0;
}
static int closes(void **state) {
    (void)state;
    rig_close(&r);
    return 0;
}

static void all(const char *const *texts, int count) {
    for (int i = 0; i < count; i++) rig_check_right(&r, texts[i], NULL, i % 2 ? RIG_ON_DEVICE : RIG_ON_HOST);
}
#define ALL(...)                                                                                                                 \
    do {                                                                                                                         \
        static const char *const texts[] = {__VA_ARGS__};                                                                        \
        all(texts, (int)(sizeof texts / sizeof *texts));                                                                         \
    } while (0)

static void lengths_around_tiles(void **state) {
    (void)state;
    ALL("h2/1 q17 k1 d32 f32", "h2/1 q17 k31 d32 f32", "h2/1 q16 k32 d32 f32", "h2/1 q17 k33 d32 f32", "h2/1 q33 k64 d32 f32",
        "h2/1 q48 k65 d32 f32 causal", "h1/1 q31 k97 d32 f32 causal", "b2 h3/1 q23 k40 d32 f32 causal", "h2/1 q40 k0 d32 f32",
        "h2/1 q70 k40 d32 f32 causal", "h2/1 q64 k64 d32 f32 causal top-left", "h2/1 q40 k70 d32 f32 causal top-left");
}

static void head_dims(void **state) {
    (void)state;
    ALL("h2/2 q40 k50 d1 f32 causal", "h2/2 q40 k50 d31 f32", "h2/2 q40 k50 d64 f32 causal", "h2/1 q40 k50 d65/33 f32",
        "h2/1 q40 k50 d128 f32 causal", "h2/1 q40 k50 d129/256 f32", "h2/1 q40 k50 d256 f32 causal",
        "h2/1 q40 k50 d192/128 bf16 causal");
}

static void dtypes(void **state) {
    (void)state;
    ALL("h4/2 q40 k50 d64 f16 causal", "h4/2 q40 k50 d64 bf16 causal", "h4/2 q40 k50 d64 bf16->f32 causal",
        "h4/2 q40 k50 d64 f32:bf16:f16->bf16 causal");
}

static void masks(void **state) {
    (void)state;
    ALL("h2/1 q50 k70 d32 f32 window=9,0", "h2/1 q50 k70 d32 f32 window=0,0", "h2/1 q50 k70 d32 f32 window=40,3",
        "h2/1 q50 k70 d32 f32 window=-1,5", "h2/1 q50 k170 d32 f32 causal window=33,0", "h2/1 q50 k70 d32 f32 chunk=7",
        "h2/1 q50 k70 d32 f32 causal chunk=32", "h2/1 q90 k40 d32 f32 chunk=16 causal", "h2/1 q90 k200 d32 f32 window=5,40");
}

static void scores(void **state) {
    (void)state;
    ALL("h4/2 q40 k50 d32 f32 causal softcap=5", "h4/2 q40 k50 d32 f32 causal alibi", "h4/2 q40 k50 d32 f32 causal sinks",
        "h4/2 q40 k50 d32 bf16 softcap=20 alibi sinks window=20,0", "h4/2 q70 k40 d32 f32 causal sinks",
        "h2/1 q40 k50 d32 f32 scale=-0.3", "h2/1 q40 k50 d32 f32 scale=0", "h2/1 q40 k50 d32 f32 scale=3 causal");
}

static void layouts(void **state) {
    (void)state;
    ALL("b3 h4/2 seqs=1x40/70,1x33/33,1x1/50 d32 f32 packed causal", "b3 h4/2 seqs=1x0/7,1x40/0,1x5/9 d32 f32 packed",
        "b2 h4/2 seqs=1x40/70,1x3/20 d32 f16 padded causal", "b2 h4/2 seqs=1x40/70,1x3/20 d32 f32 packed-kv padded causal",
        "b2 h4/2 seqs=1x40/70,1x33/100 d32 bf16 packed-q paged=16 causal", "b2 h4/2 q40 k70 d32 f32 paged=7 window=9,0",
        "b2 h4/2 q40 k70 d32 f32 paged=128 causal", "h4/1 q40 k70 d64/32 f32 latent causal");
    static const struct tensors_style styles[] = {
        {.lse = 1, .form = FORM_HEADS, .index64 = 1}, {.lse = 1, .form = FORM_QKV},          {.lse = 1, .ragged = 1, .slack = 3},
        {.lse = 0, .form = FORM_BROADCAST},           {.lse = 1, .ragged = 1, .index64 = 1},
    };
    for (int i = 0; i < (int)(sizeof styles / sizeof *styles); i++) {
        rig_check_right(&r, "b2 h4/4 q40 k40 d32 f32 causal", &styles[i], RIG_ON_DEVICE);
        rig_check_right(&r, "b2 h4/4 q40 k40 d32 f32 causal packed", &styles[i], RIG_ON_HOST);
    }
    static const struct tensors_style two = {.lse = 1, .two_tables = 1, .form = FORM_HEADS};
    rig_check_right(&r, "b2 h4/2 q40 k70 d32 f32 paged=16 causal", &two, RIG_ON_DEVICE);
}

static void split_kv(void **state) {
    (void)state;
    ALL("h4/1 q1 k511 d32 f32", "h4/1 q1 k512 d32 f32", "h4/1 q1 k513 d32 f32", "h8/1 q2 k1500 d32 f32 causal",
        "b2 h4/2 seqs=1x1/1030,1x4/7 d32 bf16 packed-q paged=16 causal", "h4/2 q3 k1300 d64 f16 causal window=600,0",
        "h4/2 q1 k1100 d128 f32 causal sinks softcap=20 alibi", "h3/1 q5 k2000 d256 bf16 causal", "h2/1 q1 k0 d32 f32 sinks",
        "h4/1 q1 k600 d32 f32 invariant", "h4/2 q1 k1300 d32 f32 window=20,0");
}

static void gradients(void **state) {
    (void)state;
    ALL("backward h2/1 q33 k40 d32 f32 causal", "backward h2/2 q31 k65 d64 f32",
        "backward b2 h4/2 q40 k50 d32 f32 causal window=9,0", "backward h4/2 q40 k50 d32 bf16 causal softcap=5 alibi sinks",
        "backward h4/2 q40 k50 d32 f16 sinks chunk=9", "backward b3 h4/2 seqs=1x40/70,1x33/33,1x0/5 d32 f32 packed causal",
        "backward h2/1 q20 k40 d129/160 f32 causal", "backward b2 h4/2 seqs=1x40/70,1x3/20 d32 f32 padded alibi",
        "backward h2/1 q70 k40 d32 f32 causal", "backward h2/1 q40 k40 d32 f32 top-left scale=-0.3",
        "backward h3/1 q11 k33 d32 f32", "backward h1/1 q17 k17 d160 f32 causal"); /* one row and one key behind a tile */
}

/* A slope's gradient is the sum over the sequences that share it. */
static void slopes_that_sequences_share(void **state) {
    (void)state;
    static const struct tensors_style shared = {.lse = 1, .shared_slopes = 1};
    rig_check_right(&r, "b2 h4/2 q40 k70 d33 f32 causal alibi", &shared, RIG_ON_DEVICE);
    rig_check_right(&r, "backward b2 h4/2 q40 k70 d33 f32 causal alibi sinks", &shared, RIG_ON_HOST);
    rig_check_right(&r, "backward b3 h4/2 seqs=1x40/70,1x0/5,1x33/33 d33 f32 packed causal alibi", &shared, RIG_ON_DEVICE);
}

/* Tensors of a problem, filled. */
static void filled(struct tensors *a, const char *text, tp_lengths *lengths) {
    static const struct tensors_style style = {.lse = 1};
    tp_problem problem;
    *lengths = (tp_lengths){.struct_size = sizeof *lengths};
    assert_int_equal(tp_problem_parse(text, &problem, lengths, NULL), TP_OK);
    assert_int_equal(tensors_create(a, &problem, lengths, &style) || tensors_fill(a, 5), 0);
}
static void serve(struct tensors *a, tp_op op, int poison) {
    tp_choice choice = rig_choice();
    struct workspace none = {0};
    struct attempt attempt = {r.context, &choice, &none, ENTRY_SERIAL, 1, poison};
    tp_receipt receipt;
    tp_error error = TP_ERROR_INIT;
    a->problem.op = op;
    if (attempt_run(&attempt, a, &receipt, &error) != TP_OK) fail_msg("%s", error.text);
}

/* Two runs, and rows in any company, have the same bits: the digest is of sums that have one order. */
static void same_bits(void **state) {
    (void)state;
    static const char *const texts[] = {"b2 h4/2 q40 k700 d64 f32 causal", "h4/1 q1 k1500 d32 f32 causal"};
    for (int t = 0; t < 2; t++) {
        struct tensors a[2];
        tp_lengths lengths;
        for (int i = 0; i < 2; i++) {
            filled(&a[i], texts[t], &lengths);
            serve(&a[i], TP_FORWARD, i ? 0xFF : 0);
        }
        for (int id = TENSOR_O; id <= TENSOR_LSE; id++)
            assert_memory_equal(a[0].buffer[id].memory, a[1].buffer[id].memory, a[0].buffer[id].bytes);
        tensors_destroy(&a[0]);
        tensors_destroy(&a[1]);
    }
}

/* Keys that only other rows of a tile see, and rows that see nothing, may hold NaN. */
static void nan_where_no_row_looks(void **state) {
    (void)state;
    static const char *const texts[] = {"h2/1 q40 k40 d33 f32 window=3,0", "backward h2/1 q40 k40 d33 f32 window=3,0",
                                        "h2/1 q40 k40 d33 f32 causal"};
    for (int t = 0; t < 3; t++) {
        struct tensors a;
        struct gradients g;
        tp_lengths lengths;
        filled(&a, texts[t], &lengths);
        for (int64_t x = 0; x < 33; x++)
            for (int id = TENSOR_K; id <= TENSOR_V; id++) tensors_set(&a, (enum tensor_id)id, 0, 20, 0, x, NAN);
        if (t == 1) assert_int_equal(gradients_create(&g, &a, &lengths, 7), 0);
        serve(&a, TP_FORWARD, 0xFF);
        for (int64_t row = 0; row < 40; row++)
            for (int64_t x = 0; x < 33; x++) {
                int sees = row >= 20 && (row <= 23 || t == 2);
                if (isnan(tensors_get(&a, TENSOR_O, 0, row, 0, x)) != sees) fail_msg("row %lld", (long long)row);
            }
        if (t == 1) {
            serve(&a, TP_BACKWARD, 0xFF);
            for (int64_t row = 0; row < 40; row++)
                if (isnan(tensors_get(&g.held, TENSOR_Q, 0, row, 0, 0)) != (row >= 20 && row <= 23))
                    fail_msg("d_q %lld", (long long)row);
            for (int64_t key = 0; key < 40; key++) /* rows 20..23 are NaN, and see keys 17..23 */
                if (isnan(tensors_get(&g.held, TENSOR_V, 0, key, 0, 0)) != (key >= 17 && key <= 23))
                    fail_msg("d_v %lld", (long long)key);
            gradients_destroy(&g);
        }
        tensors_destroy(&a);
    }
}

/* A NaN in d_o or in q of a row reaches that row and the keys that it sees, and no other key of their tile. */
static void nan_rows_reach_the_keys_that_they_see(void **state) {
    (void)state;
    enum { OF_D_O = 10, OF_Q = 30 };
    struct tensors a;
    struct gradients g;
    tp_lengths lengths;
    filled(&a, "backward h2/1 q40 k40 d33 f32 window=3,0", &lengths);
    assert_int_equal(gradients_create(&g, &a, &lengths, 7), 0);
    tensors_set(&a, TENSOR_Q, 0, OF_Q, 0, 0, NAN);
    tensors_set(&g.held, TENSOR_O, 0, OF_D_O, 0, 0, NAN);
    serve(&a, TP_FORWARD, 0xFF);
    serve(&a, TP_BACKWARD, 0xFF);
    for (int64_t i = 0; i < 40; i++)
        for (int64_t x = 0; x < 33; x++) {
            int by_d_o = i <= OF_D_O && i >= OF_D_O - 3, by_q = i <= OF_Q && i >= OF_Q - 3; /* as a key */
            if (isnan(tensors_get(&g.held, TENSOR_Q, 0, i, 0, x)) != (i == OF_D_O || i == OF_Q) ||
                isnan(tensors_get(&g.held, TENSOR_Q, 0, i, 1, x)))
                fail_msg("d_q %lld", (long long)i);
            if (isnan(tensors_get(&g.held, TENSOR_K, 0, i, 0, x)) != (by_d_o || by_q)) fail_msg("d_k %lld", (long long)i);
            if (isnan(tensors_get(&g.held, TENSOR_V, 0, i, 0, x)) != ((by_d_o && x == 0) || by_q))
                fail_msg("d_v %lld", (long long)i);
        }
    gradients_destroy(&g);
    tensors_destroy(&a);
}

/* A row whose only key has a score of -inf: as one that sees nothing. */
static void a_score_of_minus_infinity(void **state) {
    (void)state;
    struct tensors a;
    tp_lengths lengths;
    filled(&a, "h2/1 q40 k40 d33 f32 window=0,0", &lengths);
    tensors_set(&a, TENSOR_K, 0, 30, 0, 0, INFINITY);
    for (int64_t head = 0; head < 2; head++) tensors_set(&a, TENSOR_Q, 0, 30, head, 0, -1);
    serve(&a, TP_FORWARD, 0xFF);
    for (int64_t row = 0; row < 40; row++)
        for (int64_t head = 0; head < 2; head++) {
            float o = tensors_get(&a, TENSOR_O, 0, row, head, 1), v = tensors_get(&a, TENSOR_V, 0, row, 0, 1);
            float lse = tensors_get(&a, TENSOR_LSE, 0, row, head, 0);
            if (row == 30 ? o != 0 || lse != -INFINITY : o != v || !isfinite(lse)) fail_msg("row %lld", (long long)row);
        }
    tensors_destroy(&a);
}

/* The last rows of a call, alone: other tiles, other first keys of a tile, the same bits. */
static void rows_do_not_know_their_tile(void **state) {
    (void)state;
    static const char *const texts[] = {"q40 k130 d33 f32 window=70,0 invariant", "q20 k130 d33 f32 window=70,0 invariant"};
    struct tensors a[2];
    tp_lengths lengths;
    for (int i = 0; i < 2; i++) {
        filled(&a[i], texts[i], &lengths);
        for (int64_t row = 0; i == 1 && row < 20; row++)
            memcpy(tensors_at(&a[1], TENSOR_Q, 0, row, 0, 0), tensors_at(&a[0], TENSOR_Q, 0, row + 20, 0, 0), 33 * sizeof(float));
        serve(&a[i], TP_FORWARD, 0xFF);
    }
    for (int64_t row = 0; row < 20; row++) {
        assert_memory_equal(tensors_at(&a[1], TENSOR_O, 0, row, 0, 0), tensors_at(&a[0], TENSOR_O, 0, row + 20, 0, 0),
                            33 * sizeof(float));
        assert_memory_equal(tensors_at(&a[1], TENSOR_LSE, 0, row, 0, 0), tensors_at(&a[0], TENSOR_LSE, 0, row + 20, 0, 0),
                            sizeof(float));
    }
    tensors_destroy(&a[0]);
    tensors_destroy(&a[1]);
}

/* What oclgrind can look at in seconds. */
static void small(void **state) {
    (void)state;
    ALL("h2/1 q5 k40 d32 f32 causal alibi sinks invariant", "h2/1 q9 k33 d33/40 f32 window=9,0", "h2/1 q1 k520 d32 f32 paged=16",
        "backward h2/1 q9 k34 d33/40 f32 causal alibi sinks");
}

/* Few specialisations, many calls: a planted bug in any line is met here. */
static void brief(void **state) {
    (void)state;
    ALL("h2/1 q33 k65 d33 f32 causal", "h2/1 q33 k65 d33 f32 window=1,0", "b2 h4/2 q40 k70 d33 f32 window=9,3 sinks",
        "h2/1 q70 k40 d33 f32 causal chunk=9 alibi", "h2/1 q40 k50 d33 f32 softcap=5 top-left causal",
        "b3 h4/2 seqs=1x40/70,1x33/33,1x1/50 d33 f32 packed causal", "b2 h4/2 seqs=1x40/70,1x20/20 d33 f32 padded causal",
        "b2 h2/1 q40 k70 d33 f32 paged=7 window=20,0", "h2/1 q1 k513 d33 f32", "h2/1 q1 k1024 d33 f32 window=30,0",
        "b2 h4/2 seqs=1x2/1300,1x4/7 d33 f32 packed-q paged=16 causal sinks", "h2/1 q40 k50 d33 bf16 causal",
        "h2/1 q40 k50 d33 f32 alibi", "h2/1 q60 k20 d33 f32 chunk=16"); /* keys behind the row; rows before the first key */
    static const struct tensors_style wide = {.lse = 1, .index64 = 1, .ragged = 1};
    rig_check_right(&r, "b2 h4/4 q40 k40 d33 f32 causal packed", &wide, RIG_ON_DEVICE);
    ALL("backward h2/1 q33 k40 d33 f32 causal softcap=5 alibi sinks", "backward b2 h4/2 q70 k40 d33 f32 window=9,0 scale=0.3",
        "backward b3 h4/2 seqs=1x40/70,1x33/33,1x0/5 d33 f32 packed causal alibi sinks",
        "backward h3/1 q11 k33 d33 f32"); /* 33 rows, one behind a tile */
}

int main(int count, char **words) {
    const struct CMUnitTest shorter[] = {cmocka_unit_test(brief), cmocka_unit_test(slopes_that_sequences_share),
                                         cmocka_unit_test(nan_where_no_row_looks),
                                         cmocka_unit_test(nan_rows_reach_the_keys_that_they_see),
                                         cmocka_unit_test(a_score_of_minus_infinity),
                                         cmocka_unit_test(rows_do_not_know_their_tile)};
    const struct CMUnitTest few[] = {cmocka_unit_test(small)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_around_tiles),
        cmocka_unit_test(head_dims),
        cmocka_unit_test(dtypes),
        cmocka_unit_test(masks),
        cmocka_unit_test(scores),
        cmocka_unit_test(layouts),
        cmocka_unit_test(split_kv),
        cmocka_unit_test(gradients),
        cmocka_unit_test(slopes_that_sequences_share),
        cmocka_unit_test(rows_do_not_know_their_tile),
        cmocka_unit_test(a_score_of_minus_infinity),
        cmocka_unit_test(same_bits),
        cmocka_unit_test(nan_where_no_row_looks),
        cmocka_unit_test(nan_rows_reach_the_keys_that_they_see),
    };
    if (!rig_has_device()) return 77;
    if (count > 1 && !strcmp(words[1], "brief")) return cmocka_run_group_tests(shorter, opens, closes);
    if (count > 1 && !strcmp(words[1], "small")) return cmocka_run_group_tests(few, opens, closes);
    return cmocka_run_group_tests(tests, opens, closes);
}
