/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary positions: q and k are rotated by the positions of their tokens before attention, and normed before that where a
 * model does so (libtileproof; docs/rope.md).
 *
 *     tp_rope_options options = TP_ROPE_OPTIONS_INIT;      // or tp_rope_from_model of tileproof_proof.h
 *     options.head_dim = 128, options.theta = 5e5;
 *     tp_rotary *rotary;
 *     tp_rope_create(&options, &rotary, &err);
 *     tp_rope_rows rows = TP_ROPE_ROWS_INIT;
 *     rows.dtype = TP_BF16, rows.tokens = tokens, rows.heads = 32;
 *     rows.in = rows.out = tensors.q, rows.positions = positions;
 *     tp_rope_apply(rotary, &rows, &err);                  // q in place
 *
 * A pair of elements (a, b) of a row becomes (a cos - b sin, b cos + a sin), with the cosine and sine of position * frequency,
 * both times the attention factor. There are dims / 2 pairs. Pair i has the frequency theta^(-2 i / dims), which the
 * kind changes.
 *
 * The conventions of tileproof.h hold: sizes, errors, ownership, floats. On failure nothing is written.
 */
#ifndef TILEPROOF_ROPE_H
#define TILEPROOF_ROPE_H

#include "tileproof.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How frequencies follow from theta. Numbers are fixed for ever. Below, pair i has f = theta^(-2 i / dims) before its kind
   changes it, and L is original_length. */
typedef enum tp_rope {
    TP_ROPE_NONE = 0,        /* q and k are not rotated */
    TP_ROPE_DEFAULT = 1,     /* f */
    TP_ROPE_LINEAR = 2,      /* f / factor */
    TP_ROPE_DYNAMIC = 3,     /* NTK: above L, theta is multiplied by (factor n / L - (factor - 1))^(dims / (dims - 2)), n the
                                current length */
    TP_ROPE_YARN = 4,        /* from f / factor to f, as a pair turns beta_slow to beta_fast times in L tokens */
    TP_ROPE_LONGROPE = 5,    /* f / short_factors[i]; f / long_factors[i] while the current length is above L */
    TP_ROPE_LLAMA3 = 6,      /* from f / factor to f, as a pair turns low_freq_factor to high_freq_factor times in L tokens */
    TP_ROPE_2D = 7,          /* a vision tower's: rows and columns of patches; tp_rope_create refuses it */
    TP_ROPE_PROPORTIONAL = 8 /* theta^(-2 i / head_dim) / factor for the first dims / 2 pairs, of head_dim / 2 in all; the others
                                stand still */
} tp_rope;

/* Which elements are a pair. Numbers are fixed for ever. */
typedef enum tp_rope_style {
    TP_ROPE_NEOX = 0,       /* i and i + dims / 2: transformers' rotate_half */
    TP_ROPE_INTERLEAVED = 1 /* 2 i and 2 i + 1: GPT-J, Llama as Meta wrote it */
} tp_rope_style;

/* How angles are rounded. Numbers are fixed for ever. */
typedef enum tp_rope_angle {
    TP_ROPE_DOUBLE = 0, /* frequencies and angles in double: an angle is right to 2^-47 of itself */
    TP_ROPE_FLOAT32 = 1 /* both rounded to float32 at each step, in transformers' order: an angle is right to 2^-19 of itself,
                           which is a radian at position 500,000 (docs/rope.md has what was measured) */
} tp_rope_angle;

typedef struct tp_rope_options {
    uint32_t struct_size;
    int32_t kind;              /* tp_rope */
    int32_t style;             /* tp_rope_style */
    int32_t angle;             /* tp_rope_angle */
    int64_t head_dim;          /* elements of a row, 1..4096 */
    int64_t dims;              /* rotated ones, even; 0: all from `first` on */
    int64_t first;             /* the first rotated one: latent attention has its rotated part last */
    double theta;              /* 1e-3..1e12; yarn, dynamic, llama3: above 1; 0 with tables */
    double factor;             /* linear, dynamic, yarn, llama3. longrope: for its attention factor alone, 0: 1. proportional:
                                  0: 1. Others: 0. This and all factors below are in 1e-6..1e9 */
    int64_t original_length;   /* dynamic, yarn, llama3, longrope: tokens that the model was trained on */
    double attention_factor;   /* cosines and sines are multiplied by it; 0: the kind's own, which is 1 but for
                                  yarn       m(mscale) / m(mscale_all_dim) where both are set, otherwise m(1), with
                                             m(x) = 0.1 x ln(factor) + 1, and 1 where factor <= 1
                                  longrope   sqrt(1 + ln(factor) / ln(original_length)), and 1 where factor <= 1 */
    double low_freq_factor, high_freq_factor; /* llama3: low < high */
    double beta_fast, beta_slow;              /* yarn; 0: 32 and 1 */
    double mscale, mscale_all_dim;            /* yarn; 0: not set */
    const float *short_factors, *long_factors; /* longrope: dims / 2 each; copied */
    int64_t factor_count;      /* how many each has */
    /* Tables instead of theta, for kind default: [table_positions][table_width], width dims / 2. They are not copied, and must
       stay. */
    const float *cos_table, *sin_table;
    int64_t table_positions, table_width;
    /* M-RoPE: how many pairs go by a token's time, height and width; they add up to dims / 2. All 0: one position a token. */
    int32_t sections[3];
    int32_t sections_interleave; /* 0: one behind the other (Qwen2-VL); 1: in turns, and time has what is left (Qwen3-VL): height
                                    has at most every third pair from pair 1 on, width from pair 2 on, what more is refused */
    int32_t yarn_untruncated;  /* 1: the borders between pairs are not rounded to whole pairs (gpt-oss: truncate false) */
    int32_t reserved;          /* 0 */
} tp_rope_options;
#define TP_ROPE_OPTIONS_INIT                                                                                                  \
    { sizeof(tp_rope_options), TP_ROPE_DEFAULT, 0, 0, 0, 0, 0, 1e4, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, 0, 0, \
      { 0, 0, 0 }, 0, 0, 0 }

/* Frequencies and all that follows from the options. Immutable: any number of threads may use one. */
typedef struct tp_rotary tp_rotary;
/* TP_INVALID names the option that breaks its rule; TP_UNSUPPORTED: TP_ROPE_2D. */
TP_API tp_status tp_rope_create(const tp_rope_options *options, tp_rotary **made, tp_error *error);
TP_API void tp_rope_destroy(tp_rotary *rotary); /* NULL: nothing happens */
/* How many pairs are rotated: the width of cosines and sines. NULL: 0. */
TP_API int64_t tp_rope_pairs(const tp_rotary *rotary);

/*
 * Positions are given for each token, [batch][tokens]; with sections three such lists one behind the other, of time, height and
 * width: [3][batch][tokens], as transformers has them. They are in 0..2^40 - 1, and below table_positions where there are tables.
 *
 * The current length decides the frequencies of dynamic and longrope, for all tokens of a call; 0: the greatest position of the
 * call + 1. Keys that were rotated before keep what they have, as in transformers.
 */

/* Cosines and sines, [batch][tokens][tp_rope_pairs] each, with the attention factor: computed once for q and k of every layer. */
TP_API tp_status tp_rope_angles(const tp_rotary *rotary, int64_t batch, int64_t tokens, const int64_t *positions, int64_t length,
                                float *cosines, float *sines, tp_error *error);

/* Rows of q or of k: `heads` for each token. */
typedef struct tp_rope_rows {
    uint32_t struct_size;
    int32_t dtype;                /* f32, f16 or bf16, of in and out. Arithmetic is in float32 and is rounded to it at the end */
    int64_t batch, tokens, heads; /* at least 1 */
    tp_tensor in;                 /* stride: batch, token, head, as in tp_tensors */
    tp_tensor out;                /* in itself, with the same strides; otherwise no byte of it may be one that is read. Rows of
                                     out do not overlap. The data of in is never written otherwise */
    const int64_t *positions;     /* see above; NULL where cosines and sines are given */
    int64_t length;               /* see above */
    const float *cosines, *sines; /* of these tokens, by tp_rope_angles; NULL: by positions */
    const float *norm_weight;     /* head_dim weights of an RMS norm of each row, before the rotation; NULL: none */
    float norm_eps;               /* added to the mean of squares: finite and not negative */
    int32_t norm_one_plus;        /* 1: rows are multiplied by 1 + weight (Gemma), 0: by weight */
} tp_rope_rows;
#define TP_ROPE_ROWS_INIT \
    { sizeof(tp_rope_rows), 0, 1, 0, 0, { NULL, { 0, 0, 0 } }, { NULL, { 0, 0, 0 } }, NULL, 0, NULL, NULL, NULL, 0, 0 }
TP_API tp_status tp_rope_apply(const tp_rotary *rotary, const tp_rope_rows *rows, tp_error *error);

#ifdef __cplusplus
}
#endif

#endif
