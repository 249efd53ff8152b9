/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains one attention layer to copy the token that stands SHIFT places back.
 *
 *     x = token | position            inputs, fixed
 *     q = x Wq, k = x Wk, v = x Wv    two query heads on one KV head
 *     y = attention(q, k, v) Wo       causal
 *     loss = mean (y - token SHIFT back)^2
 *
 * Attention and its gradients are tileproof's; the rest is plain loops. Prints the loss as it falls: the same
 * digits on any number of threads.     train [THREADS [STEPS]]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tileproof.h"

enum { LENGTH = 800, BATCH = 2, TOKENS = LENGTH * BATCH, SHIFT = 3 };
enum { SYMBOLS = 12, TOKEN = 8, WAVES = 8, INPUT = TOKEN + 2 * WAVES, HEADS = 2, DIM = 16 };

/* ---- a matrix, its gradient, and what Adam remembers ---- */

typedef struct weights {
    int rows, columns;
    float *value, *gradient, *mean, *square;
} weights;

static uint64_t state = 1;
static float uniform(void) { /* -1..1 */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 33 ^ state >> 48) * 0x1p-30f - 1.0f;
}

static weights weights_new(int rows, int columns) {
    size_t count = (size_t)rows * (size_t)columns;
    weights w = {rows, columns, calloc(4 * count, sizeof(float)), NULL, NULL, NULL};
    if (w.value == NULL) abort();
    w.gradient = w.value + count;
    w.mean = w.gradient + count;
    w.square = w.mean + count;
    for (size_t i = 0; i < count; i++) w.value[i] = uniform() / sqrtf((float)rows);
    return w;
}

/* out = in w */
static void forward(const weights *w, const float *in, float *out) {
    for (int t = 0; t < TOKENS; t++)
        for (int j = 0; j < w->columns; j++) {
            float sum = 0;
            for (int i = 0; i < w->rows; i++) sum += in[t * w->rows + i] * w->value[i * w->columns + j];
            out[t * w->columns + j] = sum;
        }
}

/* The gradient of w, and of in where it is asked for. */
static void backward(weights *w, const float *in, const float *d_out, float *d_in) {
    memset(w->gradient, 0, (size_t)w->rows * (size_t)w->columns * sizeof(float));
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < w->rows; i++) {
            float sum = 0;
            for (int j = 0; j < w->columns; j++) {
                w->gradient[i * w->columns + j] += in[t * w->rows + i] * d_out[t * w->columns + j];
                sum += w->value[i * w->columns + j] * d_out[t * w->columns + j];
            }
            if (d_in != NULL) d_in[t * w->rows + i] = sum;
        }
}

static void step(weights *w, int n) {
    const float rate = 0.02f, keep = 0.9f, keep_square = 0.99f;
    float unbias = sqrtf(1 - powf(keep_square, (float)n)) / (1 - powf(keep, (float)n));
    for (int i = 0; i < w->rows * w->columns; i++) {
        w->mean[i] = keep * w->mean[i] + (1 - keep) * w->gradient[i];
        w->square[i] = keep_square * w->square[i] + (1 - keep_square) * w->gradient[i] * w->gradient[i];
        w->value[i] -= rate * unbias * w->mean[i] / (sqrtf(w->square[i]) + 1e-8f);
    }
}

/* ---- the data ---- */

static float symbol[SYMBOLS][TOKEN], x[TOKENS * INPUT], target[TOKENS * TOKEN];

static void draw(void) {
    static int drawn[TOKENS];
    for (int t = 0; t < TOKENS; t++) {
        drawn[t] = (int)((uniform() + 1) * 0.4999f * SYMBOLS);
        memcpy(x + t * INPUT, symbol[drawn[t]], sizeof symbol[0]);
        for (int i = 0; i < WAVES; i++) {
            double angle = (t % LENGTH) * pow(0.45, i);
            x[t * INPUT + TOKEN + 2 * i] = (float)cos(angle);
            x[t * INPUT + TOKEN + 2 * i + 1] = (float)sin(angle);
        }
        int from = t % LENGTH < SHIFT ? t : t - SHIFT;
        memcpy(target + t * TOKEN, symbol[drawn[from]], sizeof symbol[0]);
    }
}

static float q[TOKENS * HEADS * DIM], k[TOKENS * DIM], v[TOKENS * DIM], o[TOKENS * HEADS * DIM], lse[TOKENS * HEADS];
static float y[TOKENS * TOKEN], d_y[TOKENS * TOKEN], d_o[TOKENS * HEADS * DIM];
static float d_q[TOKENS * HEADS * DIM], d_k[TOKENS * DIM], d_v[TOKENS * DIM];

static double loss_of(void) {
    double sum = 0;
    for (int i = 0; i < TOKENS * TOKEN; i++) {
        float off = y[i] - target[i];
        d_y[i] = 2 * off / (TOKENS * TOKEN);
        sum += (double)off * (double)off;
    }
    return sum / (TOKENS * TOKEN);
}

int main(int count, char **words) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    tp_problem problem;
    tp_tensors tensors;
    tp_gradients gradients = TP_GRADIENTS_INIT;
    options.threads = count > 1 ? atoi(words[1]) : 0;
    int steps = count > 2 ? atoi(words[2]) : 120;
    if (tp_context_create(&options, &context, &error)) return fprintf(stderr, "%s\n", error.text), 1;

    tp_problem_init(&problem);
    problem.batch = BATCH;
    problem.q_heads = HEADS;
    problem.q_len = problem.kv_len = LENGTH;
    problem.head_dim_qk = problem.head_dim_v = DIM;
    tp_problem_causal(&problem);
    tp_tensors_init(&tensors, &problem, q, k, v, o);
    tensors.lse.data = lse;
    gradients.d_o = tensors.o, gradients.d_o.data = d_o;
    gradients.d_q = tensors.q, gradients.d_q.data = d_q;
    gradients.d_k = tensors.k, gradients.d_k.data = d_k;
    gradients.d_v = tensors.v, gradients.d_v.data = d_v;
    tensors.gradients = &gradients;

    for (int i = 0; i < SYMBOLS * TOKEN; i++) symbol[i / TOKEN][i % TOKEN] = uniform();
    weights wq = weights_new(INPUT, HEADS * DIM), wk = weights_new(INPUT, DIM), wv = weights_new(INPUT, DIM),
            wo = weights_new(HEADS * DIM, TOKEN);
    for (int n = 1; n <= steps; n++) {
        draw();
        forward(&wq, x, q);
        forward(&wk, x, k);
        forward(&wv, x, v);
        if (tp_attention(context, &problem, NULL, &tensors, NULL, &error)) break;
        forward(&wo, o, y);
        double loss = loss_of();
        if (n == 1 || n % 10 == 0) printf("step %3d  loss %.9f\n", n, loss);
        backward(&wo, o, d_y, d_o);
        if (tp_backward(context, &problem, NULL, &tensors, NULL, &error)) break;
        backward(&wq, x, d_q, NULL);
        backward(&wk, x, d_k, NULL);
        backward(&wv, x, d_v, NULL);
        weights *all[] = {&wq, &wk, &wv, &wo};
        for (int i = 0; i < 4; i++) step(all[i], n);
    }
    if (error.status) fprintf(stderr, "%s\n", error.text);
    free(wq.value);
    free(wk.value);
    free(wv.value);
    free(wo.value);
    tp_context_destroy(context);
    return error.status ? 1 : 0;
}
