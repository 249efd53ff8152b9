/* SPDX-License-Identifier: Apache-2.0 */
/* NaN and infinity: where the contract lets them reach, and that they reach nothing else. */
#include "check/check.h"

#include <math.h>

static int sees(const struct tensors *tensors, int64_t head, int64_t row, int64_t key) {
    return tp_mask_visible(&tensors->problem, &tensors->call, 0, head, row, key) == 1 &&
           !check_bias_hides(tensors, 0, head, row, key);
}

static int expect_nan_row(struct check_env *env, const struct tensors *tensors, tp_row at,
                          const char *why) {
    for (int64_t x = 0; x < tensors->problem.head_dim_v; x++)
        if (!isnan(tensors_get(tensors, TENSOR_O, at.seq, at.row, at.head, x)))
            return check_fail(env,
                              "%s: o of head %lld row %lld column %lld: expected NaN, got %.9g",
                              why, (long long)at.head, (long long)at.row, (long long)x,
                              (double)tensors_get(tensors, TENSOR_O, 0, at.row, at.head, x));
    float lse = tensors_get(tensors, TENSOR_LSE, at.seq, at.row, at.head, 0);
    if (isnan(lse)) return 0;
    return check_fail(env, "%s: lse of head %lld row %lld: expected NaN, got %.9g", why,
                      (long long)at.head, (long long)at.row, (double)lse);
}

/* The poisoned column must be non-finite, every other value as in the clean run. */
static int expect_bad_column(struct check_env *env, const struct tensors *clean,
                             const struct tensors *tensors, tp_row at, int64_t column,
                             const char *why) {
    for (int64_t x = 0; x < tensors->problem.head_dim_v; x++) {
        double got = tensors_get(tensors, TENSOR_O, at.seq, at.row, at.head, x);
        double before = tensors_get(clean, TENSOR_O, at.seq, at.row, at.head, x);
        if (x == column ? !isfinite(got) : got == before) continue;
        return check_fail(env, "%s: o of head %lld row %lld column %lld: expected %s%.9g, got %.9g",
                          why, (long long)at.head, (long long)at.row, (long long)x,
                          x == column ? "non-finite instead of " : "", before, got);
    }
    return 0;
}

struct poison {
    const char *name;
    enum tensor_id id;
    float value;
};

/* One key of one KV head is poisoned; rows that may not see it must not change a bit. */
static int poison_key(struct check_env *env, const struct poison *poison, struct tensors *clean,
                      struct tensors *tensors, int64_t key) {
    int64_t kv_head = tensors->problem.kv_heads - 1;
    int64_t group = tensors->problem.q_heads / tensors->problem.kv_heads;
    int64_t column = poison->id == TENSOR_V ? tensors->problem.head_dim_v / 2 : 0;
    float before = tensors_get(tensors, poison->id, 0, key, kv_head, column);
    tensors_set(tensors, poison->id, 0, key, kv_head, column, poison->value);
    int failed = check_attend(env, tensors);
    char why[64];
    snprintf(why, sizeof why, "%s in key %lld", poison->name, (long long)key);
    for (int64_t h = 0; !failed && h < tensors->problem.q_heads; h++)
        for (int64_t r = 0; !failed && r < tensors->q_lens[0]; r++) {
            tp_row at = {0, h, r};
            if (h / group != kv_head || !sees(tensors, h, r, key))
                failed = check_same_row(env, why, clean, at, tensors, at);
            else if (poison->id == TENSOR_K)
                failed = expect_nan_row(env, tensors, at, why);
            else
                failed = expect_bad_column(env, clean, tensors, at, column, why);
        }
    tensors_set(tensors, poison->id, 0, key, kv_head, column, before);
    return failed;
}

static int bad_keys(struct check_env *env) {
    static const struct poison poisons[] = {{"NaN in k", TENSOR_K, NAN},
                                            {"a score of +inf", TENSOR_K, INFINITY},
                                            {"NaN in v", TENSOR_V, NAN},
                                            {"inf in v", TENSOR_V, INFINITY},
                                            {"-inf in v", TENSOR_V, -INFINITY}};
    struct tensors clean, tensors = {0};
    int failed = check_make_own(env, &clean) || check_make_own(env, &tensors);
    for (int64_t r = 0; !failed && r < tensors.q_lens[0]; r++)
        for (int64_t h = 0; h < tensors.problem.q_heads; h++) {
            tensors_set(&tensors, TENSOR_Q, 0, r, h, 0, 1); /* so that an infinite k scores +inf */
            tensors_set(&clean, TENSOR_Q, 0, r, h, 0, 1);
        }
    if (!failed) failed = check_attend(env, &clean);
    int64_t keys = failed ? 0 : tensors.kv_lens[0];
    const int64_t places[] = {0, 7, 16, keys / 2, keys - 2, keys - 1};
    for (size_t p = 0; !failed && p < sizeof poisons / sizeof *poisons; p++)
        for (size_t k = 0; !failed && k < sizeof places / sizeof *places; k++)
            failed = poison_key(env, &poisons[p], &clean, &tensors, places[k]);
    tensors_destroy(&tensors);
    tensors_destroy(&clean);
    return failed;
}

/* NaN in q spoils its own row of its own head, in every column, and nothing else. */
static int bad_query(struct check_env *env) {
    struct tensors clean, tensors = {0};
    int failed = check_make_own(env, &clean) || check_make_own(env, &tensors) || check_attend(env, &clean);
    int64_t rows = failed ? 0 : tensors.q_lens[0], head = tensors.problem.q_heads - 1;
    const int64_t places[] = {0, 5, rows / 2, rows - 1};
    for (size_t p = 0; !failed && p < sizeof places / sizeof *places; p++) {
        int64_t column = tensors.problem.head_dim_qk - 1;
        float before = tensors_get(&tensors, TENSOR_Q, 0, places[p], head, column);
        tensors_set(&tensors, TENSOR_Q, 0, places[p], head, column, NAN);
        failed = check_attend(env, &tensors);
        for (int64_t h = 0; !failed && h <= head; h++)
            for (int64_t r = 0; !failed && r < rows; r++) {
                tp_row at = {0, h, r};
                failed = h == head && r == places[p] ? expect_nan_row(env, &tensors, at, "NaN in q")
                                                     : check_same_row(env, "NaN in another row's q",
                                                                      &clean, at, &tensors, at);
            }
        tensors_set(&tensors, TENSOR_Q, 0, places[p], head, column, before);
    }
    tensors_destroy(&tensors);
    tensors_destroy(&clean);
    return failed;
}

/* Every key that no row sees is NaN in k and infinite in v. */
static int hidden_keys(struct check_env *env) {
    struct tensors clean, tensors = {0};
    int64_t hidden = 0;
    int failed = check_make_own(env, &clean) || check_make_own(env, &tensors) || check_attend(env, &clean);
    for (int64_t j = 0; !failed && j < tensors.kv_lens[0]; j++) {
        int seen = 0;
        for (int64_t r = 0; r < tensors.q_lens[0]; r++)
            for (int64_t h = 0; h < tensors.problem.q_heads; h++) seen |= sees(&tensors, h, r, j);
        for (int64_t h = 0; !seen && h < tensors.problem.kv_heads; h++, hidden++) {
            for (int64_t x = 0; x < tensors.problem.head_dim_qk; x++)
                tensors_set(&tensors, TENSOR_K, 0, j, h, x, NAN);
            for (int64_t x = 0; x < tensors.problem.head_dim_v; x++)
                tensors_set(&tensors, TENSOR_V, 0, j, h, x, j % 2 ? INFINITY : NAN);
        }
    }
    if (!failed && !hidden) failed = check_fail(env, "the case hides no key: it tests nothing");
    if (!failed)
        failed = check_attend(env, &tensors) ||
                 check_same_rows(env, "NaN in keys no row sees", &clean, &tensors);
    tensors_destroy(&tensors);
    tensors_destroy(&clean);
    return failed;
}

/* What lay in workspace, outputs and padding beforehand reaches nothing. */
static int old_memory(struct check_env *env) {
    static const int bytes[] = {0x00, 0x7F, 0xFF};
    struct tensors first = {0}, tensors = {0};
    const struct check_case *test = env->test;
    struct tensors_style style = test->style;
    tp_receipt receipt;
    int failed =
        check_make_own(env, &first) || check_attend_by(env, &first, ENTRY_SERIAL, 2, 0xFF, &receipt);
    style.slack = 5;
    for (int i = 0; !failed && i < 3; i++) {
        failed = check_make(env, &tensors, &test->problem, &test->lengths,
                            i == 2 ? &style : &test->style) ||
                 check_attend_by(env, &tensors, ENTRY_SERIAL, 2, bytes[i], &receipt) ||
                 check_same_rows(env, "other old memory", &first, &tensors);
        tensors_destroy(&tensors);
    }
    tensors_destroy(&first);
    return failed;
}

void check_add_poison(struct check_list *list) {
    static const struct tensors_style style = {.lse = 1};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    static const char *const masks[] = {"causal chunk=16", "causal prefix=30",   "causal documents",
                                        "causal spans",    "spans-and",          "tree",
                                        "bits",            "causal bits",        "callback",
                                        "bias=f32",        "causal bias=bf16",   "bits bias=f16",
                                        "positions causal", "window=9,0 first=3 causal"};
    for (int t = 0; t < 3; t++) {
        const char *d = dtypes[t];
        check_add(list, "hostile", "bad-keys", bad_keys, style, "h4/2 q40 k70 d24 %s", d);
        check_add(list, "hostile", "bad-keys", bad_keys, style, "h2/1 q90 k90 d40 %s causal", d);
        check_add(list, "hostile", "bad-keys", bad_keys, style, "q60 k600 d65 %s causal", d);
        check_add(list, "hostile", "bad-keys", bad_keys, style, "h3/1 q70 k70 d33/18 %s window=9,4",
                  d);
        check_add(list, "hostile", "bad-keys", bad_keys, style,
                  "q5 k4500 d16 %s causal window=300,0", d);
        for (int i = 0; i < (int)(sizeof masks / sizeof *masks); i++)
            check_add(list, "hostile", "bad-keys", bad_keys, style, "h4/2 q70 k%d d%d %s %s",
                      i % 2 ? 70 : 150, i % 3 ? 40 : 260, d, masks[i]);
        check_add(list, "hostile", "hidden-keys", hidden_keys, style,
                  "h2/1 q20 k700 d64 %s window=30,0 first=4 causal", d);
        check_add(list, "hostile", "hidden-keys", hidden_keys, style, "h2/1 q9 k700 d40 %s documents", d);
        check_add(list, "hostile", "hidden-keys", hidden_keys, style, "q9 k5000 d16 %s chunk=512 causal",
                  d);
        check_add(list, "hostile", "bad-query", bad_query, style, "h4/2 q40 k70 d24 %s causal", d);
        check_add(list, "hostile", "bad-query", bad_query, style, "h3/1 q13 k4100 d17 %s", d);
        check_add(list, "hostile", "hidden-keys", hidden_keys, style,
                  "h2/1 q20 k700 d40 %s causal top-left", d);
        check_add(list, "hostile", "hidden-keys", hidden_keys, style, "q20 k700 d64 %s window=30,5",
                  d);
        check_add(list, "hostile", "hidden-keys", hidden_keys, style,
                  "h2/2 q3 k5000 d16 %s causal window=100,0", d);
        check_add(list, "hostile", "bad-keys", bad_keys, style,
                  "h4/2 q3 k1100 d24 %s causal window=900,0 paged=16", d);
        check_add(list, "hostile", "bad-query", bad_query, style, "h2/1 q6 k1030 d17 %s causal", d);
        check_add(list, "hostile", "hidden-keys", hidden_keys, style,
                  "h4/2 q2 k1100 d24 %s causal window=50,0 paged=16", d);
        check_add(list, "hostile", "old-memory", old_memory, style,
                  "h4/2 seqs=1x7/20,1x33/600,1x1/1100 d24 %s packed-q paged=3 causal", d);
        check_add(list, "hostile", "old-memory", old_memory, style,
                  "h4/2 seqs=1x7/20,1x33/600,1x1/4100 d24 %s packed causal", d);
        check_add(list, "hostile", "old-memory", old_memory, style,
                  "h4/2 seqs=1x7/20,1x0/5,1x33/600 d33/65 %s padded", d);
    }
}
