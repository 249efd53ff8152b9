/* SPDX-License-Identifier: Apache-2.0 */
/* What a rotation is, in long double where it can be, from tp_rope_options alone: nothing of src/rope is used. */
#ifndef TP_TESTS_ROPE_DEFINITION_H
#define TP_TESTS_ROPE_DEFINITION_H

#include <math.h>

#include "tileproof_rope.h"

#define PI 3.141592653589793238462643383279502884L

static inline long double power_of(const tp_rope_options *o, long double theta, int64_t pair, int64_t dims) {
    (void)o;
    return powl(theta, -2.0L * (long double)pair / (long double)dims);
}

/* Frequency of a pair while the sequence is so long. */
static inline long double frequency_of(const tp_rope_options *o, int64_t pair, int64_t length) {
    int64_t dims = o->dims ? o->dims : o->head_dim - o->first;
    long double f = power_of(o, o->theta, pair, dims), trained = (long double)o->original_length, factor = o->factor;
    switch (o->kind) {
    case TP_ROPE_LINEAR: return f / factor;
    case TP_ROPE_PROPORTIONAL:
        if (2 * pair >= dims) return 0;
        return power_of(o, o->theta, pair, o->head_dim) / (o->factor != 0 ? factor : 1);
    case TP_ROPE_DYNAMIC: {
        long double n = length > o->original_length ? (long double)length : trained;
        long double theta = o->theta * powl(1 + factor * (n / trained - 1), (long double)dims / (long double)(dims - 2));
        return power_of(o, theta, pair, dims);
    }
    case TP_ROPE_LONGROPE: return f / (length > o->original_length ? o->long_factors : o->short_factors)[pair];
    case TP_ROPE_LLAMA3: {
        long double turns = trained * f / (2 * PI); /* in so many tokens */
        long double share = (turns - o->low_freq_factor) / ((long double)o->high_freq_factor - o->low_freq_factor);
        if (turns > o->high_freq_factor) return f;
        if (turns < o->low_freq_factor) return f / factor;
        return share * f + (1 - share) * f / factor;
    }
    case TP_ROPE_YARN: {
        double fast = o->beta_fast != 0 ? o->beta_fast : 32, slow = o->beta_slow != 0 ? o->beta_slow : 1;
        double begin = (double)dims * log((double)o->original_length / (fast * 2 * (double)PI)) / (2 * log(o->theta));
        double end = (double)dims * log((double)o->original_length / (slow * 2 * (double)PI)) / (2 * log(o->theta));
        if (!o->yarn_untruncated) begin = floor(begin), end = ceil(end);
        if (begin < 0) begin = 0;
        if (end > (double)dims - 1) end = (double)dims - 1;
        if (begin == end) end += 0.001;
        long double ramp = ((long double)pair - begin) / ((long double)end - begin);
        if (ramp < 0) ramp = 0;
        if (ramp > 1) ramp = 1;
        return ramp * f / factor + (1 - ramp) * f;
    }
    default: return f;
    }
}

static inline long double attention_of(const tp_rope_options *o) {
    long double grown = o->factor > 1 ? logl(o->factor) : 0;
    if (o->attention_factor != 0) return o->attention_factor;
    if (o->kind == TP_ROPE_LONGROPE) return sqrtl(1 + grown / logl((long double)o->original_length));
    if (o->kind != TP_ROPE_YARN) return 1;
    if (o->mscale != 0 && o->mscale_all_dim != 0) return (0.1L * o->mscale * grown + 1) / (0.1L * o->mscale_all_dim * grown + 1);
    return 0.1L * grown + 1;
}

/* By which of a token's positions a pair is turned. */
static inline int axis_of_pair(const tp_rope_options *o, int64_t pair) {
    const int32_t *s = o->sections;
    if (s[0] + s[1] + s[2] == 0) return 0;
    if (o->sections_interleave) {
        if (pair % 3 == 1 && pair < 3 * s[1]) return 1;
        if (pair % 3 == 2 && pair < 3 * s[2]) return 2;
        return 0;
    }
    return pair < s[0] ? 0 : pair < s[0] + s[1] ? 1 : 2;
}

/* Cosine and sine of a pair at a token's positions, with the attention factor. */
static inline void turn_of(const tp_rope_options *o, int64_t pair, const int64_t position[3], int64_t length,
                           long double turn[2]) {
    int64_t place = position[axis_of_pair(o, pair)];
    if (o->cos_table != NULL) {
        turn[0] = o->cos_table[place * o->table_width + pair], turn[1] = o->sin_table[place * o->table_width + pair];
    } else {
        long double angle = (long double)place * frequency_of(o, pair, length);
        turn[0] = cosl(angle), turn[1] = sinl(angle);
    }
    turn[0] *= attention_of(o), turn[1] *= attention_of(o);
}

#endif
