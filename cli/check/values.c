/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile cases whose answer is known by hand. */
#include "check/check.h"

#include <math.h>
#include <string.h>

static void set_all(struct tensors *tensors, enum tensor_id id, float value) {
    for (int64_t s = 0; s < tensors->sequences; s++)
        for (int64_t t = 0; t < tensors_len(tensors, id, s); t++)
            for (int64_t h = 0; h < tensors_heads(tensors, id); h++)
                for (int64_t x = 0; x < tensors_dim(tensors, id); x++)
                    tensors_set(tensors, id, s, t, h, x, value);
}

/* The weights of a row sum to one: a numerator and a row sum that differ would show. */
static int ones(struct check_env *env) {
    struct tensors tensors;
    int failed = check_make_own(env, &tensors);
    if (!failed) set_all(&tensors, TENSOR_V, 1);
    if (!failed) failed = check_attend(env, &tensors) || check_oracle(env, &tensors);
    for (int64_t r = 0; !failed && r < tensors.q_lens[0]; r++) {
        float o = tensors_get(&tensors, TENSOR_O, 0, r, 0, 0);
        if (fabsf(o - 1) > 1e-2f)
            failed = check_fail(env, "row %lld: expected 1, got %.9g", (long long)r, (double)o);
    }
    tensors_destroy(&tensors);
    return failed;
}

/* o of every row must be v of this key, bit for bit (o and v have one dtype here). */
static int expect_key(struct check_env *env, const struct tensors *tensors, int64_t row,
                      int64_t key) {
    int64_t group = tensors->problem.q_heads / tensors->problem.kv_heads;
    size_t unit = tp_dtype_bytes(tensors_dtype(tensors, TENSOR_O));
    for (int64_t h = 0; h < tensors->problem.q_heads; h++)
        for (int64_t x = 0; x < tensors->problem.head_dim_v; x++)
            if (memcmp(tensors_at(tensors, TENSOR_O, 0, row, h, x),
                       tensors_at(tensors, TENSOR_V, 0, key, h / group, x), unit))
                return check_fail(env,
                                  "head %lld row %lld column %lld: expected exactly v of key %lld, "
                                  "%.9g; got %.9g",
                                  (long long)h, (long long)row, (long long)x, (long long)key,
                                  (double)tensors_get(tensors, TENSOR_V, 0, key, h / group, x),
                                  (double)tensors_get(tensors, TENSOR_O, 0, row, h, x));
    return 0;
}

/* One key, and logits of +-102,400: even rows positive, odd ones negative. */
static int one_key(struct check_env *env) {
    struct tensors tensors;
    int failed = check_make_own(env, &tensors);
    if (!failed) {
        set_all(&tensors, TENSOR_K, 40);
        for (int64_t r = 0; r < tensors.q_lens[0]; r++)
            for (int64_t h = 0; h < tensors.problem.q_heads; h++)
                for (int64_t x = 0; x < tensors.problem.head_dim_qk; x++)
                    tensors_set(&tensors, TENSOR_Q, 0, r, h, x, r % 2 ? -40 : 40);
        failed = check_attend(env, &tensors);
    }
    for (int64_t r = 0; !failed && r < tensors.q_lens[0]; r++) {
        double expected = (r % 2 ? -1600.0 : 1600.0) * (double)tensors.problem.head_dim_qk;
        double got = tensors_get(&tensors, TENSOR_LSE, 0, r, 0, 0);
        failed = expect_key(env, &tensors, r, 0);
        if (!failed && !(fabs(got - expected) <= 4 * 0x1p-23 * fabs(expected)))
            failed = check_fail(env, "lse of row %lld: expected %.9g, got %.9g", (long long)r,
                                expected, got);
    }
    tensors_destroy(&tensors);
    return failed;
}

/* Among many keys of logit -102,400 one of +102,400 takes it all, wherever it stands. */
static int peak(struct check_env *env) {
    struct tensors tensors;
    int failed = check_make_own(env, &tensors);
    int64_t keys = failed ? 0 : tensors.kv_lens[0];
    const int64_t places[] = {0, 1, 15, 16, keys / 2, keys - 1};
    if (!failed) set_all(&tensors, TENSOR_Q, 40);
    for (size_t p = 0; !failed && p < sizeof places / sizeof *places; p++) {
        set_all(&tensors, TENSOR_K, -40);
        for (int64_t h = 0; h < tensors.problem.kv_heads; h++)
            for (int64_t x = 0; x < tensors.problem.head_dim_qk; x++)
                tensors_set(&tensors, TENSOR_K, 0, places[p], h, x, 40);
        failed = check_attend(env, &tensors);
        for (int64_t r = 0; !failed && r < tensors.q_lens[0]; r++)
            failed = expect_key(env, &tensors, r, places[p]);
    }
    tensors_destroy(&tensors);
    return failed;
}

/* A window of (0,0) sees the row's own key and nothing else. */
static int own_key(struct check_env *env) {
    struct tensors tensors;
    int failed = check_make_own(env, &tensors) || check_attend(env, &tensors);
    for (int64_t r = 0; !failed && r < tensors.q_lens[0]; r++)
        failed = expect_key(env, &tensors, r, r);
    tensors_destroy(&tensors);
    return failed;
}

static int sees_nothing(const struct tensors *tensors, int64_t seq, int64_t row) {
    for (int64_t j = 0; j < tensors->kv_lens[seq]; j++)
        if (tp_mask_visible(&tensors->problem, &tensors->call, seq, 0, row, j))
            return 0;
    return 1;
}

/* Rows that see no key, whose q is NaN as well: o is 0 and lse -inf, and the others are right. */
static int empty_rows(struct check_env *env) {
    struct tensors tensors;
    int64_t found = 0;
    int failed = check_make_own(env, &tensors);
    for (int64_t s = 0; !failed && s < tensors.sequences; s++)
        for (int64_t r = 0; r < tensors.q_lens[s]; r++)
            for (int64_t h = 0; h < tensors.problem.q_heads && sees_nothing(&tensors, s, r); h++)
                tensors_set(&tensors, TENSOR_Q, s, r, h, 0, NAN);
    if (!failed) failed = check_attend(env, &tensors);
    for (int64_t s = 0; !failed && s < tensors.sequences; s++)
        for (int64_t r = 0; !failed && r < tensors.q_lens[s]; r++) {
            if (!sees_nothing(&tensors, s, r)) continue;
            for (int64_t h = 0; !failed && h < tensors.problem.q_heads; h++, found++) {
                float lse = tensors_get(&tensors, TENSOR_LSE, s, r, h, 0);
                if (lse != -INFINITY)
                    failed = check_fail(env, "lse of seq %lld row %lld: expected -inf, got %.9g",
                                        (long long)s, (long long)r, (double)lse);
                for (int64_t x = 0; !failed && x < tensors.problem.head_dim_v; x++)
                    if (tensors_get(&tensors, TENSOR_O, s, r, h, x) != 0)
                        failed = check_fail(env, "o of seq %lld row %lld: expected 0, got %.9g",
                                            (long long)s, (long long)r,
                                            (double)tensors_get(&tensors, TENSOR_O, s, r, h, x));
            }
        }
    if (!failed && !found) failed = check_fail(env, "the case has no empty row: it tests nothing");
    if (!failed) failed = check_oracle(env, &tensors);
    tensors_destroy(&tensors);
    return failed;
}

void check_add_values(struct check_list *list) {
    static const struct tensors_style style = {.lse = 1};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    for (int t = 0; t < 3; t++) {
        const char *dtype = dtypes[t];
        check_add(list, "hostile", "ones", ones, style, "h2/1 q33 k1100 d64 %s", dtype);
        check_add(list, "hostile", "ones", ones, style, "q70 k70 d128 %s causal", dtype);
        check_add(list, "hostile", "ones", ones, style, "q3 k8200 d16/24 %s causal window=5000,0",
                  dtype);
        check_add(list, "hostile", "one-key", one_key, style, "h4/2 q9 k1 d64 %s scale=1", dtype);
        check_add(list, "hostile", "peak", peak, style, "h4/2 q9 k700 d64 %s scale=1", dtype);
        check_add(list, "hostile", "peak", peak, style, "q2 k4200 d64 %s scale=1", dtype);
        check_add(list, "hostile", "own-key", own_key, style, "h3/1 q600 k600 d40 %s window=0,0",
                  dtype);
        check_add(list, "hostile", "own-key", own_key, style, "q40 k90 d24 %s top-left window=0,0",
                  dtype);
        check_add(list, "hostile", "empty-rows", empty_rows, style, "h2/1 q50 k20 d40 %s causal",
                  dtype);
        check_add(list, "hostile", "empty-rows", empty_rows, style,
                  "q50 k20 d40 %s top-left window=3,2", dtype);
        check_add(list, "hostile", "empty-rows", empty_rows, style, "q5 k0 d33 %s", dtype);
        check_add(list, "hostile", "empty-rows", empty_rows, style,
                  "h4/2 seqs=1x9/0,1x9/40,1x20/3 d16 %s padded causal", dtype);
    }
}
