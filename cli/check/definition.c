/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The definition written down once more, from the manual and not from the library: scale, mask
 * positions, heads and softmax. The library's reference must agree with it, or kernel and
 * reference could share one mistake.
 */
#include "check/check.h"

#include <math.h>
#include <stdlib.h>

#include "harness/mask_words.h"

enum { ALL_ROWS = 1 << 20 };

/* An entry of an array by row or by key. */
static int64_t entry(const struct tensors *t, const void *array, int keys, int64_t seq, int64_t i) {
    int packed = (keys ? t->problem.kv_layout : t->problem.q_layout) == TP_PACKED;
    int64_t at = (packed ? (keys ? t->kv_start : t->q_start)[seq]
                         : seq * (keys ? t->call.kv_len : t->call.q_len)) + i;
    return t->call.index_type == TP_I64 ? ((const int64_t *)array)[at] : ((const int32_t *)array)[at];
}

static int64_t plain_entry(const struct tensors *t, const void *array, int64_t i) {
    return t->call.index_type == TP_I64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

static int64_t aligned(const struct tensors *t, tp_row at) {
    return t->problem.align == TP_TOP_LEFT ? at.row : at.row + t->kv_lens[at.seq] - t->q_lens[at.seq];
}

static int64_t row_position(const struct tensors *t, tp_row at) {
    return t->problem.positions ? entry(t, t->call.q_positions, 0, at.seq, at.row) : aligned(t, at);
}

static int64_t key_position(const struct tensors *t, tp_row at, int64_t key) {
    return t->problem.positions ? entry(t, t->call.k_positions, 1, at.seq, key) : key;
}

static int same_id(const struct tensors *t, const void *q, const void *k, tp_row at, int64_t key) {
    int64_t own = 0, id = -1;
    while (!q && own < t->kv_lens[at.seq] && key_position(t, at, own) != row_position(t, at)) own++;
    if (q)
        id = entry(t, q, 0, at.seq, at.row);
    else if (own < t->kv_lens[at.seq]) /* of the first key at its position */
        id = entry(t, k, 1, at.seq, own);
    return id >= 0 && id == entry(t, k, 1, at.seq, key);
}

static int in_listed_span(const struct tensors *t, tp_row at, int64_t q, int64_t k) {
    int64_t from = plain_entry(t, t->call.span_offsets, at.seq);
    for (; from < plain_entry(t, t->call.span_offsets, at.seq + 1); from++) {
        int64_t start = plain_entry(t, t->call.spans, 2 * from);
        int64_t end = plain_entry(t, t->call.spans, 2 * from + 1);
        if (q >= start && q < end && k >= start && k < end) return 1;
    }
    return 0;
}

static int is_ancestor(const struct tensors *t, tp_row at, int64_t key) {
    int64_t draft = key - (t->kv_lens[at.seq] - t->q_lens[at.seq]);
    for (int64_t row = at.row; row >= 0; row = entry(t, t->call.parents, 0, at.seq, row))
        if (row == draft) return 1;
    return draft < 0;
}

static int64_t floor_divide(int64_t a, int64_t b) { return (int64_t)floor((double)a / (double)b); }

static int allows(const struct tensors *t, const tp_mask_node *node, tp_row at, int64_t key) {
    const tp_tensors *c = &t->call;
    int64_t q = row_position(t, at), k = key_position(t, at, key);
    switch (node->kind) {
    case TP_MASK_CAUSAL: return k <= q;
    case TP_MASK_WINDOW:
        return !(node->a >= 0 && k < q - node->a) && !(node->b >= 0 && k > q + node->b);
    case TP_MASK_CHUNK: return floor_divide(q, node->a) == floor_divide(k, node->a);
    case TP_MASK_PREFIX: return k < (node->a < 0 ? plain_entry(t, c->prefix_lens, at.seq) : node->a);
    case TP_MASK_FIRST: return key < node->a;
    case TP_MASK_DOCUMENTS: return same_id(t, c->q_documents, c->k_documents, at, key);
    case TP_MASK_SPANS:
        return c->k_spans ? same_id(t, c->q_spans, c->k_spans, at, key) : in_listed_span(t, at, q, k);
    case TP_MASK_TREE: return is_ancestor(t, at, key);
    case TP_MASK_BITS:
        return ((const uint8_t *)c->bits)[at.seq * c->bits_stride[0] + at.head * c->bits_stride[1] +
                                          at.row * c->bits_stride[2] + key / 8] >> (key % 8) & 1;
    case TP_MASK_CALLBACK: return c->callback(c->callback_user, at.seq, at.row, key);
    default: return -1; /* not written down here yet */
    }
}

int check_visible(const struct tensors *t, tp_row at, int64_t key) {
    int stack[TP_MAX_MASK_NODES], depth = 0;
    for (int i = 0; i < t->problem.mask_nodes; i++) {
        const tp_mask_node *node = &t->problem.mask[i];
        if (node->kind == TP_MASK_AND || node->kind == TP_MASK_OR) {
            depth--;
            stack[depth - 1] = node->kind == TP_MASK_AND ? stack[depth - 1] && stack[depth]
                                                         : stack[depth - 1] || stack[depth];
        } else {
            int allowed = allows(t, node, at, key);
            if (allowed < 0) return -1;
            stack[depth++] = allowed;
        }
    }
    return depth == 0 || stack[0];
}

static double bias_of(const struct tensors *t, tp_row at, int64_t key) {
    const tp_tensors *c = &t->call;
    tp_dtype dtype = (tp_dtype)t->problem.bias_dtype;
    if (!dtype) return 0;
    int64_t i = at.seq * c->bias_stride[0] + at.head * c->bias_stride[1] + at.row * c->bias_stride[2] +
                key * c->bias_stride[3];
    return tp_to_float(dtype, (const char *)c->bias + i * (int64_t)tp_dtype_bytes(dtype));
}

/* What becomes of scale * q.k, as the manual has it. */
static double change(const struct tensors *t, tp_row at, int64_t key, double s) {
    const tp_problem *p = &t->problem;
    int64_t q = row_position(t, at);
    if (p->qscale_length) {
        double from = fmax((double)(q + p->qscale_offset), 0);
        s *= 1 + (double)p->qscale_beta * log(1 + floor(from / (double)p->qscale_length));
    }
    if (p->softcap > 0) s = (double)p->softcap * tanh(s / (double)p->softcap);
    if (p->alibi)
        s -= (double)t->call.alibi_slopes[at.seq * t->call.alibi_stride + at.head] *
             fabs((double)(q - key_position(t, at, key)));
    return s + bias_of(t, at, key);
}

static double score(const struct tensors *tensors, tp_row at, int64_t key, double scale) {
    int64_t group = tensors->problem.q_heads / tensors->problem.kv_heads;
    double sum = 0;
    for (int64_t x = 0; x < tensors->problem.head_dim_qk; x++)
        sum += (double)tensors_get(tensors, TENSOR_Q, at.seq, at.row, at.head, x) *
               tensors_value(tensors, TENSOR_K, at.seq, key, at.head / group, x);
    return change(tensors, at, key, scale * sum);
}

/* o and the returned lse of one row. */
static double define_row(const struct tensors *tensors, tp_row at, double *o) {
    const tp_problem *problem = &tensors->problem;
    int64_t group = problem->q_heads / problem->kv_heads;
    double scale = problem->scale_set ? (double)problem->scale
                                      : (double)(float)(1 / sqrt((double)problem->head_dim_qk));
    double max = -INFINITY, sum = 0;
    for (int64_t x = 0; x < problem->head_dim_v; x++) o[x] = 0;
    int64_t j;
    for (int64_t i = 0; (j = tensors_key(tensors, at.seq, at.row, i)) >= 0; i++)
        if (check_visible(tensors, at, j))
            max = fmax(max, score(tensors, at, j, scale));
    double sink = problem->sinks ? (double)tensors->call.sinks[at.head] : -INFINITY;
    max = fmax(max, sink);
    if (max == -INFINITY) return -INFINITY;
    sum = exp(sink - max);
    for (int64_t i = 0; (j = tensors_key(tensors, at.seq, at.row, i)) >= 0; i++) {
        if (!check_visible(tensors, at, j)) continue;
        double weight = exp(score(tensors, at, j, scale) - max);
        sum += weight;
        for (int64_t x = 0; x < problem->head_dim_v; x++)
            o[x] += weight * tensors_value(tensors, TENSOR_V, at.seq, j, at.head / group, x);
    }
    for (int64_t x = 0; x < problem->head_dim_v; x++) o[x] /= sum;
    return max + log(sum);
}

static int near(double a, double b) {
    return a == b || fabs(a - b) <= 1e-11 * fmax(1, fabs(a));
}

static int check_row(struct check_env *env, const struct tensors *tensors,
                     const struct oracle *oracle, int64_t i, double *o) {
    tp_row at = oracle->rows[i];
    for (int64_t j = 0; j < tensors->kv_lens[at.seq]; j++) {
        int expected = check_visible(tensors, at, j);
        int got = tp_mask_visible(&tensors->problem, &tensors->call, at.seq, at.head, at.row, j);
        if (expected < 0) return check_fail(env, "a mask of this problem has no definition in cli/check/definition.c");
        if (got != expected)
            return check_fail(env, "tp_mask_visible of row %lld key %lld: expected %d, got %d",
                              (long long)at.row, (long long)j, expected, got);
    }
    double lse = define_row(tensors, at, o);
    if (!near(lse, oracle->lse[i]))
        return check_fail(
            env, "tp_reference lse of seq %lld head %lld row %lld: expected %.15g, got %.15g",
            (long long)at.seq, (long long)at.head, (long long)at.row, lse, oracle->lse[i]);
    for (int64_t x = 0; x < oracle->dim; x++)
        if (!near(o[x], oracle->o[i * oracle->dim + x]))
            return check_fail(
                env, "tp_reference o of seq %lld head %lld row %lld: expected %.15g, got %.15g",
                (long long)at.seq, (long long)at.head, (long long)at.row, o[x],
                oracle->o[i * oracle->dim + x]);
    return 0;
}

static int definition(struct check_env *env) {
    const struct check_case *test = env->test;
    struct tensors tensors;
    struct oracle oracle = {0};
    struct measured_error measured;
    tp_error error = TP_ERROR_INIT;
    double *o = calloc((size_t)test->problem.head_dim_v, sizeof *o);
    int failed = check_make(env, &tensors, &test->problem, &test->lengths, &test->style);
    if (!failed && !o) failed = check_fail(env, "no memory");
    if (!failed && oracle_create(&oracle, &tensors, ALL_ROWS, env->seed, &error) != TP_OK)
        failed = check_fail(env, "the reference refused: %s", error.text);
    for (int64_t i = 0; !failed && i < oracle.count; i++)
        failed = check_row(env, &tensors, &oracle, i, o);
    if (!failed)
        failed = check_attend(env, &tensors) ||
                 oracle_compare(&oracle, &tensors, env->ran, &measured, env->reason, sizeof env->reason);
    oracle_destroy(&oracle);
    tensors_destroy(&tensors);
    free(o);
    return failed;
}

void check_add_definition(struct check_list *list) {
    static const struct tensors_style style = {.lse = 1};
    static const char *const texts[] = {
        "h6/2 q20 k33 d64/16 f32",
        "h6/2 q20 k33 d16/64 bf16 causal",
        "h5/1 q33 k20 d24 f16 causal",
        "h2/2 q20 k33 d24 f32 causal top-left",
        "h4/1 q33 k20 d24 f32 causal top-left window=5,-1",
        "h2/1 q20 k33 d24 bf16->f32 window=4,7",
        "h2/1 q20 k33 d24 f32:bf16:f16->f32 window=-1,3 scale=-0.7",
        "h2/1 q20 k33 d24 f32 top-left window=0,0 scale=2",
        "h4/2 seqs=2x7/20,1x0/3,1x12/5,1x1/40 d16/8 f32 packed causal window=9,2",
        "h4/2 seqs=2x7/20,1x0/3,1x12/5,1x1/40 d16/8 f32 padded causal",
        "h4/2 seqs=2x7/20,1x0/3,1x12/5,1x1/40 d16/8 f32 packed-q paged=3 causal",
        "h4/2 q7 k20 d16/8 f32 latent causal",
        "h4/2 q7 k40 d16/8 bf16 sparse=9",
        "h4/2 seqs=2x7/20,1x0/3,1x12/5,1x1/40 d16/8 f16 padded paged=4 sparse-sorted=12 causal",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_add(list, "hostile", "definition", definition, style, "%s", texts[i]);
    static const char *const words[] = {
        "causal chunk=7", "chunk=5 top-left", "causal prefix=9", "causal prefix", "documents",
        "causal documents", "causal spans", "causal window=3,0 spans", "spans-and causal",
        "window=4,0 first=3 causal", "tree", "tree documents", "bits", "causal bits", "callback",
        "callback causal", "positions causal", "positions window=6,2", "positions causal spans documents",
        "mask=causal,first:3,or,window:4:4,and", "mask=bits,causal,or", "qscale=0.5,4,1", "softcap=3 causal",
        "alibi", "alibi causal positions", "bias=f32", "bias=bf16 causal", "bias=f16 bits", "sinks causal",
        "sinks bits", "qscale=0.3,5,0 softcap=4 alibi bias=f32 sinks causal documents"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        check_add(list, "hostile", "definition", definition, style, "b2 h4/2 q20 k33 d24 f32 %s", words[i]);
        check_add(list, "hostile", "definition", definition, style,
                  "h4/2 seqs=2x7/20,1x12/15,1x1/40 d16/8 bf16->f32 %s %s", i % 2 ? "packed" : "padded",
                  words[i]);
    }
    struct mask_word word; /* every kind of the library's table has its definition here */
    for (int i = 0; mask_word_at(i, &word); i++)
        check_add(list, "hostile", "definition", definition, style, "b2 h4/2 q20 k60 d24 f32 %s%s", word.text,
                  i % 2 ? " positions" : "");
}
