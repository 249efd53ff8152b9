/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between strategies and kernel functions. A kernel function knows nothing of problems, masks or threads:
 * it gets pointers, sizes and, for a tile, which keys each row sees.
 *
 * Packed forms are the set's own (tp__form): strategies ask it for sizes and see no element. Those of the sets that are
 * compiled from vec headers, all of floats, with NR = VEC_NR and L = VEC_LANES of the ISA:
 *
 *     K block   [keys/NR][d][NR]       keys rounded up to NR
 *     V block   panels of NR columns, [panel][keys][NR]; the last panel may be narrower, any multiple
 *               of L: dv is rounded up to L, zero beyond
 *     Q         rows
 *
 * O and S are rows of floats in every set.
 *
 * Q is multiplied by a power of two only, so products of 16-bit elements stay exact. `unit` is the rest of the scale
 * times log2(e). It multiplies differences of scores, inside the exp2. Where scores change (tp__modify) they are
 * natural ones.
 */
#ifndef TP_KERNELS_KERNEL_H
#define TP_KERNELS_KERNEL_H

#include "base/philox.h"
#include "tileproof.h"

/* Dtypes as bits: those of floats, which every set but a special one serves. */
#define TP__FLOATS (1u << TP_F32 | 1u << TP_F16 | 1u << TP_BF16)
#define TP__BF16   (1u << TP_BF16)
/* Of quantised caches, k's and v's alone. */
#define TP__CODES  (1u << TP_E4M3 | 1u << TP_I8 | 1u << TP_I4)
#define TP__ANY    (TP__FLOATS | TP__CODES)
#define TP__OPS    (1u << TP_FORWARD | 1u << TP_BACKWARD)

#define TP__AVX512 (TP_ISA_AVX2 | TP_ISA_AVX512)

/* How k or v is stored: what tables of functions go by. A dtype, but for one form of i8. */
enum { TP__Q8_0 = TP_I4 + 1, TP__STORED };
static inline int tp__stored_as(int32_t dtype, int32_t scales) { return scales == TP_SCALES_Q8_0 ? (int)TP__Q8_0 : dtype; }

enum tp__function {
#define TP_FUNCTION(op, dtype, slot, forms) TP__FUNCTION_##op##_##dtype,
#include "kernels/functions.inc"
#undef TP_FUNCTION
    TP__FUNCTIONS_PER_SET
};

enum tp__rank { /* 0 is the best */
#define TP_ISA_ROW(isa, ...) TP__RANK_##isa,
#include "kernels/isas.inc"
#undef TP_ISA_ROW
    TP__SETS
};

enum {
/* Functions are numbered from the last set on, so that a new set on top leaves the numbers of the others as they are. */
#define TP_ISA_ROW(isa, needs, mr, nr, dtypes, ops, arithmetic)                                               \
    TP__FIRST_FUNCTION_##isa = TP__FUNCTIONS_PER_SET * (TP__SETS - 1 - (int)TP__RANK_##isa),                  \
    TP__NEEDS_##isa = needs, TP__MR_##isa = mr, TP__NR_##isa = nr, TP__DTYPES_##isa = dtypes,                 \
    TP__ARITHMETIC_##isa = arithmetic,
#include "kernels/isas.inc"
#undef TP_ISA_ROW
    TP__FUNCTION_COUNT = TP__FUNCTIONS_PER_SET * TP__SETS,
    TP__TILE_ROWS = 96,  /* most rows of a tile, on any ISA */
    TP__BACK_ROWS = 96,  /* rows of a tile of backward, on every ISA: part of its numerics */
    TP__BLOCK_WORDS = 8, /* of 64 keys: most keys of a block, at any head dim */
    TP__FEW_KEYS = 128   /* most keys of a block of decode, at any head dim: qk and pv get no more */
};

/* What kernel functions did; one per task. Each counts itself under its own number. */
typedef struct tp__trace {
    int64_t panels_full, panels_partial, panels_skipped;
    int64_t pairs_visible, pairs_computed, padded_rows;
    int64_t bytes, scores_written;
    int64_t bytes_scratch; /* written to scratch that grows with the length; also in bytes, twice */
    int64_t panels_conservative;
    int64_t bytes_masks; /* of bytes: bits of masks, elements of a bias */
    int64_t pairs_shared, bytes_shared; /* of pairs_visible: of keys read once for several sequences; what that saved of bytes */
    int64_t calls[TP__FUNCTION_COUNT]; /* last: a set more moves nothing */
} tp__trace;

/* Rows of one KV head, merged: row r is token r/group, query head r%group of the head's group. */
typedef struct tp__rows {
    int64_t first, count;   /* r in first..first+count-1 */
    int64_t group;
    int64_t stride_token, stride_head;
} tp__rows;

/* Walks over rows, giving each row's offset in the tensor, with one division at the start. */
typedef struct tp__walk {
    int64_t token, head, group, stride_token, stride_head;
} tp__walk;

static inline tp__walk tp__walk_start(const tp__rows *rows) {
    return (tp__walk){rows->first / rows->group, rows->first % rows->group, rows->group,
                      rows->stride_token, rows->stride_head};
}

static inline int64_t tp__walk_next(tp__walk *walk) {
    int64_t offset = walk->token * walk->stride_token + walk->head * walk->stride_head;
    if (++walk->head == walk->group) {
        walk->head = 0;
        walk->token++;
    }
    return offset;
}

/* q[i][x] = scale * tensor[row first+i][x]; ldq counts elements of the form */
typedef void tp__load_q_fn(tp__trace *, void *q, int64_t ldq, const void *tensor,
                           const tp__rows *rows, int64_t d, float scale);

/* Cache lines to ask for before they are used: of each row in turn, `lines` lines from `offset` on. */
typedef struct tp__ahead {
    const char *const *row, *const *end;
    const char *at;         /* the next line, `left` of them in its row */
    int64_t offset, lines, left;
} tp__ahead;

#define TP__LINE 64 /* bytes of a cache line */

/* Asks for one line. With AVX2 into L2 alone: where rows lie 4 KiB and more apart, those in L1 would drive each other out. With
   AVX-512 into L1, too, although most have left it for L2 when they are used: docs/performance.md, "A Zen 5". */
#ifdef __AVX512F__
enum { TP__ASK_FOR = 3 };
#else
enum { TP__ASK_FOR = 2 };
#endif
static inline void tp__ask(const char *line) { __builtin_prefetch(line, 0, TP__ASK_FOR); }

/* Asks for the next n lines. */
static inline void tp__ahead_step(tp__ahead *ahead, int64_t n) {
    while (n > 0) {
        if (ahead->left == 0) {
            if (ahead->row == ahead->end) return;
            ahead->at = *ahead->row++ + ahead->offset;
            ahead->left = ahead->lines;
        }
        int64_t run = n < ahead->left ? n : ahead->left;
        const char *at = ahead->at, *to = at + run * TP__LINE;
        for (; at < to; at += TP__LINE) tp__ask(at);
        ahead->at = to;
        ahead->left -= run;
        n -= run;
    }
}

/* Lines that a loop asks for itself, between its multiply-adds: in each of `turns` turns those at `at`, which then moves
   on by `step`. That is 0 where it need not ask, and `at` then is a place that is read anyway. */
typedef struct tp__asked {
    const char *at;
    int64_t turns, step;
} tp__asked;

/* The turns up to the end of a row, at most so many. */
static inline tp__asked tp__ahead_turns(tp__ahead *ahead, int64_t n, int64_t turns, const char *here) {
    if (ahead->left == 0 && ahead->row != ahead->end) {
        ahead->at = *ahead->row++ + ahead->offset;
        ahead->left = ahead->lines;
    }
    if (ahead->left == 0) return (tp__asked){here, turns, 0};
    if (ahead->left < n) {
        tp__ahead_step(ahead, n);
        return (tp__asked){here, 1, 0};
    }
    if (turns > ahead->left / n) turns = ahead->left / n;
    tp__asked asked = {ahead->at, turns, n * TP__LINE};
    ahead->at += turns * asked.step;
    ahead->left -= turns * n;
    return asked;
}

/* Keys first..last-1 of a block, wherever they lie: key j at row[j] + offset. No other key is read. */
typedef struct tp__keys_in {
    const char *const *row;
    int64_t offset;      /* bytes: where the head lies in a token */
    int64_t first, last;
    tp__ahead *ahead;    /* as many lines are asked for as are read */
    int64_t scales;        /* the scales of key j lie at row[j + scales] + scales_offset; 0: there are none, or among codes */
    int64_t scales_offset;
    float *row_scales;     /* not NULL, [block]: pack_v leaves the scales of whole rows here, finite ones, and packs codes */
} tp__keys_in;

/* Packs a block of `block` keys. What keys outside first..last-1 hold in the packed form does not matter:
   their scores are masked before anything looks at them, and no row reads their values. Both return what was found
   that attend and backward must know of, in the set's own terms; of floats only pack_v finds anything, 1: an element
   that is not finite. */
typedef int tp__pack_k_fn(tp__trace *, void *packed, const tp__keys_in *keys, int64_t block, int64_t d);
typedef tp__pack_k_fn tp__pack_v_fn;

/* Scores of few rows straight from the keys, for tiles whose keys are worth no packing:
       s[i][j] = sum over x of q[i][x] * key[j][x]      first <= j < last
   The sum is sixteen chains over x, joined by the tree of vec_sum16. q has zeros from d up to the next
   multiple of 16. Scores up to the next multiple of 16 keys are written too, with no meaning.
   Keys of bf16 and q of floats: of each 32 whole elements of q the sixteen with even indices come first, as tp__ready_q
   leaves them, because that is how such keys are cheapest to load. A chain then goes over x and x+1 at a time. */
typedef void tp__qk_fn(tp__trace *, const void *q, int64_t ldq, int64_t rows, const tp__keys_in *keys,
                         int64_t d, float *s, int64_t lds);

/* o[i] = o[i]*c[i] + sum over keys first..last-1 of p[i][key] * value[key], straight from the values: for
   rows that all see these keys and no others of the block. */
typedef void tp__pv_fn(tp__trace *, const float *p, int64_t lds, int64_t rows, const tp__keys_in *values,
                        int64_t d, const float *c, float *o, int64_t ldo);

/* What changes scores before they are masked, in this order, to natural units. NULL or 0: not asked. */
typedef struct tp__modify {
    float gain;                    /* s = s * gain: natural units */
    const float *scale;            /* [rows] s = s * scale[i] */
    float cap;                     /* s = cap * tanh(s / cap) */
    const float *slope, *q_at;     /* [rows] s = s - slope[i] * |q_at[i] - k_at[j]| */
    const float *k_at;             /* [keys, a multiple of 16] */
    const void *const *bias;       /* [rows] s = s + bias[i][j]; -inf: the key is hidden */
    int64_t bias_stride;           /* from key to key */
    int32_t bias_dtype;
} tp__modify;

/* Which pairs dropout drops: base/philox.h. */
typedef struct tp__drop {
    const tp__dropout_row *row; /* [rows] */
    uint64_t offset;
    uint32_t threshold;
    int64_t key;                /* of the sequence: the block's first, a multiple of 4 */
} tp__drop;

/* One (rows x block) tile of the online softmax:
       m' = max(m, max s);  p = 2^((s-m') unit);  c = 2^((m-m') unit);  l' = l*c + sum p;  o' = o*c + p v */
typedef struct tp__row_tile {
    float unit;                /* of scores, in log2 */
    const void *q; int64_t ldq;
    const void *k, *v;         /* packed; k NULL: the scores are in s already; v NULL: pv comes next */
    float *s; int64_t lds;     /* scratch: rows x block keys */
    float *o; int64_t ldo;     /* unnormalised */
    float *m, *l;
    float *c;                  /* v NULL: receives the factors c for pv, of each row */
    const int32_t *lo, *hi;    /* row i sees the block's keys lo[i]..hi[i]-1; empty: 0, 0 */
    int64_t rows, d, dv;
    int64_t block;             /* keys a packed block has room for: a multiple of NR */
    int k_found, v_found;      /* what pack_k and pack_v returned */
    const uint64_t *bits;      /* NULL: the intervals say it all. Otherwise lo, hi are the hull of what row
                                  i sees, and bit j of bits[i*bit_words ...] says whether it sees key j */
    int64_t bit_words;
    const tp__modify *modify;  /* NULL: scores stay as they are */
    const tp__drop *drop;      /* NULL: every p meets its v; l knows nothing of it */
    const float *v_scale;      /* not NULL, [block]: p is multiplied by it before it meets v; l knows nothing of it */
} tp__row_tile;
typedef void tp__attend_fn(tp__trace *, const tp__row_tile *);

/* Merges the state (m2, l2, o2) of later keys into (m, l, o), m in this unit. An empty state changes no bit. */
typedef void tp__merge_state_fn(tp__trace *, int64_t rows, int64_t ldo, float *m, float *l, float *o,
                         const float *m2, const float *l2, const float *o2, float unit);

/* Adds one more logit to the state of each row, without a value: sinks[query head of the group], -inf for none. m comes
   in units of `left` and is natural afterwards. At the end, so that how rows and keys were cut changes no bit. */
typedef void tp__merge_sinks_fn(tp__trace *, const tp__rows *rows, const float *sinks, int64_t ldo, float left,
                                float *m, float *l, float *o);

/* tensor[row] = o/l, rounded once; 0 for a row that saw no key. */
typedef void tp__store_o_fn(tp__trace *, void *tensor, const tp__rows *rows, int64_t dv,
                            const float *o, int64_t ldo, const float *m, const float *l);

/* The first step back, of rows whose q and d_o lie in float32 rows: delta[i] = sum over x of d_o[i][x] * o[i][x].
   Returns whether a q or d_o is not finite. */
typedef struct tp__delta {
    const void *o;
    tp__rows rows;
    const void *q, *d_o; /* as load_q left them */
    int64_t ldq, ldo, d, dv;
    float *delta;
} tp__delta;
typedef int tp__delta_fn(tp__trace *, const tp__delta *);

/* tensor[row] = factor * from[row], rounded once. */
typedef void tp__store_d_fn(tp__trace *, void *tensor, const tp__rows *rows, int64_t d, const float *from,
                            int64_t ld, float factor);

/* One (rows x block) tile of the gradients, from the rows' lse:
       p = exp(left*s - lse);  dp = d_o v^T;  ds = p*(dp-delta);  dv += p^T d_o;  dk += ds^T q;  dq += ds k
   ds is then the gradient of q.k where scores changed. Of the tile v, o, m, l and c are not used. */
typedef struct tp__back {
    tp__row_tile tile;           /* q, k packed for scores, s, what rows see, what changes scores */
    const void *d_o;         /* [rows][ldo], as load_q left it */
    int64_t ldo;
    const void *v;           /* packed as k is */
    const void *k_rows;      /* k packed as v is */
    float *ds;               /* scratch as s */
    float left;              /* natural score = left * score, as it meets the softmax */
    const float *lse, *delta; /* [rows]; of a row without keys: 0 */
    float *dq, *dk, *dv;     /* [rows][ldq], [block][ldq], [block][ldo]; NULL: not wanted */
    int not_finite;          /* something in q or d_o; of k and v the tile says what was found */
    float stay;              /* with dropout, 1/(1-p): a factor of what stays; dv lacks it */
    float *slope;            /* [rows] sum over keys of ds * |q_at - k_at|, set for rows that see a key; the
                                caller clears it first; NULL: not wanted */
    float *const *d_bias;    /* [rows] += ds, of each row's key 0 of the block; NULL: not wanted */
    int64_t d_bias_stride;   /* from key to key */
} tp__back;
typedef void tp__backward_fn(tp__trace *, const tp__back *);

/* The textbook way on one query head: writes all scores, then all weights p = 2^(s-m), then p v; l = sum p. */
typedef struct tp__math {
    const void *q; int64_t ldq;
    const void *k, *v;         /* packed, the whole sequence as one block */
    float *s, *p; int64_t lds; /* [rows][lds] each */
    float *o; int64_t ldo;     /* unnormalised */
    float *m, *l;
    const int64_t *lo, *hi;
    int64_t rows, d, dv, keys, block;
    int64_t piece;             /* keys that are summed at a time: a multiple of 16 that divides a chunk */
    int v_not_finite;
    const uint64_t *bits; int64_t bit_words; /* as in a tile */
    const tp__modify *modify;  /* where there are sinks too: scores become natural ones */
    float unit;                /* as in a tile */
    const tp__drop *drop;
    float sink;                /* one more score of every row, without a value; -inf: none */
} tp__math;
typedef void tp__math_fn(tp__trace *, const tp__math *);

/* Probes of the machine and of the vector layer: no part of a run, not counted in any receipt. */
typedef double tp__peak_fn(int64_t rounds, float *out);
typedef void tp__read_fn(const float *from, int64_t floats, int streams, float *out);
typedef void tp__exp2_fn(const float *x, float *y, int64_t n);
typedef tp__exp2_fn tp__tanh_fn;

/* Keys of a block of backward, at the larger head dim: where dq is handed over, so part of its numerics.
   Multiples of 64; where they can be, of every MR. */
int tp__back_block(int64_t head_dim);

#endif
