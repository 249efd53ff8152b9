/* SPDX-License-Identifier: Apache-2.0 */
/*
 * math: attention as a textbook writes it, for one query head. All scores go to memory, then all
 * weights 2^(s - max s), then their products with V: three passes over rows x keys, masked keys computed like
 * the others. It uses the same register tiles as attend, so what it loses is what the matrix costs and nothing
 * else. Sums are cut where the fused loop cuts them, into blocks and chunks of keys, and divided at the end: one
 * chain over a long row would lose more than the bound of docs/maths.md allows.
 */
#include "kernels/drop.h"
#include "kernels/gemm.h"
#include "kernels/function.h"
#include "kernels/modify.h"
#include "kernels/softmax.h"

static void all_scores(tp__trace *trace, const tp__math *t) {
    for (int64_t r = 0; r < t->rows; r += VEC_MR) {
        int64_t mr = t->rows - r < VEC_MR ? t->rows - r : VEC_MR;
        for (int64_t key = 0; key < t->keys; key += VEC_NR)
            scores_of[0][mr]((const float *)t->q + r * t->ldq, t->ldq, (const float *)t->k + key * t->d, t->d,
                             t->s + r * t->lds + key, t->lds);
    }
    trace->pairs_computed += t->rows * t->keys;
    trace->scores_written += t->rows * t->keys;
}

/* Of all weights of a row, as attend's blocks and chunks would sum them. */
static float row_weights(const tp__math *t, float *p, const float *s, int64_t to, float m) {
    float sum = 0.0f;
    for (int64_t chunk = 0; chunk < to; chunk += TP_CHUNK_KEYS) {
        int64_t end = to - chunk < TP_CHUNK_KEYS ? to : chunk + TP_CHUNK_KEYS;
        float part = 0.0f;
        for (int64_t key = chunk; key < end; key += t->piece)
            part += row_exp(p, 0, s, key, end - key < t->piece ? end : key + t->piece, m, t->unit);
        sum += part;
    }
    return sum;
}

static void all_weights(const tp__math *t) {
    int64_t to = (t->keys + GROUP - 1) / GROUP * GROUP;
    for (int64_t r = 0; r < t->rows; r++) {
        float *s = t->s + r * t->lds, *p = t->p + r * t->lds;
        if (t->modify != NULL) modify_row(t->modify, r, s, 0, to, t->lo[r], t->hi[r], NULL);
        mask_row(s, 0, t->lo[r], t->hi[r], to);
        if (t->bits != NULL) mask_bits(s, t->bits + r * t->bit_words, 0, to);
        float best = row_max(s, 0, to);
        t->m[r] = t->sink > best || t->sink != t->sink ? t->sink : best;
        t->l[r] = row_weights(t, p, s, to, safe_max(t->m[r]));
        if (t->sink != -INFINITY) t->l[r] += exp2_one(t->sink - t->m[r], t->unit);
        if (t->drop != NULL) drop_row(t->drop, r, p, 0, to);
    }
}

/* o += part, of one panel's width. */
static void add_part(const float part[VEC_NR], float *o, int64_t width) {
    for (int64_t x = 0; x < width; x += VEC_LANES) vec_store(o + x, vec_load(o + x) + vec_load(part + x));
}

static void chunk_values(const tp__math *t, int64_t chunk, int64_t keys) {
    static const float nothing[VEC_MR] = {0}; /* a chunk starts from it */
    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
        int narrow = wide - panel < VEC_NR;
        int64_t width = narrow ? VEC_LANES : VEC_NR;
        for (int64_t r = 0; r < t->rows; r += VEC_MR) {
            int64_t mr = t->rows - r < VEC_MR ? t->rows - r : VEC_MR;
            float part[VEC_MR][VEC_NR] = {{0}};
            values_of[narrow][mr](t->p + r * t->lds + chunk, t->lds, (const float *)t->v + panel * t->block + chunk * width, keys,
                                  nothing, part[0], VEC_NR);
            for (int64_t i = 0; i < mr; i++) add_part(part[i], t->o + (r + i) * t->ldo + panel, width);
        }
    }
}

/* The same sums of one row, where 0 x NaN must never be computed. */
static void careful_values(const tp__math *t, int64_t r, int64_t chunk, int64_t end) {
    const uint64_t *bits = t->bits != NULL ? t->bits + r * t->bit_words : NULL;
    int64_t wide = (t->dv + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    if (end > t->hi[r]) end = t->hi[r];
    for (int64_t panel = 0; panel < wide; panel += VEC_NR) {
        int64_t width = wide - panel < VEC_NR ? VEC_LANES : VEC_NR;
        float part[VEC_NR] = {0};
        for (int64_t base = chunk; base < end; base += PIECE_KEYS) {
            uint64_t seen[TP__BLOCK_WORDS];
            int64_t keys = end - base < PIECE_KEYS ? end - base : PIECE_KEYS;
            seen_words(t->modify, bits, r, t->lo[r], t->hi[r], base, seen);
            values_row(t->p + r * t->lds, (const float *)t->v + panel * t->block, t->block, base, 0, keys, seen, 1.0f, part,
                       width);
        }
        add_part(part, t->o + r * t->ldo + panel, width);
    }
}

void TP_FUNCTION_NAME(math_f32)(tp__trace *trace, const tp__math *t) {
    trace->calls[TP_FUNCTION_ID(math_f32)]++;
    all_scores(trace, t);
    all_weights(t);
    memset(t->o, 0, (size_t)(t->rows * t->ldo) * sizeof(float));
    for (int64_t chunk = 0; chunk < t->keys; chunk += TP_CHUNK_KEYS) {
        int64_t end = t->keys - chunk < TP_CHUNK_KEYS ? t->keys : chunk + TP_CHUNK_KEYS;
        if (!t->v_not_finite) chunk_values(t, chunk, end - chunk);
        for (int64_t r = 0; t->v_not_finite && r < t->rows; r++) careful_values(t, r, chunk, end);
    }
}
