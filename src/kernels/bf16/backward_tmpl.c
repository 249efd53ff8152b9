/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backward on pairs of bf16: as kernels/backward_tmpl.c, with all five products by the instruction (vec_dot).
 *
 *     s  = q k^T,  dp = d_o v^T               pairs along the head dim, exact: by strips of rows and panels of keys
 *     p, ds                                   floats, then rounded to bf16
 *     dq += ds k                              pairs of keys, by strips of rows
 *     dv += p^T d_o,  dk += ds^T q            pairs of rows, by strips of keys
 *
 * The first two take vec_fma instead where an element is so small that the instruction would flush it, as attend does. The other
 * three always take the instruction: what it flushes is smaller than 2^-126. Elements of dq are one chain over the keys
 * from 0 on, added to dq; those of dk and dv one chain over the tile's rows; in ascending pairs, the second of a pair first.
 * Where q, d_o or k are not finite, what a pair does not see is 0 in both operands: the same instruction, so the same bits.
 */
#include "kernels/bf16/found.h"
#include "kernels/bf16/products.h"
#include "kernels/function.h"
#include "kernels/gradient_rows.h"

enum { PAIRS = TP__BACK_ROWS / 2, BLOCK = 384 };

/* s and dp of one strip. */
static void strip_scores(tp__trace *trace, const tp__back *b, const strip *s, const strip_bits *bits) {
    const tp__row_tile *t = &b->tile;
    const struct {
        const void *rows;
        int64_t ld, d;
        const void *packed;
        float *out;
        int found;
    } both[2] = {{t->q, t->ldq, t->d, t->k, t->s, t->k_found}, {b->d_o, b->ldo, t->dv, b->v, b->ds, t->v_found}};
    for (int i = 0; i < 2; i++) {
        uint16_t pairs[VEC_MR * TP_MAX_HEAD_DIM];
        int64_t d = both[i].d, ld = (d + VEC_LANES - 1) / VEC_LANES * VEC_LANES, count = (d + 1) / 2;
        const float *rows = (const float *)both[i].rows + s->first * both[i].ld;
        int small = both[i].found | rows_to_pairs(rows, both[i].ld, s->mr, d, pairs, ld);
        strip one = *s; /* its rows are the first of these */
        tp__row_tile own = *t;
        one.first = 0;
        own.lo += s->first;
        own.hi += s->first;
        if (own.bits != NULL) own.bits += s->first * own.bit_words;
        tp__product product = {
            .a = small ? (const void *)rows : pairs,
            .lda = small ? both[i].ld / 2 : ld / 2,
            .a_row = small ? both[i].ld * (int64_t)sizeof *rows : ld * (int64_t)sizeof *pairs,
            .b = both[i].packed,
            .b_key = count * 4,
            .d = count,
            .out = both[i].out + s->first * t->lds,
            .of = pair_scores_of[small ? BY_FMA : BY_DOT],
        };
        strip_products(i == 0 ? trace : NULL, &own, &one, bits, 1, &product);
    }
}

/* ds of the strip's hull as bf16, 0 in the rest of its pairs and groups. */
static void narrow_strip(const tp__back *b, const strip *s, uint16_t ds[VEC_MR * BLOCK]) {
    int64_t from = s->lo / GROUP * GROUP, to = (s->hi + GROUP - 1) / GROUP * GROUP;
    for (int i = 0; i < s->mr; i++) {
        const float *row = b->ds + (s->first + i) * b->tile.lds;
        uint16_t *out = ds + i * BLOCK;
        for (int64_t j = from; j < to; j += GROUP) vec_store_lower(out + j, vec_round2(vec_load(row + j), (vec_f){0}));
        memset(out + from, 0, (size_t)(s->lo - from) * sizeof *out);
        memset(out + s->hi, 0, (size_t)(to - s->hi) * sizeof *out);
    }
}

static void strip_dq(const tp__back *b, const strip *s, const strip_bits *bits) {
    const tp__row_tile *t = &b->tile;
    int64_t wide = (t->d + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    uint16_t ds[VEC_MR * BLOCK];
    run runs[RUNS];
    int count = runs_of(s, bits, runs);
    narrow_strip(b, s, ds);
    for (int64_t panel = 0; panel < wide; panel += VEC_NR)
        pair_values_of[BY_DOT][wide - panel < VEC_NR][s->mr]((const float *)(const void *)ds, BLOCK / 2,
                                                             (const float *)b->k_rows + panel * t->block / 2, runs, count, ones,
                                                             b->dq + s->first * t->ldq + panel, t->ldq);
}

/* Rows 2i and 2i+1 of floats become one row of pairs, where the first of them was. */
static void pair_rows(float *rows, int64_t lds, int64_t count, const extent *e) {
    int64_t from = e->lo / GROUP * GROUP, to = (e->hi + GROUP - 1) / GROUP * GROUP;
    for (int64_t r = 0; r < count; r += 2) {
        float *even = rows + r * lds, *odd = r + 1 < count ? even + lds : NULL;
        for (int64_t j = from; j < to; j += VEC_LANES)
            vec_store(even + j, (vec_f)vec_zip(vec_load(even + j), odd != NULL ? vec_load(odd + j) : (vec_f){0}));
    }
}

/* Pairs of rows of q or d_o, of one panel. */
typedef struct row_pairs {
    vec_i at[PAIRS][VEC_NRV];
} row_pairs;

static void pack_rows(const float *from, int64_t ld, int64_t rows, int narrow, row_pairs *to) {
    for (int64_t r = 0; r < rows; r += 2)
        for (int i = 0; i < (narrow ? 1 : VEC_NRV); i++) {
            const float *even = from + r * ld + i * VEC_LANES;
            to->at[r / 2][i] = vec_zip(vec_load(even), r + 1 < rows ? vec_load(even + ld) : (vec_f){0});
        }
}

/* to[i][0..nrv*L) += sum over pairs of rows of a[pair][i] * b[pair]; lda counts pairs */
VEC_INLINE void pair_tn_body(const int mr, const int nrv, const float *a, int64_t lda, const vec_i (*b)[VEC_NRV], int64_t pairs,
                             float *to, int64_t ldc) {
    vec_f acc[VEC_MR][VEC_NRV];
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) acc[i][j] = vec_load(to + i * ldc + j * VEC_LANES);
    }
    for (int64_t pair = 0; pair < pairs; pair++) {
        vec_i b0 = b[pair][0], b1 = nrv > 1 ? b[pair][1] : b0;
        VEC_UNROLL for (int i = 0; i < mr; i++) add_pair(nrv, BY_DOT, a + pair * lda, i, b0, b1, &acc[i][0], &acc[i][nrv - 1]);
    }
    VEC_UNROLL for (int i = 0; i < mr; i++) {
        VEC_UNROLL for (int j = 0; j < nrv; j++) vec_store(to + i * ldc + j * VEC_LANES, acc[i][j]);
    }
}

typedef void pair_tn_fn(const float *a, int64_t lda, const vec_i (*b)[VEC_NRV], int64_t pairs, float *to, int64_t ldc);
#define PAIR_TN(MR, NAME, NRV)                                                                                                   \
    static __attribute__((noinline)) void NAME##MR(const float *a, int64_t lda, const vec_i(*b)[VEC_NRV], int64_t pairs,         \
                                                   float *to, int64_t ldc) {                                                     \
        pair_tn_body(MR, NRV, a, lda, b, pairs, to, ldc);                                                                        \
    }
#define PAIR_ROWS(MR) PAIR_TN(MR, pair_tn_, VEC_NRV) PAIR_TN(MR, pair_tn_narrow_, 1)
VEC_ROWS(PAIR_ROWS)
#undef PAIR_ROWS
#define TN(MR)        PLACE(pair_tn_, MR)
#define TN_NARROW(MR) PLACE(pair_tn_narrow_, MR)
static pair_tn_fn *const pair_tn_of[2][VEC_MR + 1] = {{VEC_ROWS(TN)}, {VEC_ROWS(TN_NARROW)}};

/* to += a^T from, over the keys of the extent; a as pair_rows left it. */
static void sum_by_keys(const tp__row_tile *t, const extent *e, const float *a, const float *from, int64_t ld, int64_t d,
                        float *to) {
    for (int64_t x = 0; x < d; x += VEC_NR) {
        int narrow = d - x <= VEC_LANES;
        row_pairs rows;
        pack_rows(from + x, ld, t->rows, narrow, &rows);
        for (int64_t key = e->lo; key < e->hi; key += VEC_MR) {
            int64_t count = e->hi - key < VEC_MR ? e->hi - key : VEC_MR, first, last;
            rows_of_keys(t, e, key, count, &first, &last);
            if (first >= last) continue;
            int64_t pair = first / 2, end = (last + 1) / 2;
            pair_tn_of[narrow][count](a + 2 * pair * t->lds + key, 2 * t->lds, rows.at + pair, end - pair, to + key * ld + x, ld);
        }
    }
}

/* ---- where something is not finite: what a pair does not see is 0 in both operands ---- */

/* Which keys each row of the tile sees. */
typedef struct visible_keys {
    uint64_t word[TP__BACK_ROWS][TP__BLOCK_WORDS];
} visible_keys;

static int seen_by(const tp__row_tile *t, const visible_keys *s, int64_t row, int64_t key) {
    if (row >= t->rows || key < t->lo[row] || key >= t->hi[row]) return 0;
    return (int)(s->word[row][key / 64] >> (key % 64) & 1);
}

static vec_i shown(vec_i pair, int first, int second) {
    return pair & (int32_t)((first ? 0xffffu : 0) | (second ? 0xffff0000u : 0));
}

static void careful_dq(const tp__back *b, const visible_keys *visible, const strip *s, int i, const uint16_t *ds) {
    const tp__row_tile *t = &b->tile;
    int64_t r = s->first + i, wide = (t->d + VEC_LANES - 1) / VEC_LANES * VEC_LANES;
    for (int64_t x = 0; x < wide; x += VEC_LANES) {
        int64_t panel = x / VEC_NR * VEC_NR, width = wide - panel < VEC_NR ? wide - panel : VEC_NR;
        float *to = b->dq + r * t->ldq + x;
        vec_f acc = {0};
        for (int64_t key = s->lo / 2 * 2; key < s->hi; key += 2) {
            int first = seen_by(t, visible, r, key), second = seen_by(t, visible, r, key + 1);
            if (!first && !second) continue;
            vec_i k = load_pairs(b->k_rows, panel * t->block / 2 + key / 2 * width + x - panel);
            acc = vec_dot(set_pair(ds + i * BLOCK, key / 2), shown(k, first, second), acc);
        }
        vec_store(to, vec_fma(vec_load(to), vec_set1(1.0f), acc));
    }
}

static void careful_keys(const tp__row_tile *t, const extent *e, const visible_keys *visible, const float *a, const float *from,
                         int64_t ld, int64_t d, float *to) {
    for (int64_t x = 0; x < d; x += VEC_LANES) {
        row_pairs rows;
        pack_rows(from + x, ld, t->rows, 1, &rows);
        for (int64_t key = e->lo; key < e->hi; key++) {
            vec_f acc = vec_load(to + key * ld + x);
            for (int64_t r = 0; r < t->rows; r += 2) {
                int first = seen_by(t, visible, r, key), second = seen_by(t, visible, r + 1, key);
                if (first || second) acc = vec_dot(set_pair(a + r * t->lds, key), shown(rows.at[r / 2][0], first, second), acc);
            }
            vec_store(to + key * ld + x, acc);
        }
    }
}

static void look_at_rows(const tp__row_tile *t, visible_keys *visible) {
    for (int64_t r = 0; r < t->rows; r++)
        seen_words(t->modify, t->bits != NULL ? t->bits + r * t->bit_words : NULL, r, t->lo[r], t->hi[r], 0, visible->word[r]);
}

void TP_FUNCTION_NAME(backward_f32)(tp__trace *trace, const tp__back *b) {
    const tp__row_tile *t = &b->tile;
    strip strips[STRIPS];
    strip_bits bits[STRIPS];
    visible_keys visible;
    trace->calls[TP_FUNCTION_ID(backward_f32)]++;
    int n = cut_strips(t, strips);
    for (int i = 0; i < n && t->bits != NULL; i++) join_bits(t, &strips[i], &bits[i]);
    extent e = extent_of(b);
    if (e.lo >= e.hi) return;
    for (int i = 0; i < n; i++) strip_scores(trace, b, &strips[i], &bits[i]);
    for (int64_t r = 0; r < t->rows; r++) gradient_of_row(b, &e, r);
    int pairs_whole = e.full && e.lo % 2 == 0 && e.hi % 2 == 0;
    int careful = (b->not_finite || (t->k_found & FOUND_NOT_FINITE)) && !pairs_whole;
    if (careful) look_at_rows(t, &visible);
    for (int i = 0; i < n && b->dq != NULL; i++) {
        uint16_t ds[VEC_MR * BLOCK];
        if (!careful) {
            strip_dq(b, &strips[i], t->bits != NULL ? &bits[i] : NULL);
            continue;
        }
        narrow_strip(b, &strips[i], ds);
        for (int r = 0; r < strips[i].mr; r++) careful_dq(b, &visible, &strips[i], r, ds);
    }
    const struct {
        float *to, *a;
        const void *from;
        int64_t ld, d;
    } sums[2] = {{b->dv, t->s, b->d_o, b->ldo, t->dv}, {b->dk, b->ds, t->q, t->ldq, t->d}};
    for (int i = 0; i < 2; i++) {
        if (sums[i].to == NULL) continue;
        pair_rows(sums[i].a, t->lds, t->rows, &e);
        if (careful)
            careful_keys(t, &e, &visible, sums[i].a, sums[i].from, sums[i].ld, sums[i].d, sums[i].to);
        else
            sum_by_keys(t, &e, sums[i].a, sums[i].from, sums[i].ld, sums[i].d, sums[i].to);
    }
}
