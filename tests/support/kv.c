/* SPDX-License-Identifier: Apache-2.0 */
#include "support/kv.h"

#include <math.h>
#include <pthread.h>

const tp_cache_layer kv_layers[KV_LAYERS] = {
    {2, 6, 5, TP_F32, TP_F32, 0, 0, 0, 0, 0, 0},
    {1, 8, 6, TP_BF16, TP_BF16, 1, 0, 0, 0, 0, 0},
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {3, 4, 8, TP_F16, TP_BF16, 0, 0, 0, 0, 0, 0},
    {2, 5, 34, TP_I8, TP_I4, 0, 0, TP_SCALES_TOKEN, TP_SCALES_GROUP, 0, 0},
    {1, 6, 32, TP_E4M3, TP_I8, 0, 0, TP_SCALES_TENSOR, TP_SCALES_Q8_0, 0.0625f, 0},
};

/* ---- rotation: layer 0 by sections, layer 4, whose head dim is odd, in part ---- */

static tp_rotary *rotary[KV_LAYERS];
static float cosines[KV_LAYERS][KV_POSITIONS][4], sines[KV_LAYERS][KV_POSITIONS][4]; /* by one position for all pairs */
static int64_t pairs_of[KV_LAYERS];

static void make_rotaries(void) {
    for (int layer = 0; layer < KV_LAYERS; layer++) {
        tp_rope_options options = TP_ROPE_OPTIONS_INIT;
        if (kv_layers[layer].kv_heads == 0) continue;
        options.head_dim = kv_layers[layer].head_dim_qk;
        options.dims = options.head_dim / 2 * 2;
        if (layer == 0) options.sections[0] = options.sections[1] = options.sections[2] = 1;
        KV_CHECK(tp_rope_create(&options, &rotary[layer], NULL) == TP_OK, "a rotary of layer %d", layer);
        pairs_of[layer] = options.dims / 2;
        for (int64_t p = 0; p < KV_POSITIONS; p++)
            KV_CHECK(tp_rope_angles(rotary[layer], 1, 1, (const int64_t[]){p, p, p}, 0, cosines[layer][p], sines[layer][p],
                                    NULL) == TP_OK,
                     "angles");
    }
}

static void know_rotaries(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_rotaries);
}

/* Of time, height and width; the latter two run backwards, too. */
static int64_t position_on(const kv_model *model, int64_t token, int axis) {
    const int64_t time = model->positions[token];
    return axis == 0 ? time : axis == 1 ? time % 7 : (time * 5) % 11;
}

/* Pairs lie half a head apart. */
static void rotate(int layer, const kv_model *model, int64_t token, float *row) {
    const int64_t pairs = pairs_of[layer];
    if (model->ways[token] == KV_PLAIN) return;
    for (int64_t i = 0; i < pairs; i++) {
        const int64_t position = position_on(model, token, layer == 0 ? (int)i : 0);
        const float a = row[i], b = row[pairs + i], c = cosines[layer][position][i], s = sines[layer][position][i];
        row[i] = a * c - b * s;
        row[pairs + i] = b * c + a * s;
    }
}

int64_t kv_last_position(const kv_model *model, int64_t token) {
    while (--token >= 0)
        if (model->ways[token] == KV_POSITION || model->ways[token] == KV_INDEX) return model->positions[token];
    return 0;
}

void kv_stored(int layer, int part, const kv_model *model, int64_t token, int64_t head, float *row) {
    const tp_cache_layer *is = &kv_layers[layer];
    const int64_t dim = part ? is->head_dim_v : is->head_dim_qk;
    const uint64_t stamp = model->stamps[token];
    uint64_t scales[8], codes[16];
    float one = part ? is->v_scale : is->k_scale;
    for (int64_t x = 0; x < dim; x++) row[x] = kv_element(stamp, layer, part, head, x);
    know_rotaries();
    if (part == 0) rotate(layer, model, token, row);
    tp_quantised q = TP_QUANTISED_INIT;
    q.dtype = part ? is->v_dtype : is->k_dtype;
    q.kind = part ? is->v_scales : is->k_scales;
    q.rows = 1;
    q.dim = dim;
    q.values = row;
    q.codes = codes;
    q.scales = q.kind == TP_SCALES_TENSOR ? (void *)&one : scales;
    for (int64_t x = 0; x < dim && q.kind == TP_SCALES_NONE && q.dtype != TP_F32; x++) {
        tp_from_float((tp_dtype)q.dtype, row[x], codes);
        row[x] = tp_to_float((tp_dtype)q.dtype, codes);
    }
    if (q.kind == TP_SCALES_NONE) return;
    KV_CHECK(tp_quantise(&q, NULL, NULL) == TP_OK && tp_dequantise(&q, NULL) == TP_OK, "a row of layer %d", layer);
}

/* A row of the tensors, as floats. */
static void read_row(const tp_cache_layer *is, int part, const tp_tensors *t, int64_t page, int64_t token, int64_t head,
                     float *row) {
    const tp_tensor *tensor = part ? &t->v : &t->k, *scales = part ? &t->v_scales : &t->k_scales;
    const tp_dtype dtype = (tp_dtype)(part ? is->v_dtype : is->k_dtype);
    const int64_t dim = part ? is->head_dim_v : is->head_dim_qk;
    int64_t at = page * tensor->stride[0] + token * tensor->stride[1] + head * tensor->stride[2];
    tp_quantised q = TP_QUANTISED_INIT;
    q.dtype = dtype;
    q.kind = part ? is->v_scales : is->k_scales;
    q.rows = 1;
    q.dim = dim;
    q.values = row;
    if (q.kind == TP_SCALES_NONE) {
        for (int64_t x = 0; x < dim; x++)
            row[x] = tp_to_float(dtype, (const char *)tensor->data + (size_t)(at + x) * tp_dtype_bytes(dtype));
        return;
    }
    q.codes = (char *)tensor->data + (dtype == TP_I4 ? at / 2 : at);
    at = page * scales->stride[0] + token * scales->stride[1] + head * scales->stride[2];
    q.scales = q.kind == TP_SCALES_TENSOR || q.kind == TP_SCALES_Q8_0
                   ? scales->data
                   : (char *)scales->data + at * (q.kind == TP_SCALES_GROUP ? 2 : 4);
    KV_CHECK(tp_dequantise(&q, NULL) == TP_OK, "a stored row");
}

tp_cache_options kv_options(int64_t page_size, int layout, int index_type, int64_t sequences, int64_t pages) {
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    options.layers = kv_layers;
    options.layer_count = KV_LAYERS;
    options.page_size = page_size;
    options.layout = layout;
    options.index_type = index_type;
    options.sequences = sequences;
    options.sequence_tokens = KV_TOKENS;
    int64_t low = 1, high = (int64_t)1 << 40;
    while (low < high) { /* the fewest bytes that hold as many pages */
        tp_cache_capacity capacity;
        options.bytes = low + (high - low) / 2;
        if (tp_cache_plan(&options, &capacity, NULL) == TP_OK && capacity.pages >= pages)
            high = options.bytes;
        else
            low = options.bytes + 1;
    }
    options.bytes = low;
    return options;
}

/* -128..127 eighths: exact in bf16. */
float kv_element(uint64_t stamp, int layer, int part, int64_t head, int64_t x) {
    uint64_t h = stamp * 0x9e3779b97f4a7c15u + (uint64_t)(((layer * 2 + part) * 64 + head) * 64 + x) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 29) * 0x94d049bb133111ebu;
    return (float)((int)(h >> 40 & 255) - 128) * 0.125f;
}

/* Positions or angles of all rows, as their way is; what `rows` points to afterwards is the caller's to free. */
static void place_rows(int layer, int64_t count, kv_model *const *models, const int64_t *from, const int64_t *tokens, int64_t all,
                       tp_cache_rows *rows, void *memory[3]) {
    const int axes = layer == 0 ? 3 : 1;
    int way = -1;
    int64_t row = 0, *positions = memory[0] = calloc((size_t)(axes * all) + 1, sizeof *positions);
    KV_CHECK(positions != NULL, "no memory");
    for (int64_t i = 0; i < count; i++)
        for (int64_t n = from[i]; n < from[i] + tokens[i]; n++, row++) {
            KV_CHECK(way == -1 || way == models[i]->ways[n], "rows of one call in two ways");
            way = models[i]->ways[n];
            for (int axis = 0; axis < axes; axis++) positions[axis * all + row] = position_on(models[i], n, axis);
        }
    if (way <= KV_PLAIN) return;
    know_rotaries();
    rows->rotary = rotary[layer];
    if (way == KV_POSITION || (way == KV_INDEX && layer == 0)) rows->positions = positions; /* an index has no height */
    if (way != KV_ANGLES) return;
    rows->cosines = memory[1] = calloc((size_t)(all * pairs_of[layer]), sizeof(float));
    rows->sines = memory[2] = calloc((size_t)(all * pairs_of[layer]), sizeof(float));
    KV_CHECK(rows->cosines != NULL && rows->sines != NULL, "no memory");
    KV_CHECK(tp_rope_angles(rotary[layer], 1, all, positions, 0, memory[1], memory[2], NULL) == TP_OK, "angles");
}

/* Rows with a gap between heads and between tokens, at an address that only the elements' alignment suits. */
tp_status kv_append(tp_cache *cache, int layer, int64_t count, kv_model *const *models, const int64_t *from,
                    const int64_t *tokens, int dtype, tp_error *error) {
    const tp_cache_layer *is = &kv_layers[layer];
    const size_t element = tp_dtype_bytes((tp_dtype)dtype);
    char *memory[2] = {NULL, NULL};
    void *places[3] = {NULL, NULL, NULL};
    int64_t sequences[16], all = 0, dims[2] = {is->head_dim_qk, is->head_dim_v};
    tp_cache_rows rows = TP_CACHE_ROWS_INIT;
    tp_tensor *tensors[2] = {&rows.k, &rows.v};
    for (int64_t i = 0; i < count; i++) {
        sequences[i] = models[i]->sequence;
        all += tokens[i];
    }
    for (int part = 0; part < (is->latent ? 1 : 2); part++) {
        int64_t head = dims[part] + 1, token = is->kv_heads * head + 3, row = 0;
        memory[part] = malloc((size_t)(all * token + 1) * element);
        KV_CHECK(memory[part] != NULL, "no memory");
        char *data = memory[part] + element;
        for (int64_t i = 0; i < count; i++)
            for (int64_t n = 0; n < tokens[i]; n++, row++)
                for (int64_t h = 0; h < is->kv_heads; h++)
                    for (int64_t x = 0; x < dims[part]; x++)
                        tp_from_float((tp_dtype)dtype, kv_element(models[i]->stamps[from[i] + n], layer, part, h, x),
                                      data + (size_t)(row * token + h * head + x) * element);
        *tensors[part] = (tp_tensor){data, {0, token, head}};
    }
    rows.dtype = dtype;
    rows.count = count;
    rows.sequences = sequences;
    rows.tokens = tokens;
    place_rows(layer, count, models, from, tokens, all, &rows, places);
    tp_status status = tp_cache_append(cache, layer, &rows, error);
    free(memory[0]);
    free(memory[1]);
    for (int i = 0; i < 3; i++) free(places[i]);
    return status;
}

void kv_append_all(tp_cache *cache, kv_model *model, int64_t from, int64_t tokens, int dtype) {
    tp_error error = TP_ERROR_INIT;
    for (int layer = 0; layer < KV_LAYERS; layer++)
        if (kv_layers[layer].kv_heads > 0)
            KV_CHECK(kv_append(cache, layer, 1, &model, &from, &tokens, dtype, &error) == TP_OK, "%s", error.text);
}

tp_status kv_grow(tp_cache *cache, kv_model *model, int64_t tokens, uint64_t stamp, tp_error *error) {
    tp_status status = tp_cache_extend(cache, 1, &model->sequence, &tokens, error);
    if (status != TP_OK) return status;
    for (int64_t i = 0; i < tokens; i++) {
        model->stamps[model->length + i] = stamp + (uint64_t)i;
        model->ways[model->length + i] = KV_PLAIN;
    }
    kv_append_all(cache, model, model->length, tokens, TP_F32);
    model->length += tokens;
    return TP_OK;
}

static int64_t index_at(const tp_tensors *t, const void *array, int64_t at) {
    return t->index_type == TP_I32 ? ((const int32_t *)array)[at] : ((const int64_t *)array)[at];
}

void kv_verify(const tp_cache *cache, const kv_model *model) {
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    tp_tensors t;
    tp_problem_init(&problem);
    const int64_t slot = tp_cache_slot(cache, model->sequence);
    KV_CHECK(tp_cache_length(cache, model->sequence) == model->length, "length %lld, not %lld",
             (long long)tp_cache_length(cache, model->sequence), (long long)model->length);
    KV_CHECK(slot >= 0 && slot < tp_cache_slots(cache), "slot %lld", (long long)slot);
    for (int layer = 0; layer < KV_LAYERS; layer++) {
        const tp_cache_layer *is = &kv_layers[layer];
        if (is->kv_heads == 0) continue;
        KV_CHECK(tp_cache_problem(cache, layer, &problem, &error) == TP_OK, "%s", error.text);
        tp_tensors_init(&t, &problem, NULL, NULL, NULL, NULL);
        KV_CHECK(tp_cache_tensors(cache, layer, slot, 1, &t, &error) == TP_OK, "%s", error.text);
        KV_CHECK(index_at(&t, t.kv_lens, 0) == model->length && t.batch == 1, "kv_lens");
        for (int part = 0; part < (is->latent ? 1 : 2); part++) {
            const int64_t dim = part ? is->head_dim_v : is->head_dim_qk;
            for (int64_t n = 0; n < model->length; n++) {
                int64_t page = index_at(&t, t.k_pages, n / problem.page_size);
                KV_CHECK(page >= 0 && page < t.pages, "page %lld", (long long)page);
                for (int64_t h = 0; h < is->kv_heads; h++) {
                    float there[KV_ROW], expected[KV_ROW];
                    read_row(is, part, &t, page, n % problem.page_size, h, there);
                    kv_stored(layer, part, model, n, h, expected);
                    for (int64_t x = 0; x < dim; x++)
                        KV_CHECK(there[x] == expected[x], "token %lld of %lld, layer %d, %c, head %lld, element %lld",
                                 (long long)n, (long long)model->length, layer, "kv"[part], (long long)h, (long long)x);
                }
            }
        }
    }
}

/* Who begins alike, entry by entry. */
static void verify_prefixes(const tp_cache *cache, const tp_tensors *t, int64_t slots, int64_t page_size) {
    tp_error error = TP_ERROR_INIT;
    size_t unit = t->index_type == TP_I64 ? 8 : 4;
    char *found = calloc(2 * (size_t)slots + 1, unit);
    KV_CHECK(found != NULL, "no memory");
    KV_CHECK(tp_cache_prefixes(cache, 0, slots, NULL, found, found + (size_t)slots * unit, &error) == TP_OK, "%s", error.text);
    for (int64_t s = 0; s < slots; s++) {
        int64_t with = -1, most = 0;
        for (int64_t other = 0; other < s; other++) {
            int64_t a = index_at(t, t->kv_lens, s), b = index_at(t, t->kv_lens, other), keys = 0;
            while (keys < a && keys < b && index_at(t, t->k_pages, s * t->page_slots + keys / page_size) ==
                                               index_at(t, t->k_pages, other * t->page_slots + keys / page_size))
                keys++;
            if (keys > most) with = other, most = keys;
        }
        KV_CHECK(index_at(t, found, s) == with && index_at(t, found, slots + s) == most, "slot %lld shares %lld with %lld",
                 (long long)s, (long long)most, (long long)with);
    }
    free(found);
}

int64_t kv_verify_batch(const tp_cache *cache, kv_model *const *models, int64_t count) {
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    tp_tensors t, own;
    int64_t sequences[16], greatest = 0;
    tp_problem_init(&problem);
    KV_CHECK(tp_cache_problem(cache, 0, &problem, &error) == TP_OK, "%s", error.text);
    tp_tensors_init(&t, &problem, NULL, NULL, NULL, NULL);
    KV_CHECK(tp_cache_tensors(cache, 0, 0, 0, &t, &error) == TP_OK, "%s", error.text);
    const size_t unit = t.index_type == TP_I64 ? 8 : 4;
    char *table = malloc((size_t)count * (size_t)t.page_slots * unit + 1), *found = malloc(3 * (size_t)count * unit + 1);
    KV_CHECK(table != NULL && found != NULL, "no memory");
    char *lens = found + 2 * (size_t)count * unit;
    for (int64_t i = 0; i < count; i++) sequences[i] = models[i]->sequence;
    KV_CHECK(tp_cache_gather(cache, count, sequences, table, lens, &error) == TP_OK, "%s", error.text);
    KV_CHECK(tp_cache_prefixes(cache, 0, count, sequences, found, found + (size_t)count * unit, &error) == TP_OK, "%s",
             error.text);
    own = t;
    for (int64_t i = 0; i < count; i++) {
        const int64_t size = problem.page_size;
        int64_t with = -1, most = 0;
        KV_CHECK(tp_cache_tensors(cache, 0, tp_cache_slot(cache, sequences[i]), 1, &own, &error) == TP_OK, "%s", error.text);
        KV_CHECK(index_at(&t, lens, i) == models[i]->length, "gathered %lld tokens of %lld", (long long)index_at(&t, lens, i),
                 (long long)models[i]->length);
        for (int64_t n = 0; n < models[i]->length; n += size)
            KV_CHECK(index_at(&t, table, i * t.page_slots + n / size) == index_at(&own, own.k_pages, n / size),
                     "a gathered page");
        for (int64_t j = 0; j < i; j++) {
            int64_t keys = 0;
            while (keys < models[i]->length && keys < models[j]->length &&
                   index_at(&t, table, i * t.page_slots + keys / size) == index_at(&t, table, j * t.page_slots + keys / size)) {
                KV_CHECK(models[i]->stamps[keys] == models[j]->stamps[keys], "a page of two tokens");
                keys++;
            }
            if (keys > most) with = j, most = keys;
        }
        KV_CHECK(index_at(&t, found, i) == with && index_at(&t, found, count + i) == most, "%lld shares %lld with %lld",
                 (long long)i, (long long)most, (long long)with);
        if (most > greatest) greatest = most;
    }
    free(table);
    free(found);
    return greatest;
}

/* One row and query head by its definition. */
static void attend_plainly(const kv_model *m, int layer, int64_t head, const float *q, double *o) {
    const tp_cache_layer *is = &kv_layers[layer];
    double sum = 0, max = -INFINITY, scores[KV_TOKENS];
    float row[KV_ROW];
    for (int64_t x = 0; x < is->head_dim_v; x++) o[x] = 0;
    for (int64_t n = 0; n < m->length; n++) {
        kv_stored(layer, 0, m, n, head, row);
        scores[n] = 0;
        for (int64_t x = 0; x < is->head_dim_qk; x++) scores[n] += (double)q[x] * (double)row[x];
        scores[n] /= sqrt((double)is->head_dim_qk);
        max = fmax(max, scores[n]);
    }
    for (int64_t n = 0; n < m->length; n++) {
        const double weight = exp(scores[n] - max);
        kv_stored(layer, !is->latent, m, n, head, row);
        for (int64_t x = 0; x < is->head_dim_v; x++) o[x] += weight * (double)row[x];
        sum += weight;
    }
    for (int64_t x = 0; x < is->head_dim_v && sum > 0; x++) o[x] /= sum;
}

void kv_attend(tp_context *context, const tp_cache *cache, kv_model *const *models, int64_t count, int layer, int cascade) {
    enum { GROUP = 2, MOST = 16 * 3 * GROUP };
    const tp_cache_layer *is = &kv_layers[layer];
    tp_error error = TP_ERROR_INIT;
    tp_problem problem;
    tp_tensors t;
    float q[MOST * 8], o[MOST * 34];
    int64_t sequences[16], heads = GROUP * is->kv_heads;
    KV_CHECK(is->head_dim_qk <= 8 && is->head_dim_v <= 34 && heads <= 6 && count <= 16, "room for layer %d", layer);
    for (int64_t i = 0; i < count * heads * is->head_dim_qk; i++)
        q[i] = kv_element(models[0]->stamps[0], 60, 0, i % 64, i / 64) / 64;
    for (int64_t i = 0; i < count; i++) sequences[i] = models[i]->sequence;
    tp_problem_init(&problem);
    problem.q_heads = heads, problem.q_len = 1, problem.q_dtype = problem.o_dtype = TP_F32;
    KV_CHECK(tp_cache_problem(cache, layer, &problem, &error) == TP_OK, "%s", error.text);
    if (cascade) problem.cascade = problem.kv_len;
    tp_tensors_init(&t, &problem, q, NULL, NULL, o);
    for (int64_t i = 0; i < count; i++) /* each has all its rows; pools and strides are those of any */
        KV_CHECK(tp_cache_tensors(cache, layer, tp_cache_slot(cache, sequences[i]), 1, &t, &error) == TP_OK, "%s", error.text);
    const size_t unit = t.index_type == TP_I64 ? 8 : 4;
    char *table = malloc((size_t)count * (size_t)t.page_slots * unit + 1), *arrays = malloc(3 * (size_t)count * unit + 1);
    KV_CHECK(table != NULL && arrays != NULL, "no memory");
    KV_CHECK(tp_cache_gather(cache, count, sequences, table, arrays, &error) == TP_OK, "%s", error.text);
    t.batch = count, t.k_pages = table, t.kv_lens = arrays;
    t.shared_with = arrays + (size_t)count * unit, t.shared_lens = arrays + 2 * (size_t)count * unit;
    KV_CHECK(tp_cache_prefixes(cache, 0, count, sequences, arrays + (size_t)count * unit, arrays + 2 * (size_t)count * unit,
                               &error) == TP_OK,
             "%s", error.text);
    KV_CHECK(tp_attention(context, &problem, NULL, &t, NULL, &error) == TP_OK, "%s", error.text);
    for (int64_t i = 0; i < count; i++)
        for (int64_t h = 0; h < heads; h++) {
            double expected[KV_ROW];
            const int64_t at = i * heads + h;
            attend_plainly(models[i], layer, h / GROUP, q + at * is->head_dim_qk, expected);
            for (int64_t x = 0; x < is->head_dim_v; x++) {
                const double got = (double)o[at * is->head_dim_v + x];
                KV_CHECK(fabs(got - expected[x]) <= 2e-4,
                         "layer %d, sequence %lld of %lld tokens, head %lld, element %lld: %g, "
                         "not %g",
                         layer, (long long)i, (long long)models[i]->length, (long long)h, (long long)x, got, expected[x]);
            }
        }
    free(table);
    free(arrays);
}

void kv_verify_pages(const tp_cache *cache, int64_t page_size) {
    tp_error error = TP_ERROR_INIT;
    tp_cache_stats stats;
    tp_tensors t;
    tp_problem problem;
    tp_problem_init(&problem);
    tp_tensors_init(&t, &problem, NULL, NULL, NULL, NULL);
    const int64_t slots = tp_cache_slots(cache);
    KV_CHECK(tp_cache_tensors(cache, 0, 0, slots, &t, &error) == TP_OK, "%s", error.text);
    KV_CHECK(tp_cache_stats_read(cache, &stats, &error) == TP_OK, "%s", error.text);
    verify_prefixes(cache, &t, slots, page_size);
    struct {
        int64_t holders, place, used;
    } *pages = calloc((size_t)t.pages, sizeof *pages);
    int64_t used = 0, shared = 0, tails = 0, tokens = 0, neighbours = 0, breaks = 0;
    KV_CHECK(pages != NULL, "no memory");
    for (int64_t s = 0; s < slots; s++) {
        int64_t length = index_at(&t, t.kv_lens, s), last = -1;
        tokens += length;
        for (int64_t i = 0; i < t.page_slots; i++) {
            int64_t page = index_at(&t, t.k_pages, s * t.page_slots + i), rest = length - i * page_size;
            KV_CHECK((page >= 0) == (rest > 0) && page < t.pages, "slot %lld has page %lld at %lld", (long long)s,
                     (long long)page, (long long)i);
            if (page < 0) continue;
            KV_CHECK(pages[page].holders == 0 || pages[page].place == i, "page %lld lies at two places", (long long)page);
            pages[page].holders++;
            pages[page].place = i;
            if (rest > pages[page].used) pages[page].used = rest < page_size ? rest : page_size;
            if (i > 0) neighbours += page == last + 1, breaks += page != last + 1;
            last = page;
        }
    }
    for (int64_t i = 0; i < t.pages; i++) {
        used += pages[i].holders > 0;
        shared += pages[i].holders > 1;
        if (pages[i].holders > 0) tails += page_size - pages[i].used;
    }
    free(pages);
    KV_CHECK(stats.pages == t.pages && stats.pages_used == used && stats.pages_shared == shared, "%lld used, %lld shared",
             (long long)stats.pages_used, (long long)stats.pages_shared);
    KV_CHECK(stats.tail_tokens == tails && stats.tokens == tokens, "%lld tail tokens, not %lld", (long long)stats.tail_tokens,
             (long long)tails);
    KV_CHECK(stats.neighbours == neighbours && stats.breaks == breaks, "%lld neighbours", (long long)stats.neighbours);
}
