/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend on pairs of bf16: as kernels/attend_tmpl.c, with q.k and p.v by the instruction (vec_dot) and weights rounded to bf16
 * where they meet V. Two things are different:
 *
 *     A block that holds elements which the instruction would flush (smaller than VEC_SMALL and not 0) takes the same chains
 *     by vec_fma. So does one whose V is not finite, and a strip whose q is small.
 *     o' = o*c + sum p v, the sum from 0 on.
 *
 * Decode has its scores already, and values in another order: ordered.h.
 */
#include "kernels/bf16/found.h"
#include "kernels/bf16/products.h"
#include "kernels/function.h"
#include "kernels/strip_softmax.h"

enum { ROWS = VEC_MR * VEC_STRIPS };

_Static_assert((int)ROWS <= (int)TP__TILE_ROWS, "a tile holds at most TP__TILE_ROWS rows");

/* One row's sum over the keys that it sees alone: 0 x NaN must never be computed. The same chain, so the same bits. */
static void careful_row(const tp__row_tile *t, int64_t r, float c) {
    uint64_t seen[TP__BLOCK_WORDS];
    const float *p = t->s + r * t->lds;
    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES, lo = t->lo[r], hi = t->hi[r];
    seen_of(t, r, seen);
    for (int64_t x = 0; x < wide; x += VEC_LANES) {
        int64_t panel = x / VEC_NR * VEC_NR, width = wide - panel < VEC_NR ? wide - panel : VEC_NR;
        float *o = t->o + r * t->ldo + x;
        vec_f acc = {0};
        for (int64_t i = lo / 2 * 2; i < (hi + 1) / 2 * 2; i++) {
            int64_t key = i ^ 1; /* the second of a pair first */
            if (key < lo || key >= hi || !(seen[key / 64] >> (key % 64) & 1)) continue;
            vec_i pair = load_pairs(t->v, panel * t->block / 2 + key / 2 * width + x - panel);
            acc = vec_fma(vec_set1(p[key]), key % 2 ? vec_odd_bf16(pair) : vec_even_bf16(pair), acc);
        }
        vec_store(o, vec_fma(vec_load(o), vec_set1(c), acc));
    }
}

static void strip_values(const tp__row_tile *t, const strip *s, const strip_bits *bits, meet how, const float *c) {
    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    run runs[RUNS];
    if ((t->v_found & FOUND_NOT_FINITE) && reaches_beyond(t, s, bits, VEC_TOGETHER)) {
        for (int i = 0; i < s->mr; i++) careful_row(t, s->first + i, c[i]);
        return;
    }
    int count = runs_of(s, bits, runs);
    for (int64_t panel = 0; panel < wide; panel += VEC_NR)
        pair_values_of[how][wide - panel < VEC_NR][s->mr](t->s + s->first * t->lds, t->lds,
                                                          (const float *)t->v + panel * t->block / 2, runs, count, c,
                                                          t->o + s->first * t->ldo + panel, t->ldo);
}

void TP_FUNCTION_NAME(attend_f32)(tp__trace *trace, const tp__row_tile *t) {
    strip strips[VEC_STRIPS], parts[VEC_MR];
    strip_bits bits[VEC_STRIPS];
    float own[TP__TILE_ROWS], *c = t->v != NULL ? own : t->c;
    uint16_t q[ROWS * TP_MAX_HEAD_DIM];
    int64_t ld = (t->d + VEC_LANES - 1) / VEC_LANES * VEC_LANES, pairs = (t->d + 1) / 2;
    trace->calls[TP_FUNCTION_ID(attend_f32)]++;
    int n = cut_strips(t, strips), small;
    for (int i = 0; i < n && t->bits != NULL; i++) join_bits(t, &strips[i], &bits[i]);
    if (t->k == NULL) {
        attend_ordered(trace, t, strips, bits, n, c);
        return;
    }
    small = t->k_found | rows_to_pairs(t->q, t->ldq, t->rows, t->d, q, ld);
    tp__product scores = {q, ld / 2, ld * (int64_t)sizeof *q, t->k, pairs * 4, pairs, t->s, pair_scores_of[BY_DOT]};
    if (small)
        scores = (tp__product){t->q,  t->ldq / 2, t->ldq * (int64_t)sizeof(float), t->k, pairs * 4,
                               pairs, t->s,       pair_scores_of[BY_FMA]};
    strip_products(trace, t, strips, bits, n, &scores);
    meet how = t->v_found ? BY_FMA : BY_DOT;
    for (int i = 0; i < n; i++) {
        const strip *s = &strips[i];
        float *factor = c + s->first;
        if (how == BY_DOT)
            strip_softmax(t, s, factor, WEIGHTS_BF16);
        else
            strip_softmax(t, s, factor, WEIGHTS_ROUNDED);
        int count = t->v != NULL ? cut_parts(t, s, 1, parts) : 0;
        for (int j = 0; j < count; j++) strip_values(t, &parts[j], t->bits != NULL ? &bits[i] : NULL, how, c + parts[j].first);
    }
}
