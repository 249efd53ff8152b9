/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of weights that stay floats, from packed pairs of keys: one chain from o*c on, keys ascending, as pv has it.
 * Decode takes values in place (pv) or packed (this). Which one may depend on a row's neighbours, so both must give a row the
 * same bits.
 */
#ifndef TP_KERNELS_BF16_ORDERED_H
#define TP_KERNELS_BF16_ORDERED_H

#include "kernels/bf16/found.h"
#include "kernels/strip_softmax.h"

typedef vec_i vec_i_any __attribute__((aligned(4), may_alias));
typedef int32_t pair_any __attribute__((may_alias));

VEC_INLINE vec_i load_pairs(const void *p, int64_t lanes) {
    return *(const vec_i_any *)((const char *)p + lanes * 4);
}
VEC_INLINE vec_i set_pair(const void *p, int64_t pair) {
    return ((const pair_any *)p)[pair] + (vec_i){0};
}

/* Keys from..to-1, even both, of which any row of a strip sees one. */
typedef struct run {
    int32_t from, to;
} run;

enum { RUNS = TP__BLOCK_WORDS * 64 / GROUP };

/* The keys of the strip's hull that any row sees, in whole pairs. */
static inline int runs_of(const strip *s, const strip_bits *bits, run runs[RUNS]) {
    int count = 0;
    for (int64_t from = s->lo, to = s->lo; next_run(s, bits, &from, &to);)
        runs[count++] = (run){(int32_t)(from / 2 * 2), (int32_t)((to + 1) / 2 * 2)};
    return count;
}

/* Where so many keys meet in one step: does one meet its value that some row of the strip does not see? */
static inline int reaches_beyond(const tp__row_tile *t, const strip *s, const strip_bits *bits, int64_t together) {
    return s->lo % together || s->hi % together || has_holes(t, s, bits);
}

/* The keys that row r sees, as bits. */
static inline void seen_of(const tp__row_tile *t, int64_t r, uint64_t seen[TP__BLOCK_WORDS]) {
    seen_words(t->modify, t->bits != NULL ? t->bits + r * t->bit_words : NULL, r, t->lo[r], t->hi[r], 0, seen);
}

VEC_INLINE void ordered_values_body(const int mr, const int nrv, const float *p, int64_t lds, const void *v, const run *runs,
                                    int count, const float *c, float *o, int64_t ldo) {
    vec_f acc[VEC_ORDERED_ROWS][VEC_NRV];
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) acc[i][j] = vec_load(o + i * ldo + j * VEC_LANES) * vec_set1(c[i]);
    }
    for (int n = 0; n < count; n++)
        for (int64_t pair = runs[n].from / 2; pair < runs[n].to / 2; pair++) {
            vec_i b0 = load_pairs(v, pair * nrv * VEC_LANES);
            vec_i b1 = nrv > 1 ? load_pairs(v, pair * nrv * VEC_LANES + VEC_LANES) : b0;
            VEC_UNROLL for (int i = 0; i < mr; i++) {
                const float *weight = p + i * lds + 2 * pair;
                VEC_UNROLL for (int odd = 0; odd < 2; odd++) {
                    vec_f x = vec_set1(weight[odd]);
                    acc[i][0] = vec_fma(x, odd ? vec_odd_bf16(b0) : vec_even_bf16(b0), acc[i][0]);
                    if (nrv > 1) acc[i][1] = vec_fma(x, odd ? vec_odd_bf16(b1) : vec_even_bf16(b1), acc[i][1]);
                }
            }
        }
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) vec_store(o + i * ldo + j * VEC_LANES, acc[i][j]);
    }
}

typedef void ordered_values_fn(const float *p, int64_t lds, const void *v, const run *runs, int count, const float *c, float *o,
                               int64_t ldo);

#define ORDERED_VALUES(MR, NAME, NRV)                                                                                            \
    static __attribute__((noinline)) void NAME##MR(const float *p, int64_t lds, const void *v, const run *runs, int count,       \
                                                   const float *c, float *o, int64_t ldo) {                                      \
        ordered_values_body(MR, NRV, p, lds, v, runs, count, c, o, ldo);                                                         \
    }
#define ORDERED_ROWS(MR) ORDERED_VALUES(MR, values_ordered_, VEC_NRV) ORDERED_VALUES(MR, values_ordered_narrow_, 1)
#define PLACE_WIDE(MR)   [MR] = values_ordered_##MR,
#define PLACE_NARROW(MR) [MR] = values_ordered_narrow_##MR,
VEC_UP_TO_ORDERED_ROWS(ORDERED_ROWS)
static ordered_values_fn *const ordered_values_of[2][VEC_ORDERED_ROWS + 1] = {
    {VEC_UP_TO_ORDERED_ROWS(PLACE_WIDE)},
    {VEC_UP_TO_ORDERED_ROWS(PLACE_NARROW)},
};
#undef ORDERED_VALUES
#undef ORDERED_ROWS
#undef PLACE_WIDE
#undef PLACE_NARROW

/* One row's sum over the keys that it sees alone: 0 x NaN must never be computed. The same chain, so the same bits. */
static void careful_ordered_row(const tp__row_tile *t, int64_t r, float c) {
    uint64_t seen[TP__BLOCK_WORDS];
    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    seen_of(t, r, seen);
    for (int64_t x = 0; x < wide; x += VEC_LANES) {
        int64_t panel = x / VEC_NR * VEC_NR, width = wide - panel < VEC_NR ? wide - panel : VEC_NR;
        float *o = t->o + r * t->ldo + x;
        vec_f acc = vec_load(o) * vec_set1(c);
        for (int64_t key = t->lo[r]; key < t->hi[r]; key++) {
            if (!(seen[key / 64] >> (key % 64) & 1)) continue;
            vec_i pair = load_pairs(t->v, panel * t->block / 2 + key / 2 * width + x - panel);
            acc = vec_fma(vec_set1(t->s[r * t->lds + key]), key % 2 ? vec_odd_bf16(pair) : vec_even_bf16(pair), acc);
        }
        vec_store(o, acc);
    }
}

static void ordered_values(const tp__row_tile *t, const strip *s, const strip_bits *bits, const float *c) {
    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    run runs[RUNS];
    if ((t->v_found & FOUND_NOT_FINITE) && reaches_beyond(t, s, bits, 2)) {
        for (int i = 0; i < s->mr; i++) careful_ordered_row(t, s->first + i, c[i]);
        return;
    }
    int count = runs_of(s, bits, runs);
    for (int64_t panel = 0; panel < wide; panel += VEC_NR)
        for (int i = 0; i < s->mr; i += VEC_ORDERED_ROWS) {
            int rows = s->mr - i < VEC_ORDERED_ROWS ? s->mr - i : VEC_ORDERED_ROWS;
            ordered_values_of[wide - panel < VEC_NR][rows](t->s + (s->first + i) * t->lds, t->lds,
                                                           (const float *)t->v + panel * t->block / 2, runs, count, c + i,
                                                           t->o + (s->first + i) * t->ldo + panel, t->ldo);
        }
}

/* Decode: the scores are in s already, from float products. */
VEC_INLINE void attend_ordered(tp__trace *trace, const tp__row_tile *t, const strip *strips, const strip_bits *bits, int n,
                               float *c) {
    strip_products(trace, t, strips, bits, n, &(const tp__product){.d = t->d, .out = t->s});
    for (int i = 0; i < n; i++) {
        const strip *s = &strips[i];
        strip_softmax(t, s, c + s->first, WEIGHTS_F32);
        if (t->v != NULL) ordered_values(t, s, t->bits != NULL ? &bits[i] : NULL, c + s->first);
    }
}

#endif
