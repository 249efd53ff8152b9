/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients against tp_reference_backward: under its bounds, and at most twice as far off as a naive kernel. */
#include "support/back.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct head_oracle {
    tp_reference_gradients exact, naive;
    double *memory;
} head_oracle;

static void make_oracle(const back *b, int64_t s, int64_t kv, head_oracle *w) {
    const tp_problem *p = &b->problem;
    int64_t group = p->q_heads / p->kv_heads, rows = b->c->q_lens[s] * group, keys = b->c->kv_lens[s];
    size_t dq = (size_t)(rows * p->head_dim_qk), dk = (size_t)(keys * p->head_dim_qk),
           dv = (size_t)(keys * p->head_dim_v), db = (size_t)(rows * keys);
    double *at = w->memory = calloc(2 * (dq + dk + dv + db + 2 * (size_t)group) + (size_t)(rows + 2 * keys) + 1,
                                    sizeof(double));
    tp_reference_gradients *both[] = {&w->exact, &w->naive};
    for (int i = 0; i < 2; i++) {
        *both[i] = (tp_reference_gradients){.struct_size = sizeof *both[i]};
        both[i]->d_q = at;
        both[i]->d_k = at += dq;
        both[i]->d_v = at += dk;
        both[i]->d_bias = at += dv;
        both[i]->d_alibi_slopes = at += db;
        both[i]->d_sinks = at += group;
        at += group;
    }
    w->exact.d_q_bound = at;
    w->exact.d_k_bound = at += rows;
    w->exact.d_v_bound = at + keys;
    for (int i = 0; i < 2; i++) {
        tp_error error = TP_ERROR_INIT;
        if (tp_reference_backward(p, &b->c->tensors, i ? TP_NAIVE : TP_DOUBLE, s, kv, both[i], &error))
            fail_msg("%s", error.text);
    }
}

/* Half a unit in the last place, relative. */
static double half_ulp(int32_t dtype) { return dtype == TP_F32 ? 0x1p-24 : dtype == TP_F16 ? 0x1p-11 : 0x1p-8; }

/* Where a bias near FLT_MAX has made an lse as large, a float lse says nothing of P, and no bound is finite. */
static int huge_lse(const back *b) {
    for (int64_t s = 0; s < b->c->tensors.batch; s++)
        for (int64_t r = 0; r < b->c->q_lens[s]; r++)
            for (int64_t h = 0; h < b->problem.q_heads; h++) {
                float lse = call_get(b->c, CALL_LSE, s, r, h, 0);
                if (isfinite(lse) && fabsf(lse) > 0x1p64f) return 1;
            }
    return 0;
}

static void compare_head(const back *b, int64_t s, int64_t kv, const head_oracle *w, const char *what) {
    const tp_problem *p = &b->problem;
    int64_t group = p->q_heads / p->kv_heads;
    int huge = huge_lse(b);
    const struct {
        back_tensor which;
        const char *name;
        const double *want, *naive, *bound;
        int64_t tokens, heads, first, dim;
        int32_t dtype;
    } all[] = {
        {BACK_DQ, "d_q", w->exact.d_q, w->naive.d_q, w->exact.d_q_bound, b->c->q_lens[s], group, kv * group,
         p->head_dim_qk, p->q_dtype},
        {BACK_DK, "d_k", w->exact.d_k, w->naive.d_k, w->exact.d_k_bound, b->c->kv_lens[s], 1, kv, p->head_dim_qk,
         p->k_dtype},
        {BACK_DV, "d_v", w->exact.d_v, w->naive.d_v, w->exact.d_v_bound, b->c->kv_lens[s], 1, kv, p->head_dim_v,
         p->v_dtype},
    };
    for (int i = 0; i < COUNT(all); i++) {
        if (back_tensor_of((back *)(uintptr_t)b, all[i].which)->data == NULL) continue;
        int64_t count = all[i].tokens * all[i].heads * all[i].dim;
        double worst = 0, worst_naive = 0, max = 0;
        for (int64_t at = 0; at < count; at++) {
            double want = all[i].want[at], bound = all[i].bound[at / all[i].dim];
            double got = (double)back_get(b, all[i].which, s, at / all[i].dim / all[i].heads,
                                          all[i].first + at / all[i].dim % all[i].heads, at % all[i].dim);
            if (isnan(want) ? !isnan(got) : !(fabs(got - want) <= bound && (bound < INFINITY || huge)))
                fail_msg("%s: %s[%lld] of sequence %lld, KV head %lld is %g instead of %g (bound %g)", what,
                         all[i].name, (long long)at, (long long)s, (long long)kv, got, want, bound);
            if (!isfinite(want)) continue;
            worst = fmax(worst, fabs(got - want));
            worst_naive = fmax(worst_naive, fabs(all[i].naive[at] - want));
            max = fmax(max, fabs(want));
        }
        double allowed = 2 * worst_naive + 16 * 0x1p-23 * fmax(max, 0.1) + half_ulp(all[i].dtype) * max;
        if (count >= 1024 && worst > allowed)
            fail_msg("%s: %s of sequence %lld, KV head %lld is %g off, a naive kernel %g", what, all[i].name,
                     (long long)s, (long long)kv, worst, worst_naive);
    }
}

static void compare_sums(const double *want, const double *naive, const float *got, int64_t count, const char *what,
                         const char *name) {
    double worst = 0, max = 0.1;
    for (int64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs(naive[i] - want[i]));
        max = fmax(max, fabs(want[i]));
    }
    for (int64_t i = 0; i < count; i++)
        if (isnan(want[i]) ? !isnan(got[i]) : !(fabs((double)got[i] - want[i]) <= 4 * worst + 64 * 0x1p-23 * max))
            fail_msg("%s: %s[%lld] is %g instead of %g (a naive kernel is %g off)", what, name, (long long)i,
                     (double)got[i], want[i], worst);
}

/* Sums over sequences, heads and whatever else shares an element; [0] exact, [1] naive. */
typedef struct sums {
    double *bias[2], *slopes[2], *sinks[2];
} sums;

static void add_sums(const back *b, int64_t s, int64_t kv, const head_oracle *w, sums *all) {
    const tp_problem *p = &b->problem;
    int64_t group = p->q_heads / p->kv_heads, keys = b->c->kv_lens[s];
    const int64_t *st = b->gradients.d_bias_stride;
    const tp_reference_gradients *both[] = {&w->exact, &w->naive};
    for (int i = 0; i < 2; i++) {
        for (int64_t g = 0; g < group; g++) {
            int64_t head = kv * group + g;
            if (b->d_slopes != NULL)
                all->slopes[i][s * b->gradients.d_alibi_stride + head] += both[i]->d_alibi_slopes[g];
            if (b->d_sinks != NULL) all->sinks[i][head] += both[i]->d_sinks[g];
        }
        for (int64_t at = 0; b->d_bias != NULL && at < b->c->q_lens[s] * group * keys; at++) {
            int64_t row = at / keys, j = at % keys;
            all->bias[i][s * st[0] + (kv * group + row % group) * st[1] + row / group * st[2] + j * st[3]] +=
                both[i]->d_bias[at];
        }
    }
}

/* Elements of d_bias that no row has keep their poison. */
static float *used_bias(const back *b) {
    float *used = calloc(b->bias_count + 1, sizeof(float));
    const int64_t *st = b->gradients.d_bias_stride;
    for (int64_t s = 0; s < b->c->tensors.batch; s++)
        for (int64_t h = 0; h < b->problem.q_heads; h++)
            for (int64_t r = 0; r < b->c->q_lens[s]; r++)
                for (int64_t j = 0; j < b->c->kv_lens[s]; j++) {
                    int64_t at = s * st[0] + h * st[1] + r * st[2] + j * st[3];
                    used[at] = b->d_bias[at];
                }
    return used;
}

void back_forget(back *b) {
    for (int64_t i = 0; b->oracle != NULL && i < b->c->tensors.batch * b->problem.kv_heads; i++)
        free(b->oracle[i].memory);
    free(b->oracle);
    b->oracle = NULL;
}

void back_check(back *b, const char *what) {
    const tp_problem *p = &b->problem;
    sums all;
    if (b->oracle == NULL) {
        b->oracle = calloc((size_t)(b->c->tensors.batch * p->kv_heads) + 1, sizeof *b->oracle);
        for (int64_t i = 0; i < b->c->tensors.batch * p->kv_heads; i++)
            make_oracle(b, i / p->kv_heads, i % p->kv_heads, &b->oracle[i]);
    }
    for (int i = 0; i < 2; i++) {
        all.bias[i] = calloc(b->bias_count + 1, sizeof(double));
        all.slopes[i] = calloc(b->slope_count + 1, sizeof(double));
        all.sinks[i] = calloc((size_t)p->q_heads, sizeof(double));
    }
    for (int64_t s = 0; s < b->c->tensors.batch; s++)
        for (int64_t kv = 0; kv < p->kv_heads; kv++) {
            const head_oracle *w = &b->oracle[s * p->kv_heads + kv];
            compare_head(b, s, kv, w, what);
            add_sums(b, s, kv, w, &all);
        }
    if (b->d_bias != NULL) {
        float *used = used_bias(b);
        compare_sums(all.bias[0], all.bias[1], used, (int64_t)b->bias_count, what, "d_bias");
        free(used);
    }
    if (b->d_slopes != NULL)
        compare_sums(all.slopes[0], all.slopes[1], b->d_slopes, (int64_t)b->slope_count, what, "d_alibi_slopes");
    if (b->d_sinks != NULL) compare_sums(all.sinks[0], all.sinks[1], b->d_sinks, p->q_heads, what, "d_sinks");
    for (int i = 0; i < 2; i++) {
        free(all.bias[i]);
        free(all.slopes[i]);
        free(all.sinks[i]);
    }
}
