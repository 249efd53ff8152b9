/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error bound of tp_reference, tried from both sides: the kernel of docs/maths.md, written out
 * here step by step in float, stays under it on all kinds of data; the same kernel with one thing
 * wrong does not.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tileproof.h"

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
            sum = chain(how, q[x], element(p->k_dtype, c->k, j * d + x), sum);
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
                sum = chain(how, s[j - first], element(p->v_dtype, c->v, j * dv + x), sum);
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

static const kernel sound[] = {
    {0, 0, NO_FAULT}, {1, 0, NO_FAULT}, {0, 1, NO_FAULT}, {1, 1, NO_FAULT}};

static void assert_sound(const call *c, const char *what) {
    for (size_t i = 0; i < sizeof sound / sizeof sound[0]; i++) {
        verdict is = judge(c, sound[i]);
        if (getenv("TP_SHOW_BOUNDS") && i == 1)
            print_message("%-34s o %.2e of %.2e  lse %.2e of %.2e\n", what, is.error, is.bound,
                          is.lse_error, is.lse_bound);
        if (!(is.error <= is.bound) || !(is.lse_error <= is.lse_bound))
            fail_msg("%s, kernel %zu: o %g of %g, lse %g of %g", what, i, is.error, is.bound,
                     is.lse_error, is.lse_bound);
    }
}

static void the_kernel_stays_under_it(void **unused) {
    (void)unused;
    const int64_t lengths[] = {1, 2, 3, 17, 257, 600, 1025, 4096, 4097, 9000},
                  dims[] = {1, 3, 64, 128, 200};
    const data kinds[] = {{1, 1, 1, 0},    {0.1f, 1, 1, 5},   {8, 4, 1, 0},
                          {100, 30, 1, 1}, {3000, 300, 2, 0}, {0, 1, 1, 0},
                          {1, 1, 0, 3},    {1, 1, 1e-42f, 0}, {1e-30f, 1e-12f, 1, 0}};
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++)
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
            for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
                if (lengths[n] * dims[i] > 600000) continue;
                call c = make(lengths[n], dims[i], dims[i] > 100 ? 5 : 9, TP_F32, kinds[k]);
                char what[64];
                snprintf(what, sizeof what, "k%d d%d data %zu", (int)lengths[n], (int)dims[i], k);
                assert_sound(&c, what);
                drop(&c);
            }
}

static void dtypes_scales_and_masks_too(void **unused) {
    (void)unused;
    const tp_dtype dtypes[] = {TP_F16, TP_BF16, TP_F32};
    const float scales[] = {0, -0.3f, 1e-40f, 1e-44f, 5};
    for (int i = 0; i < 3; i++) {
        call c = make(5000, 32, 16, dtypes[i], (data){1, 1, 1, 0.2f});
        assert_sound(&c, tp_dtype_name(dtypes[i]));
        for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
            c.problem.scale_set = 1;
            c.problem.scale = scales[s];
            assert_sound(&c, "scale");
        }
        c.problem.scale_set = 0;
        tp_problem_window(&c.problem, 4200, 0);
        assert_sound(&c, "window");
        drop(&c);
        c = make(300, 32, 16, dtypes[i], (data){1, 1, 1e-6f, 0}); /* f16: subnormal output */
        assert_sound(&c, "small values");
        drop(&c);
    }
}

/* Later keys always score higher, or lower, or alternate: every block rescales, or none. */
static void moving_maxima_too(void **unused) {
    (void)unused;
    for (int way = 0; way < 4; way++)
        for (int steep = 0; steep < 3; steep++) {
            const float step[] = {1e-4f, 0.03f, 1};
            call c = make(9000, 4, 8, TP_F32, (data){1, 0.5f, 1, 0});
            float *q = c.q, *k = c.k;
            q[0] = 1;
            for (int j = 0; j < 9000; j++) {
                float ramp = step[steep] * (float)j;
                k[j * 4] = way == 0   ? ramp
                           : way == 1 ? -ramp
                           : way == 2 ? ramp * (j % 2 ? 1 : -1)
                                      : 0;
            }
            assert_sound(&c, "moving maximum");
            drop(&c);
        }
}

static void minus_infinite_scores_cost_nothing(void **unused) {
    (void)unused;
    call c = make(700, 4, 8, TP_F32, (data){1, 1, 1, 0});
    float *q = c.q, *k = c.k;
    q[0] = 1;
    for (int j = 0; j < 700; j += 3) k[j * 4] = -INFINITY;
    for (int j = 0; j < 512; j++) k[j * 4] = -INFINITY; /* a whole block */
    assert_sound(&c, "-inf scores");
    verdict is = judge(&c, sound[0]);
    assert_true(is.bound < 1e-4);
    drop(&c);
}

/* One thing wrong, at sizes where a test would look, is more than the bound forgives. */
static void a_wrong_kernel_exceeds_it(void **unused) {
    (void)unused;
    const struct {
        const char *name;
        fault fault;
        int o, lse; /* which of the two must show it */
    } faults[] = {{"rough exp", ROUGH_EXP, 1, 1},       {"dropped key", DROPPED_KEY, 1, 1},
                  {"extra key", EXTRA_KEY, 1, 1},       {"stale sum", STALE_SUM, 1, 1},
                  {"stale output", STALE_OUTPUT, 1, 0}, {"bf16 weights", BF16_WEIGHTS, 1, 0},
                  {"bf16 scores", BF16_SCORES, 1, 1}};
    const struct { int64_t keys, d; } sizes[] = {{600, 64}, {1000, 128}, {5000, 64}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        call c = make(sizes[s].keys, sizes[s].d, 64, TP_F32, (data){1, 1, 1, 0});
        /* the last keys are hidden, so that there is an edge to get wrong */
        c.problem.align = TP_TOP_LEFT;
        tp_problem_window(&c.problem, -1, sizes[s].keys - 40);
        /* and a late key is the greatest, so that the maximum moves */
        for (int64_t x = 0; x < sizes[s].d; x++)
            ((float *)c.k)[(sizes[s].keys - 60) * sizes[s].d + x] = 0.6f * ((float *)c.q)[x];
        for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
            verdict is = judge(&c, (kernel){1, 0, faults[i].fault});
            if (getenv("TP_SHOW_BOUNDS"))
                print_message("k%d d%d %-14s o %.2e of %.2e  lse %.2e of %.2e\n",
                              (int)sizes[s].keys, (int)sizes[s].d, faults[i].name, is.error,
                              is.bound, is.lse_error, is.lse_bound);
            if ((faults[i].o && !(is.error > is.bound)) ||
                (faults[i].lse && !(is.lse_error > is.lse_bound)))
                fail_msg("%s at k%d d%d: o %g of %g, lse %g of %g", faults[i].name,
                         (int)sizes[s].keys, (int)sizes[s].d, is.error, is.bound, is.lse_error,
                         is.lse_bound);
        }
        drop(&c);
    }
}

/* In units that anyone can judge: ordinary data, ordinary sizes. */
static void it_is_tight_on_ordinary_data(void **unused) {
    (void)unused;
    const struct {
        int64_t keys, d;
        tp_dtype dtype;
        double max;
    } sizes[] = {{256, 64, TP_F32, 2e-5}, {4096, 128, TP_F32, 2e-5}, {4096, 128, TP_BF16, 4e-4}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        call c = make(sizes[s].keys, sizes[s].d, 64, sizes[s].dtype, (data){1, 1, 1, 0});
        verdict is = judge(&c, sound[1]);
        if (getenv("TP_SHOW_BOUNDS"))
            print_message("k%d d%d %s: o %.2e of %.2e, lse %.2e of %.2e\n", (int)sizes[s].keys,
                          (int)sizes[s].d, tp_dtype_name(sizes[s].dtype), is.error, is.bound,
                          is.lse_error, is.lse_bound);
        assert_true(is.bound < sizes[s].max);
        assert_true(is.lse_bound < 2e-5);
        drop(&c);
    }
}

static void reference_bounds(const call *c, double *bound, double *lse_bound) {
    tp_row row = {0, 0, 0};
    assert_int_equal(tp_reference(&c->problem, &c->tensors, TP_NAIVE, TP_ARITHMETIC_F32, 1, &row, NULL, NULL, bound,
                                  lse_bound, NULL),
                     TP_OK);
}

static void it_says_when_nothing_is_promised(void **unused) {
    (void)unused;
    double bound, lse_bound;
    call c = make(8, 4, 2, TP_F32, (data){1, 1, 1, 0});
    ((float *)c.q)[0] = 3e30f;
    ((float *)c.k)[0] = 3e30f; /* a score beyond FLT_MAX */
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound == INFINITY && lse_bound == INFINITY);
    drop(&c);

    c = make(8, 4, 2, TP_F32, (data){1, 1, 1, 0});
    ((float *)c.v)[0] = 3e38f; /* the sum of eight such may overflow; the row sum may not */
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound == INFINITY && isfinite(lse_bound));
    drop(&c);

    c = make(8, 4, 2, TP_F32, (data){1, 1, 7e4f, 7e4f});
    c.problem.o_dtype = TP_F16; /* more than f16 holds */
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound == INFINITY && isfinite(lse_bound));
    drop(&c);
}

static void rows_without_arithmetic_are_exact(void **unused) {
    (void)unused;
    double bound, lse_bound;
    call c = make(8, 4, 2, TP_F32, (data){1, 1, 1, 0});
    ((float *)c.k)[5] = NAN;
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound == 0 && lse_bound == 0);
    ((float *)c.k)[5] = 1;
    c.problem.align = TP_TOP_LEFT;
    tp_problem_window(&c.problem, 0, 0); /* one key */
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound > 0 && bound < 1e-5);
    ((float *)c.v)[0] = INFINITY; /* the other column keeps its bound */
    reference_bounds(&c, &bound, &lse_bound);
    assert_true(bound > 0 && bound < 1e-5);
    drop(&c);
}

/* Of a row that sees no key but has a sink the lse is the sink. Its q was never read: what another row left there
   must not count. */
static void a_row_with_only_a_sink_is_exact(void **unused) {
    (void)unused;
    call c = make(2, 4, 2, TP_F32, (data){1, 1, 1, 0});
    float q[3 * 4] = {0}, sink = 3;
    double o[3 * 2], lse[3], bound[3], lse_bound[3];
    tp_row rows[3] = {{0, 0, 2}, {0, 0, 0}, {0, 0, 1}}; /* the last row sees both keys, the first none */
    for (int i = 0; i < 4; i++) q[2 * 4 + i] = 3e38f;
    c.problem.q_len = c.tensors.q_len = 3;
    c.problem.sinks = 1;
    c.tensors.q.data = q;
    c.tensors.sinks = &sink;
    tp_problem_causal(&c.problem);
    assert_int_equal(
        tp_reference(&c.problem, &c.tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 3, rows, o, lse, bound, lse_bound, NULL), TP_OK);
    assert_true(bound[0] == INFINITY); /* its scores may overflow */
    assert_true(lse[1] == 3 && bound[1] == 0 && lse_bound[1] == 0);
    assert_true(isfinite(bound[2]) && lse_bound[2] > 0 && lse_bound[2] < 1e-5);
    drop(&c);
}

/* Where a float cannot hold a score's small parts, the lse may be off by as much, and by no more. */
static void it_is_finite_where_scores_are_huge(void **unused) {
    (void)unused;
    static const float scales[] = {1e4f, 1e10f, 1e30f};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        call c = make(40, 16, 8, TP_F32, (data){1, 1, 1, 0});
        c.problem.scale_set = 1;
        c.problem.scale = scales[i];
        verdict is = judge(&c, sound[1]);
        assert_true(isfinite(is.bound) && is.lse_bound < scales[i] * 1e-4);
        assert_sound(&c, "huge scores");
        drop(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernel_stays_under_it),
        cmocka_unit_test(dtypes_scales_and_masks_too),
        cmocka_unit_test(moving_maxima_too),
        cmocka_unit_test(minus_infinite_scores_cost_nothing),
        cmocka_unit_test(a_wrong_kernel_exceeds_it),
        cmocka_unit_test(it_is_tight_on_ordinary_data),
        cmocka_unit_test(it_says_when_nothing_is_promised),
        cmocka_unit_test(rows_without_arithmetic_are_exact),
        cmocka_unit_test(a_row_with_only_a_sink_is_exact),
        cmocka_unit_test(it_is_finite_where_scores_are_huge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
