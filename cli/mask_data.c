/* SPDX-License-Identifier: Apache-2.0 */
#include "mask_data.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct maker {
    struct mask_data *data;
    const tp_problem *problem;
    tp_tensors *call;
    const struct mask_lengths *lengths;
    uint64_t seed;
    int failed;
};

static uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t x = seed * 0x9E3779B97F4A7C15u + a * 0xD1B54A32D192ED03u + b * 0x8CB92BA72F3D8DD7u + c;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

enum { OF_POSITIONS = 1, OF_DOCUMENTS, OF_SPANS, OF_PREFIX, OF_PARENTS, OF_BITS, OF_BIAS, OF_SINKS };

static uint64_t draw(const struct maker *m, int what, int64_t a, int64_t b) {
    return mix(m->seed, (uint64_t)what, (uint64_t)a, (uint64_t)b);
}

/* A choice that all sequences of a call share. */
static int flip(const struct maker *m, int what) { return (int)(draw(m, what, -1, -1) & 1); }

static int out_of_order(const struct maker *m, int64_t seq) { return (seq + (int64_t)m->seed) % 3 == 2; }

/* Whatever nobody may read holds large numbers. */
static void *take(struct maker *m, int64_t bytes) {
    void *array = bytes >= 0 && m->data->count < MASK_ARRAYS ? malloc((size_t)bytes + 8) : NULL;
    if (!array) {
        m->failed = 1;
        return NULL;
    }
    return m->data->array[m->data->count++] = memset(array, 0x7F, (size_t)bytes + 8);
}

static void *take_indices(struct maker *m, int64_t count) {
    return take(m, count * (m->call->index_type == TP_I64 ? 8 : 4));
}

static void put(const struct maker *m, void *array, int64_t i, int64_t value) {
    if (!array) return;
    if (m->call->index_type == TP_I64)
        ((int64_t *)array)[i] = value;
    else
        ((int32_t *)array)[i] = (int32_t)value;
}

static int64_t tokens(const struct maker *m, int keys) {
    const tp_tensors *c = m->call;
    int packed = (keys ? m->problem->kv_layout : m->problem->q_layout) == TP_PACKED;
    if (packed) return keys ? c->kv_tokens : c->q_tokens;
    return c->batch * (keys ? c->kv_len : c->q_len);
}

static int64_t token(const struct maker *m, int keys, int64_t seq, int64_t i) {
    const tp_tensors *c = m->call;
    int packed = (keys ? m->problem->kv_layout : m->problem->q_layout) == TP_PACKED;
    if (packed) return (keys ? m->lengths->kv_start : m->lengths->q_start)[seq] + i;
    return seq * (keys ? c->kv_len : c->q_len) + i;
}

/* The value of a row is that of the key at the end that it stands for, or `before` where there is none. */
static void put_sides(struct maker *m, void *q, void *k, int64_t seq, const int64_t *values,
                      int64_t before) {
    int64_t rows = m->lengths->q_lens[seq], keys = m->lengths->kv_lens[seq];
    for (int64_t j = 0; j < keys; j++) put(m, k, token(m, 1, seq, j), values[j]);
    for (int64_t i = 0; q && i < rows; i++) {
        int64_t j = i + (m->problem->align == TP_TOP_LEFT ? 0 : keys - rows);
        put(m, q, token(m, 0, seq, i), j >= 0 && j < keys ? values[j] : before);
    }
}

static void make_positions(struct maker *m, int64_t seq, int64_t *value) {
    int64_t at = (int64_t)(draw(m, OF_POSITIONS, seq, -1) % 20), keys = m->lengths->kv_lens[seq];
    for (int64_t j = 0; j < keys; j++) {
        static const int steps[] = {1, 1, 1, 1, 1, 0, 2, 9};
        value[j] = at;
        at += steps[draw(m, OF_POSITIONS, seq, j) % 8];
    }
    for (int64_t j = 0; out_of_order(m, seq) && j + 7 < keys; j += 5) {
        int64_t swap = value[j];
        value[j] = value[j + 7];
        value[j + 7] = swap;
    }
    put_sides(m, (void *)(uintptr_t)m->call->q_positions, (void *)(uintptr_t)m->call->k_positions, seq,
              value, -3);
}

/* Lengths of about 512 in long sequences, of a fifth in short ones. */
static void make_documents(struct maker *m, int64_t seq, int64_t *value) {
    int64_t keys = m->lengths->kv_lens[seq], id = 0, left = 0;
    int64_t mean = keys >= 2048 ? 512 : keys / 5 + 1;
    for (int64_t j = 0; j < keys; j++, left--) {
        if (left == 0) {
            id++;
            left = mean / 2 + 1 + (int64_t)(draw(m, OF_DOCUMENTS, seq, j) % (uint64_t)mean);
        }
        value[j] = out_of_order(m, seq) ? id * 7 % 4 : id;
        if (keys < 2048 && keys > 8 && j >= keys - keys / 16) value[j] = -1; /* padding */
    }
    put_sides(m, (void *)(uintptr_t)m->call->q_documents, (void *)(uintptr_t)m->call->k_documents, seq,
              value, -1);
}

/* Every second stretch of 256, or of an eighth, is a span. */
static int64_t span_length(int64_t keys) { return keys >= 2048 ? 256 : keys / 8 + 1; }

static void make_spans(struct maker *m, int64_t seq, int64_t *value, int64_t *used) {
    int64_t keys = m->lengths->kv_lens[seq], length = span_length(keys);
    if (m->call->k_spans) {
        for (int64_t j = 0; j < keys; j++) value[j] = j / length % 2 ? j / length : -1;
        put_sides(m, (void *)(uintptr_t)m->call->q_spans, (void *)(uintptr_t)m->call->k_spans, seq, value,
                  -1);
        return;
    }
    for (int64_t start = length; start < keys; start += 2 * length, ++*used) {
        put(m, (void *)(uintptr_t)m->call->spans, 2 * *used, start);
        put(m, (void *)(uintptr_t)m->call->spans, 2 * *used + 1, start + length);
    }
    put(m, (void *)(uintptr_t)m->call->span_offsets, seq + 1, *used);
}

static void make_parents(struct maker *m, int64_t seq) {
    for (int64_t i = 0; i < m->lengths->q_lens[seq]; i++) {
        int64_t back = 1 + (int64_t)(draw(m, OF_PARENTS, seq, i) % 4);
        put(m, (void *)(uintptr_t)m->call->parents, token(m, 0, seq, i), i >= back ? i - back : -1);
    }
}

static int has(const tp_problem *problem, int32_t kind) {
    for (int i = 0; i < problem->mask_nodes; i++)
        if (problem->mask[i].kind == kind) return 1;
    return 0;
}

static int64_t longest(const int64_t *lens, int64_t count) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++) most = lens[i] > most ? lens[i] : most;
    return most;
}

static void take_arrays(struct maker *m) {
    const tp_problem *p = m->problem;
    tp_tensors *c = m->call;
    if (p->positions) {
        c->q_positions = take_indices(m, tokens(m, 0));
        c->k_positions = take_indices(m, tokens(m, 1));
    }
    if (has(p, TP_MASK_DOCUMENTS)) {
        if (flip(m, OF_DOCUMENTS)) c->q_documents = take_indices(m, tokens(m, 0));
        c->k_documents = take_indices(m, tokens(m, 1));
    }
    if (has(p, TP_MASK_SPANS) && flip(m, OF_SPANS)) {
        c->q_spans = take_indices(m, tokens(m, 0));
        c->k_spans = take_indices(m, tokens(m, 1));
    } else if (has(p, TP_MASK_SPANS)) {
        c->spans = take_indices(m, 2 * (16 * c->batch + tokens(m, 1) / 256));
        c->span_offsets = take_indices(m, c->batch + 1);
        put(m, (void *)(uintptr_t)c->span_offsets, 0, 0);
    }
    if (has(p, TP_MASK_PREFIX)) c->prefix_lens = take_indices(m, c->batch);
    if (has(p, TP_MASK_TREE)) c->parents = take_indices(m, tokens(m, 0));
}

static void make_bits(struct maker *m, int64_t rows, int64_t keys) {
    tp_tensors *c = m->call;
    int64_t bytes = (keys + 7) / 8, heads = flip(m, OF_BITS) ? 1 : m->problem->q_heads;
    uint8_t *bits = take(m, c->batch * heads * rows * bytes);
    for (int64_t i = 0; bits && i < c->batch * heads * rows * bytes; i++)
        bits[i] = (uint8_t)draw(m, OF_BITS, i, 0);
    c->bits = bits;
    c->bits_stride[2] = bytes;
    c->bits_stride[1] = heads > 1 ? rows * bytes : 0;
    c->bits_stride[0] = heads * rows * bytes;
}

/* Of its dtype: what programs write where they mean -inf. It hides nothing. */
static float lowest(tp_dtype dtype) {
    return dtype == TP_F16 ? -65504 : dtype == TP_BF16 ? -0x1.fep127f : -FLT_MAX;
}

static void make_bias(struct maker *m, int64_t rows, int64_t keys) {
    tp_tensors *c = m->call;
    int64_t heads = flip(m, OF_BIAS) ? 1 : m->problem->q_heads;
    int64_t unit = (int64_t)tp_dtype_bytes((tp_dtype)m->problem->bias_dtype);
    char *bias = take(m, c->batch * heads * rows * keys * unit);
    for (int64_t i = 0; bias && i < c->batch * heads * rows * keys; i++) {
        uint64_t bits = draw(m, OF_BIAS, i, 0);
        float value = (float)(bits >> 40) * 0x1p-22f - 2; /* -2 to 2 */
        if (bits % 16 == 0) value = bits % 32 ? lowest((tp_dtype)m->problem->bias_dtype) : -INFINITY;
        tp_from_float((tp_dtype)m->problem->bias_dtype, value, bias + i * unit);
    }
    c->bias = bias;
    c->bias_stride[3] = 1;
    c->bias_stride[2] = keys;
    c->bias_stride[1] = heads > 1 ? rows * keys : 0;
    c->bias_stride[0] = heads * rows * keys;
}

static void make_heads(struct maker *m) {
    int64_t heads = m->problem->q_heads;
    if (m->problem->alibi) {
        float *slopes = take(m, m->call->batch * heads * (int64_t)sizeof(float));
        for (int64_t i = 0; slopes && i < m->call->batch * heads; i++)
            slopes[i] = exp2f(-8.0f * (float)(i % heads + 1) / (float)heads - (float)(i / heads));
        m->call->alibi_slopes = slopes;
        m->call->alibi_stride = heads;
    }
    if (m->problem->sinks) {
        float *sinks = take(m, heads * (int64_t)sizeof(float));
        for (int64_t h = 0; sinks && h < heads; h++)
            sinks[h] = h == 2 ? -INFINITY : (float)(draw(m, OF_SINKS, h, 0) >> 40) * 0x1p-21f - 4;
        m->call->sinks = sinks;
    }
}

static int callback(void *user, int64_t seq, int64_t row, int64_t key) {
    (void)user;
    return (key * 7 + row * 3 + seq) % 5 != 0 && (key / 40 + row / 40) % 3 != 1;
}

double mask_data_bytes(const tp_problem *p) {
    double pairs = (double)p->batch * (double)p->q_heads * (double)p->q_len * (double)p->kv_len, bytes = 0;
    if (has(p, TP_MASK_BITS)) bytes += pairs / 8;
    if (p->bias_dtype) bytes += pairs * (double)tp_dtype_bytes((tp_dtype)p->bias_dtype);
    return bytes + 64.0 * (double)p->batch * (double)(p->q_len + p->kv_len);
}

int mask_data_create(struct mask_data *data, const tp_problem *problem, tp_tensors *call,
                     const struct mask_lengths *lengths, uint64_t seed) {
    struct maker m = {data, problem, call, lengths, seed, 0};
    int64_t rows = longest(lengths->q_lens, call->batch), keys = longest(lengths->kv_lens, call->batch);
    int64_t *value = malloc(((size_t)keys + 1) * sizeof *value), used = 0;
    if (!value) return 1;
    take_arrays(&m);
    for (int64_t s = 0; !m.failed && s < call->batch; s++) {
        if (problem->positions) make_positions(&m, s, value);
        if (has(problem, TP_MASK_DOCUMENTS)) make_documents(&m, s, value);
        if (has(problem, TP_MASK_SPANS)) make_spans(&m, s, value, &used);
        if (call->prefix_lens)
            put(&m, (void *)(uintptr_t)call->prefix_lens, s,
                (int64_t)(draw(&m, OF_PREFIX, s, 0) % (uint64_t)(lengths->kv_lens[s] / 2 + 1)));
        if (call->parents) make_parents(&m, s);
    }
    if (!m.failed && has(problem, TP_MASK_BITS)) make_bits(&m, rows, keys);
    if (!m.failed && problem->bias_dtype) make_bias(&m, rows, keys);
    if (!m.failed) make_heads(&m);
    call->callback = callback;
    call->dropout_seed = seed * 0x9e3779b97f4a7c15u + 1;
    call->dropout_offset = seed;
    free(value);
    return m.failed;
}

void mask_data_destroy(struct mask_data *data) {
    for (int i = 0; i < data->count; i++) free(data->array[i]);
    memset(data, 0, sizeof *data);
}
