/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frequencies of pairs, by kind, in the order of operations that transformers 5 has (modeling_rope_utils.py). For
 * TP_ROPE_FLOAT32 each step is rounded to float32. A sum, product or quotient of floats that is computed in double and then
 * rounded is the float32 one, bit for bit; a power is so but where float32 libraries differ, by one unit in the last place.
 */
#include "rope/rope.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

static double rounded(const tp_rope_options *o, double x) {
    return o->angle == TP_ROPE_FLOAT32 ? (double)(float)x : x;
}
#define R(x) rounded(o, (x))

/* base^(2 i / dims) */
static double period(const tp_rope_options *o, double base, int64_t pair, int64_t dims) {
    return R(pow(R(base), R((double)(2 * pair) / (double)dims)));
}

static double linear(const tp_rope_options *o, int64_t pair) {
    return R(R(1 / period(o, o->theta, pair, o->dims)) / R(o->factor));
}

static double proportional(const tp_rope_options *o, int64_t pair) {
    if (pair >= o->dims / 2) return 0;
    return R(R(1 / period(o, o->theta, pair, o->head_dim)) / R(o->factor == 0 ? 1 : o->factor));
}

static double dynamic(const tp_rope_options *o, int64_t pair, int64_t length) {
    double base = o->theta, trained = (double)o->original_length;
    if (length > o->original_length) {
        /* transformers' order cancels; the other is the same, and does not */
        double grown = o->angle == TP_ROPE_FLOAT32 ? R(R(R(R(o->factor) * (double)length) / trained) - R(o->factor - 1))
                                                   : 1 + o->factor * ((double)(length - o->original_length) / trained);
        base = R(R(base) * R(pow(grown, R((double)o->dims / (double)(o->dims - 2)))));
    }
    return R(1 / period(o, base, pair, o->dims));
}

static double longrope(const tp_rope_options *o, int64_t pair, int64_t length) {
    const float *factors = length > o->original_length ? o->long_factors : o->short_factors;
    return R(1 / R((double)factors[pair] * period(o, o->theta, pair, o->dims)));
}

static double llama3(const tp_rope_options *o, int64_t pair) {
    double f = R(1 / period(o, o->theta, pair, o->dims)), trained = (double)o->original_length;
    double wave = R(R(2 * pi) / f), low = o->low_freq_factor, high = o->high_freq_factor;
    if (wave < R(trained / high)) return f;
    if (wave > R(trained / low)) return R(f / R(o->factor));
    double smooth = R(R(R(trained / wave) - R(low)) / R(high - low));
    return R(R(R(R(1 - smooth) * f) / R(o->factor)) + R(smooth * f));
}

/* The pair, as a real number, that turns so often in original_length tokens. */
static double pair_of(const tp_rope_options *o, double turns) {
    return (double)o->dims * log((double)o->original_length / (turns * 2 * pi)) / (2 * log(o->theta));
}

static double yarn(const tp_rope_options *o, int64_t pair) {
    double low = pair_of(o, o->beta_fast == 0 ? 32 : o->beta_fast), high = pair_of(o, o->beta_slow == 0 ? 1 : o->beta_slow);
    if (!o->yarn_untruncated) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, (double)(o->dims - 1));
    if (low == high) high += 0.001;
    double ramp = fmin(fmax(R(R((double)pair - R(low)) / R(high - low)), 0), 1), keep = R(1 - ramp);
    double p = period(o, o->theta, pair, o->dims), f = R(1 / p), slow = R(1 / R(R(o->factor) * p));
    return R(R(slow * R(1 - keep)) + R(f * keep));
}

void tp__rope_frequencies(const tp_rope_options *o, int64_t pairs, int64_t length, double *frequency) {
    for (int64_t i = 0; i < pairs; i++) {
        switch (o->kind) {
        case TP_ROPE_LINEAR: frequency[i] = linear(o, i); break;
        case TP_ROPE_DYNAMIC: frequency[i] = dynamic(o, i, length); break;
        case TP_ROPE_YARN: frequency[i] = yarn(o, i); break;
        case TP_ROPE_LONGROPE: frequency[i] = longrope(o, i, length); break;
        case TP_ROPE_LLAMA3: frequency[i] = llama3(o, i); break;
        case TP_ROPE_PROPORTIONAL: frequency[i] = proportional(o, i); break;
        default: frequency[i] = R(1 / period(o, o->theta, i, o->dims)); break;
        }
    }
}

static double yarn_scale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

double tp__rope_attention(const tp_rope_options *o) {
    if (o->attention_factor != 0) return o->attention_factor;
    if (o->kind == TP_ROPE_YARN) {
        int both = o->mscale != 0 && o->mscale_all_dim != 0;
        return both ? yarn_scale(o->factor, o->mscale) / yarn_scale(o->factor, o->mscale_all_dim) : yarn_scale(o->factor, 1);
    }
    if (o->kind == TP_ROPE_LONGROPE && o->factor > 1) return sqrt(1 + log(o->factor) / log((double)o->original_length));
    return 1;
}
