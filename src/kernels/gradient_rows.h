/* SPDX-License-Identifier: Apache-2.0 */
/* p and ds of the rows of a tile, in place of their scores and dp: what every backward shares between its products. */
#ifndef TP_KERNELS_GRADIENT_ROWS_H
#define TP_KERNELS_GRADIENT_ROWS_H

#include "kernels/drop.h"
#include "kernels/modify.h"
#include "kernels/softmax.h"
#include "kernels/strips.h"

enum { STRIPS = (TP__BACK_ROWS + VEC_MR - 1) / VEC_MR };

/* What of the block the tile's rows see: the hull, and whether each row sees all of it. */
typedef struct extent {
    int32_t lo, hi;
    int full;
} extent;

static extent extent_of(const tp__back *b) {
    const tp__row_tile *t = &b->tile;
    extent e = {INT32_MAX, 0, t->bits == NULL && (t->modify == NULL || t->modify->bias == NULL)};
    for (int64_t r = 0; r < t->rows; r++) {
        if (t->lo[r] < t->hi[r]) {
            if (t->lo[r] < e.lo) e.lo = t->lo[r];
            if (t->hi[r] > e.hi) e.hi = t->hi[r];
        }
    }
    for (int64_t r = 0; r < t->rows && e.full; r++) e.full = t->lo[r] == e.lo && t->hi[r] == e.hi;
    return e;
}

/* exp(left*s + down), down = -lse: where vec_fma fuses, only the difference is rounded. */
VEC_INLINE vec_f probability(vec_f s, vec_f left, vec_f down) {
    return vec_exp2(vec_fma(s, left, down), vec_set1((float)TP__LOG2_E));
}

static void row_gradient(const tp__back *b, int64_t r, float *s, float *ds, int64_t from, int64_t to) {
    vec_f less = vec_set1(b->delta[r]), left = vec_set1(b->left), down = vec_set1(-b->lse[r]);
    for (int64_t j = from; j < to; j += VEC_LANES) {
        vec_f p = probability(vec_load(s + j), left, down);
        vec_store(s + j, p);
        vec_store(ds + j, p * (vec_load(ds + j) - less));
    }
}

/* As above, but for keys whose score is -inf: both are 0, whatever lse, dp and delta are. */
static void row_gradient_masked(const tp__back *b, int64_t r, float *s, float *ds, int64_t from, int64_t to) {
    vec_f less = vec_set1(b->delta[r]), left = vec_set1(b->left), down = vec_set1(-b->lse[r]);
    vec_f none = vec_set1(-INFINITY);
    for (int64_t j = from; j < to; j += VEC_LANES) {
        vec_f score = vec_load(s + j), p = probability(score, left, down);
        vec_i seen = score != none;
        vec_store(s + j, (vec_f)((vec_i)p & seen));
        vec_store(ds + j, (vec_f)((vec_i)(p * (vec_load(ds + j) - less)) & seen));
    }
}

/* As above, with dropout: a dropped pair has no p, its dp is multiplied by 0, and its ds comes from delta alone. */
static void row_gradient_dropped(const tp__back *b, int64_t r, float *s, float *ds, int64_t from, int64_t to) {
    vec_f less = vec_set1(b->delta[r]), left = vec_set1(b->left), down = vec_set1(-b->lse[r]);
    vec_f none = vec_set1(-INFINITY), stay = vec_set1(b->stay);
    float stays[PIECE_KEYS];
    memset(stays + from, 0xff, (size_t)(to - from) * sizeof(float));
    drop_row(b->tile.drop, r, stays, from, to);
    for (int64_t j = from; j < to; j += VEC_LANES) {
        vec_f score = vec_load(s + j), p = probability(score, left, down);
        vec_i seen = score != none, kept = (vec_i)vec_load(stays + j);
        vec_f dp = vec_load(ds + j) * (vec_f)((vec_i)stay & kept); /* 0 times infinity is NaN */
        vec_store(s + j, (vec_f)((vec_i)p & kept & seen));
        vec_store(ds + j, (vec_f)((vec_i)(p * (dp - less)) & seen));
    }
}

/* A row whose lse or delta is not finite, after the above: a score of -inf is then no reason for a 0 where the row
   does see the key, nor is having been dropped. */
static void spoil_row(const tp__back *b, int64_t r, float *p, float *ds) {
    const tp__row_tile *t = &b->tile;
    const uint64_t *bits = t->bits != NULL ? t->bits + r * t->bit_words : NULL;
    uint64_t seen[TP__BLOCK_WORDS];
    seen_words(t->modify, bits, r, t->lo[r], t->hi[r], 0, seen);
    for (int64_t key = t->lo[r]; key < t->hi[r]; key++) {
        if (!(seen[key / 64] >> (key % 64) & 1)) continue;
        if (b->lse[r] != b->lse[r]) p[key] = ds[key] = NAN;
        if (ds[key] == 0.0f) ds[key] = NAN; /* 0 times what is not finite */
    }
}

static float slope_sum(const tp__modify *mod, int64_t r, const float *ds, int64_t from, int64_t to) {
    vec_f sum[VEC_SUM_PARTS], at = vec_set1(mod->q_at[r]);
    VEC_UNROLL for (int i = 0; i < VEC_SUM_PARTS; i++) sum[i] = (vec_f){0};
    for (int64_t j = from; j < to; j += GROUP) {
        VEC_UNROLL for (int i = 0; i < VEC_SUM_PARTS; i++) {
            vec_f distance = (vec_f)((vec_i)(at - vec_load(mod->k_at + j + i * VEC_LANES)) & 0x7fffffff);
            sum[i] = vec_fma(vec_load(ds + j + i * VEC_LANES), distance, sum[i]);
        }
    }
    return vec_sum16(sum);
}

/* From the gradient of the score that was changed to that of q.k */
static void unmodify_row(const tp__back *b, int64_t r, float *ds, const float *bend, int64_t from, int64_t to) {
    const tp__row_tile *t = &b->tile;
    if (b->slope != NULL) b->slope[r] = slope_sum(t->modify, r, ds, from, to);
    if (b->d_bias != NULL)
        for (int64_t j = t->lo[r]; j < t->hi[r]; j++) b->d_bias[r][j * b->d_bias_stride] += ds[j];
    vec_f scale = vec_set1(t->modify->scale != NULL ? t->modify->scale[r] : 1.0f);
    if (t->modify->cap > 0)
        for (int64_t j = from; j < to; j += VEC_LANES) {
            vec_f x = vec_load(ds + j), bent = x * vec_load(bend + j) * scale;
            vec_store(ds + j, (vec_f)((vec_i)bent & (x != (vec_f){0}))); /* a hidden key's bend may be NaN */
        }
    else if (t->modify->scale != NULL)
        for (int64_t j = from; j < to; j += VEC_LANES) vec_store(ds + j, vec_load(ds + j) * scale);
}

static void clear_keys(float *p, float *ds, int64_t from, int64_t to) {
    for (int64_t j = from; j < to; j++) p[j] = ds[j] = 0.0f;
}

/* p and ds of one row, over all keys of the extent. */
static void gradient_of_row(const tp__back *b, const extent *e, int64_t r) {
    const tp__row_tile *t = &b->tile;
    int64_t lo = t->lo[r], hi = t->hi[r];
    int64_t from = lo / GROUP * GROUP, to = (hi + GROUP - 1) / GROUP * GROUP;
    float *p = t->s + r * t->lds, *ds = b->ds + r * t->lds, bend[PIECE_KEYS];
    if (lo >= hi) {
        clear_keys(p, ds, e->lo, e->hi);
        return;
    }
    if (t->modify != NULL) modify_row(t->modify, r, p, from, to, lo, hi, bend);
    int drops = t->drop != NULL,
        holes = drops || t->bits != NULL || (t->modify != NULL && t->modify->bias != NULL) || from < lo || hi < to;
    if (!holes) {
        row_gradient(b, r, p, ds, from, to);
    } else {
        if (t->bits != NULL)
            mask_bits(p, t->bits + r * t->bit_words, from, to);
        else
            mask_row(p, from, lo, hi, to);
        if (drops)
            row_gradient_dropped(b, r, p, ds, from, to);
        else
            row_gradient_masked(b, r, p, ds, from, to);
    }
    if (!isfinite(b->lse[r]) || !isfinite(b->delta[r])) spoil_row(b, r, p, ds);
    if (t->modify != NULL) unmodify_row(b, r, ds, bend, from, to);
    if (e->lo < from) clear_keys(p, ds, e->lo, from);
    if (to < e->hi) clear_keys(p, ds, to, e->hi);
}

/* The rows from the first to the last that see any of keys key..key+count-1. */
static void rows_of_keys(const tp__row_tile *t, const extent *e, int64_t key, int64_t count, int64_t *first,
                         int64_t *last) {
    *first = 0;
    *last = t->rows;
    if (e->full) return;
    for (; *first < t->rows; ++*first)
        if (t->lo[*first] < key + count && t->hi[*first] > key) break;
    for (; *last > *first; --*last)
        if (t->lo[*last - 1] < key + count && t->hi[*last - 1] > key) break;
}

#endif
