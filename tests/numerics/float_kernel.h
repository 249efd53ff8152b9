/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of docs/maths.md for one row, written out step by step in float, right or with one thing wrong; and its error
   beside the bound of tp_reference. Include it after cmocka.h. */
#ifndef TESTS_NUMERICS_FLOAT_KERNEL_H
#define TESTS_NUMERICS_FLOAT_KERNEL_H

#include "tileproof.h"

/* Operands that another arithmetic rounds to bf16 where they meet each other. */
enum { ROUND_Q = 1, ROUND_K = 2, ROUND_P = 4, ROUND_V = 8 };

typedef enum fault {
    NO_FAULT,
    ROUGH_EXP,    /* relative error 1e-3 that depends on the argument */
    DROPPED_KEY,  /* the last visible key is left out */
    EXTRA_KEY,    /* the first hidden key beyond the last visible one is seen */
    STALE_SUM,    /* l is not rescaled when the maximum moves */
    STALE_OUTPUT, /* o is not */
    BF16_WEIGHTS, /* p rounded to bf16 */
    BF16_SCORES   /* s rounded to bf16 */
} fault;

typedef struct kernel {
    int fused;     /* fma, as on AVX; otherwise multiply, then add */
    int from_zero; /* a block's p.v starts from 0 and is added to o*c; otherwise it starts from o*c
                    */
    fault fault;
    int rounds; /* ROUND_* */
} kernel;

typedef struct call {
    tp_problem problem;
    tp_tensors tensors;
    void *q, *k, *v;
    float unit; /* of scores, in log2 */
} call;

typedef struct state {
    float m, l, *o;
} state;

static uint64_t seed;

static double uniform(void) { /* 0..1 */
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

static float normal(void) {
    return (float)(sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform()));
}

static void *random_tensor(int32_t dtype, int64_t count, float scale, float shift) {
    size_t bytes = tp_dtype_bytes(dtype);
    char *data = malloc((size_t)count * bytes);
    for (int64_t i = 0; i < count; i++)
        tp_from_float(dtype, scale * normal() + shift, data + (size_t)i * bytes);
    return data;
}

typedef struct data {
    float q_scale, k_scale, v_scale, v_shift;
} data;

/* One head, one row at the end of kv_len keys. */
static call make(int64_t kv_len, int64_t d, int64_t dv, tp_dtype dtype, data with) {
    call c;
    tp_problem_init(&c.problem);
    tp_problem_dtype(&c.problem, dtype);
    c.problem.q_len = 1;
    c.problem.kv_len = kv_len;
    c.problem.head_dim_qk = d;
    c.problem.head_dim_v = dv;
    seed = 7 + (uint64_t)(kv_len * 1000 + d);
    c.q = random_tensor(dtype, d, with.q_scale, 0);
    c.k = random_tensor(dtype, kv_len * d, with.k_scale, 0);
    c.v = random_tensor(dtype, kv_len * dv, with.v_scale, with.v_shift);
    tp_tensors_init(&c.tensors, &c.problem, c.q, c.k, c.v, NULL);
    return c;
}

static void drop(call *c) {
    free(c->q);
    free(c->k);
    free(c->v);
}

static float element(int32_t dtype, const void *tensor, int64_t i) {
    return tp_to_float(dtype, (const char *)tensor + (size_t)i * tp_dtype_bytes(dtype));
}

static float chain(const kernel *how, float a, float b, float sum) {
    return how->fused ? fmaf(a, b, sum) : sum + a * b;
}

static float power_of_two(const kernel *how, float x, float unit) {
    float whole = rintf(x * unit);
    if (!(whole >= -100.0f)) return isnan(x) ? x : 0;
    float f = chain(how, x, unit, -whole);
    const float c[] = {0x1.62e42ap-1f, 0x1.ebf9bcp-3f, 0x1.c6b752p-5f, 0x1.3cea88p-7f,
                       0x1.5bba14p-10f};
    float p = c[4];
    for (int i = 3; i >= 0; i--) p = chain(how, p, f, c[i]);
    p = chain(how, p, f, 1.0f);
    if (how->fault == ROUGH_EXP) p *= 1 + 1e-3f * sinf(40 * x);
    return ldexpf(p, (int)whole);
}

static float rounded(tp_dtype dtype, float value) {
    uint16_t bits;
    tp_from_float(dtype, value, &bits);
    return tp_to_float(dtype, &bits);
}

static int64_t last_visible(const call *c) {
    int64_t last = -1, keys = c->problem.kv_len;
    for (int64_t j = 0; j < keys; j++)
        if (tp_mask_allowed(&c->problem, 1, keys, 0, j)) last = j;
    return last;
}

static int sees(const call *c, const kernel *how, int64_t key, int64_t last) {
    if (how->fault == DROPPED_KEY && key == last) return 0;
    if (how->fault == EXTRA_KEY && key == last + 1) return 1;
    return tp_mask_allowed(&c->problem, 1, c->problem.kv_len, 0, key);
}

static float operand(const kernel *how, int which, float value) {
    return how->rounds & which ? rounded(TP_BF16, value) : value;
}

static void block(const call *c, const kernel *how, const float *q, int64_t first, int64_t end,
                  state *to) {
    const tp_problem *p = &c->problem;
    int64_t d = p->head_dim_qk, dv = p->head_dim_v, last = last_visible(c);
    float s[512], m = to->m, lane[16] = {0};
    for (int64_t j = first; j < end; j++) {
        float sum = 0;
        s[j - first] = -INFINITY;
        if (!sees(c, how, j, last)) continue;
        for (int64_t x = 0; x < d; x++)
            sum = chain(how, operand(how, ROUND_Q, q[x]),
                        operand(how, ROUND_K, element(p->k_dtype, c->k, j * d + x)), sum);
        if (how->fault == BF16_SCORES) sum = rounded(TP_BF16, sum);
        s[j - first] = sum;
        if (sum > m) m = sum;
    }
    float safe = m == -INFINITY ? 0 : m, correction = power_of_two(how, to->m - safe, c->unit);
    for (int64_t j = first; j < end; j++) {
        float weight = power_of_two(how, s[j - first] - safe, c->unit);
        if (how->fault == BF16_WEIGHTS) weight = rounded(TP_BF16, weight);
        s[j - first] = weight;
        lane[(j - first) % 16] += weight;
    }
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    to->l = to->l * (how->fault == STALE_SUM ? 1 : correction) + lane[0];
    to->m = m;
    for (int64_t x = 0; x < dv; x++) {
        float scaled = to->o[x] * (how->fault == STALE_OUTPUT ? 1 : correction);
        float sum = how->from_zero ? 0 : scaled;
        for (int64_t j = first; j < end; j++)
            if (sees(c, how, j, last))
                sum = chain(how, operand(how, ROUND_P, s[j - first]),
                            operand(how, ROUND_V, element(p->v_dtype, c->v, j * dv + x)), sum);
        to->o[x] = how->from_zero ? scaled + sum : sum;
    }
}

static void merge_state(const kernel *how, int64_t dv, float unit, state *to, const state *from) {
    float m = to->m > from->m ? to->m : from->m, safe = m == -INFINITY ? 0 : m;
    float a = power_of_two(how, to->m - safe, unit), b = power_of_two(how, from->m - safe, unit);
    to->l = to->l * a + from->l * b;
    to->m = m;
    for (int64_t x = 0; x < dv; x++) to->o[x] = chain(how, from->o[x], b, to->o[x] * a);
}

static float scale_of(const tp_problem *p) {
    return p->scale_set ? p->scale : (float)(1 / sqrt((double)p->head_dim_qk));
}

/* Writes the row's output to o, as the o_dtype holds it, and returns its lse. */
static float run(const call *c, const kernel *how, float *o) {
    const tp_problem *p = &c->problem;
    int64_t d = p->head_dim_qk, dv = p->head_dim_v, keys = p->kv_len;
    int64_t size = tp_block_keys(d > dv ? d : dv);
    float *memory = calloc((size_t)(d + 2 * dv), sizeof(float)), *q = memory;
    state total = {-INFINITY, 0, memory + d}, part = {-INFINITY, 0, memory + d + dv};
    int exponent = 0;
    float gain = scale_of(p) == 0 ? 1 : 2 * frexpf(fabsf(scale_of(p)), &exponent), part_of_two = scale_of(p) / gain;
    call scaled = *c;
    scaled.unit = (float)(gain * 1.4426950408889634);
    for (int64_t x = 0; x < d; x++) q[x] = element(p->q_dtype, c->q, x) * part_of_two;
    for (int64_t chunk = 0; chunk < keys; chunk += TP_CHUNK_KEYS) {
        int64_t chunk_end = chunk + TP_CHUNK_KEYS < keys ? chunk + TP_CHUNK_KEYS : keys;
        part.m = -INFINITY;
        part.l = 0;
        memset(part.o, 0, (size_t)dv * sizeof(float));
        for (int64_t first = chunk; first < chunk_end; first += size)
            block(&scaled, how, q, first, first + size < chunk_end ? first + size : chunk_end, &part);
        merge_state(how, dv, scaled.unit, &total, &part);
    }
    for (int64_t x = 0; x < dv; x++) {
        float value = total.m == -INFINITY ? 0 : total.o[x] / total.l;
        o[x] = p->o_dtype == TP_F32 ? value : rounded(p->o_dtype, value);
    }
    double lse = (double)gain * total.m + log(total.l);
    free(memory);
    return total.m == -INFINITY ? -INFINITY : (float)lse;
}

typedef struct verdict {
    double error, bound, lse_error, lse_bound;
} verdict;

static verdict judge(const call *c, kernel how) {
    int64_t dv = c->problem.head_dim_v;
    double *oracle = malloc((size_t)dv * sizeof(double)), lse;
    float *o = malloc((size_t)dv * sizeof(float));
    tp_row row = {0, 0, 0};
    verdict is = {0};
    tp_error error = TP_ERROR_INIT;
    if (tp_reference(&c->problem, &c->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, oracle, &lse, &is.bound,
                     &is.lse_bound, &error) != TP_OK)
        fail_msg("%s", error.text);
    float got = run(c, &how, o);
    for (int64_t x = 0; x < dv; x++) is.error = fmax(is.error, fabs(o[x] - oracle[x]));
    is.lse_error = got == lse ? 0 : fabs(got - lse);
    free(oracle);
    free(o);
    return is;
}

#endif
