/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend: one tile of rows against one block of keys, online softmax.
 *
 *     s  = q k^T                      scores, in units of log2
 *     m' = max(m, max s)              over the keys the row sees
 *     p  = 2^(s - m')                 exactly 0 for a key it does not see
 *     l' = l*c + sum p                c = 2^(m - m'), exactly 1 when the maximum stands
 *     o' = o*c + p v                  p as dropout leaves it
 *
 * For few rows dots has left the scores in s. Rows are taken in strips of MR, keys in panels of NR. A strip
 * computes only the panels its rows see, and only panels that some row sees in part are masked. Rows that see
 * more than one interval of the block come with bits, whose union and intersection over a strip class its
 * panels. Error: docs/maths.md.
 */
#include "kernels/drop.h"
#include "kernels/gemm.h"
#include "kernels/leaf.h"
#include "kernels/modify.h"
#include "kernels/softmax.h"

typedef struct strip {
    int64_t first;            /* row */
    int mr;
    int32_t lo, hi;           /* keys any row sees: hull */
    int32_t all_lo, all_hi;   /* keys every row sees */
} strip;

/* Of a strip whose rows come with bits: keys that any row, and that every row sees. */
typedef struct strip_bits {
    uint64_t any[TP__BLOCK_WORDS], all[TP__BLOCK_WORDS];
} strip_bits;

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

static void join_bits(const tp__tile *t, const strip *s, strip_bits *b) {
    for (int64_t w = 0; w < t->bit_words; w++) {
        uint64_t any = 0, all = ~(uint64_t)0;
        for (int64_t r = s->first; r < s->first + s->mr; r++) {
            any |= t->bits[r * t->bit_words + w];
            all &= t->bits[r * t->bit_words + w];
        }
        b->any[w] = any;
        b->all[w] = all;
    }
}

/* Of one panel: does the strip see any key of its halves, and every key of the whole? */
typedef struct glance {
    int lower, upper, full;
} glance;

VEC_INLINE glance look(const strip *s, const strip_bits *b, int64_t key) {
    if (b == NULL)
        return (glance){s->lo < key + VEC_LANES && s->hi > key,
                        s->hi > key + VEC_LANES && s->lo < key + VEC_NR,
                        key >= s->all_lo && key + VEC_NR <= s->all_hi};
    const uint64_t half = ((uint64_t)1 << VEC_LANES) - 1, whole = half << VEC_LANES | half;
    uint64_t any = b->any[key / 64] >> (key % 64), all = b->all[key / 64] >> (key % 64);
    return (glance){(any & half) != 0, (any >> VEC_LANES & half) != 0, (all & whole) == whole};
}

static void tile_scores(tp__trace *trace, const tp__tile *t, const strip *strips,
                        const strip_bits *bits, int n) {
    int32_t lo = INT32_MAX, hi = 0;
    for (int i = 0; i < n; i++) {
        if (strips[i].lo < lo) lo = strips[i].lo;
        if (strips[i].hi > hi) hi = strips[i].hi;
    }
    int64_t before = trace->tiles_full + trace->tiles_partial;
    for (int64_t key = lo / VEC_NR * VEC_NR; key < hi; key += VEC_NR) {
        for (int i = 0; i < n; i++) {
            const strip *s = &strips[i];
            glance sees = look(s, t->bits != NULL ? &bits[i] : NULL, key);
            if (!sees.lower && !sees.upper) continue;
            /* half a panel where the strip sees no key of the other half */
            int half = !sees.lower || !sees.upper;
            int64_t skip = sees.lower ? 0 : VEC_LANES;
            if (t->k != NULL) {
                scores_of[half][s->mr](t->q + s->first * t->ldq, t->ldq, t->k + key * t->d + skip, t->d,
                                       t->s + s->first * t->lds + key + skip, t->lds);
                trace->pairs_computed += s->mr * (half ? VEC_LANES : VEC_NR);
            }
            trace->tiles_full += sees.full;
            trace->tiles_partial += !sees.full;
        }
    }
    if (t->modify != NULL && t->modify->bias != NULL)
        trace->tiles_conservative += trace->tiles_full + trace->tiles_partial - before;
}

_Static_assert(VEC_MR <= VEC_LANES, "the factors of a strip are one vector");

static void strip_softmax(const tp__tile *t, const strip *s, float *c) {
    float safe[VEC_LANES] = {0}, down[VEC_LANES] = {0}; /* what to subtract; m - m' */
    for (int i = 0; i < s->mr; i++) {
        int64_t r = s->first + i, lo = t->lo[r], hi = t->hi[r];
        float *p = t->s + r * t->lds;
        if (lo >= hi) continue; /* its maximum stands: a factor of 2^0 */
        int64_t from = lo / GROUP * GROUP, to = (hi + GROUP - 1) / GROUP * GROUP;
        if (t->modify != NULL) modify_row(t->modify, r, p, from, to, lo, hi);
        if (t->bits != NULL)
            mask_bits(p, t->bits + r * t->bit_words, from, to);
        else
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
        if (t->drop != NULL) drop_row(t->drop, r, p, from, to);
        for (int64_t j = s->lo; j < from; j++) p[j] = 0.0f;
        for (int64_t j = to; j < s->hi; j++) p[j] = 0.0f;
    }
}

/* Is there a key within the strip's hull that some row does not see? */
static int has_holes(const tp__tile *t, const strip *s, const strip_bits *b) {
    if (t->modify != NULL && t->modify->bias != NULL) return 1; /* perhaps */
    if (t->bits == NULL) return s->lo != s->all_lo || s->hi != s->all_hi;
    for (int64_t key = s->lo; key < s->hi; key++)
        if (!(b->all[key / 64] >> (key % 64) & 1)) return 1;
    return 0;
}

/* The next keys [*from, *to) of the hull that any row sees, in whole groups of 16; 0: no more. A key that
   none sees has p = 0 in every row, so that leaving it out changes no bit. */
VEC_INLINE int next_run(const strip *s, const strip_bits *b, int64_t *from, int64_t *to) {
    int64_t key = *to;
    if (b == NULL) {
        *from = s->lo;
        *to = s->hi;
        return key < s->hi;
    }
    while (key < s->hi && !(b->any[key / 64] >> (key % 64) & 0xffff)) key = key / GROUP * GROUP + GROUP;
    *from = key > s->lo ? key : s->lo;
    while (key < s->hi && b->any[key / 64] >> (key / GROUP * GROUP % 64) & 0xffff)
        key = key / GROUP * GROUP + GROUP;
    *to = key < s->hi ? key : s->hi;
    return *from < s->hi;
}

static const float ones[VEC_MR] = {
#define ROW(MR) 1.0f,
    VEC_ROWS(ROW)
#undef ROW
};

/* 0 x NaN must never be computed: row by row, over the keys that each sees. */
static void careful_values(const tp__tile *t, const strip *s, const float *c) {
    for (int64_t r = s->first; r < s->first + s->mr; r++) {
        uint64_t seen[TP__BLOCK_WORDS];
        const uint64_t *bits = t->bits != NULL ? t->bits + r * t->bit_words : NULL;
        seen_words(t->modify, bits, r, t->lo[r], t->hi[r], 0, seen);
        values_row(t->s + r * t->lds, t->v, t->block, 0, t->lo[r], t->hi[r], seen, c[r],
                   t->o + r * t->ldo, t->dv);
    }
}

void TP_LEAF_NAME(attend_f32)(tp__trace *trace, const tp__tile *t) {
    strip strips[VEC_STRIPS];
    strip_bits bits[VEC_STRIPS];
    float own[TP__TILE_ROWS], *c = t->v != NULL ? own : t->c;
    trace->calls[TP_LEAF_ID(attend_f32)]++;
    int n = cut_strips(t, strips);
    for (int i = 0; i < n && t->bits != NULL; i++) join_bits(t, &strips[i], &bits[i]);
    tile_scores(trace, t, strips, bits, n);
    for (int i = 0; i < n; i++) strip_softmax(t, &strips[i], c + strips[i].first);

    if (t->v == NULL) return;

    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
        int narrow = wide - panel < VEC_NR;
        int64_t width = narrow ? VEC_LANES : VEC_NR;
        for (int i = 0; i < n; i++) {
            const strip *s = &strips[i];
            const strip_bits *b = t->bits != NULL ? &bits[i] : NULL;
            const float *factor = c + s->first;
            if (t->v_not_finite && has_holes(t, s, b)) continue;
            for (int64_t from = s->lo, to = s->lo; next_run(s, b, &from, &to); factor = ones)
                values_of[narrow][s->mr](t->s + s->first * t->lds + from, t->lds,
                                         t->v + panel * t->block + from * width, to - from, factor,
                                         t->o + s->first * t->ldo + panel, t->ldo);
        }
    }
    if (!t->v_not_finite) return;
    for (int i = 0; i < n; i++)
        if (has_holes(t, &strips[i], &bits[i])) careful_values(t, &strips[i], c);
}
