/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register tiles on pairs of bf16: S = Q K^T and O = O*c + P V. A lane of K is a key with two elements of the head dim, a
 * lane of V a column with two keys. Each element is one chain over pairs in ascending order, within a pair the second element
 * first, as the instruction has it. By vec_fma, for blocks with elements that the instruction would flush, it is the same chain:
 * the same bits wherever nothing is flushed, so which of the two a block takes changes nothing for rows that do not see such an
 * element.
 */
#ifndef TP_KERNELS_BF16_PRODUCTS_H
#define TP_KERNELS_BF16_PRODUCTS_H

#include "kernels/bf16/ordered.h"

/* How the elements of a tile meet: by the instruction, as pairs, or by vec_fma in the same order. With vec_fma q, or the weights,
   are floats. */
typedef enum meet { BY_DOT, BY_FMA } meet;

/* c[0..1] += a[pair] * b[0..1], for one row and one or two vectors of b */
VEC_INLINE void add_pair(const int nrv, const meet how, const void *a, int64_t pair, vec_i b0, vec_i b1, vec_f *c0, vec_f *c1) {
    if (how == BY_DOT) {
        vec_i x = set_pair(a, pair);
        *c0 = vec_dot(x, b0, *c0);
        if (nrv > 1) *c1 = vec_dot(x, b1, *c1);
        return;
    }
    vec_f even = vec_set1(((const float *)a)[2 * pair]), odd = vec_set1(((const float *)a)[2 * pair + 1]);
    VEC_UNROLL for (int second = 1; second >= 0; second--) {
        vec_f x = second ? odd : even;
        *c0 = vec_fma(x, second ? vec_odd_bf16(b0) : vec_even_bf16(b0), *c0);
        if (nrv > 1) *c1 = vec_fma(x, second ? vec_odd_bf16(b1) : vec_even_bf16(b1), *c1);
    }
}

/* s[i][0..nrv*L) = sum over pairs of q[i] * k; ldq counts pairs */
VEC_INLINE void pair_scores_body(const int mr, const int nrv, const meet how, const void *q, int64_t ldq, const void *k,
                                 int64_t pairs, float *s, int64_t lds) {
    const int64_t row = ldq * (how == BY_DOT ? 4 : 8);
    vec_f acc[VEC_MR][VEC_NRV];
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) acc[i][j] = (vec_f){0};
    }
    for (int64_t x = 0; x < pairs; x++) {
        vec_i b0 = load_pairs(k, x * VEC_NR), b1 = nrv > 1 ? load_pairs(k, x * VEC_NR + VEC_LANES) : b0;
        VEC_UNROLL for (int i = 0; i < mr; i++)
            add_pair(nrv, how, (const char *)q + i * row, x, b0, b1, &acc[i][0], &acc[i][nrv - 1]);
    }
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) vec_store(s + i * lds + j * VEC_LANES, acc[i][j]);
    }
}

/* o[i][0..nrv*L) = o*c[i] + sum over the runs' keys of p[i][key] * v[key]. The sum begins at 0, not at o*c, which could be
   subnormal: one rounding more. Rows of p lie lds floats apart, whatever they hold. */
VEC_INLINE void pair_values_body(const int mr, const int nrv, const meet how, const float *p, int64_t lds, const void *v,
                                 const run *runs, int count, const float *c, float *o, int64_t ldo) {
    vec_f acc[VEC_MR][VEC_NRV];
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) acc[i][j] = (vec_f){0};
    }
    for (int n = 0; n < count; n++)
        for (int64_t pair = runs[n].from / 2; pair < runs[n].to / 2; pair++) {
            vec_i b0 = load_pairs(v, pair * nrv * VEC_LANES);
            vec_i b1 = nrv > 1 ? load_pairs(v, pair * nrv * VEC_LANES + VEC_LANES) : b0;
            VEC_UNROLL for (int i = 0; i < mr; i++) add_pair(nrv, how, p + i * lds, pair, b0, b1, &acc[i][0], &acc[i][nrv - 1]);
        }
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) {
            float *to = o + i * ldo + j * VEC_LANES;
            vec_store(to, vec_fma(vec_load(to), vec_set1(c[i]), acc[i][j]));
        }
    }
}

typedef void pair_values_fn(const float *p, int64_t lds, const void *v, const run *runs, int count, const float *c, float *o,
                            int64_t ldo);

/* One small function a row count, width and way, so that each has literal sizes and its own registers. */
#define PAIR_SCORES(MR, NAME, NRV, HOW)                                                                                          \
    static __attribute__((noinline)) void NAME##MR(const void *q, int64_t ldq, const void *k, int64_t pairs, float *s,           \
                                                   int64_t lds) {                                                                \
        pair_scores_body(MR, NRV, HOW, q, ldq, k, pairs, s, lds);                                                                \
    }
#define PAIR_VALUES(MR, NAME, NRV, HOW)                                                                                          \
    static __attribute__((noinline)) void NAME##MR(const float *p, int64_t lds, const void *v, const run *runs, int count,       \
                                                   const float *c, float *o, int64_t ldo) {                                      \
        pair_values_body(MR, NRV, HOW, p, lds, v, runs, count, c, o, ldo);                                                       \
    }
#define PAIR_ROWS(MR)                                                                                                            \
    PAIR_SCORES(MR, scores_dot_, VEC_NRV, BY_DOT)                                                                                \
    PAIR_SCORES(MR, scores_dot_narrow_, 1, BY_DOT)                                                                               \
    PAIR_SCORES(MR, scores_fma_, VEC_NRV, BY_FMA)                                                                                \
    PAIR_SCORES(MR, scores_fma_narrow_, 1, BY_FMA)
VEC_ROWS(PAIR_ROWS)
#undef PAIR_ROWS

/* [way]: [0] a panel of NRV vectors, [1] one vector wide; by rows */
#define PLACE(NAME, MR)       [MR] = NAME##MR,
#define SCORES_DOT(MR)        PLACE(scores_dot_, MR)
#define SCORES_DOT_NARROW(MR) PLACE(scores_dot_narrow_, MR)
#define SCORES_FMA(MR)        PLACE(scores_fma_, MR)
#define SCORES_FMA_NARROW(MR) PLACE(scores_fma_narrow_, MR)
static product_fn *const pair_scores_of[2][2][VEC_MR + 1] = {
    {{VEC_ROWS(SCORES_DOT)}, {VEC_ROWS(SCORES_DOT_NARROW)}},
    {{VEC_ROWS(SCORES_FMA)}, {VEC_ROWS(SCORES_FMA_NARROW)}},
};

#define PAIR_ROWS(MR)                                                                                                            \
    PAIR_VALUES(MR, values_dot_, VEC_NRV, BY_DOT)                                                                                \
    PAIR_VALUES(MR, values_dot_narrow_, 1, BY_DOT)                                                                               \
    PAIR_VALUES(MR, values_fma_, VEC_NRV, BY_FMA)                                                                                \
    PAIR_VALUES(MR, values_fma_narrow_, 1, BY_FMA)
VEC_ROWS(PAIR_ROWS)
#undef PAIR_ROWS
#define VALUES_DOT(MR)            PLACE(values_dot_, MR)
#define VALUES_DOT_NARROW(MR)     PLACE(values_dot_narrow_, MR)
#define VALUES_FMA(MR)            PLACE(values_fma_, MR)
#define VALUES_FMA_NARROW(MR)     PLACE(values_fma_narrow_, MR)
static pair_values_fn *const pair_values_of[2][2][VEC_MR + 1] = {
    {{VEC_ROWS(VALUES_DOT)}, {VEC_ROWS(VALUES_DOT_NARROW)}},
    {{VEC_ROWS(VALUES_FMA)}, {VEC_ROWS(VALUES_FMA_NARROW)}},
};
#endif
