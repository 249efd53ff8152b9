/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/mask_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mask_words.h"

struct maker {
    struct mask_data *data;
    const tp_problem *problem;
    tp_tensors *call;
    const struct mask_lengths *lengths;
    uint64_t seed;
    int failed;
    int64_t spans; /* listed so far */
};

static uint64_t mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t x = seed * 0x9E3779B97F4A7C15u + a * 0xD1B54A32D192ED03u + b * 0x8CB92BA72F3D8DD7u + c;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

enum {
    OF_POSITIONS = 1,
    OF_DOCUMENTS,
    OF_SPANS,
    OF_PREFIX,
    OF_PARENTS,
    OF_BITS,
    OF_BIAS,
    OF_SINKS,
    OF_SLOPES,
    OF_ROWS,
    OF_PLACES
};

static uint64_t draw(const struct maker *m, int what, int64_t a, int64_t b) {
    return mix(m->seed, (uint64_t)what, (uint64_t)a, (uint64_t)b);
}

/* A choice that all sequences of a call share. */
static int flip(const struct maker *m, int what) { return (int)(draw(m, what, -1, -1) & 1); }

static int out_of_order(const struct maker *m, int64_t seq) { return (seq + (int64_t)m->seed) % 3 == 2; }

static int elsewhere(const struct maker *m, int64_t seq) { return (seq + (int64_t)m->seed) % 4 == 1; }

/* Whatever nobody may read holds large numbers. */
static void *take(struct maker *m, int64_t bytes, size_t unit) {
    void *array = bytes >= 0 && m->data->count < MASK_ARRAYS
                      ? guarded_take(m->data->guarded, (size_t)bytes, unit, 0x7F)
                      : NULL;
    if (!array) {
        m->failed = 1;
        return NULL;
    }
    return m->data->array[m->data->count++] = array;
}

static void *take_indices(struct maker *m, int64_t count) {
    int64_t unit = m->call->index_type == TP_I64 ? 8 : 4;
    return take(m, count * unit, (size_t)unit);
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

/* Rows or keys that bits and biases have room for: what the problem allows, at least `used`. */
static int64_t held(const struct maker *m, int keys, int64_t used) {
    int64_t max = keys ? m->problem->kv_len : m->problem->q_len;
    return max > used ? max : used;
}

/* The key that a row stands for: its own at the end, or where rows are scattered any, for a few rows the same. */
static int64_t place(const struct maker *m, int64_t seq, int64_t row) {
    static const int stretches[] = {1, 1, 2, 5, 16};
    int64_t rows = m->lengths->q_lens[seq], keys = m->lengths->kv_lens[seq];
    if (!m->data->scattered) return row + (m->problem->align == TP_TOP_LEFT ? 0 : keys - rows);
    return (int64_t)(draw(m, OF_PLACES, seq, row / stretches[draw(m, OF_PLACES, seq, -1) % 5]) % (uint64_t)(keys + 1)) - 1;
}

/* The value of a row is that of the key that it stands for, or `before` where there is none. */
static void put_sides(struct maker *m, void *q, void *k, int64_t seq, const int64_t *values,
                      int64_t before) {
    int64_t rows = m->lengths->q_lens[seq], keys = m->lengths->kv_lens[seq];
    for (int64_t j = 0; j < keys; j++) put(m, k, token(m, 1, seq, j), values[j]);
    for (int64_t i = 0; q && i < rows; i++) {
        int64_t j = place(m, seq, i);
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
    int64_t far = m->data->scattered ? keys / 2 + 1 : 7;
    for (int64_t j = 0; out_of_order(m, seq) && j + far < keys; j += 5) {
        int64_t swap = value[j];
        value[j] = value[j + far];
        value[j + far] = swap;
    }
    put_sides(m, (void *)(uintptr_t)m->call->q_positions, (void *)(uintptr_t)m->call->k_positions, seq,
              value, -3);
    /* where rows stand among the keys may have nothing to do with their index */
    int64_t rows = m->lengths->q_lens[seq], back = rows - keys + keys / 3;
    for (int64_t i = 0; !m->data->scattered && elsewhere(m, seq) && keys > 0 && i < rows; i++)
        put(m, (void *)(uintptr_t)m->call->q_positions, token(m, 0, seq, i),
            value[i < back ? 0 : i - back < keys ? i - back : keys - 1]);
}

/* Lengths of about 512 in long sequences, of a fifth in short ones, of less where rows are scattered. */
static void make_documents(struct maker *m, int64_t seq, int64_t *value) {
    int64_t keys = m->lengths->kv_lens[seq], id = 0, left = 0;
    int64_t mean = keys >= 2048 ? 512 : keys / 5 + 1;
    if (m->data->scattered) mean = keys / (5 + (int64_t)(draw(m, OF_DOCUMENTS, seq, -1) % 40)) + 1;
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

static void make_spans(struct maker *m, int64_t seq, int64_t *value) {
    int64_t keys = m->lengths->kv_lens[seq], length = span_length(keys);
    if (m->call->k_spans) {
        for (int64_t j = 0; j < keys; j++) value[j] = j / length % 2 ? j / length : -1;
        put_sides(m, (void *)(uintptr_t)m->call->q_spans, (void *)(uintptr_t)m->call->k_spans, seq, value,
                  -1);
        return;
    }
    for (int64_t start = length; start < keys; start += 2 * length, m->spans++) {
        put(m, (void *)(uintptr_t)m->call->spans, 2 * m->spans, start);
        put(m, (void *)(uintptr_t)m->call->spans, 2 * m->spans + 1, start + length);
    }
    put(m, (void *)(uintptr_t)m->call->span_offsets, seq + 1, m->spans);
}

static void make_prefix(struct maker *m, int64_t seq, int64_t *value) {
    (void)value;
    put(m, (void *)(uintptr_t)m->call->prefix_lens, seq,
        (int64_t)(draw(m, OF_PREFIX, seq, 0) % (uint64_t)(m->lengths->kv_lens[seq] / 2 + 1)));
}

static void make_tree(struct maker *m, int64_t seq, int64_t *value) {
    (void)value;
    for (int64_t i = 0; i < m->lengths->q_lens[seq]; i++) {
        int64_t back = 1 + (int64_t)(draw(m, OF_PARENTS, seq, i) % (m->data->scattered ? (uint64_t)i + 1 : 4));
        put(m, (void *)(uintptr_t)m->call->parents, token(m, 0, seq, i), i >= back ? i - back : -1);
    }
}

static int64_t longest(const int64_t *lens, int64_t count) {
    int64_t max = 0;
    for (int64_t i = 0; i < count; i++) max = lens[i] > max ? lens[i] : max;
    return max;
}

static void take_documents(struct maker *m) {
    if (flip(m, OF_DOCUMENTS)) m->call->q_documents = take_indices(m, tokens(m, 0));
    m->call->k_documents = take_indices(m, tokens(m, 1));
}

static void take_spans(struct maker *m) {
    tp_tensors *c = m->call;
    if (flip(m, OF_SPANS)) {
        if (flip(m, OF_ROWS)) c->q_spans = take_indices(m, tokens(m, 0));
        c->k_spans = take_indices(m, tokens(m, 1));
        return;
    }
    c->spans = take_indices(m, 2 * (16 * c->batch + tokens(m, 1) / 256));
    c->span_offsets = take_indices(m, c->batch + 1);
    put(m, (void *)(uintptr_t)c->span_offsets, 0, 0);
}

static void take_prefix(struct maker *m) { m->call->prefix_lens = take_indices(m, m->call->batch); }

static void take_tree(struct maker *m) { m->call->parents = take_indices(m, tokens(m, 0)); }

/* Bits and biases lie by the most rows and keys that a sequence may have; those in use are the first. */
static int is_end(const struct maker *m, int64_t seq, int64_t row) {
    return m->data->empty_ends && (row == 0 || row == m->lengths->q_lens[seq] - 1);
}

/* One run of keys, or two. */
static void put_runs(const struct maker *m, uint8_t *bits, int64_t index, int64_t keys) {
    uint64_t runs = 1 + draw(m, OF_BITS, index, -1) % 4 / 3;
    memset(bits, 0, (size_t)(keys + 7) / 8);
    for (uint64_t run = 0; keys > 0 && run < runs; run++) {
        uint64_t drawn = draw(m, OF_BITS, index, -2 - (int64_t)run);
        int64_t first = (int64_t)(drawn >> 32) % keys, end = first + (int64_t)(drawn & 0xFFFFFF) % (keys / 6 + 2);
        for (int64_t j = first; j < end && j < keys; j++) bits[j / 8] |= (uint8_t)(1 << j % 8);
    }
}

static void make_bits(struct maker *m, int64_t rows, int64_t keys) {
    tp_tensors *c = m->call;
    int64_t used = (keys + 7) / 8, bytes = (held(m, 1, keys) + 7) / 8;
    int64_t heads = flip(m, OF_BITS) ? 1 : m->problem->q_heads, per_head = held(m, 0, rows) * bytes;
    uint8_t *bits = take(m, c->batch * heads * per_head, 1);
    for (int64_t i = 0; bits && i < c->batch * heads * rows; i++) {
        int64_t seq = i / rows / heads, row = i % rows;
        uint8_t *at = bits + i / rows * per_head + row * bytes;
        if (is_end(m, seq, row))
            memset(at, 0, (size_t)used);
        else if (m->data->scattered)
            put_runs(m, at, i, keys);
        else
            for (int64_t k = 0; k < used; k++) at[k] = (uint8_t)draw(m, OF_BITS, i * used + k, 0);
    }
    c->bits = bits;
    c->bits_stride[2] = bytes;
    c->bits_stride[1] = heads > 1 ? per_head : 0;
    c->bits_stride[0] = heads * per_head;
}

/* The largest finite value. */
static float largest(int32_t dtype) {
    return dtype == TP_F16 ? 65504.0f : dtype == TP_BF16 ? 0x1.FEp127f : 0x1.FFFFFEp127f;
}

/* A value of -2 to 2, the least float or -inf. Of extreme rows one in four has the least float alone, as masks of models do, one
   has it here and there, one has values of every size. */
static float bias_value(const struct maker *m, int64_t row, uint64_t bits) {
    float value = (float)(bits >> 40) * 0x1p-22f - 2, max = largest(m->problem->bias_dtype);
    uint64_t kind = m->data->extreme ? draw(m, OF_BIAS, row, -2) % 4 : 3;
    const float sizes[] = {-max, -max * 0.9f, max * 0.5f, -1e30f, 1e4f, value};
    if (kind == 0) return -max;
    if (kind == 1 && bits % 3 == 0) return -max;
    if (kind == 2) return bits % 7 == 6 ? -INFINITY : sizes[bits % 7];
    return bits % 16 ? value : bits % 32 ? -max : -INFINITY; /* what programs write where they mean -inf hides nothing */
}

static void make_bias(struct maker *m, int64_t rows, int64_t keys) {
    tp_tensors *c = m->call;
    int64_t heads = flip(m, OF_BIAS) ? 1 : m->problem->q_heads, row_size = held(m, 1, keys);
    int one_row = m->data->shared_bias & 1, one_sequence = m->data->shared_bias & 2;
    int64_t unit = (int64_t)tp_dtype_bytes((tp_dtype)m->problem->bias_dtype), batch = one_sequence ? c->batch > 0 : c->batch;
    int64_t per_head = (one_row ? 1 : held(m, 0, rows)) * row_size;
    if (one_row && rows > 1) rows = 1;
    m->data->bias_count = batch * heads * per_head;
    char *bias = take(m, m->data->bias_count * unit, (size_t)unit);
    for (int64_t i = 0; bias && i < batch * heads * rows * keys; i++) {
        int64_t row = i / keys, seq = row / rows / heads;
        float value =
            !m->data->shared_bias && is_end(m, seq, row % rows) ? -INFINITY : bias_value(m, row, draw(m, OF_BIAS, i, 0));
        tp_from_float((tp_dtype)m->problem->bias_dtype, value,
                      bias + (row / rows * per_head + row % rows * row_size + i % keys) * unit);
    }
    c->bias = bias;
    c->bias_stride[3] = 1;
    c->bias_stride[2] = one_row ? 0 : row_size;
    c->bias_stride[1] = heads > 1 ? per_head : 0;
    c->bias_stride[0] = one_sequence ? 0 : heads * per_head;
}

static void make_heads(struct maker *m) {
    static const float extremes[] = {3e38f, -3e38f, 1e30f, 0, -100, 1e-40f, 100, -0.5f};
    int64_t heads = m->problem->q_heads;
    if (m->problem->alibi) {
        int64_t count = (m->data->shared_slopes ? 1 : m->call->batch) * heads;
        float *slopes = take(m, count * (int64_t)sizeof(float), sizeof(float));
        for (int64_t i = 0; slopes && i < count; i++)
            slopes[i] = m->data->extreme
                            ? extremes[draw(m, OF_SLOPES, i, 0) % 8]
                            : exp2f(-8.0f * (float)(i % heads + 1) / (float)heads - (float)(i / heads));
        m->call->alibi_slopes = slopes;
        m->call->alibi_stride = m->data->shared_slopes ? 0 : heads;
    }
    if (m->problem->sinks) {
        float *sinks = take(m, heads * (int64_t)sizeof(float), sizeof(float));
        for (int64_t h = 0; sinks && h < heads; h++)
            sinks[h] = h == 2               ? -INFINITY
                       : m->data->extreme ? extremes[draw(m, OF_SINKS, h, 1) % 8]
                                          : (float)(draw(m, OF_SINKS, h, 0) >> 40) * 0x1p-21f - 4;
        m->call->sinks = sinks;
    }
}

static int callback(void *user, int64_t seq, int64_t row, int64_t key) {
    const int64_t *first = user; /* NULL, or where a view begins */
    if (first) seq += first[0], row += first[1];
    return (key * 7 + row * 3 + seq) % 5 != 0 && (key / 40 + row / 40) % 3 != 1;
}

static int callback_in_runs(void *user, int64_t seq, int64_t row, int64_t key) {
    const int64_t *first = user;
    if (first) seq += first[0], row += first[1];
    return key / 20 % 7 == (row * 3 + seq) % 7;
}

/* Kinds that read tensors, in the order in which their data is made: `take` gets the memory, `make` fills it in for one
   sequence with the help of an array by key, `whole` does both for all of them. */
static const struct {
    int32_t kind;
    void (*take)(struct maker *m);
    void (*make)(struct maker *m, int64_t seq, int64_t *value);
    void (*whole)(struct maker *m, int64_t rows, int64_t keys);
} makers[] = {
    {TP_MASK_DOCUMENTS, take_documents, make_documents, NULL},
    {TP_MASK_SPANS, take_spans, make_spans, NULL},
    {TP_MASK_PREFIX, take_prefix, make_prefix, NULL},
    {TP_MASK_TREE, take_tree, make_tree, NULL},
    {TP_MASK_BITS, NULL, NULL, make_bits},
    {TP_MASK_CALLBACK, NULL, NULL, NULL}, /* set for every call */
};
enum { MAKERS = sizeof makers / sizeof *makers };

double mask_data_bytes(const tp_problem *p) {
    double pairs = (double)p->batch * (double)p->q_heads * (double)p->q_len * (double)p->kv_len, bytes = 0;
    if (mask_has(p, TP_MASK_BITS)) bytes += pairs / 8;
    if (p->bias_dtype) bytes += pairs * (double)tp_dtype_bytes((tp_dtype)p->bias_dtype);
    return bytes + 64.0 * (double)p->batch * (double)(p->q_len + p->kv_len);
}

int mask_data_create(struct mask_data *data, const tp_problem *problem, tp_tensors *call,
                     const struct mask_lengths *lengths, uint64_t seed) {
    struct maker m = {data, problem, call, lengths, seed, 0, 0};
    int64_t rows = longest(lengths->q_lens, call->batch), keys = longest(lengths->kv_lens, call->batch);
    int64_t *value = malloc(((size_t)keys + 1) * sizeof *value);
    if (!value) return 1;
    if (problem->positions) {
        call->q_positions = take_indices(&m, tokens(&m, 0));
        call->k_positions = take_indices(&m, tokens(&m, 1));
    }
    for (int i = 0; i < MAKERS; i++)
        if (makers[i].take && mask_has(problem, makers[i].kind)) makers[i].take(&m);
    for (int64_t s = 0; !m.failed && s < call->batch; s++) {
        if (problem->positions) make_positions(&m, s, value);
        for (int i = 0; i < MAKERS; i++)
            if (makers[i].make && mask_has(problem, makers[i].kind)) makers[i].make(&m, s, value);
    }
    for (int i = 0; !m.failed && i < MAKERS; i++)
        if (makers[i].whole && mask_has(problem, makers[i].kind)) makers[i].whole(&m, rows, keys);
    if (!m.failed && problem->bias_dtype) make_bias(&m, rows, keys);
    if (!m.failed) make_heads(&m);
    call->callback = data->scattered ? callback_in_runs : callback;
    call->dropout_seed = seed * 0x9e3779b97f4a7c15u + 1;
    call->dropout_offset = seed;
    free(value);
    return m.failed;
}

void mask_data_destroy(struct mask_data *data) {
    for (int i = 0; i < data->count; i++) guarded_free(data->guarded, data->array[i]);
    memset(data, 0, sizeof *data);
}
