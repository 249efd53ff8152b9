/* SPDX-License-Identifier: Apache-2.0 */
/*
 * math: attention as a textbook writes it, for one query head. All scores go to memory, then all
 * probabilities, then P V: three passes over rows x keys, masked keys computed like the others. It
 * uses the same register tiles as attend, so what it loses is what the matrix costs and nothing else.
 */
#include "kernels/drop.h"
#include "kernels/gemm.h"
#include "kernels/leaf.h"
#include "kernels/modify.h"
#include "kernels/softmax.h"

static void all_scores(tp__trace *trace, const tp__math *t) {
    for (int64_t r = 0; r < t->rows; r += VEC_MR) {
        int64_t mr = t->rows - r < VEC_MR ? t->rows - r : VEC_MR;
        for (int64_t key = 0; key < t->keys; key += VEC_NR)
            scores_of[0][mr](t->q + r * t->ldq, t->ldq, t->k + key * t->d, t->d, t->s + r * t->lds + key,
                          t->lds);
    }
    trace->pairs_computed += t->rows * t->keys;
    trace->scores_written += t->rows * t->keys;
}

static void all_probabilities(const tp__math *t) {
    int64_t to = (t->keys + GROUP - 1) / GROUP * GROUP;
    for (int64_t r = 0; r < t->rows; r++) {
        float *s = t->s + r * t->lds, *p = t->p + r * t->lds;
        if (t->modify != NULL) modify_row(t->modify, r, s, 0, to, t->lo[r], t->hi[r], NULL);
        mask_row(s, 0, t->lo[r], t->hi[r], to);
        if (t->bits != NULL) mask_bits(s, t->bits + r * t->bit_words, 0, to);
        float best = row_max(s, 0, to);
        t->m[r] = t->sink > best || t->sink != t->sink ? t->sink : best;
        t->l[r] = row_exp(p, s, 0, to, safe_max(t->m[r]), t->unit);
        if (t->sink != -INFINITY) t->l[r] += exp2_one(t->sink - t->m[r], t->unit);
        for (int64_t j = 0; j < to; j += VEC_LANES)
            vec_store(p + j, t->l[r] == 0.0f ? (vec_f){0} : vec_load(p + j) / vec_set1(t->l[r]));
        if (t->drop != NULL) drop_row(t->drop, r, p, 0, to);
    }
}

static void all_values(const tp__math *t) {
    static const float keep[VEC_MR] = {0}; /* o starts from nothing */
    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
        int narrow = wide - panel < VEC_NR;
        for (int64_t r = 0; r < t->rows; r += VEC_MR) {
            int64_t mr = t->rows - r < VEC_MR ? t->rows - r : VEC_MR;
            values_of[narrow][mr](t->p + r * t->lds, t->lds, t->v + panel * t->block, t->keys, keep,
                                  t->o + r * t->ldo + panel, t->ldo);
        }
    }
}

/* 0 x NaN must never be computed. */
static void careful_row(const tp__math *t, int64_t r) {
    const uint64_t *bits = t->bits != NULL ? t->bits + r * t->bit_words : NULL;
    for (int64_t base = 0; base < t->hi[r]; base += PIECE_KEYS) {
        uint64_t seen[TP__BLOCK_WORDS];
        int64_t keys = t->hi[r] - base < PIECE_KEYS ? t->hi[r] - base : PIECE_KEYS;
        seen_words(t->modify, bits, r, t->lo[r], t->hi[r], base, seen);
        values_row(t->p + r * t->lds, t->v, t->block, base, 0, keys, seen, 1.0f, t->o + r * t->ldo,
                   t->dv);
    }
}

void TP_LEAF_NAME(math_f32)(tp__trace *trace, const tp__math *t) {
    trace->calls[TP_LEAF_ID(math_f32)]++;
    all_scores(trace, t);
    all_probabilities(t);
    memset(t->o, 0, (size_t)(t->rows * t->ldo) * sizeof(float));
    if (!t->v_not_finite) {
        all_values(t);
        return;
    }
    for (int64_t r = 0; r < t->rows; r++) careful_row(t, r);
}
