/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A runner for an engine of your own (docs/runner-protocol.md): cc -O2 runner.c -lm -o runner
 *
 *     tileproof qualify models/llama-3.2-1b.json --quick --runner ./runner
 *
 * The engine here is a few loops. Put yours in the place of attend(), and in the place of "kernel loops" what your engine
 * says that it ran.
 */
#include <math.h>
#include <stdlib.h>

#include "runner.h"

/* Element i of a tensor of f32 or, half as wide, bf16. */
static double get(const void *from, long i, int half) {
    unsigned bits = half ? (unsigned)((const unsigned short *)from)[i] << 16 : ((const unsigned *)from)[i];
    float value;
    return memcpy(&value, &bits, sizeof value), value;
}

static void put(void *to, long i, int half, float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    if (half)
        ((unsigned short *)to)[i] = (unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    else
        ((unsigned *)to)[i] = bits;
}

/* Row r, query head h of a sequence whose keys begin at k0. seen: a byte a key. */
static void attend(const struct runner *c, long r, long h, long k0, long keys, const char *seen) {
    const void *q = runner_tensor(c, "q"), *k = runner_tensor(c, "k"), *v = runner_tensor(c, "v");
    double sum = 0, max = -INFINITY, *scores = calloc((size_t)(keys + c->dim_v), sizeof *scores), *o = scores + keys;
    long row = r * c->heads + h, kv = h / (c->heads / c->kv_heads), half = c->dtype[0] == 'b';
    for (long key = 0; key < keys; key++) {
        if (!seen[key]) continue;
        for (long x = 0; x < c->dim; x++)
            scores[key] += get(q, row * c->dim + x, half) * get(k, ((k0 + key) * c->kv_heads + kv) * c->dim + x, half);
        scores[key] *= c->scale;
        if (c->softcap > 0) scores[key] = c->softcap * tanh(scores[key] / c->softcap);
        max = fmax(max, scores[key]);
    }
    for (long key = 0; key < keys; key++) {
        double p = seen[key] ? exp(scores[key] - max) : 0;
        sum += p;
        for (long x = 0; seen[key] && x < c->dim_v; x++) o[x] += p * get(v, ((k0 + key) * c->kv_heads + kv) * c->dim_v + x, half);
    }
    for (long x = 0; x < c->dim_v; x++) put(runner_tensor(c, "o"), row * c->dim_v + x, half, (float)(sum > 0 ? o[x] / sum : 0));
    free(scores);
}

static void attend_all(const struct runner *c) {
    const char *seen = runner_tensor(c, "visible");
    for (long s = 0, r = 0, k0 = 0; s < c->sequences; k0 += c->keys[s++])
        for (long end = r + c->rows[s]; r < end; r++, seen += c->keys[s])
            for (long h = 0; h < c->heads; h++) attend(c, r, h, k0, c->keys[s], seen);
}

int main(void) {
    static struct runner call;
    if (runner_open(&call, "loops", "cpu", "mode eager\nversion loops=1.0\n")) return 2;
    while (runner_next(&call)) {
        if (runner_more(&call) || (strcmp(call.dtype, "f32") && strcmp(call.dtype, "bf16"))) {
            runner_refused(&call, "this engine has f32 and bf16 alone, and no sinks, slopes or factors");
            continue;
        }
        attend_all(&call);
        runner_served(&call, "kernel loops\nobserved log\nfused no\nreason it has no other\n");
    }
    return 0;
}
