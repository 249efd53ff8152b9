/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The register tiles, S = Q K^T, O = O*c + P V and C = C + A^T B, as always-inlined bodies with literal sizes:
 * accumulators are a local array whose loops are all unrolled, so that they stay in registers.
 * Every element is one chain over d, or over keys, in ascending order: the result of a row depends
 * on nothing but that row and its keys.
 */
#ifndef TP_KERNELS_GEMM_H
#define TP_KERNELS_GEMM_H

#include "kernels/product.h"
#include "kernels/vec/vec.h"

_Static_assert(VEC_NRV == 2, "a panel is two vectors wide, half a panel one");

/* s[i][0..nrv*L) = sum over x < d of q[i][x] * k[x][0..nrv*L) */
VEC_INLINE void scores_body(const int mr, const int nrv, const float *q, int64_t ldq, const float *k,
                            int64_t d, float *s, int64_t lds) {
    vec_f acc[VEC_MR][VEC_NRV];
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) acc[i][j] = (vec_f){0};
    }
    for (int64_t x = 0; x < d; x++) {
        /* two names instead of an array: clang would keep an array of one on the stack */
        const float *at = k + x * VEC_NR;
        vec_f b0 = vec_load(at), b1 = nrv > 1 ? vec_load(at + VEC_LANES) : b0;
        VEC_UNROLL for (int i = 0; i < mr; i++) {
            vec_f a = vec_set1(q[i * ldq + x]);
            acc[i][0] = vec_fma(a, b0, acc[i][0]);
            if (nrv > 1) acc[i][1] = vec_fma(a, b1, acc[i][1]);
        }
    }
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++)
            vec_store(s + i * lds + j * VEC_LANES, acc[i][j]);
    }
}

/* o[i][0..nrv*L) = o*c[i] + sum over keys of p[i][key] * v[key][0..nrv*L) */
VEC_INLINE void values_body(const int mr, const int nrv, const float *p, int64_t lds, const float *v,
                            int64_t keys, const float *c, float *o, int64_t ldo) {
    vec_f acc[VEC_MR][VEC_NRV];
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++)
            acc[i][j] = vec_load(o + i * ldo + j * VEC_LANES) * vec_set1(c[i]);
    }
    for (int64_t key = 0; key < keys; key++) {
        const float *at = v + key * nrv * VEC_LANES;
        vec_f b0 = vec_load(at), b1 = nrv > 1 ? vec_load(at + VEC_LANES) : b0;
        VEC_UNROLL for (int i = 0; i < mr; i++) {
            vec_f a = vec_set1(p[i * lds + key]);
            acc[i][0] = vec_fma(a, b0, acc[i][0]);
            if (nrv > 1) acc[i][1] = vec_fma(a, b1, acc[i][1]);
        }
    }
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++)
            vec_store(o + i * ldo + j * VEC_LANES, acc[i][j]);
    }
}

/* c[i][0..nrv*L) += sum over rows of a[row][i] * b[row][0..nrv*L): a is read in place, no transposition. */
VEC_INLINE void gemm_tn_body(const int mr, const int nrv, const float *a, int64_t lda, const float *b,
                            int64_t ldb, int64_t rows, float *c, int64_t ldc) {
    vec_f acc[VEC_MR][VEC_NRV];
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) acc[i][j] = vec_load(c + i * ldc + j * VEC_LANES);
    }
    for (int64_t row = 0; row < rows; row++) {
        const float *at = b + row * ldb;
        vec_f b0 = vec_load(at), b1 = nrv > 1 ? vec_load(at + VEC_LANES) : b0;
        VEC_UNROLL for (int i = 0; i < mr; i++) {
            vec_f x = vec_set1(a[row * lda + i]);
            acc[i][0] = vec_fma(x, b0, acc[i][0]);
            if (nrv > 1) acc[i][1] = vec_fma(x, b1, acc[i][1]);
        }
    }
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) vec_store(c + i * ldc + j * VEC_LANES, acc[i][j]);
    }
}

/* One small function a row count, so that each has literal sizes and its own registers. */
typedef void values_fn(const float *p, int64_t lds, const float *v, int64_t keys, const float *c,
                       float *o, int64_t ldo);

#define GEMM_ROWS(MR)                                                                              \
    static __attribute__((noinline)) void scores_##MR(const void *q, int64_t ldq, const void *k,   \
                                                      int64_t d, float *s, int64_t lds) {          \
        scores_body(MR, VEC_NRV, q, ldq, k, d, s, lds);                                            \
    }                                                                                              \
    static __attribute__((noinline)) void scores_narrow_##MR(                                      \
        const void *q, int64_t ldq, const void *k, int64_t d, float *s, int64_t lds) {             \
        scores_body(MR, 1, q, ldq, k, d, s, lds);                                                  \
    }                                                                                              \
    static __attribute__((noinline)) void values_##MR(const float *p, int64_t lds, const float *v, \
                                                      int64_t keys, const float *c, float *o,      \
                                                      int64_t ldo) {                               \
        values_body(MR, VEC_NRV, p, lds, v, keys, c, o, ldo);                                      \
    }                                                                                              \
    static __attribute__((noinline)) void values_narrow_##MR(                                      \
        const float *p, int64_t lds, const float *v, int64_t keys, const float *c, float *o,       \
        int64_t ldo) {                                                                             \
        values_body(MR, 1, p, lds, v, keys, c, o, ldo);                                            \
    }
VEC_ROWS(GEMM_ROWS)
#undef GEMM_ROWS

/* [0]: a panel of NRV vectors; [1]: one vector wide */
static product_fn *const scores_of[2][VEC_MR + 1] = {
    {
#define ROW(MR) [MR] = scores_##MR,
        VEC_ROWS(ROW)
#undef ROW
    },
    {
#define ROW(MR) [MR] = scores_narrow_##MR,
        VEC_ROWS(ROW)
#undef ROW
    },
};
static values_fn *const values_of[2][VEC_MR + 1] = {
    {
#define ROW(MR) [MR] = values_##MR,
        VEC_ROWS(ROW)
#undef ROW
    },
    {
#define ROW(MR) [MR] = values_narrow_##MR,
        VEC_ROWS(ROW)
#undef ROW
    },
};

/* Of backward alone: defined where it is asked for. */
#ifdef GEMM_TN
typedef void gemm_tn_fn(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t rows, float *c,
                       int64_t ldc);
#define GEMM_ROWS(MR)                                                                                    \
    static __attribute__((noinline)) void gemm_tn_##MR(const float *a, int64_t lda, const float *b,       \
                                                      int64_t ldb, int64_t rows, float *c, int64_t ldc) { \
        gemm_tn_body(MR, VEC_NRV, a, lda, b, ldb, rows, c, ldc);                                          \
    }                                                                                                    \
    static __attribute__((noinline)) void gemm_tn_narrow_##MR(                                            \
        const float *a, int64_t lda, const float *b, int64_t ldb, int64_t rows, float *c, int64_t ldc) { \
        gemm_tn_body(MR, 1, a, lda, b, ldb, rows, c, ldc);                                                \
    }
VEC_ROWS(GEMM_ROWS)
#undef GEMM_ROWS
static gemm_tn_fn *const gemm_tn_of[2][VEC_MR + 1] = {
    {
#define ROW(MR) [MR] = gemm_tn_##MR,
        VEC_ROWS(ROW)
#undef ROW
    },
    {
#define ROW(MR) [MR] = gemm_tn_narrow_##MR,
        VEC_ROWS(ROW)
#undef ROW
    },
};
#endif

/* o = o*c + sum over those of keys base+lo..base+hi-1 whose bit is set: for blocks whose V holds an infinity
   or NaN that other rows of the tile see and this one does not. The same chain as values_body, so the same
   bits. */
static inline void values_row(const float *p, const float *v, int64_t block, int64_t base, int64_t lo, int64_t hi,
                       const uint64_t *seen, float c, float *o, int64_t dv) {
    int64_t wide = (dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
        int64_t width = wide - panel < VEC_NR ? wide - panel : VEC_NR;
        for (int64_t x = 0; x < width; x += VEC_LANES) {
            vec_f acc = vec_load(o + panel + x) * vec_set1(c);
            for (int64_t i = lo; i < hi; i++) {
                if (!(seen[i / 64] >> (i % 64) & 1)) continue;
                vec_f value = vec_load(v + panel * block + (base + i) * width + x);
                acc = vec_fma(vec_set1(p[base + i]), value, acc);
            }
            vec_store(o + panel + x, acc);
        }
    }
}

#endif
