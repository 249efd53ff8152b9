/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend: one tile of rows against one block of keys, online softmax.
 *
 *     s  = q k^T                      scores; s*unit is their exponent of 2
 *     m' = max(m, max s)              over the keys the row sees
 *     p  = 2^((s - m') unit)          exactly 0 for a key it does not see
 *     l' = l*c + sum p                c = 2^((m - m') unit), exactly 1 when the maximum stands
 *     o' = o*c + p v                  p as dropout leaves it, times the key's v_scale
 *
 * For few rows qk has left the scores in s. Rows are taken in strips of MR, keys in panels of NR. A strip
 * computes only the panels its rows see, and only panels that some row sees in part are masked. Rows that see
 * more than one interval of the block come with bits, whose union and intersection over a strip class its
 * panels. Error: docs/maths.md.
 */
#include "kernels/function.h"
#include "kernels/gemm.h"
#include "kernels/strip_softmax.h"

_Static_assert(VEC_MR * VEC_STRIPS <= TP__TILE_ROWS, "a tile holds at most TP__TILE_ROWS rows");

/* 0 x NaN must never be computed: row by row, over the keys that each sees. */
static void careful_values(const tp__row_tile *t, const strip *s, const float *c) {
    for (int64_t r = s->first; r < s->first + s->mr; r++) {
        uint64_t seen[TP__BLOCK_WORDS];
        const uint64_t *bits = t->bits != NULL ? t->bits + r * t->bit_words : NULL;
        seen_words(t->modify, bits, r, t->lo[r], t->hi[r], 0, seen);
        values_row(t->s + r * t->lds, t->v, t->block, 0, t->lo[r], t->hi[r], seen, c[r],
                   t->o + r * t->ldo, t->dv);
    }
}

/* As pv has them of codes. A weight of 0 stays 0: scales are finite. */
static void scale_weights(const tp__row_tile *t, const strip *s) {
    for (int64_t r = s->first; r < s->first + s->mr; r++)
        for (int64_t j = s->lo / VEC_LANES * VEC_LANES; j < s->hi; j += VEC_LANES)
            vec_store(t->s + r * t->lds + j, vec_load(t->s + r * t->lds + j) * vec_load(t->v_scale + j));
}

void TP_FUNCTION_NAME(attend_f32)(tp__trace *trace, const tp__row_tile *t) {
    strip strips[VEC_STRIPS], parts[VEC_MR * VEC_STRIPS];
    strip_bits bits[VEC_STRIPS];
    float own[TP__TILE_ROWS], *c = t->v != NULL ? own : t->c;
    trace->calls[TP_FUNCTION_ID(attend_f32)]++;
    int n = cut_strips(t, strips);
    for (int i = 0; i < n && t->bits != NULL; i++) join_bits(t, &strips[i], &bits[i]);
    tp__product scores = FLOAT_PRODUCT(t->q, t->ldq, t->k, t->d, t->s);
    strip_products(trace, t, strips, bits, n, &scores);
    for (int i = 0; i < n; i++) strip_softmax(t, &strips[i], c + strips[i].first, WEIGHTS_F32);

    if (t->v == NULL) return;
    for (int i = 0; i < n && t->v_scale != NULL; i++) scale_weights(t, &strips[i]);

    n = cut_parts(t, strips, n, parts);
    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
        int narrow = wide - panel < VEC_NR;
        int64_t width = narrow ? VEC_LANES : VEC_NR;
        for (int i = 0; i < n; i++) {
            const strip *s = &parts[i];
            const strip_bits *b = t->bits != NULL ? &bits[i] : NULL;
            const float *factor = c + s->first;
            if (t->v_found && has_holes(t, s, b)) continue;
            for (int64_t from = s->lo, to = s->lo; next_run(s, b, &from, &to); factor = ones)
                values_of[narrow][s->mr](t->s + s->first * t->lds + from, t->lds,
                                         (const float *)t->v + panel * t->block + from * width, to - from, factor,
                                         t->o + s->first * t->ldo + panel, t->ldo);
        }
    }
    if (!t->v_found) return;
    for (int i = 0; i < n; i++)
        if (has_holes(t, &parts[i], t->bits != NULL ? &bits[i] : NULL)) careful_values(t, &parts[i], c);
}
