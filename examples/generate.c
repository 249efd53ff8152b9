/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tiny decoder with random weights that generates through tp_cache alone: the template of an engine.
 *
 *     prefill     two prompts of different lengths that begin with the same system prompt, which is computed once and shared
 *     decode      both in one batch, the run of their slots: one row each
 *     fork        one of them, to two answers that go apart
 *     truncate    three drafts, of which the model accepts some
 *     copy        one out of the cache, and in again
 *
 * Each step is forward(): tp_cache_extend once, then for each layer tp_cache_append and tp_attention. At the end every sequence
 * is computed anew from its tokens, alone and at once: the same tokens must come out.     generate [TOKENS]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tileproof_cache.h"

enum { LAYERS = 3, WIDTH = 64, Q_HEADS = 4, KV_HEADS = 2, DIM = 16, WORDS = 97, ROWS = 160, SEQUENCES = 6, LONGEST = 256 };

typedef struct layer {
    float q[Q_HEADS * DIM][WIDTH], k[KV_HEADS * DIM][WIDTH], v[KV_HEADS * DIM][WIDTH], o[WIDTH][Q_HEADS * DIM];
    float up[WIDTH][WIDTH], down[WIDTH][WIDTH];
} layer;
static float words[WORDS][WIDTH], head[WORDS][WIDTH];
static layer layers[LAYERS];

/* What an engine knows of a request: its sequence in the cache, and its tokens. The last one may not be in the cache yet. */
typedef struct request {
    int64_t sequence;
    int tokens[LONGEST], count;
} request;

static tp_context *context;
static tp_cache *cache;
static tp_rotary *rotary;
static tp_error error = TP_ERROR_INIT;
static void must(tp_status status) {
    if (status == TP_OK) return;
    fprintf(stderr, "%s: %s\n", tp_status_name(status), error.text);
    exit(1);
}

static void draw(float *to, size_t count, float scale) {
    static uint64_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        to[i] = ((float)(state >> 40) * 0x1p-23f - 1.0f) * scale;
    }
}

/* to[row] = matrix * from[row], plus what is there where `add`. */
static void multiply(int rows, int outputs, int inputs, const float *matrix, const float *from, float *to, int add) {
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < outputs; i++) {
            float sum = add ? to[r * outputs + i] : 0;
            for (int j = 0; j < inputs; j++) sum += matrix[i * inputs + j] * from[r * inputs + j];
            to[r * outputs + i] = sum;
        }
}

static void norm(int rows, const float *from, float *to) {
    for (int r = 0; r < rows; r++) {
        float sum = 0;
        for (int i = 0; i < WIDTH; i++) sum += from[r * WIDTH + i] * from[r * WIDTH + i];
        for (int i = 0; i < WIDTH; i++) to[r * WIDTH + i] = from[r * WIDTH + i] / sqrtf(sum / WIDTH + 1e-6f);
    }
}

/* Attention of all slots of the cache. Sequences that take no part have no rows: cu[slot] == cu[slot + 1]. */
static void attend(int l, const int32_t *cu, int rows, float *q, float *o) {
    tp_problem problem;
    tp_tensors tensors;
    tp_problem_init(&problem);
    problem.q_heads = Q_HEADS, problem.q_len = ROWS, problem.q_layout = TP_PACKED;
    problem.invariant = 1; /* the same bits for a token alone and inside a prompt */
    tp_problem_causal(&problem);
    must(tp_cache_problem(cache, l, &problem, &error));
    tp_tensors_init(&tensors, &problem, q, NULL, NULL, o);
    must(tp_cache_tensors(cache, l, 0, tp_cache_slots(cache), &tensors, &error));
    tensors.cu_seqlens_q = cu;
    tensors.q_tokens = rows;
    must(tp_attention(context, &problem, NULL, &tensors, NULL, &error));
}

static int64_t slot_of(const request *r) {
    return tp_cache_slot(cache, r->sequence);
}

/* New tokens of some requests through all layers: the last `fresh[i]` tokens of requests[i], which the cache does not have yet.
   next[i] becomes the most likely token behind them; with `each`, behind every row. */
static tp_status forward(int count, request *const *requests, const int64_t *fresh, int *next, int *each) {
    static float x[ROWS * WIDTH], h[ROWS * WIDTH], q[ROWS * Q_HEADS * DIM], k[ROWS * KV_HEADS * DIM], v[ROWS * KV_HEADS * DIM],
        o[ROWS * Q_HEADS * DIM], scores[ROWS * WORDS];
    int64_t sequences[SEQUENCES], tokens[SEQUENCES];
    int32_t cu[SEQUENCES + 1] = {0};
    int order[SEQUENCES], rows = 0;
    /* rows are packed by slot */
    for (int i = 0; i < count; i++) {
        order[i] = i;
        for (int j = i; j > 0 && slot_of(requests[order[j - 1]]) > slot_of(requests[i]); j--)
            order[j] = order[j - 1], order[j - 1] = i;
    }
    for (int i = 0; i < count; i++) {
        const request *r = requests[order[i]];
        sequences[i] = r->sequence;
        tokens[i] = fresh[order[i]];
        cu[slot_of(r) + 1] = (int32_t)tokens[i];
        for (int64_t t = r->count - tokens[i]; t < r->count; t++)
            memcpy(x + WIDTH * rows++, words[r->tokens[t]], sizeof words[0]);
    }
    for (int s = 0; s < SEQUENCES; s++) cu[s + 1] += cu[s];
    tp_status status = tp_cache_extend(cache, count, sequences, tokens, &error);
    if (status != TP_OK) return status; /* full: nothing has changed */
    for (int l = 0; l < LAYERS; l++) {
        norm(rows, x, h);
        multiply(rows, Q_HEADS * DIM, WIDTH, layers[l].q[0], h, q, 0);
        multiply(rows, KV_HEADS * DIM, WIDTH, layers[l].k[0], h, k, 0);
        multiply(rows, KV_HEADS * DIM, WIDTH, layers[l].v[0], h, v, 0);
        tp_cache_rows fresh_rows = TP_CACHE_ROWS_INIT;
        fresh_rows.dtype = TP_F32;
        fresh_rows.count = count, fresh_rows.sequences = sequences, fresh_rows.tokens = tokens;
        fresh_rows.k = (tp_tensor){k, {0, KV_HEADS * DIM, DIM}};
        fresh_rows.v = (tp_tensor){v, {0, KV_HEADS * DIM, DIM}};
        fresh_rows.q = (tp_tensor){q, {0, Q_HEADS * DIM, DIM}}, fresh_rows.q_heads = Q_HEADS; /* rotated in place */
        fresh_rows.rotary = rotary; /* by each token's index in its sequence */
        must(tp_cache_append(cache, l, &fresh_rows, &error));
        attend(l, cu, rows, q, o);
        multiply(rows, WIDTH, Q_HEADS * DIM, layers[l].o[0], o, x, 1);
        norm(rows, x, h);
        multiply(rows, WIDTH, WIDTH, layers[l].up[0], h, q, 0);
        for (int i = 0; i < rows * WIDTH; i++) q[i] = q[i] > 0 ? q[i] : 0;
        multiply(rows, WIDTH, WIDTH, layers[l].down[0], q, x, 1);
    }
    norm(rows, x, h);
    multiply(rows, WORDS, WIDTH, head[0], h, scores, 0);
    for (int i = 0, row = 0; i < count; i++)
        for (int64_t t = 0; t < tokens[i]; t++, row++) {
            int best = 0;
            for (int w = 1; w < WORDS; w++)
                if (scores[row * WORDS + w] > scores[row * WORDS + best]) best = w;
            if (next != NULL) next[order[i]] = best;
            if (each != NULL) each[row] = best;
        }
    return TP_OK;
}

/* One token more of each, all in one batch. */
static void decode(int count, request *const *requests, int steps) {
    int64_t ones[SEQUENCES];
    int next[SEQUENCES];
    for (int i = 0; i < SEQUENCES; i++) ones[i] = 1;
    for (int n = 0; n < steps; n++) {
        must(forward(count, requests, ones, next, NULL));
        for (int i = 0; i < count; i++) requests[i]->tokens[requests[i]->count++] = next[i];
    }
}

static void say(const char *name, const request *r) {
    printf("%-8s", name);
    for (int i = r->count > 12 ? r->count - 12 : 0; i < r->count; i++) printf(" %d", r->tokens[i]);
    printf("   (%d tokens, slot %d)\n", r->count, (int)slot_of(r));
}

/* Behind each of its tokens from `prompt` on, what a new sequence gives for all of them at once. */
static int wrong_tokens(const request *r, int prompt) {
    static int each[ROWS];
    request again = *r, *one = &again;
    int64_t all = r->count - 1;
    int wrong = 0;
    again.count--;
    must(tp_cache_open(cache, &again.sequence, &error));
    must(forward(1, &one, &all, NULL, each));
    must(tp_cache_close(cache, again.sequence, &error));
    for (int t = prompt; t < r->count; t++) wrong += each[t - 1] != r->tokens[t];
    return wrong;
}

int main(int count, char **arguments) {
    static request system_prompt, a, b, c;
    int steps = count > 1 ? atoi(arguments[1]) : 24, next[2];
    if (steps < 4 || steps > 40) return fprintf(stderr, "TOKENS is '%s': it must be in 4..40\n", arguments[1]), 2;
    draw(words[0], sizeof words / sizeof(float), 1);
    draw(head[0], sizeof head / sizeof(float), 1);
    draw(layers[0].q[0], sizeof layers / (sizeof(float)), 0.2f);
    must(tp_context_create(NULL, &context, &error));
    tp_rope_options rope = TP_ROPE_OPTIONS_INIT;
    rope.head_dim = DIM;
    must(tp_rope_create(&rope, &rotary, &error));

    tp_cache_layer kept = TP_CACHE_LAYER_INIT;
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_cache_capacity capacity;
    kept.kv_heads = KV_HEADS, kept.head_dim_qk = kept.head_dim_v = DIM;
    options.layers = &kept, options.layer_count = LAYERS, options.same = 1;
    options.bytes = 256 << 10, options.sequences = SEQUENCES, options.sequence_tokens = LONGEST;
    must(tp_cache_plan(&options, &capacity, &error));
    printf("%d pages, %d tokens, %d bytes\n", (int)capacity.pages, (int)capacity.tokens, (int)capacity.bytes);
    must(tp_cache_create(&options, &cache, &error));

    /* Prefill: the system prompt once, then both requests behind it, in one batch. */
    request *prompt = &system_prompt, *both[2] = {&a, &b};
    int64_t fresh[2] = {30, 7};
    for (int i = 0; i < 42; i++) system_prompt.tokens[system_prompt.count++] = i * 31 % WORDS;
    must(tp_cache_open(cache, &system_prompt.sequence, &error));
    must(forward(1, &prompt, &(int64_t){42}, next, NULL));
    for (int i = 0; i < 2; i++) {
        *both[i] = system_prompt;
        must(tp_cache_fork(cache, system_prompt.sequence, &both[i]->sequence, &error));
        for (int64_t t = 0; t < fresh[i]; t++) both[i]->tokens[both[i]->count++] = (int)(t * 17 + i + 5) % WORDS;
    }
    must(tp_cache_close(cache, system_prompt.sequence, &error)); /* its pages live on in the two */
    must(forward(2, both, fresh, next, NULL));
    for (int i = 0; i < 2; i++) both[i]->tokens[both[i]->count++] = next[i];
    const int a_prompt = 42 + 30, b_prompt = 42 + 7;
    decode(2, both, steps);

    /* Fork: c begins as b, but goes on with another word. */
    c = b;
    must(tp_cache_fork(cache, b.sequence, &c.sequence, &error));
    c.tokens[c.count - 1] = (c.tokens[c.count - 1] + 1) % WORDS;
    const int c_prompt = c.count;
    decode(3, (request *[]){&a, &b, &c}, 3);

    /* Speculation: a draft model's three tokens for a, checked in one pass; those in front of the first wrong one stay. */
    int each[4], accepted = 0;
    request draft = a, *drafted = &draft;
    must(forward(1, &drafted, &(int64_t){1}, next, NULL)); /* what a would say */
    must(tp_cache_truncate(cache, a.sequence, a.count - 1, &error));
    draft.tokens[draft.count++] = next[0];
    for (int i = 0; i < 2; i++) draft.tokens[draft.count++] = WORDS - 1 - next[0];
    must(forward(1, &drafted, &(int64_t){4}, NULL, each));
    while (accepted < 3 && each[accepted] == draft.tokens[a.count + accepted]) accepted++;
    for (int i = 0; i <= accepted; i++) draft.tokens[a.count + i] = each[i];
    draft.count = a.count + accepted + 1; /* the first wrong one is replaced by the model's own */
    must(tp_cache_truncate(cache, a.sequence, draft.count - 1, &error));
    a = draft;

    /* Full: c has to wait outside. */
    int64_t bytes = tp_cache_copy_bytes(cache, c.sequence, 0);
    void *buffer = malloc((size_t)bytes);
    must(tp_cache_copy_out(cache, c.sequence, 0, buffer, bytes, &error));
    must(tp_cache_close(cache, c.sequence, &error));
    decode(2, both, 2);
    must(tp_cache_open(cache, &c.sequence, &error));
    must(tp_cache_copy_in(cache, c.sequence, buffer, bytes, &error));
    free(buffer);
    decode(3, (request *[]){&c, &a, &b}, 2);

    say("a", &a), say("b", &b), say("c", &c);
    int wrong = wrong_tokens(&a, a_prompt) + wrong_tokens(&b, b_prompt) + wrong_tokens(&c, c_prompt);
    tp_cache_stats stats;
    must(tp_cache_stats_read(cache, &stats, &error));
    printf("%d drafts accepted; %d pages used, %d shared, %d copied\n", accepted, (int)stats.pages_used, (int)stats.pages_shared,
           (int)stats.pages_copied);
    printf("%d tokens differ from those of a new sequence: %s\n", wrong, wrong == 0 ? "right" : "WRONG");
    tp_cache_destroy(cache);
    tp_rope_destroy(rotary);
    tp_context_destroy(context);
    return wrong != 0;
}
