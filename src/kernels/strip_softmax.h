/* SPDX-License-Identifier: Apache-2.0 */
/* The softmax of one strip against one block: its scores become weights in place, m and l move on. What every attend shares. */
#ifndef TP_KERNELS_STRIP_SOFTMAX_H
#define TP_KERNELS_STRIP_SOFTMAX_H

#include "kernels/drop.h"
#include "kernels/modify.h"
#include "kernels/softmax.h"
#include "kernels/strips.h"

_Static_assert(VEC_MR <= VEC_LANES, "the factors of a strip are one vector");

/* How weights are left for their product with V; l sums them before they are rounded. */
typedef enum weights {
    WEIGHTS_F32,     /* floats as they are */
    WEIGHTS_ROUNDED, /* floats, rounded to bf16 */
    WEIGHTS_BF16     /* rounded, two bytes each, from the start of the row on */
} weights;

static void round_row(float *p, int64_t from, int64_t to) {
    for (int64_t j = from; j < to; j += VEC_LANES) {
        uint16_t rounded[VEC_LANES];
        vec_store_bf16(rounded, vec_load(p + j));
        vec_store(p + j, vec_load_bf16(rounded));
    }
}

static void narrow_row(float *p, int64_t from, int64_t to) {
    for (int64_t j = from; j < to; j += VEC_LANES) vec_store_bf16((uint16_t *)p + j, vec_load(p + j));
}

/* The weights of keys from..to-1 of the row, whose scores lie there; returns their sum. */
VEC_INLINE float row_weights(const tp__row_tile *t, int64_t r, float *p, int64_t from, int64_t to, float m, weights as) {
    if (as == WEIGHTS_BF16 && t->drop == NULL) return row_exp(p, 1, p, from, to, m, t->unit);
    float sum = row_exp(p, 0, p, from, to, m, t->unit);
    if (t->drop != NULL) drop_row(t->drop, r, p, from, to);
    if (as == WEIGHTS_ROUNDED) round_row(p, from, to);
    if (as == WEIGHTS_BF16) narrow_row(p, from, to);
    return sum;
}

VEC_INLINE void no_weights(float *p, int64_t from, int64_t to, weights as) {
    size_t bytes = as == WEIGHTS_BF16 ? sizeof(uint16_t) : sizeof(float);
    if (from < to) memset((char *)p + (size_t)from * bytes, 0, (size_t)(to - from) * bytes);
}

#ifdef VEC_TREE
enum { WHOLE = VEC_TOGETHER > GROUP ? VEC_TOGETHER : GROUP }; /* no weight of a step is then left to be cleared */

/* Where all rows see the same keys, in whole groups and steps, and nothing else is asked of the scores: maxima and sums of all
   rows are joined at once, and so are m, l and c. The same bits. */
VEC_INLINE void strip_whole(const tp__row_tile *t, const strip *s, float *c, weights as) {
    vec_f of[VEC_LANES];
    float *p = t->s + s->first * t->lds, safe[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++) {
        of[i] = vec_set1(-INFINITY);
        for (int64_t j = s->lo; i < s->mr && j < s->hi; j += GROUP) of[i] = vec_max(of[i], vec_load(p + i * t->lds + j));
    }
    vec_f before = vec_load_first(t->m + s->first, s->mr), m = vec_max(vec_tree(of, 1), before);
    vec_f none = vec_set1(-INFINITY), down = (vec_f)((vec_i)m & (m != none)); /* safe_max */
    vec_f factor = vec_exp2(before - down, vec_set1(t->unit));
    vec_store(safe, down);
    vec_store_first(t->m + s->first, m, s->mr);
    vec_store_first(c, factor, s->mr);
    for (int i = 0; i < VEC_LANES; i++) of[i] = (vec_f){0};
    for (int i = 0; i < s->mr; i++)
        row_exp_parts(p + i * t->lds, as == WEIGHTS_BF16, p + i * t->lds, s->lo, s->hi, safe[i], t->unit, &of[i]);
    float *l = t->l + s->first;
    vec_store_first(l, vec_load_first(l, s->mr) * factor + vec_tree(of, 0), s->mr);
}
#endif

/* c receives the rows' factors. Weights stand from the strip's first key that any row sees to its last, rounded to what meets
   in one step. */
VEC_INLINE void strip_softmax(const tp__row_tile *t, const strip *s, float *c, weights as) {
#ifdef VEC_TREE
    if (as != WEIGHTS_ROUNDED && t->modify == NULL && t->bits == NULL && t->drop == NULL && s->lo == s->all_lo &&
        s->hi == s->all_hi && s->lo % WHOLE == 0 && s->hi % WHOLE == 0) {
        strip_whole(t, s, c, as);
        return;
    }
#endif
    float safe[VEC_LANES] = {0}, down[VEC_LANES] = {0}; /* what to subtract; m - m' */
    const int64_t together = as == WEIGHTS_F32 ? 2 : VEC_TOGETHER;
    int64_t first = s->lo / together * together, end = (s->hi + together - 1) / together * together;
    for (int i = 0; i < s->mr; i++) {
        int64_t r = s->first + i, lo = t->lo[r], hi = t->hi[r];
        float *p = t->s + r * t->lds;
        if (lo >= hi) continue; /* its maximum stands: a factor of 2^0 */
        int64_t from = lo / GROUP * GROUP, to = (hi + GROUP - 1) / GROUP * GROUP;
        if (t->modify != NULL) modify_row(t->modify, r, p, from, to, lo, hi, NULL);
        if (t->bits != NULL)
            mask_bits(p, t->bits + r * t->bit_words, from, to);
        else
            mask_row(p, from, lo, hi, to);
        float best = row_max(p, from, to), m = best > t->m[r] ? best : t->m[r];
        safe[i] = safe_max(m);
        down[i] = t->m[r] - safe[i];
        t->m[r] = m;
    }
    vec_f factor = vec_exp2(vec_load(down), vec_set1(t->unit));
    for (int i = 0; i < s->mr; i++) {
        int64_t r = s->first + i, lo = t->lo[r], hi = t->hi[r];
        int64_t from = lo / GROUP * GROUP, to = (hi + GROUP - 1) / GROUP * GROUP;
        float *p = t->s + r * t->lds;
        c[i] = factor[i];
        if (lo >= hi) {
            no_weights(p, first, end, as);
            continue;
        }
        t->l[r] = t->l[r] * c[i] + row_weights(t, r, p, from, to, safe[i], as);
        no_weights(p, first, from, as);
        no_weights(p, to, end, as);
    }
}

#endif
