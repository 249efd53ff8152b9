/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients: against the reference's over a grid of their own, and promises that need no reference. */
#include "check/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/mask_words.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct tensors_style plain = {.lse = 1};
static const char *const dtypes[] = {"f32", "bf16", "f16"};
static const char *const masks[] = {"", " causal", " causal top-left"};

int check_gradients(struct check_env *env, struct tensors *tensors, struct gradients *gradients, enum entry entry,
                    int threads, int poison) {
    static const char *const names[] = {"d_q", "d_k", "d_v"};
    tp_choice choice = TP_CHOICE_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_receipt receipt;
    tensors->problem.op = TP_FORWARD;
    if (check_attend_by(env, tensors, ENTRY_SERIAL, threads, 0xFF, &receipt)) return 1;
    tensors->problem.op = TP_BACKWARD;
    tensors->call.gradients = &gradients->call;
    choice.policy = TP_PERMIT;
    choice.kernel = env->kernel->name;
    choice.device = env->device;
    struct attempt attempt = {env->context, &choice, &env->workspace, entry, threads, poison};
    gradients_poison(gradients, check_outputs_poison(env, poison));
    tp_status status = attempt_run(&attempt, tensors, &receipt, &error);
    if (status != TP_OK) return check_fail(env, "expected TP_OK, got %s: %s", tp_status_name(status), error.text);
    if (receipt.scores_written)
        return check_fail(env, "expected no scores written, the receipt says %lld", (long long)receipt.scores_written);
    if (receipt.pairs_visible && (!receipt.kernel || strcmp(receipt.kernel, env->kernel->name)))
        return check_fail(env, "asked for kernel %s, the receipt names %s", env->kernel->name,
                          receipt.kernel ? receipt.kernel : "none");
    for (int id = TENSOR_Q; poison == 0xFF && id <= TENSOR_V; id++)
        if (tensors_one_badly_written(&gradients->held, (enum tensor_id)id, names[id], env->reason,
                                      sizeof env->reason))
            return 1;
    return 0;
}

/* Tensors of the case and gradients for them. */
struct subject {
    struct tensors tensors;
    struct gradients gradients;
};

static int make(struct check_env *env, struct subject *s) {
    const struct check_case *test = env->test;
    *s = (struct subject){0};
    if (check_make(env, &s->tensors, &test->problem, &test->lengths, &test->style)) return 1;
    if (gradients_create(&s->gradients, &s->tensors, &test->lengths, env->seed))
        return check_fail(env, "the gradients could not be allocated");
    return 0;
}

static void drop(struct subject *s) {
    gradients_destroy(&s->gradients);
    tensors_destroy(&s->tensors);
}

static int run(struct check_env *env, struct subject *s) {
    return check_gradients(env, &s->tensors, &s->gradients, ENTRY_SERIAL, 2, 0xFF);
}

/* Which rows of d_q, or keys of d_k and d_v, must have the same bits: those of which none is marked. */
static int same(struct check_env *env, const char *what, const struct subject *a, const struct subject *b,
                const char *row_marked, const char *key_marked) {
    static const char *const names[] = {"d_q", "d_k", "d_v"};
    for (int id = TENSOR_Q; id <= TENSOR_V; id++) {
        const struct tensors *one = &a->gradients.held, *other = &b->gradients.held;
        size_t bytes = (size_t)tensors_dim(one, id) * tp_dtype_bytes(tensors_dtype(one, id));
        const char *marked = id == TENSOR_Q ? row_marked : key_marked;
        for (int64_t s = 0; s < one->sequences; s++)
            for (int64_t t = 0; t < tensors_len(one, id, s); t++)
                for (int64_t h = 0; h < tensors_heads(one, id); h++)
                    if (!(marked && marked[t]) && memcmp(tensors_at(one, id, s, t, h, 0),
                                                         tensors_at(other, id, s, t, h, 0), bytes))
                        return check_fail(env, "%s: %s of seq %lld head %lld %s %lld: expected equal bits", what,
                                          names[id], (long long)s, (long long)h, id == TENSOR_Q ? "row" : "key",
                                          (long long)t);
    }
    const tp_problem *p = &a->tensors.problem;
    if ((p->sinks || p->alibi || p->bias_dtype) && !row_marked &&
        ((p->alibi && memcmp(a->gradients.d_slopes, b->gradients.d_slopes,
                             (size_t)a->gradients.slope_count * sizeof(float))) ||
         (p->sinks && memcmp(a->gradients.d_sinks, b->gradients.d_sinks, (size_t)p->q_heads * sizeof(float)))))
        return check_fail(env, "%s: slopes or sinks: expected equal bits", what);
    return 0;
}

/* Any number of tasks, in turn or on threads; other old memory. */
static int threads(struct check_env *env) {
    static const struct {
        enum entry entry;
        int threads, poison;
    } ways[] = {{ENTRY_SERIAL, 2, 0x00}, {ENTRY_SERIAL, 5, 0x7F}, {ENTRY_CALLER, 2, 0xFF}, {ENTRY_CALLER, 4, 0x00}};
    struct subject one, other;
    int failed = make(env, &one) ||
                 check_gradients(env, &one.tensors, &one.gradients, ENTRY_SERIAL, 1, 0xFF);
    for (size_t i = 0; !failed && i < COUNT(ways); i++) {
        failed = make(env, &other) || check_gradients(env, &other.tensors, &other.gradients, ways[i].entry,
                                                      ways[i].threads, ways[i].poison) ||
                 same(env, "other tasks and old memory", &one, &other, NULL, NULL);
        drop(&other);
    }
    drop(&one);
    return failed;
}

static int sees(const struct tensors *t, int64_t head, int64_t row, int64_t key) {
    return tp_mask_visible(&t->problem, &t->call, 0, head, row, key) == 1 && !check_bias_hides(t, 0, head, row, key);
}

static void set_row(struct tensors *t, enum tensor_id id, int64_t token, float value) {
    for (int64_t h = 0; h < tensors_heads(t, id); h++)
        for (int64_t x = 0; x < tensors_dim(t, id); x++) tensors_set(t, id, 0, token, h, x, value);
}

static int row_is_zero(const struct tensors *t, enum tensor_id id, int64_t token) {
    for (int64_t h = 0; h < tensors_heads(t, id); h++)
        for (int64_t x = 0; x < tensors_dim(t, id); x++)
            if (tensors_get(t, id, 0, token, h, x) != 0) return 0;
    return 1;
}

/* Keys that no row sees hold NaN and infinity, and so do q and d_o of rows that see nothing: their gradients are 0,
   all others keep their bits. */
static int hidden(struct check_env *env) {
    struct subject clean, s = {0};
    int64_t found = 0;
    int failed = make(env, &clean) || make(env, &s) || run(env, &clean);
    for (int keys = 0; !failed && keys < 2; keys++) {
        int64_t count = keys ? s.tensors.kv_lens[0] : s.tensors.q_lens[0];
        int64_t others = keys ? s.tensors.q_lens[0] : s.tensors.kv_lens[0];
        for (int64_t i = 0; i < count; i++) {
            int seen = 0;
            for (int64_t h = 0; !seen && h < s.tensors.problem.q_heads; h++)
                for (int64_t j = 0; !seen && j < others; j++)
                    seen = keys ? sees(&s.tensors, h, j, i) : sees(&s.tensors, h, i, j);
            if (seen) continue;
            found++;
            set_row(&s.tensors, keys ? TENSOR_K : TENSOR_Q, i, NAN);
            set_row(keys ? &s.tensors : &s.gradients.held, keys ? TENSOR_V : TENSOR_O, i, i % 2 ? INFINITY : NAN);
        }
    }
    if (!failed && !found) failed = check_fail(env, "the case hides nothing: it tests nothing");
    if (!failed) failed = run(env, &s) || same(env, "NaN where nobody looks", &clean, &s, NULL, NULL);
    for (int64_t j = 0; !failed && j < s.tensors.kv_lens[0]; j++)
        if (isnan(tensors_get(&s.tensors, TENSOR_K, 0, j, 0, 0)) &&
            !(row_is_zero(&s.gradients.held, TENSOR_K, j) && row_is_zero(&s.gradients.held, TENSOR_V, j)))
            failed = check_fail(env, "key %lld is hidden from all: expected gradients of 0", (long long)j);
    for (int64_t r = 0; !failed && r < s.tensors.q_lens[0]; r++)
        if (isnan(tensors_get(&s.tensors, TENSOR_Q, 0, r, 0, 0)) && !row_is_zero(&s.gradients.held, TENSOR_Q, r))
            failed = check_fail(env, "row %lld sees nothing: expected a gradient of 0", (long long)r);
    drop(&s);
    drop(&clean);
    return failed;
}

/* NaN in a row's q or d_o reaches the row and the keys it sees, and no others. */
static int bad_row(struct check_env *env) {
    struct subject clean, s = {0};
    char rows[512] = {0}, keys[512] = {0};
    int failed = make(env, &clean) || make(env, &s) || run(env, &clean);
    int64_t count = failed ? 0 : s.tensors.q_lens[0];
    for (int64_t i = 0; !failed && i < 2; i++) {
        int64_t row = i ? count - 1 : count / 3;
        struct tensors *in = i ? &s.tensors : &s.gradients.held;
        enum tensor_id id = i ? TENSOR_Q : TENSOR_O;
        float before = tensors_get(in, id, 0, row, 0, 0);
        tensors_set(in, id, 0, row, 0, 0, NAN);
        memset(rows, 0, sizeof rows);
        rows[row] = 1;
        for (int64_t j = 0; j < s.tensors.kv_lens[0]; j++) keys[j] = (char)sees(&s.tensors, 0, row, j);
        failed = run(env, &s) || same(env, "NaN in another row", &clean, &s, rows, keys);
        for (int64_t x = 0; !failed && x < s.tensors.problem.head_dim_qk; x++)
            if (!isnan(tensors_get(&s.gradients.held, TENSOR_Q, 0, row, 0, x)))
                failed = check_fail(env, "d_q of row %lld, which holds NaN: expected NaN", (long long)row);
        for (int64_t j = 0; !failed && j < s.tensors.kv_lens[0]; j++)
            if (keys[j] && !isnan(tensors_get(&s.gradients.held, TENSOR_K, 0, j, 0, 0)))
                failed = check_fail(env, "d_k of key %lld, seen by a row with NaN: expected NaN", (long long)j);
        tensors_set(in, id, 0, row, 0, 0, before);
    }
    drop(&s);
    drop(&clean);
    return failed;
}

/* NaN at random places: what the reference says is NaN is NaN, everything else is as it says. */
static int nan_anywhere(struct check_env *env) {
    struct subject s;
    struct gradients_oracle oracle = {0};
    tp_error error = TP_ERROR_INIT;
    uint64_t draw = env->seed * 0x9E3779B97F4A7C15u;
    int failed = make(env, &s);
    for (int i = 0; !failed && i < 3; i++) {
        draw = (draw ^ (draw >> 29)) * 0xBF58476D1CE4E5B9u + 1;
        enum tensor_id id = (enum tensor_id)(draw >> 60 & 3);
        struct tensors *in = id == TENSOR_O ? &s.gradients.held : &s.tensors;
        int64_t token = (int64_t)((draw >> 33) % (uint64_t)tensors_len(in, id, 0));
        tensors_set(in, id, 0, token, (int64_t)(draw >> 20) % tensors_heads(in, id), 0, NAN);
    }
    if (!failed) failed = run(env, &s);
    if (!failed && gradients_oracle_create(&oracle, &s.tensors, &s.gradients, &error) != TP_OK)
        failed = check_fail(env, "the reference refused: %s", error.text);
    if (!failed) failed = gradients_compare(&oracle, &s.tensors, &s.gradients, env->reason, sizeof env->reason);
    gradients_oracle_destroy(&oracle);
    drop(&s);
    return failed;
}

/* Gradients are linear in d_o and d_lse, and twice a float is exact. */
static int linear(struct check_env *env) {
    static const enum tensor_id inputs[] = {TENSOR_O, TENSOR_LSE}, outputs[] = {TENSOR_Q, TENSOR_K, TENSOR_V};
    struct subject one, two = {0};
    int failed = make(env, &one) || make(env, &two);
    for (int i = 0; !failed && i < 2; i++)
        for (int64_t r = 0; r < two.tensors.q_lens[0]; r++)
            for (int64_t h = 0; h < two.tensors.problem.q_heads; h++)
                for (int64_t x = 0; x < tensors_dim(&two.tensors, inputs[i]); x++)
                    tensors_set(&two.gradients.held, inputs[i], 0, r, h, x,
                                2 * tensors_get(&one.gradients.held, inputs[i], 0, r, h, x));
    if (!failed) failed = run(env, &one) || run(env, &two);
    for (int i = 0; !failed && i < 3; i++)
        for (int64_t t = 0; t < tensors_len(&one.tensors, outputs[i], 0); t++)
            for (int64_t h = 0; h < tensors_heads(&one.tensors, outputs[i]); h++)
                for (int64_t x = 0; x < tensors_dim(&one.tensors, outputs[i]) && !failed; x++) {
                    float once = tensors_get(&one.gradients.held, outputs[i], 0, t, h, x);
                    float twice = tensors_get(&two.gradients.held, outputs[i], 0, t, h, x);
                    if (twice != 2 * once && fabsf(once) > 0x1p-13f) /* f16: above its subnormals */
                        failed = check_fail(env, "twice the d_o: expected %.9g, got %.9g", 2 * (double)once,
                                            (double)twice);
                }
    drop(&one);
    drop(&two);
    return failed;
}

static void add(struct check_list *list, struct tensors_style style, const char *text, const char *dtype,
                const char *mask) {
    check_add(list, "backward", "", NULL, style, "backward %s %s%s%s", text, dtype, *mask == ' ' ? "" : " ", mask);
}

static void add_shapes(struct check_list *list) {
    static const char *const words[] = {"f32", "bf16", "f16", "bf16->f32", "f16->bf16", "f32:bf16:f16->f32"};
    static const char *const dims[] = {"1", "3", "16", "33", "63", "64", "80", "96", "128", "192/128",
                                       "17/65", "65/17", "256", "576"};
    static const int groups[][2] = {{1, 1}, {3, 3}, {4, 2}, {5, 1}, {8, 1}, {14, 2}};
    static const int borders[] = {1, 2, 15, 16, 17, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193};
    char text[128];
    for (size_t i = 0; i < COUNT(words); i++)
        for (size_t m = 0; m < COUNT(masks); m++) add(list, plain, "b2 h4/2 q37 k91 d64/48", words[i], masks[m]);
    for (size_t i = 0; i < COUNT(dims); i++)
        for (size_t t = 0; t < COUNT(dtypes); t++) {
            snprintf(text, sizeof text, "h2/1 q21 k70 d%s", dims[i]);
            add(list, plain, text, dtypes[t], masks[(i + t) % 3]);
        }
    for (size_t i = 0; i < COUNT(groups); i++)
        for (size_t m = 0; m < COUNT(masks); m++) {
            snprintf(text, sizeof text, "h%d/%d q20 k50 d32", groups[i][0], groups[i][1]);
            add(list, plain, text, dtypes[(i + m) % 3], masks[m]);
        }
    for (size_t i = 0; i < COUNT(borders); i++)
        for (int side = 0; side < 2; side++) {
            snprintf(text, sizeof text, "q%d k%d d12", side ? 33 : borders[i], side ? borders[i] : 40);
            add(list, plain, text, dtypes[(i + (size_t)side) % 3], masks[i % 3]);
        }
    add(list, plain, "q9 k4200 d16", "f32", "causal");
    add(list, plain, "q5 k8200 d8", "bf16", "");
    add(list, plain, "h4/1 q3 k60 d27", "f32", "scale=1e-41"); /* q times it is subnormal */
    add(list, plain, "h2/1 q1100 k40 d16", "f32", "");
    add(list, plain, "h2/1 q300 k300 d64", "f32", "causal");
    add(list, plain, "q150 k520 d128", "bf16", "causal");
    for (int zero = 0; zero < 3; zero++) {
        snprintf(text, sizeof text, "b%d h2 q%d k%d d8", zero == 0 ? 0 : 2, zero == 1 ? 0 : 5, zero == 2 ? 0 : 7);
        add(list, plain, text, "f32", "causal");
    }
}

static void add_layouts(struct check_list *list) {
    static const char *const texts[] = {"h4/2 seqs=1x40/90,1x9/9,1x1/130,1x0/5,1x5/0 d24/40 packed",
                                        "h2/2 seqs=1x40/90,1x9/9,1x1/130 d33 padded", "b2 h4/2 q30 k30 d24"};
    for (size_t i = 0; i < COUNT(texts); i++)
        for (int n = 0; n < 5; n++) {
            struct tensors_style style = plain;
            style.form = n == 1 ? FORM_HEADS : n == 2 && i == 2 ? FORM_QKV : FORM_TOKENS;
            style.ragged = n == 3;
            style.slack = n == 4 ? 5 : 0;
            style.index64 = n & 1;
            add(list, style, texts[i], dtypes[(i + (size_t)n) % 3], n % 2 ? "causal" : "");
        }
    static const double gains[] = {0.01, 4, 30, 1000};
    for (size_t i = 0; i < COUNT(gains); i++)
        for (size_t t = 0; t < COUNT(dtypes); t++) {
            struct tensors_style style = plain;
            style.gain = gains[i];
            add(list, style, "h2/1 q70 k90 d40", dtypes[t], masks[t]);
        }
}

/* Some that are joined, then every word of the library's table. 0: no more. */
static int mask_at(size_t index, char text[64]) {
    static const char *const joined[] = {"causal window=9,0 first=6",
                                         "causal prefix=33",
                                         "causal window=7,0",
                                         "causal bits",
                                         "causal documents",
                                         "causal spans",
                                         "mask=bits,causal,or,window:30:4,and",
                                         "causal positions"};
    struct mask_word word;
    if (index >= COUNT(joined) && !mask_word_at((int)(index - COUNT(joined)), &word)) return 0;
    snprintf(text, 64, "%s", index < COUNT(joined) ? joined[index] : word.text);
    return 1;
}

static void add_masks(struct check_list *list) {
    static const char *const scores[] = {"softcap=3", "alibi", "bias=f32", "bias=bf16", "sinks", "qscale=0.4,16,1",
                                         "scale=-0.2", "scale=0", "dropout=0.3",
                                         "qscale=0.3,5,0 softcap=4 alibi bias=f16 sinks dropout=0.1 documents"};
    static const char *const shapes[] = {"h2/1 q70 k70 d40", "b2 h4/2 q33 k100 d64",
                                         "h4/2 seqs=1x40/90,1x9/9,1x3/30 d24/16 packed"};
    char mask[64];
    for (size_t s = 0; s < COUNT(shapes); s++) {
        for (size_t i = 0; mask_at(i, mask); i++) add(list, plain, shapes[s], dtypes[(i + s) % 3], mask);
        for (size_t i = 0; i < COUNT(scores); i++) {
            char causal[96];
            snprintf(causal, sizeof causal, "causal %s", scores[i]);
            add(list, plain, shapes[s], dtypes[(i + s) % 3], scores[i]);
            add(list, plain, shapes[s], dtypes[(i + s + 1) % 3], causal);
        }
    }
    static const char *const pairs[] = {"dropout=0.5", "softcap=2 alibi", "bias=f32", "sinks dropout=0.2"};
    for (size_t i = 0; mask_at(i, mask); i++)
        for (size_t k = 0; k < COUNT(pairs); k++) {
            char both[128];
            snprintf(both, sizeof both, "%s %s", mask, pairs[k]);
            add(list, plain, "h2/1 q40 k60 d24", dtypes[(i + k) % 3], both);
        }
}

void check_add_backward(struct check_list *list) {
    static const char *const hiding[] = {"causal top-left",
                                         "window=5,3 top-left",
                                         "causal",
                                         "documents",
                                         "causal window=5,0 first=2 sinks",
                                         "bits window=5,3 top-left bias=f32",
                                         "chunk=16 causal dropout=0.3"};
    static const struct tensors_style unseeing = {.lse = 1, .empty_ends = 1};
    add_shapes(list);
    add_layouts(list);
    add_masks(list);
    for (int t = 0; t < 3; t++) {
        const char *d = dtypes[t];
        check_add(list, "hostile", "gradient-threads", threads, plain, "backward b2 h4/2 q150 k400 d24 %s causal", d);
        check_add(list, "hostile", "gradient-threads", threads, plain,
                  "backward h4/2 seqs=1x90/200,3x5/20,1x0/3,1x130/130 d16 %s packed causal alibi sinks bias=f32 dropout=0.2", d);
        /* no row sees anything, and slopes have gradients all the same: 0 */
        check_add(list, "hostile", "gradient-threads", threads, unseeing, "backward h2/1 q2 k40 d8 %s alibi bias=f32", d);
        /* more heads than a tile has rows: what is looked at once for all of them has room for one */
        check_add(list, "hostile", "gradient-threads", threads, plain, "backward h512/64 q7 k7 d1 %s alibi", d);
        for (size_t i = 0; i < COUNT(hiding); i++)
            check_add(list, "hostile", "gradient-hidden", hidden, plain, "backward h2/1 q%d k%d d24 %s %s",
                      i == 2 ? 150 : 60, i == 2 ? 60 : 150, d, hiding[i]);
        check_add(list, "hostile", "gradient-bad-row", bad_row, plain, "backward h2/1 q60 k150 d24 %s causal", d);
        check_add(list, "hostile", "gradient-bad-row", bad_row, plain, "backward h2/1 q90 k90 d24 %s window=9,4", d);
        check_add(list, "hostile", "gradient-bad-row", bad_row, plain, "backward h2/1 q90 k90 d24 %s bits dropout=0.4", d);
        check_add(list, "hostile", "gradient-nan", nan_anywhere, plain,
                  "backward h2/1 q70 k150 d260/24 %s causal documents", d);
        check_add(list, "hostile", "gradient-nan", nan_anywhere, plain,
                  "backward h2/1 q60 k90 d24 %s causal dropout=0.8 sinks", d);
        check_add(list, "hostile", "gradient-nan", nan_anywhere, plain,
                  "backward h2/1 q60 k40 d24 %s bits bias=f32 sinks", d);
        check_add(list, "hostile", "gradient-linear", linear, plain, "backward h4/2 q60 k150 d40 %s causal softcap=4", d);
    }
}
