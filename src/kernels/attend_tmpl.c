/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend: one tile of rows against one block of keys, online softmax.
 *
 *     s  = q k^T                      scores, in units of log2
 *     m' = max(m, max s)              over the keys the row sees
 *     p  = 2^(s - m')                 exactly 0 for a key it does not see
 *     l' = l*c + sum p                c = 2^(m - m'), exactly 1 when the maximum stands
 *     o' = o*c + p v
 *
 * For few rows dots has left the scores in s. Rows are taken in strips of MR, keys in panels of NR. A strip computes only the panels its rows
 * see, and only panels that some row sees in part are masked. Error: docs/maths.md.
 */
#include "kernels/gemm.h"
#include "kernels/leaf.h"
#include "kernels/softmax.h"

typedef struct strip {
    int64_t first;            /* row */
    int mr;
    int32_t lo, hi;           /* keys any row sees: hull */
    int32_t all_lo, all_hi;   /* keys every row sees */
} strip;

_Static_assert(VEC_MR * VEC_STRIPS <= TP__TILE_ROWS, "a tile holds at most TP__TILE_ROWS rows");

static int cut_strips(const tp__tile *t, strip *strips) {
    int n = 0;
    for (int64_t first = 0; first < t->rows; first += VEC_MR) {
        strip s = {first, (int)(t->rows - first < VEC_MR ? t->rows - first : VEC_MR), INT32_MAX, 0,
                   0, INT32_MAX};
        for (int64_t r = first; r < first + s.mr; r++) {
            if (t->hi[r] > t->lo[r]) {
                if (t->lo[r] < s.lo) s.lo = t->lo[r];
                if (t->hi[r] > s.hi) s.hi = t->hi[r];
            }
            if (t->lo[r] > s.all_lo) s.all_lo = t->lo[r];
            if (t->hi[r] < s.all_hi) s.all_hi = t->hi[r];
        }
        if (s.lo < s.hi) strips[n++] = s; /* a strip that sees nothing here is left alone */
    }
    return n;
}

static void tile_scores(tp__trace *trace, const tp__tile *t, const strip *strips, int n) {
    int32_t lo = INT32_MAX, hi = 0;
    for (int i = 0; i < n; i++) {
        if (strips[i].lo < lo) lo = strips[i].lo;
        if (strips[i].hi > hi) hi = strips[i].hi;
    }
    for (int64_t key = lo / VEC_NR * VEC_NR; key < hi; key += VEC_NR) {
        for (int i = 0; i < n; i++) {
            const strip *s = &strips[i];
            if (key + VEC_NR <= s->lo || key >= s->hi) continue;
            /* half a panel where the strip sees no key of the other half */
            int lower = s->hi <= key + VEC_LANES, upper = s->lo >= key + VEC_LANES;
            int64_t skip = upper ? VEC_LANES : 0;
            if (t->k != NULL) {
                scores_of[lower || upper][s->mr](t->q + s->first * t->ldq, t->ldq,
                                                 t->k + key * t->d + skip, t->d,
                                                 t->s + s->first * t->lds + key + skip, t->lds);
                trace->pairs_computed += s->mr * (lower || upper ? VEC_LANES : VEC_NR);
            }
            if (key >= s->all_lo && key + VEC_NR <= s->all_hi)
                trace->tiles_full++;
            else
                trace->tiles_partial++;
        }
    }
}

_Static_assert(VEC_MR <= VEC_LANES, "the factors of a strip are one vector");

static void strip_softmax(const tp__tile *t, const strip *s, float *c) {
    float safe[VEC_LANES] = {0}, down[VEC_LANES] = {0}; /* what to subtract; m - m' */
    for (int i = 0; i < s->mr; i++) {
        int64_t r = s->first + i, lo = t->lo[r], hi = t->hi[r];
        float *p = t->s + r * t->lds;
        if (lo >= hi) continue; /* its maximum stands: a factor of 2^0 */
        int64_t from = lo / GROUP * GROUP, to = (hi + GROUP - 1) / GROUP * GROUP;
        mask_row(p, from, lo, hi, to);
        float best = row_max(p, from, to), m = best > t->m[r] ? best : t->m[r];
        safe[i] = safe_max(m);
        down[i] = t->m[r] - safe[i];
        t->m[r] = m;
    }
    vec_f factor = vec_exp2(vec_load(down));
    for (int i = 0; i < s->mr; i++) {
        int64_t r = s->first + i, lo = t->lo[r], hi = t->hi[r];
        int64_t from = lo / GROUP * GROUP, to = (hi + GROUP - 1) / GROUP * GROUP;
        float *p = t->s + r * t->lds;
        c[i] = factor[i];
        if (lo >= hi) {
            for (int64_t j = s->lo; j < s->hi; j++) p[j] = 0.0f;
            continue;
        }
        t->l[r] = t->l[r] * c[i] + row_exp(p, p, from, to, safe[i]);
        for (int64_t j = s->lo; j < from; j++) p[j] = 0.0f;
        for (int64_t j = to; j < s->hi; j++) p[j] = 0.0f;
    }
}

static int rows_differ(const strip *s) { return s->lo != s->all_lo || s->hi != s->all_hi; }

void TP_LEAF_NAME(attend_f32)(tp__trace *trace, const tp__tile *t) {
    strip strips[VEC_STRIPS];
    float own[TP__TILE_ROWS], *c = t->v != NULL ? own : t->c;
    trace->calls[TP_LEAF_ID(attend_f32)]++;
    int n = cut_strips(t, strips);
    tile_scores(trace, t, strips, n);
    for (int i = 0; i < n; i++) strip_softmax(t, &strips[i], c + strips[i].first);

    if (t->v == NULL) return;

    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
        int narrow = wide - panel < VEC_NR;
        int64_t width = narrow ? VEC_LANES : VEC_NR;
        for (int i = 0; i < n; i++) {
            const strip *s = &strips[i];
            if (t->v_not_finite && rows_differ(s)) continue;
            values_of[narrow][s->mr](t->s + s->first * t->lds + s->lo, t->lds,
                                     t->v + panel * t->block + s->lo * width, s->hi - s->lo,
                                     c + s->first, t->o + s->first * t->ldo + panel, t->ldo);
        }
    }
    if (!t->v_not_finite) return;
    for (int i = 0; i < n; i++) { /* 0 x NaN must never be computed */
        const strip *s = &strips[i];
        if (!rows_differ(s)) continue;
        for (int64_t r = s->first; r < s->first + s->mr; r++)
            values_row(t->s + r * t->lds, t->v, t->block, t->lo[r], t->hi[r], c[r],
                       t->o + r * t->ldo, t->dv);
    }
}
