/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backward: one tile of rows against one block of keys, five products on the same register tiles.
 *
 *     s  = q k^T,  dp = d_o v^T               by strips of rows and panels of keys
 *     p  = exp(s - lse),  ds = p*(dp - delta) in place; exactly 0 for a key that the row does not see
 *     dv += p^T d_o,  dk += ds^T q            by strips of keys, p and ds read as they lie
 *     dq += ds k                              by strips of rows
 *
 * Every element of dk and dv is one chain over the rows, every element of dq one over the keys, in ascending
 * order within the tile. A hidden pair has p = ds = 0; where q, d_o or k may then be infinite or NaN, pairs are
 * taken one by one, the seen ones only: 0 x NaN is never computed. The same chains, so the same bits.
 */
#define GEMM_TN
#include "kernels/function.h"
#include "kernels/gemm.h"
#include "kernels/gradient_rows.h"

/* to += a^T from, over the keys of the extent. */
static void sum_by_keys(const tp__row_tile *t, const extent *e, const float *a, const float *from, int64_t ld,
                        int64_t d, float *to) {
    for (int64_t x = 0; x < d; x += VEC_NR) {
        int narrow = d - x <= VEC_LANES;
        for (int64_t key = e->lo; key < e->hi; key += VEC_MR) {
            int64_t count = e->hi - key < VEC_MR ? e->hi - key : VEC_MR, first, last;
            rows_of_keys(t, e, key, count, &first, &last);
            if (first < last)
                gemm_tn_of[narrow][count](a + first * t->lds + key, t->lds, from + first * ld + x, ld,
                                         last - first, to + key * ld + x, ld);
        }
    }
}

static void sum_by_rows(const tp__back *b, const strip *strips, const strip_bits *bits, int n) {
    const tp__row_tile *t = &b->tile;
    int64_t wide = (t->d + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
        int narrow = wide - panel < VEC_NR;
        int64_t width = narrow ? VEC_LANES : VEC_NR;
        for (int i = 0; i < n; i++) {
            const strip *s = &strips[i];
            const strip_bits *seen = t->bits != NULL ? &bits[i] : NULL;
            for (int64_t from = s->lo, to = s->lo; next_run(s, seen, &from, &to);)
                values_of[narrow][s->mr](b->ds + s->first * t->lds + from, t->lds,
                                         (const float *)b->k_rows + panel * t->block + from * width, to - from, ones,
                                         b->dq + s->first * t->ldq + panel, t->ldq);
        }
    }
}

VEC_INLINE void add_row(float *to, float factor, const float *from, int64_t d) {
    for (int64_t x = 0; x < d; x += VEC_LANES)
        vec_store(to + x, vec_fma(vec_set1(factor), vec_load(from + x), vec_load(to + x)));
}

/* Pair by pair, of the keys that the row sees. */
static void careful_row(const tp__back *b, int64_t r) {
    const tp__row_tile *t = &b->tile;
    const uint64_t *bits = t->bits != NULL ? t->bits + r * t->bit_words : NULL;
    const float *p = t->s + r * t->lds, *ds = b->ds + r * t->lds;
    int64_t wide = (t->d + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    uint64_t seen[TP__BLOCK_WORDS];
    seen_words(t->modify, bits, r, t->lo[r], t->hi[r], 0, seen);
    for (int64_t key = t->lo[r]; key < t->hi[r]; key++) {
        if (!(seen[key / 64] >> (key % 64) & 1)) continue;
        if (b->dv != NULL) add_row(b->dv + key * b->ldo, p[key], (const float *)b->d_o + r * b->ldo, t->dv);
        if (b->dk != NULL) add_row(b->dk + key * t->ldq, ds[key], (const float *)t->q + r * t->ldq, t->d);
        for (int64_t panel = 0; b->dq != NULL && panel < wide; panel += VEC_NR) {
            int64_t width = wide - panel < VEC_NR ? wide - panel : VEC_NR;
            add_row(b->dq + r * t->ldq + panel, ds[key], (const float *)b->k_rows + panel * t->block + key * width, width);
        }
    }
}

void TP_FUNCTION_NAME(backward_f32)(tp__trace *trace, const tp__back *b) {
    const tp__row_tile *t = &b->tile;
    strip strips[STRIPS];
    strip_bits bits[STRIPS];
    trace->calls[TP_FUNCTION_ID(backward_f32)]++;
    int n = cut_strips(t, strips);
    for (int i = 0; i < n && t->bits != NULL; i++) join_bits(t, &strips[i], &bits[i]);
    extent e = extent_of(b);
    if (e.lo >= e.hi) return;
    tp__product scores = FLOAT_PRODUCT(t->q, t->ldq, t->k, t->d, t->s);
    tp__product values = FLOAT_PRODUCT(b->d_o, b->ldo, b->v, t->dv, b->ds);
    strip_products(trace, t, strips, bits, n, &scores);
    strip_products(NULL, t, strips, bits, n, &values);
    for (int64_t r = 0; r < t->rows; r++) gradient_of_row(b, &e, r);
    if ((b->not_finite || t->k_found) && !e.full) {
        for (int64_t r = 0; r < t->rows; r++) careful_row(b, r);
        return;
    }
    if (b->dv != NULL) sum_by_keys(t, &e, t->s, b->d_o, b->ldo, t->dv, b->dv);
    if (b->dk != NULL) sum_by_keys(t, &e, b->ds, t->q, t->ldq, t->d, b->dk);
    if (b->dq != NULL) sum_by_rows(b, strips, bits, n);
}
