/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in the tensors: random numbers in used rows, poison elsewhere. */
#include "harness/tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t random_bits(uint64_t seed, uint64_t a, uint64_t b) {
    uint64_t x = seed * 0x9E3779B97F4A7C15u + a * 0xD1B54A32D192ED03u + b;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
    return x ^ (x >> 32);
}

/* The sum of four uniform numbers, shifted and scaled to mean 0 and variance 1. */
static float normal(uint64_t bits) {
    uint32_t sum = (uint32_t)(bits & 0xFFFF) + (uint32_t)(bits >> 16 & 0xFFFF) +
                   (uint32_t)(bits >> 32 & 0xFFFF) + (uint32_t)(bits >> 48);
    return ((float)sum - 131070.0f) * (1.7320508f / 65536.0f);
}

float tensors_random(uint64_t seed, enum tensor_id id, uint64_t index, float gain) {
    return gain * normal(random_bits(seed, (uint64_t)id, index));
}

int tensors_fill_shared(struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head) {
    int64_t source = id == TENSOR_K || id == TENSOR_V ? cache_source(tensors, seq, token) : seq;
    if (source == seq) return 0;
    tensors_copy_row(tensors, seq, token, tensors, source, token, id, head);
    return 1;
}

void tensors_fill_one(struct tensors *tensors, enum tensor_id id, uint64_t seed, float gain) {
    int64_t heads = tensors_heads(tensors, id), dim = tensors_dim(tensors, id);
    tp_dtype dtype = tensors_dtype(tensors, id);
    size_t unit = tp_dtype_bytes(dtype);
    uint64_t index = 0;
    for (int64_t seq = 0; seq < tensors->sequences; seq++)
        for (int64_t token = 0; token < tensors_len(tensors, id, seq); token++)
            for (int64_t head = 0; head < heads; head++) {
                char *row = tensors_at(tensors, id, seq, token, head, 0);
                int copy = tensors_fill_shared(tensors, id, seq, token, head);
                if (copy) index += (uint64_t)dim;
                for (int64_t x = 0; !copy && x < dim; x++, index++)
                    tp_from_float(dtype, tensors_random(seed, id, index, gain), row + (size_t)x * unit);
            }
}

/* Rows start anywhere in a table of random values. */
static int fill_repeating(struct tensors *tensors, enum tensor_id id, uint64_t seed, float gain) {
    static const int64_t capacity = 1 << 16;
    int64_t heads = tensors_heads(tensors, id), dim = tensors_dim(tensors, id);
    tp_dtype dtype = tensors_dtype(tensors, id);
    size_t unit = tp_dtype_bytes(dtype);
    uint64_t row = 0;
    char *table = malloc((size_t)(capacity + dim) * unit);
    if (!table) return 1;
    for (int64_t i = 0; i < capacity + dim; i++)
        tp_from_float(dtype, tensors_random(seed, id, (uint64_t)i, gain), table + (size_t)i * unit);
    for (int64_t seq = 0; seq < tensors->sequences; seq++)
        for (int64_t token = 0; token < tensors_len(tensors, id, seq); token++)
            for (int64_t head = 0; head < heads; head++, row++) {
                size_t start = random_bits(seed, 400 + (uint64_t)id, row) % (uint64_t)capacity;
                char *to = tensors_at(tensors, id, seq, token, head, 0);
                if (!tensors_fill_shared(tensors, id, seq, token, head))
                    memcpy(to, table + start * unit, (size_t)dim * unit);
            }
    free(table);
    return 0;
}

static int fill_plain(struct tensors *tensors, enum tensor_id id, uint64_t seed, float gain) {
    tensors_fill_one(tensors, id, seed, gain);
    return 0;
}

typedef int fill_fn(struct tensors *tensors, enum tensor_id id, uint64_t seed, float gain);

int tensors_fill_indices(struct tensors *tensors, uint64_t seed) {
    const struct mask_lengths lengths = {tensors->q_lens, tensors->kv_lens, tensors->q_start,
                                         tensors->kv_start};
    mask_data_destroy(&tensors->masks);
    tensors->masks.guarded = tensors->style.guarded;
    tensors->masks.empty_ends = tensors->style.empty_ends;
    tensors->masks.extreme = tensors->style.extreme;
    tensors->masks.scattered = tensors->style.scattered;
    tensors->masks.shared_bias = tensors->style.shared_bias;
    tensors->masks.shared_slopes = tensors->style.shared_slopes;
    return mask_data_create(&tensors->masks, &tensors->problem, &tensors->call, &lengths, seed) || cache_fill(tensors, seed);
}

int tensors_fill(struct tensors *tensors, uint64_t seed) {
    float gain = tensors->style.gain != 0 ? (float)tensors->style.gain : 1.0f;
    fill_fn *fill = tensors->style.repeat ? fill_repeating : fill_plain;
    fill_fn *fill_k = tensors->problem.k_scales ? tensors_fill_codes : fill;
    fill_fn *fill_v = tensors->problem.v_scales ? tensors_fill_codes : fill;
    return tensors_fill_indices(tensors, seed) || fill(tensors, TENSOR_Q, seed, gain) || fill_k(tensors, TENSOR_K, seed, 1) ||
           (!tensors->problem.latent && fill_v(tensors, TENSOR_V, seed, 1));
}

void tensors_poison_outputs(struct tensors *tensors, int byte) {
    tensors->poison = byte;
    for (int id = TENSOR_O; id <= TENSOR_LSE; id++)
        if (tensors->buffer[id].memory)
            memset(tensors->buffer[id].memory, byte, tensors->buffer[id].bytes);
}

static int is_poison(const unsigned char *element, size_t unit, int byte) {
    for (size_t i = 0; i < unit; i++)
        if (element[i] != byte) return 0;
    return 1;
}

/* If every used element was written and as many elements were written as are used, then nothing
   else was. */
int tensors_one_badly_written(const struct tensors *tensors, enum tensor_id id, const char *name, char *reason,
                              size_t size) {
    size_t unit = tp_dtype_bytes(tensors_dtype(tensors, id));
    int64_t heads = tensors_heads(tensors, id), dim = tensors_dim(tensors, id);
    int64_t used = 0, written = 0;
    for (int64_t seq = 0; seq < tensors->sequences; seq++)
        for (int64_t row = 0; row < tensors_len(tensors, id, seq); row++)
            for (int64_t head = 0; head < heads; head++) {
                const unsigned char *at = tensors_at(tensors, id, seq, row, head, 0);
                for (int64_t x = 0; x < dim; x++, used++) {
                    if (!is_poison(at + (size_t)x * unit, unit, tensors->poison)) continue;
                    snprintf(reason, size,
                             "%s of seq %lld head %lld row %lld column %lld was never written",
                             name, (long long)seq, (long long)head, (long long)row, (long long)x);
                    return 1;
                }
            }
    const unsigned char *memory = tensors->buffer[id].memory;
    if (!memory || (tensors->style.form == FORM_QKV && id == TENSOR_Q)) return 0; /* others lie between */
    for (size_t at = 0; at + unit <= tensors->buffer[id].bytes; at += unit)
        written += !is_poison(memory + at, unit, tensors->poison);
    if (written == used) return 0;
    snprintf(reason, size, "%s: %lld elements outside the used rows were written", name,
             (long long)(written - used));
    return 1;
}

int tensors_badly_written(const struct tensors *tensors, char *reason, size_t size) {
    if (tensors_one_badly_written(tensors, TENSOR_O, "o", reason, size)) return 1;
    return tensors->style.lse && tensors_one_badly_written(tensors, TENSOR_LSE, "lse", reason, size);
}

float tensors_get(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token,
                  int64_t head, int64_t x) {
    return (float)tensors_value(tensors, id, seq, token, head, x);
}

/* Magnitudes of a 16-bit dtype are ordered as their bits are: only the largest one has to be converted. */
static double largest_of(tp_dtype dtype, const void *row, int64_t count) {
    unsigned beyond = dtype == TP_F16 ? 0x7C00u : 0x7F80u, max = 0; /* infinities, then NaN */
    double largest = 0;
    if (dtype == TP_F32) {
        for (int64_t x = 0; x < count; x++) {
            double value = fabs((double)((const float *)row)[x]);
            if (isfinite(value) && value > largest) largest = value;
        }
        return largest;
    }
    for (int64_t x = 0; x < count; x++) {
        unsigned bits = ((const uint16_t *)row)[x] & 0x7FFFu;
        if (bits < beyond && bits > max) max = bits;
    }
    uint16_t found = (uint16_t)max;
    return tp_to_float(dtype, &found);
}

static double largest_code(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head) {
    double largest = 0;
    for (int64_t x = 0; x < tensors_dim(tensors, id); x++) {
        double value = fabs(tensors_value(tensors, id, seq, token, head, x));
        if (isfinite(value)) largest = fmax(largest, value);
    }
    return largest;
}

double tensors_max(const struct tensors *tensors, enum tensor_id id) {
    double largest = 0;
    for (int64_t seq = 0; seq < tensors->sequences; seq++)
        for (int64_t token = 0; token < tensors_len(tensors, id, seq); token++)
            for (int64_t head = 0; head < tensors_heads(tensors, id); head++)
                largest = fmax(largest, tensors_scales(tensors, id) ? largest_code(tensors, id, seq, token, head)
                                                                    : largest_of(tensors_dtype(tensors, id),
                                                                                 tensors_at(tensors, id, seq, token, head, 0),
                                                                                 tensors_dim(tensors, id)));
    return largest;
}
