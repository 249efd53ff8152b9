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

/* The weights of keys from..to-1 of n rows, whose scores lie there, and their sums. */
VEC_INLINE void rows_weights(const int n, const tp__row_tile *t, int64_t r, int64_t from, int64_t to, const float *m,
                             float *sums, weights as) {
    float *p = t->s + r * t->lds;
    int narrow = as == WEIGHTS_BF16 && t->drop == NULL;
    if (narrow)
        rows_exp(n, 1, p, p, t->lds, from, to, m, t->unit, sums);
    else
        rows_exp(n, 0, p, p, t->lds, from, to, m, t->unit, sums);
    for (int i = 0; i < n && !narrow; i++, p += t->lds) {
        if (t->drop != NULL) drop_row(t->drop, r + i, p, from, to);
        if (as == WEIGHTS_ROUNDED) round_row(p, from, to);
        if (as == WEIGHTS_BF16) narrow_row(p, from, to);
    }
}

VEC_INLINE void no_weights(float *p, int64_t from, int64_t to, weights as) {
    size_t bytes = as == WEIGHTS_BF16 ? sizeof(uint16_t) : sizeof(float);
    if (from < to) memset((char *)p + (size_t)from * bytes, 0, (size_t)(to - from) * bytes);
}

/* How many rows from r on go at once: those before `end` that see the same groups of keys. */
VEC_INLINE int rows_alike(const tp__row_tile *t, int64_t r, int64_t end) {
    if (r + ROWS_AT_ONCE > end) return 1;
    for (int i = 0; i < ROWS_AT_ONCE; i++)
        if (t->lo[r + i] >= t->hi[r + i] || t->lo[r + i] / GROUP != t->lo[r] / GROUP ||
            (t->hi[r + i] - 1) / GROUP != (t->hi[r] - 1) / GROUP)
            return 1;
    return ROWS_AT_ONCE;
}

/* c receives the rows' factors. Weights stand from the strip's first key that any row sees to its last, rounded to what meets
   in one step. */
VEC_INLINE void strip_softmax(const tp__row_tile *t, const strip *s, float *c, weights as) {
    float safe[VEC_LANES] = {0}, down[VEC_LANES] = {0}; /* what to subtract; m - m' */
    int rows[VEC_MR]; /* at once */
    const int64_t together = as == WEIGHTS_F32 ? 2 : VEC_TOGETHER;
    int64_t first = s->lo / together * together, end = (s->hi + together - 1) / together * together;
    for (int i = 0; i < s->mr; i += rows[i]) {
        int64_t r = s->first + i, lo = t->lo[r], hi = t->hi[r];
        rows[i] = rows_alike(t, r, s->first + s->mr);
        if (lo >= hi) continue; /* its maximum stands: a factor of 2^0 */
        int64_t from = lo / GROUP * GROUP, to = (hi + GROUP - 1) / GROUP * GROUP;
        float best[ROWS_AT_ONCE] = {0};
        for (int64_t j = r; j < r + rows[i]; j++) {
            float *p = t->s + j * t->lds;
            if (t->modify != NULL) modify_row(t->modify, j, p, from, to, t->lo[j], t->hi[j], NULL);
            if (t->bits != NULL)
                mask_bits(p, t->bits + j * t->bit_words, from, to);
            else
                mask_row(p, from, t->lo[j], t->hi[j], to);
        }
        if (rows[i] == 1)
            rows_max(1, t->s + r * t->lds, t->lds, from, to, best);
        else
            rows_max(ROWS_AT_ONCE, t->s + r * t->lds, t->lds, from, to, best);
        for (int j = 0; j < rows[i]; j++) {
            float m = best[j] > t->m[r + j] ? best[j] : t->m[r + j];
            safe[i + j] = safe_max(m);
            down[i + j] = t->m[r + j] - safe[i + j];
            t->m[r + j] = m;
        }
    }
    vec_f factor = vec_exp2(vec_load(down), vec_set1(t->unit));
    for (int i = 0; i < s->mr; i++) c[i] = factor[i];
    for (int i = 0; i < s->mr; i += rows[i]) {
        int64_t r = s->first + i, lo = t->lo[r], hi = t->hi[r];
        int64_t from = lo / GROUP * GROUP, to = (hi + GROUP - 1) / GROUP * GROUP;
        float sums[ROWS_AT_ONCE];
        if (lo >= hi) {
            no_weights(t->s + r * t->lds, first, end, as);
            continue;
        }
        if (rows[i] == 1)
            rows_weights(1, t, r, from, to, safe + i, sums, as);
        else
            rows_weights(ROWS_AT_ONCE, t, r, from, to, safe + i, sums, as);
        for (int j = 0; j < rows[i]; j++) {
            float *p = t->s + (r + j) * t->lds;
            t->l[r + j] = t->l[r + j] * c[i + j] + sums[j];
            no_weights(p, first, from, as);
            no_weights(p, to, end, as);
        }
    }
}

#endif
