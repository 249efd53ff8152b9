/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a tile in strips of MR, and which of a block's panels each strip sees: what attend and backward
   share. */
#ifndef TP_KERNELS_STRIPS_H
#define TP_KERNELS_STRIPS_H

#include "kernels/kernel.h"
#include "kernels/product.h"
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

/* One more row of the strip. */
static inline void join_row(const tp__row_tile *t, strip *s) {
    int32_t lo = t->lo[s->first + s->mr], hi = t->hi[s->first + s->mr];
    s->mr++;
    if (hi > lo) {
        if (lo < s->lo) s->lo = lo;
        if (hi > s->hi) s->hi = hi;
    }
    if (lo > s->all_lo) s->all_lo = lo;
    if (hi < s->all_hi) s->all_hi = hi;
}

static inline strip no_rows(int64_t first) { return (strip){first, 0, INT32_MAX, 0, 0, INT32_MAX}; }

static inline int cut_strips(const tp__row_tile *t, strip *strips) {
    int n = 0;
    for (int64_t first = 0; first < t->rows; first += VEC_MR) {
        strip s = no_rows(first);
        while (s.mr < VEC_MR && first + s.mr < t->rows) join_row(t, &s);
        if (s.lo < s.hi) strips[n++] = s; /* a strip that sees nothing here is left alone */
    }
    return n;
}

/* Strips as they meet values: without the rows at either end that see nothing, and cut where the next row sees none of the keys
   of those before, as at the border of two documents, if these are many. Strips that come with bits stay whole. */
static inline int cut_parts(const tp__row_tile *t, const strip *strips, int n, strip *parts) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        const strip *s = &strips[i];
        if (t->bits != NULL || s->all_lo < s->all_hi) { /* or all see some key */
            parts[count++] = *s;
            continue;
        }
        strip part = no_rows(s->first);
        for (int64_t r = s->first; r < s->first + s->mr; r++) {
            int none = t->lo[r] >= t->hi[r], apart = none || t->lo[r] >= part.hi || t->hi[r] <= part.lo;
            if (apart && part.hi - part.lo >= VEC_NR) {
                parts[count++] = part;
                part = no_rows(r);
            }
            if (none && part.mr == 0)
                part.first++;
            else
                join_row(t, &part);
        }
        if (part.mr > 0) parts[count++] = part;
    }
    return count;
}

static inline void join_bits(const tp__row_tile *t, const strip *s, strip_bits *b) {
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
typedef struct panel_class {
    int lower, upper, full;
} panel_class;

VEC_INLINE panel_class look(const strip *s, const strip_bits *b, int64_t key) {
    if (b == NULL)
        return (panel_class){s->lo < key + VEC_LANES && s->hi > key,
                        s->hi > key + VEC_LANES && s->lo < key + VEC_NR,
                        key >= s->all_lo && key + VEC_NR <= s->all_hi};
    const uint64_t half = ((uint64_t)1 << VEC_LANES) - 1, whole = half << VEC_LANES | half;
    uint64_t any = b->any[key / 64] >> (key % 64), all = b->all[key / 64] >> (key % 64);
    return (panel_class){(any & half) != 0, (any >> VEC_LANES & half) != 0, (all & whole) == whole};
}

/* Does the row see any of the keys from..from+count-1, which lie in one word? */
static inline int row_sees(const tp__row_tile *t, int64_t r, int64_t from, int64_t count) {
    if (t->lo[r] >= from + count || t->hi[r] <= from) return 0;
    return t->bits == NULL || (t->bits[r * t->bit_words + from / 64] >> (from % 64) & (((uint64_t)1 << count) - 1)) != 0;
}

/* out = a b^T for the panels that a strip sees; b packed as K is, NULL: it has been done, and is only counted. */
typedef struct tp__product {
    const void *a;
    int64_t lda;      /* elements */
    int64_t a_row;    /* bytes of a row of a */
    const void *b;
    int64_t b_key;    /* bytes of a key of b */
    int64_t d;
    float *out;       /* rows of the tile's lds */
    product_fn *const (*of)[VEC_MR + 1]; /* [0]: a panel; [1]: half of one; by rows */
} tp__product;

/* Both of floats. */
#define FLOAT_PRODUCT(a, lda, b, d, out) \
    {a, lda, (lda) * (int64_t)sizeof(float), b, (d) * (int64_t)sizeof(float), d, out, scores_of}

/* Panels outside, strips inside: a panel stays in L1 while the strips use it. trace NULL: not counted. */
static inline void strip_products(tp__trace *trace, const tp__row_tile *t, const strip *strips,
                                  const strip_bits *bits, int n, const tp__product *p) {
    int32_t lo = INT32_MAX, hi = 0;
    int64_t full = 0, partial = 0, pairs = 0;
    for (int i = 0; i < n; i++) {
        if (strips[i].lo < lo) lo = strips[i].lo;
        if (strips[i].hi > hi) hi = strips[i].hi;
    }
    for (int64_t key = lo / VEC_NR * VEC_NR; key < hi; key += VEC_NR) {
        for (int i = 0; i < n; i++) {
            const strip *s = &strips[i];
            panel_class sees = look(s, t->bits != NULL ? &bits[i] : NULL, key);
            if (!sees.lower && !sees.upper) continue;
            /* half a panel where the strip sees no key of the other half */
            int half = !sees.lower || !sees.upper;
            int64_t from = sees.lower ? key : key + VEC_LANES, count = half ? VEC_LANES : VEC_NR;
            if (p->b != NULL) {
                int64_t first = s->first, end = first + s->mr; /* without the rows before and behind that see nothing of it */
                while (!sees.full && first + 1 < end && !row_sees(t, first, from, count)) first++;
                while (!sees.full && first + 1 < end && !row_sees(t, end - 1, from, count)) end--;
                p->of[half][end - first]((const char *)p->a + first * p->a_row, p->lda,
                                         (const char *)p->b + key * p->b_key + (from - key) * (int64_t)sizeof(float), p->d,
                                         p->out + first * t->lds + from, t->lds);
                pairs += (end - first) * count;
            }
            full += sees.full;
            partial += !sees.full;
        }
    }
    if (trace == NULL) return;
    trace->pairs_computed += pairs;
    trace->panels_full += full;
    trace->panels_partial += partial;
    if (t->modify != NULL && t->modify->bias != NULL) trace->panels_conservative += full + partial;
}

/* Is there a key within the strip's hull that some row does not see? */
static inline int has_holes(const tp__row_tile *t, const strip *s, const strip_bits *b) {
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

#endif
