/* SPDX-License-Identifier: Apache-2.0 */
/* Two runs that must agree: bit for bit where the contract says so, else within both bounds. */
#include "check/check.h"

#include <math.h>

enum { ALL_ROWS = 1 << 20 };

static void copy_inputs(struct tensors *to, int64_t to_seq, const struct tensors *from,
                        int64_t from_seq, int64_t rows, int64_t keys) {
    check_copy(to, to_seq, from, from_seq, TENSOR_Q, rows);
    check_copy(to, to_seq, from, from_seq, TENSOR_K, keys);
    check_copy(to, to_seq, from, from_seq, TENSOR_V, keys);
}

/* A plain single sequence of these lengths with the case's other properties. */
static int make_single(struct check_env *env, struct tensors *tensors, int64_t rows, int64_t keys,
                       int masked) {
    tp_problem problem = env->test->problem;
    problem.batch = 1;
    problem.q_len = rows;
    problem.kv_len = keys;
    problem.q_layout = problem.kv_layout = TP_BATCH;
    problem.page_size = 0;
    if (!masked) problem.mask_nodes = 0;
    return check_make(env, tensors, &problem, NULL, &env->test->style);
}

/* The first and third sequence hold the same data: equal to each other, and to a run alone. */
static int duplicate(struct check_env *env) {
    struct tensors batch, alone = {0};
    int failed = check_make_own(env, &batch);
    if (!failed) {
        copy_inputs(&batch, 2, &batch, 0, batch.q_lens[0], batch.kv_lens[0]);
        failed = check_attend(env, &batch) ||
                 make_single(env, &alone, batch.q_lens[0], batch.kv_lens[0], 1);
    }
    if (!failed) {
        copy_inputs(&alone, 0, &batch, 0, batch.q_lens[0], batch.kv_lens[0]);
        failed = check_attend(env, &alone);
    }
    for (int64_t h = 0; !failed && h < batch.problem.q_heads; h++)
        for (int64_t r = 0; !failed && r < batch.q_lens[0]; r++) {
            tp_row first = {0, h, r}, third = {2, h, r};
            failed =
                check_same_row(env, "a duplicate in the batch", &batch, first, &batch, third) ||
                check_same_row(env, "the same sequence alone", &batch, first, &alone, first);
        }
    tensors_destroy(&alone);
    tensors_destroy(&batch);
    return failed;
}

/* Rows and keys are appended; the rows before keep their bits. */
static int append(struct check_env *env) {
    static const int64_t more[] = {1, 17, 300};
    struct tensors before, after = {0};
    int failed = check_make_own(env, &before) || check_attend(env, &before);
    for (int i = 0; !failed && i < 3; i++) {
        int64_t rows = before.q_lens[0], keys = before.kv_lens[0];
        failed = make_single(env, &after, rows + more[i], keys + more[i], 1);
        if (!failed) {
            copy_inputs(&after, 0, &before, 0, rows, keys);
            failed = check_attend(env, &after) ||
                     check_same_rows(env, "after appending keys", &before, &after);
        }
        tensors_destroy(&after);
    }
    tensors_destroy(&before);
    return failed;
}

/* Row i of causal attention is full attention of that row on keys 0..i. */
static int prefix(struct check_env *env) {
    struct tensors whole, one = {0};
    int failed = check_make_own(env, &whole) || check_attend(env, &whole);
    int64_t rows = failed ? 0 : whole.q_lens[0],
            block = tp_block_keys(env->test->problem.head_dim_qk);
    int64_t shift = failed ? 0 : whole.kv_lens[0] - rows;
    const int64_t places[] = {0, 1, 14, 15, 16, block - 1, block, rows / 2, rows - 1};
    for (size_t p = 0; !failed && p < sizeof places / sizeof *places; p++) {
        int64_t row = places[p];
        if (row >= rows) continue;
        failed = make_single(env, &one, 1, row + shift + 1, 0);
        if (!failed) {
            copy_inputs(&one, 0, &whole, 0, 0, row + shift + 1);
            for (int64_t h = 0; h < whole.problem.q_heads; h++)
                for (int64_t x = 0; x < whole.problem.head_dim_qk; x++)
                    tensors_set(&one, TENSOR_Q, 0, 0, h, x,
                                tensors_get(&whole, TENSOR_Q, 0, row, h, x));
            failed = check_attend(env, &one);
        }
        for (int64_t h = 0; !failed && h < whole.problem.q_heads; h++)
            failed = check_same_row(env, "full attention on the prefix", &whole,
                                    (tp_row){0, h, row}, &one, (tp_row){0, h, 0});
        tensors_destroy(&one);
    }
    tensors_destroy(&whole);
    return failed;
}

/* |a - b| of every output within both bounds; lse of b lies shift above that of a. */
static int within_bounds(struct check_env *env, const char *what, const struct tensors *a,
                         const struct tensors *b, double shift) {
    struct oracle of_a, of_b = {0};
    tp_error error = TP_ERROR_INIT;
    int failed = 0, by = env->ran;
    if (oracle_create(&of_a, a, ALL_ROWS, env->seed, &error) != TP_OK ||
        oracle_create(&of_b, b, ALL_ROWS, env->seed, &error) != TP_OK)
        failed = check_fail(env, "the reference refused: %s", error.text);
    for (int64_t i = 0; !failed && i < of_a.count; i++) {
        const tp_row *at = &of_a.rows[i];
        for (int64_t x = -1; !failed && x < of_a.dim; x++) {
            enum tensor_id id = x < 0 ? TENSOR_LSE : TENSOR_O;
            double left = tensors_get(a, id, at->seq, at->row, at->head, x < 0 ? 0 : x);
            double right = tensors_get(b, id, at->seq, at->row, at->head, x < 0 ? 0 : x);
            double allowed =
                x < 0 ? of_a.lse_bound[by][i] + of_b.lse_bound[by][i] : of_a.bound[by][i] + of_b.bound[by][i];
            if (x < 0) right -= shift;
            if (!(fabs(left - right) <= allowed))
                failed = check_fail(
                    env, "%s: %s of head %lld row %lld: got %.9g and %.9g, allowed %.3g apart",
                    what, x < 0 ? "lse" : "o", (long long)at->head, (long long)at->row, left, right,
                    allowed);
        }
    }
    oracle_destroy(&of_a);
    oracle_destroy(&of_b);
    return failed;
}

static int permute(struct check_env *env) {
    struct tensors forward, backward = {0};
    int failed = check_make_own(env, &forward) || check_make_own(env, &backward);
    for (int id = TENSOR_K; !failed && id <= TENSOR_V; id++)
        for (int64_t j = 0; j < forward.kv_lens[0]; j++)
            for (int64_t h = 0; h < forward.problem.kv_heads; h++)
                for (int64_t x = 0; x < tensors_dim(&forward, (enum tensor_id)id); x++)
                    tensors_set(&backward, (enum tensor_id)id, 0, j, h, x,
                                tensors_get(&forward, (enum tensor_id)id, 0,
                                            forward.kv_lens[0] - 1 - j, h, x));
    if (!failed)
        failed = check_attend(env, &forward) || check_attend(env, &backward) ||
                 within_bounds(env, "keys in reverse order", &forward, &backward, 0);
    tensors_destroy(&backward);
    tensors_destroy(&forward);
    return failed;
}

/* The last column of k is 1, so that q's last column adds a constant to all logits of a row. */
static int constant(struct check_env *env) {
    static const float steps[] = {64, -64, 8192, -8192};
    struct tensors plain, moved = {0};
    int failed = check_make_own(env, &plain) || check_make_own(env, &moved);
    int64_t last = env->test->problem.head_dim_qk - 1;
    for (int i = 0; !failed && i < 4; i++) {
        for (int64_t h = 0; h < plain.problem.kv_heads; h++)
            for (int64_t j = 0; j < plain.kv_lens[0]; j++) {
                tensors_set(&plain, TENSOR_K, 0, j, h, last, 1);
                tensors_set(&moved, TENSOR_K, 0, j, h, last, 1);
            }
        for (int64_t h = 0; h < plain.problem.q_heads; h++)
            for (int64_t r = 0; r < plain.q_lens[0]; r++) {
                tensors_set(&plain, TENSOR_Q, 0, r, h, last, 0);
                tensors_set(&moved, TENSOR_Q, 0, r, h, last, steps[i]);
            }
        failed = check_attend(env, &plain) || check_attend(env, &moved) ||
                 within_bounds(env, "a constant on all logits", &plain, &moved,
                               (double)steps[i] * (double)env->test->problem.scale);
    }
    tensors_destroy(&moved);
    tensors_destroy(&plain);
    return failed;
}

/* Values are 1..6 so that no product or output is subnormal: doubling is then exact. */
static int linear(struct check_env *env) {
    struct tensors once, twice = {0};
    int failed = check_make_own(env, &once) || check_make_own(env, &twice);
    for (int64_t j = 0; !failed && j < once.kv_lens[0]; j++)
        for (int64_t h = 0; h < once.problem.kv_heads; h++)
            for (int64_t x = 0; x < once.problem.head_dim_v; x++) {
                float value = 1 + fabsf(tensors_get(&once, TENSOR_V, 0, j, h, x));
                tensors_set(&once, TENSOR_V, 0, j, h, x, value);
                tensors_set(&twice, TENSOR_V, 0, j, h, x,
                            2 * tensors_get(&once, TENSOR_V, 0, j, h, x));
            }
    if (!failed) failed = check_attend(env, &once) || check_attend(env, &twice);
    for (int64_t h = 0; !failed && h < once.problem.q_heads; h++)
        for (int64_t r = 0; !failed && r < once.q_lens[0]; r++)
            for (int64_t x = 0; !failed && x < once.problem.head_dim_v; x++) {
                double half = tensors_get(&once, TENSOR_O, 0, r, h, x);
                double got = tensors_get(&twice, TENSOR_O, 0, r, h, x);
                if (got != 2 * half)
                    failed = check_fail(
                        env,
                        "v doubled: o of head %lld row %lld column %lld: expected %.9g, got %.9g",
                        (long long)h, (long long)r, (long long)x, 2 * half, got);
            }
    tensors_destroy(&twice);
    tensors_destroy(&once);
    return failed;
}

/* Parts of the keys attended alone and merged; the third part is empty. */
static int merge(struct check_env *env) {
    struct tensors whole, part[3] = {{.sequences = 0}, {.sequences = 0}, {.sequences = 0}};
    int failed = check_make_own(env, &whole) || check_attend(env, &whole);
    int64_t rows = whole.q_lens ? whole.q_lens[0] : 0, keys = whole.kv_lens ? whole.kv_lens[0] : 0;
    const int64_t ends[] = {0, keys / 3, keys, keys};
    for (int i = 0; !failed && i < 3; i++) {
        failed = make_single(env, &part[i], rows, ends[i + 1] - ends[i], 0);
        if (failed) break;
        check_copy(&part[i], 0, &whole, 0, TENSOR_Q, rows);
        for (int id = TENSOR_K; id <= TENSOR_V; id++)
            for (int64_t j = ends[i]; j < ends[i + 1]; j++)
                for (int64_t x = 0; x < tensors_dim(&whole, (enum tensor_id)id); x++)
                    tensors_set(&part[i], (enum tensor_id)id, 0, j - ends[i], 0, x,
                                tensors_get(&whole, (enum tensor_id)id, 0, j, 0, x));
        failed = check_attend(env, &part[i]);
    }
    tp_error error = TP_ERROR_INIT;
    const float *o[3], *lse[3];
    for (int i = 0; i < 3; i++) o[i] = part[i].call.o.data, lse[i] = part[i].call.lse.data;
    if (!failed && tp_merge(3, rows * whole.problem.q_heads, whole.problem.head_dim_v, o, lse,
                            part[0].call.o.data, part[0].call.lse.data, &error) != TP_OK)
        failed = check_fail(env, "tp_merge: %s", error.text);
    double largest = failed ? 0 : tensors_max(&whole, TENSOR_V);
    for (int64_t r = 0; !failed && r < rows; r++)
        for (int64_t h = 0; !failed && h < whole.problem.q_heads; h++)
            for (int64_t x = 0; !failed && x < whole.problem.head_dim_v; x++) {
                double expected = tensors_get(&whole, TENSOR_O, 0, r, h, x);
                double got = tensors_get(&part[0], TENSOR_O, 0, r, h, x);
                if (!(fabs(got - expected) <= 64 * 0x1p-23 * largest))
                    failed =
                        check_fail(env, "merged: row %lld column %lld: expected %.9g, got %.9g",
                                   (long long)r, (long long)x, expected, got);
            }
    for (int i = 0; i < 3; i++) tensors_destroy(&part[i]);
    tensors_destroy(&whole);
    return failed;
}

void check_add_identity(struct check_list *list) {
    static const struct tensors_style style = {.lse = 1};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    check_add(list, "hostile", "merge", merge, style, "h4/1 q30 k1000 d40 f32");
    check_add(list, "hostile", "merge", merge, style, "h2/1 q7 k5000 d64 bf16->f32");
    for (int t = 0; t < 3; t++) {
        const char *d = dtypes[t];
        check_add(list, "hostile", "duplicate", duplicate, style,
                  "h4/2 seqs=1x5/300,1x33/900,1x5/300,1x1/40 d40 %s packed causal", d);
        check_add(list, "hostile", "duplicate", duplicate, style,
                  "h3/1 seqs=1x1/4100,1x60/70,1x1/4100 d24 %s padded", d);
        check_add(list, "hostile", "append", append, style, "h2/1 q100 k100 d40 %s causal", d);
        check_add(list, "hostile", "duplicate", duplicate, style,
                  "h4/2 seqs=1x1/1100,1x40/300,1x1/1100,2x3/40 d40 %s packed-q paged=16 causal", d);
        check_add(list, "hostile", "duplicate", duplicate, style,
                  "h4/2 seqs=1x3/70,1x30/80,1x3/70,1x1/1100 d40 %s padded paged=3 causal invariant",
                  d);
        check_add(list, "hostile", "append", append, style, "q3 k4095 d64 %s causal invariant", d);
        check_add(list, "hostile", "append", append, style, "q20 k510 d64 %s causal window=200,0 invariant",
                  d);
        check_add(list, "hostile", "append", append, style, "h3/1 q40 k40 d300 %s causal top-left",
                  d);
        check_add(list, "hostile", "prefix", prefix, style,
                  "h2/1 q300 k300 d130 %s causal invariant", d);
        check_add(list, "hostile", "prefix", prefix, style, "q20 k4110 d64 %s causal invariant", d);
        check_add(list, "hostile", "prefix", prefix, style, "h2/1 q8 k1030 d40 %s causal", d);
        check_add(list, "hostile", "permute", permute, style, "h2/1 q9 k1500 d64 %s", d);
        check_add(list, "hostile", "permute", permute, style, "q3 k9000 d24 %s", d);
        check_add(list, "hostile", "constant", constant, style,
                  "h2/1 q17 k600 d40 %s causal scale=0.125", d);
        check_add(list, "hostile", "linear", linear, style, "h2/1 q33 k700 d40 %s causal", d);
    }
}
