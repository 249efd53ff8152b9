/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients by the definition: naive loops in double, from q, k, v and d_o alone. */
#include "support/back.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct truth {
    const back *b;
    double *dq, *dk, *dv;             /* of one KV head of one sequence */
    double *bias, *slopes, *sinks;    /* laid out as the gradients are; of all sequences */
} truth;

static int64_t position(const tp_tensors *t, const void *array, int64_t i) {
    return t->index_type == TP_I64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

static int64_t q_pos(const back *b, int64_t s, int64_t row) {
    const tp_problem *p = &b->problem;
    const tp_tensors *t = &b->c->tensors;
    int64_t start = p->q_layout == TP_PACKED ? b->c->q_starts[s] : s * t->q_len;
    if (p->positions) return position(t, t->q_positions, start + row);
    return row + (p->align == TP_TOP_LEFT ? 0 : b->c->kv_lens[s] - b->c->q_lens[s]);
}

static int64_t k_pos(const back *b, int64_t s, int64_t key) {
    const tp_tensors *t = &b->c->tensors;
    int64_t start = b->problem.kv_layout == TP_PACKED ? b->c->kv_starts[s] : s * t->kv_len;
    return b->problem.positions ? position(t, t->k_positions, start + key) : key;
}

/* One row: scores, probabilities, and what it adds to every gradient. */
static void add_row(truth *w, int64_t s, int64_t head, int64_t row, double *score, double *bend) {
    const back *b = w->b;
    const tp_problem *p = &b->problem;
    const tp_tensors *t = &b->c->tensors;
    int64_t keys = b->c->kv_lens[s], d = p->head_dim_qk, dv = p->head_dim_v, group = p->q_heads / p->kv_heads;
    int64_t kv = head / group, part = head % group;
    double scale = p->scale_set ? (double)p->scale : (double)(float)(1 / sqrt((double)d)), own = 1, sum = 0;
    if (p->qscale_length > 0) {
        int64_t at = q_pos(b, s, row) + p->qscale_offset, steps = at > 0 ? at / p->qscale_length : 0;
        own = 1 + (double)p->qscale_beta * log1p((double)steps);
    }
    double sink = p->sinks ? (double)t->sinks[head] : -INFINITY, most = sink;
    double slope = p->alibi ? (double)t->alibi_slopes[s * t->alibi_stride + head] : 0;
    for (int64_t j = 0; j < keys; j++) {
        score[j] = -INFINITY;
        if (!tp_mask_visible(&b->c->problem, t, s, head, row, j)) continue;
        double dot = 0;
        for (int64_t x = 0; x < d; x++)
            dot += (double)call_get(b->c, CALL_Q, s, row, head, x) * (double)call_get(b->c, CALL_K, s, j, kv, x);
        dot *= scale * own;
        bend[j] = 1;
        if (p->softcap > 0) {
            double th = tanh(dot / (double)p->softcap);
            dot = (double)p->softcap * th;
            bend[j] = 1 - th * th;
        }
        if (p->alibi) dot -= slope * fabs((double)(q_pos(b, s, row) - k_pos(b, s, j)));
        if (p->bias_dtype) {
            const int64_t *st = t->bias_stride;
            int64_t at = s * st[0] + head * st[1] + row * st[2] + j * st[3];
            dot += (double)tp_to_float((tp_dtype)p->bias_dtype,
                                       (const char *)t->bias + at * (int64_t)tp_dtype_bytes((tp_dtype)p->bias_dtype));
        }
        score[j] = dot;
        most = fmax(most, dot);
    }
    if (most == -INFINITY) return;
    for (int64_t j = 0; j < keys; j++) sum += exp(score[j] - most);
    sum += exp(sink - most);
    double delta = b->gradients.d_lse.data ? -(double)back_get(b, BACK_DLSE, s, row, head, 0) : 0;
    for (int64_t j = 0; j < keys; j++) {
        double dp = 0;
        for (int64_t x = 0; x < dv && score[j] != -INFINITY; x++)
            dp += (double)back_get(b, BACK_DO, s, row, head, x) * (double)call_get(b->c, CALL_V, s, j, kv, x);
        delta += exp(score[j] - most) / sum * dp;
    }
    if (p->sinks) w->sinks[head] -= exp(sink - most) / sum * delta;
    for (int64_t j = 0; j < keys; j++) {
        if (score[j] == -INFINITY) continue;
        double prob = exp(score[j] - most) / sum, dp = 0;
        for (int64_t x = 0; x < dv; x++) {
            double d_o = (double)back_get(b, BACK_DO, s, row, head, x);
            dp += d_o * (double)call_get(b->c, CALL_V, s, j, kv, x);
            w->dv[j * dv + x] += prob * d_o;
        }
        double ds = prob * (dp - delta);
        if (p->alibi)
            w->slopes[s * b->gradients.d_alibi_stride + head] -=
                ds * fabs((double)(q_pos(b, s, row) - k_pos(b, s, j)));
        const int64_t *st = b->gradients.d_bias_stride;
        if (p->bias_dtype) w->bias[s * st[0] + head * st[1] + row * st[2] + j * st[3]] += ds;
        ds *= bend[j] * own * scale;
        for (int64_t x = 0; x < d; x++) {
            w->dq[(row * group + part) * d + x] += ds * (double)call_get(b->c, CALL_K, s, j, kv, x);
            w->dk[j * d + x] += ds * (double)call_get(b->c, CALL_Q, s, row, head, x);
        }
    }
}

/* Of the largest magnitude among the tensor's gradients. */
static double tolerance(int32_t dtype, const tp_problem *p) {
    double own = dtype == TP_F32 ? 4e-6 : dtype == TP_F16 ? 0x1p-10 : 0x1p-7;
    double of_o = p->o_dtype == TP_F32 ? 4e-6 : p->o_dtype == TP_F16 ? 0x1p-8 : 0x1p-5; /* delta is of rounded o */
    return (own > of_o ? own : of_o) * 2;
}

static void compare(const double *want, const float *got, int64_t count, double relative, const char *what,
                    const char *name) {
    double most = 0;
    for (int64_t i = 0; i < count; i++) most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < count; i++) {
        double error = fabs((double)got[i] - want[i]);
        if (!(error <= relative * (most + 0.1)))
            fail_msg("%s: %s[%lld] is %g instead of %g (largest %g)", what, name, (long long)i, (double)got[i],
                     want[i], most);
    }
}

static void compare_head(const truth *w, int64_t s, int64_t kv, const char *what) {
    const back *b = w->b;
    const tp_problem *p = &b->problem;
    int64_t group = p->q_heads / p->kv_heads;
    const struct {
        back_tensor which;
        const char *name;
        const double *want;
        int64_t tokens, heads, first, dim;
        int32_t dtype;
    } all[] = {
        {BACK_DQ, "d_q", w->dq, b->c->q_lens[s], group, kv * group, p->head_dim_qk, p->q_dtype},
        {BACK_DK, "d_k", w->dk, b->c->kv_lens[s], 1, kv, p->head_dim_qk, p->k_dtype},
        {BACK_DV, "d_v", w->dv, b->c->kv_lens[s], 1, kv, p->head_dim_v, p->v_dtype},
    };
    for (int i = 0; i < COUNT(all); i++) {
        if (back_tensor_of((back *)(uintptr_t)b, all[i].which)->data == NULL) continue;
        int64_t count = all[i].tokens * all[i].heads * all[i].dim;
        float *got = malloc((size_t)count * sizeof(float) + 1);
        for (int64_t at = 0; at < count; at++)
            got[at] = back_get(b, all[i].which, s, at / all[i].dim / all[i].heads,
                               all[i].first + at / all[i].dim % all[i].heads, at % all[i].dim);
        compare(all[i].want, got, count, tolerance(all[i].dtype, p), what, all[i].name);
        free(got);
    }
}

void back_check(const back *b, const char *what) {
    const tp_problem *p = &b->problem;
    truth w = {.b = b};
    int64_t group = p->q_heads / p->kv_heads;
    w.bias = calloc(b->bias_count + 1, sizeof(double));
    w.slopes = calloc(b->slope_count + 1, sizeof(double));
    w.sinks = calloc((size_t)p->q_heads, sizeof(double));
    for (int64_t s = 0; s < b->c->tensors.batch; s++) {
        int64_t rows = b->c->q_lens[s], keys = b->c->kv_lens[s];
        double *score = calloc((size_t)keys * 2 + 1, sizeof(double));
        for (int64_t kv = 0; kv < p->kv_heads; kv++) {
            w.dq = calloc((size_t)(rows * group * p->head_dim_qk) + 1, sizeof(double));
            w.dk = calloc((size_t)(keys * p->head_dim_qk) + 1, sizeof(double));
            w.dv = calloc((size_t)(keys * p->head_dim_v) + 1, sizeof(double));
            for (int64_t r = 0; r < rows * group; r++)
                add_row(&w, s, kv * group + r % group, r / group, score, score + keys);
            compare_head(&w, s, kv, what);
            free(w.dq);
            free(w.dk);
            free(w.dv);
        }
        free(score);
    }
    double tol = 2 * tolerance(TP_F32, p);
    if (b->d_bias) {
        float *used = calloc(b->bias_count + 1, sizeof(float)); /* rows and keys that nobody has stay poison */
        const int64_t *st = b->gradients.d_bias_stride;
        for (int64_t s = 0; s < b->c->tensors.batch; s++)
            for (int64_t h = 0; h < p->q_heads; h++)
                for (int64_t r = 0; r < b->c->q_lens[s]; r++)
                    for (int64_t j = 0; j < b->c->kv_lens[s]; j++) {
                        int64_t at = s * st[0] + h * st[1] + r * st[2] + j * st[3];
                        used[at] = b->d_bias[at];
                    }
        compare(w.bias, used, (int64_t)b->bias_count, tol, what, "d_bias");
        free(used);
    }
    if (b->d_slopes) compare(w.slopes, b->d_slopes, (int64_t)b->slope_count, 4 * tol, what, "d_alibi_slopes");
    if (b->d_sinks) compare(w.sinks, b->d_sinks, p->q_heads, 4 * tol, what, "d_sinks");
    free(w.bias);
    free(w.slopes);
    free(w.sinks);
}
