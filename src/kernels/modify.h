/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What changes a row's scores between q.k and the mask (docs/maths.md section 7). They become natural units here and
 * stay so until their maximum has been subtracted: a bias of -FLT_MAX, say, must not overflow.
 *
 *     s = s * gain            what of the scale q has not got
 *     s = s * scale           the row's own factor
 *     s = c * tanh(s / c)     softcap
 *     s = s - slope*|i - j|   ALiBi, by positions
 *     s = s + bias            exactly -inf where the bias is, whatever s was
 */
#ifndef TP_KERNELS_MODIFY_H
#define TP_KERNELS_MODIFY_H

#include "base/constants.h"
#include "kernels/kernel.h"
#include "kernels/vec/vec.h"

#include <math.h>

#define PIECE_KEYS (64 * TP__BLOCK_WORDS)

static float bias_one(const tp__modify *mod, int64_t row, int64_t key) {
    const void *bias = mod->bias[row];
    int64_t at = key * mod->bias_stride;
    return mod->bias_dtype == TP_F32    ? ((const float *)bias)[at]
           : mod->bias_dtype == TP_BF16 ? tp__from_bf16(((const uint16_t *)bias)[at])
                                        : tp__from_f16(((const uint16_t *)bias)[at]);
}

VEC_INLINE void add_bias(float *s, vec_f bias) {
    vec_f none = vec_set1(-INFINITY), sum = vec_load(s) + bias;
    vec_i hidden = bias == none;
    vec_store(s, (vec_f)(((vec_i)sum & ~hidden) | ((vec_i)none & hidden)));
}

/* Reads the bias of keys lo..hi-1 alone: beyond, there may be none. */
static void bias_row(const tp__modify *mod, int64_t row, float *s, int64_t lo, int64_t hi) {
    const char *bias = mod->bias[row];
    int64_t j = lo;
    if (mod->bias_stride == 1) {
        if (mod->bias_dtype == TP_F32)
            for (; j + VEC_LANES <= hi; j += VEC_LANES) add_bias(s + j, vec_load((const float *)bias + j));
        else if (mod->bias_dtype == TP_BF16)
            for (; j + VEC_LANES <= hi; j += VEC_LANES)
                add_bias(s + j, vec_load_bf16((const uint16_t *)bias + j));
        else
            for (; j + VEC_LANES <= hi; j += VEC_LANES)
                add_bias(s + j, vec_load_f16((const uint16_t *)bias + j));
    }
    while (j < hi) {
        float bias_lanes[VEC_LANES] = {0}, lanes[VEC_LANES] = {0};
        int64_t n = hi - j < VEC_LANES ? hi - j : VEC_LANES;
        for (int64_t i = 0; i < n; i++) {
            bias_lanes[i] = bias_one(mod, row, j + i);
            lanes[i] = s[j + i];
        }
        add_bias(lanes, vec_load(bias_lanes));
        for (int64_t i = 0; i < n; i++) s[j + i] = lanes[i];
        j += n;
    }
}

/* Keys from..to, multiples of 16, of which the row sees some of lo..hi-1; the others' scores may be
   anything before and after. bend, if not NULL, receives the softcap's derivative, 1 - tanh^2. */
static inline void modify_row(const tp__modify *mod, int64_t row, float *s, int64_t from, int64_t to,
                              int64_t lo, int64_t hi, float *bend) {
    vec_f gain = vec_set1(mod->gain), scale = vec_set1(mod->scale != NULL ? mod->scale[row] : 1.0f);
    if (mod->gain != 1.0f || mod->scale != NULL)
        for (int64_t j = from; j < to; j += VEC_LANES) vec_store(s + j, vec_load(s + j) * gain * scale);
    if (mod->cap > 0) {
        float unit = (float)(2 * TP__LOG2_E / (double)mod->cap);
        vec_f cap = vec_set1(mod->cap);
        for (int64_t j = from; j < to; j += VEC_LANES) {
            vec_f tanh = vec_tanh(vec_load(s + j), unit);
            vec_store(s + j, cap * tanh);
            if (bend != NULL) vec_store(bend + j, vec_fma(-tanh, tanh, vec_set1(1.0f)));
        }
    }
    if (mod->slope != NULL) {
        vec_f slope = vec_set1(-mod->slope[row]), at = vec_set1(mod->q_at[row]);
        for (int64_t j = from; j < to; j += VEC_LANES) {
            vec_f distance = (vec_f)((vec_i)(at - vec_load(mod->k_at + j)) & 0x7fffffff);
            vec_store(s + j, vec_fma(slope, distance, vec_load(s + j)));
        }
    }
    if (mod->bias != NULL) bias_row(mod, row, s, lo, hi);
}

/* The bits of keys base.. that the row sees, up to PIECE_KEYS of them: of its interval, its bits and its
   bias, whichever there are. */
static inline void seen_words(const tp__modify *mod, const uint64_t *bits, int64_t row, int64_t lo, int64_t hi,
                       int64_t base, uint64_t words[TP__BLOCK_WORDS]) {
    for (int w = 0; w < TP__BLOCK_WORDS; w++) words[w] = 0;
    for (int64_t key = lo > base ? lo : base; key < hi && key < base + PIECE_KEYS; key++) {
        int sees = bits == NULL || (bits[key / 64] >> (key % 64) & 1);
        if (sees && mod != NULL && mod->bias != NULL) sees = bias_one(mod, row, key) != -INFINITY;
        words[(key - base) / 64] |= (uint64_t)sees << ((key - base) % 64);
    }
}

#endif
