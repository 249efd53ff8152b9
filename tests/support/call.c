/* SPDX-License-Identifier: Apache-2.0 */
/* Building a call: lengths, memory, strides, data. */
#include "support/call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEAD = 2, TRAIL = 3 }; /* unused tokens around packed sequences */

static const float no_value = NAN;

int32_t call_dtype(const call *c, call_tensor which) {
    const int32_t dtypes[] = {c->problem.q_dtype, c->problem.k_dtype, c->problem.v_dtype,
                              c->problem.o_dtype, TP_F32};
    return dtypes[which];
}

int64_t call_heads(const call *c, call_tensor which) {
    return which == CALL_K || which == CALL_V ? c->problem.kv_heads : c->problem.q_heads;
}

int64_t call_dim(const call *c, call_tensor which) {
    if (which == CALL_LSE) return 1;
    return which == CALL_Q || which == CALL_K ? c->problem.head_dim_qk : c->problem.head_dim_v;
}

static int of_keys(call_tensor which) {
    return which == CALL_K || which == CALL_V;
}

static int packed(const call *c, call_tensor which) {
    return (of_keys(which) ? c->problem.kv_layout : c->problem.q_layout) == TP_PACKED;
}

int64_t call_tokens(const call *c, call_tensor which, int64_t seq) {
    return of_keys(which) ? c->kv_lens[seq] : c->q_lens[seq];
}

tp_tensor *call_tensor_of(call *c, call_tensor which) {
    tp_tensor *const all[] = {&c->tensors.q, &c->tensors.k, &c->tensors.v, &c->tensors.o,
                              &c->tensors.lse};
    return all[which];
}

void *call_at(const call *c, call_tensor which, int64_t seq, int64_t token, int64_t head) {
    const tp_tensor *t = call_tensor_of((call *)(uintptr_t)c, which);
    int64_t start = of_keys(which) ? c->kv_starts[seq] : c->q_starts[seq];
    if (of_keys(which) && c->problem.kv_layout == TP_PAGED) {
        const int64_t *table = c->table[which == CALL_V] + seq * c->tensors.page_slots;
        seq = table[token / c->problem.page_size];
        token %= c->problem.page_size;
    }
    int64_t at = packed(c, which) ? (start + token) * t->stride[1]
                                  : seq * t->stride[0] + token * t->stride[1];
    at += head * t->stride[2];
    return (char *)t->data + at * (int64_t)tp_dtype_bytes((tp_dtype)call_dtype(c, which));
}

float call_get(const call *c, call_tensor which, int64_t seq, int64_t token, int64_t head,
               int64_t x) {
    tp_dtype dtype = (tp_dtype)call_dtype(c, which);
    const char *row = call_at(c, which, seq, token, head);
    return tp_to_float(dtype, row + (size_t)x * tp_dtype_bytes(dtype));
}

void call_set(call *c, call_tensor which, int64_t seq, int64_t token, int64_t head, int64_t x,
              float value) {
    tp_dtype dtype = (tp_dtype)call_dtype(c, which);
    char *row = call_at(c, which, seq, token, head);
    tp_from_float(dtype, value, row + (size_t)x * tp_dtype_bytes(dtype));
}

static uint64_t stir(uint64_t h, int64_t place) {
    h = (h ^ (uint64_t)place) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9u;
    return h ^ h >> 32;
}

/* About normal, from a hash of where the element stands: of its row, and where it is there. */
static float noise(uint64_t row, int64_t x) {
    uint64_t h = stir(row, x);
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(h >> (16 * i) & 0xffff) * 0x1p-16f - 0.5f;
    return sum * 1.7320508f;
}

static void take_lengths(call *c, const tp_lengths *lengths) {
    int64_t batch = c->problem.batch, q = LEAD, kv = LEAD, s = 0;
    int64_t *all = calloc((size_t)batch * 4 + 1, sizeof *all);
    c->q_lens = all;
    c->kv_lens = all + batch;
    c->q_starts = all + 2 * batch;
    c->kv_starts = all + 3 * batch;
    for (int64_t i = 0; i < lengths->count; i++)
        for (int64_t repeat = 0; repeat < lengths->seq[i].repeat; repeat++, s++) {
            c->q_lens[s] = lengths->seq[i].q_len;
            c->kv_lens[s] = lengths->seq[i].kv_len;
        }
    for (s = 0; s < batch; s++) {
        if (lengths->count == 0) {
            c->q_lens[s] = c->problem.q_len;
            c->kv_lens[s] = c->problem.kv_len;
        }
        c->q_starts[s] = q;
        c->kv_starts[s] = kv;
        q += c->q_lens[s];
        kv += c->kv_lens[s];
    }
    c->tensors.q_tokens = q + TRAIL;
    c->tensors.kv_tokens = kv + TRAIL;
}

static void *index_array(const call *c, const int64_t *from, int64_t count) {
    size_t size = c->tensors.index_type == TP_I64 ? 8 : 4;
    char *array = malloc((size_t)(count + 1) * size);
    for (int64_t i = 0; i < count; i++) {
        int32_t narrow = (int32_t)from[i];
        memcpy(array + (size_t)i * size, size == 8 ? (const void *)&from[i] : &narrow, size);
    }
    return array;
}

static void *starts_array(const call *c, const int64_t *starts, const int64_t *lens) {
    int64_t batch = c->problem.batch, cu[256];
    assert_true(batch < COUNT(cu));
    for (int64_t s = 0; s < batch; s++) cu[s] = starts[s];
    cu[batch] = batch > 0 ? starts[batch - 1] + lens[batch - 1] : LEAD;
    return index_array(c, cu, batch + 1);
}

static void make_indices(call *c, int padded) {
    if (packed(c, CALL_Q))
        c->tensors.cu_seqlens_q = c->index[0] = starts_array(c, c->q_starts, c->q_lens);
    else if (padded)
        c->tensors.q_lens = c->index[1] = index_array(c, c->q_lens, c->problem.batch);
    if (packed(c, CALL_K))
        c->tensors.cu_seqlens_kv = c->index[2] = starts_array(c, c->kv_starts, c->kv_lens);
    else if (padded || c->problem.kv_layout == TP_PAGED)
        c->tensors.kv_lens = c->index[3] = index_array(c, c->kv_lens, c->problem.batch);
}

static uint64_t random_number(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static int64_t index_at(const call *c, const void *array, int64_t i) {
    return c->tensors.index_type == TP_I64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

static int64_t list_row(const call *c, int64_t seq, int64_t token) {
    return packed(c, CALL_Q) ? c->q_starts[seq] + token : seq * c->problem.q_len + token;
}

/* The same where rows have lists: a key must be listed and not hidden. */
static int listed_page_is_seen(const call *c, int64_t seq, int64_t slot) {
    for (int64_t row = 0; row < c->q_lens[seq]; row++)
        for (int64_t i = 0; i < c->problem.sparse_len; i++) {
            int64_t at = list_row(c, seq, row) * c->tensors.sparse_stride + i;
            int64_t key = index_at(c, c->tensors.sparse_indices, at);
            if (key < 0) break;
            if (key / c->problem.page_size == slot &&
                tp_mask_visible(&c->problem, &c->tensors, seq, 0, row, key) == 1)
                return 1;
        }
    return 0;
}

/* Whether any row of the sequence sees a key of the page. */
static int page_is_seen(const call *c, int64_t seq, int64_t slot) {
    int64_t size = c->problem.page_size, end = (slot + 1) * size;
    if (c->problem.sparse_len > 0) return listed_page_is_seen(c, seq, slot);
    if (end > c->kv_lens[seq]) end = c->kv_lens[seq];
    for (int64_t key = slot * size; key < end; key++)
        for (int64_t row = 0; row < c->q_lens[seq]; row++)
            for (int64_t head = 0; head < c->problem.q_heads; head++)
                if (tp_mask_visible(&c->problem, &c->tensors, seq, head, row, key) == 1) return 1;
    return 0;
}

/* Pages in any order, some of them nobody's; what no row sees has no page. */
static void make_tables(call *c, int two) {
    int64_t batch = c->problem.batch, size = c->problem.page_size;
    int64_t slots = (c->problem.kv_len + size - 1) / size + 1, pages = batch * slots + 3;
    uint64_t state = (uint64_t)(slots * 31 + size);
    c->tensors.page_slots = slots;
    c->tensors.pages = pages;
    for (int table = 0; table < 2; table++) {
        int64_t *order = malloc((size_t)pages * sizeof *order), *given = NULL;
        c->table[table] = malloc((size_t)(batch * slots + 1) * sizeof *order);
        given = malloc((size_t)(batch * slots + 1) * sizeof *given);
        for (int64_t i = 0; i < pages; i++) order[i] = i;
        for (int64_t i = pages - 1; i > 0; i--) {
            int64_t j = (int64_t)(random_number(&state) % (uint64_t)(i + 1)), swap = order[i];
            order[i] = order[j];
            order[j] = swap;
        }
        for (int64_t i = 0; i < batch * slots; i++) {
            c->table[table][i] = table == 1 && !two ? c->table[0][i] : order[i];
            int seen = i % slots * size < c->kv_lens[i / slots] && page_is_seen(c, i / slots, i % slots);
            given[i] = seen ? c->table[table][i] : -1 - (int64_t)(random_number(&state) % 1000);
        }
        void *array = index_array(c, given, batch * slots);
        c->index[4 + table] = array;
        if (table == 0) c->tensors.k_pages = array;
        if (table == 1 && two) c->tensors.v_pages = array;
        free(order);
        free(given);
    }
}

/* Keys in ascending steps, mixed up unless they are promised sorted. A list that is not may name a key twice, and
   be longer than there are keys: one that can be is, and so is one of three others. */
static void make_list(const call *c, int64_t seq, int64_t *list, uint64_t *state) {
    int64_t max = c->problem.sparse_len, kv = c->kv_lens[seq], n = 0, key = 0;
    int repeats = !c->problem.sparse_sorted && kv > 0 && (max > kv || random_number(state) % 3 == 0);
    for (; repeats && n < max; n++) list[n] = (int64_t)(random_number(state) % (uint64_t)kv);
    for (int64_t left = repeats ? 0 : max; left > 0 && key < kv; key++)
        if (random_number(state) % (uint64_t)(kv - key) < (uint64_t)left) list[n++] = key, left--;
    if (n > 0 && random_number(state) % 3 == 0) n = (int64_t)(random_number(state) % (uint64_t)(n + 1));
    for (int64_t i = n - 1; i > 0 && !c->problem.sparse_sorted; i--) {
        int64_t j = (int64_t)(random_number(state) % (uint64_t)(i + 1)), swap = list[i];
        list[i] = list[j];
        list[j] = swap;
    }
    if (n < max) list[n] = -1;
}

static void make_lists(call *c) {
    int64_t stride = c->problem.sparse_len + 2;
    int64_t rows = packed(c, CALL_Q) ? c->tensors.q_tokens : c->problem.batch * c->problem.q_len;
    int64_t *lists = malloc((size_t)(rows * stride + 1) * sizeof *lists);
    uint64_t state = (uint64_t)stride;
    for (int64_t i = 0; i < rows * stride; i++) lists[i] = -77; /* refused if it is ever looked at */
    for (int64_t s = 0; s < c->problem.batch; s++)
        for (int64_t t = 0; t < c->q_lens[s]; t++) {
            make_list(c, s, lists + list_row(c, s, t) * stride, &state);
        }
    c->tensors.sparse_indices = c->index[6] = index_array(c, lists, rows * stride);
    c->tensors.sparse_stride = stride;
    free(lists);
}

/* Tokens a tensor holds in each sequence, or in all when packed. */
static int64_t held(const call *c, call_tensor which) {
    if (packed(c, which)) return of_keys(which) ? c->tensors.kv_tokens : c->tensors.q_tokens;
    if (of_keys(which) && c->problem.kv_layout == TP_PAGED) return c->problem.page_size;
    return of_keys(which) ? c->problem.kv_len : c->problem.q_len;
}

static char *allocate(call *c, call_tensor which, int64_t elements) {
    size_t size = tp_dtype_bytes((tp_dtype)call_dtype(c, which));
    size_t bytes = (size_t)elements * size;
    char *memory = malloc(bytes + 1); /* never NULL, also when there is nothing */
    assert_non_null(memory);
    for (int64_t i = 0; i < elements && which < CALL_O; i++)
        tp_from_float((tp_dtype)call_dtype(c, which), no_value, memory + (size_t)i * size);
    c->capacity[which].memory = memory;
    c->capacity[which].bytes = bytes;
    return memory;
}

static void place(call *c, call_tensor which, call_layout layout) {
    tp_tensor *t = call_tensor_of(c, which);
    int64_t heads = call_heads(c, which), dim = call_dim(c, which), tokens = held(c, which);
    int64_t batch = packed(c, which) ? 1 : c->problem.batch, offset = 0;
    if (of_keys(which) && c->problem.kv_layout == TP_PAGED) batch = c->tensors.pages;
    if (layout == CALL_BHSD) {
        t->stride[2] = tokens * dim;
        t->stride[1] = dim;
        t->stride[0] = heads * tokens * dim;
    } else if (layout == CALL_GAPS) {
        t->stride[2] = dim + 3;
        t->stride[1] = heads * t->stride[2] + 5;
        t->stride[0] = tokens * t->stride[1] + 7;
        offset = 1;
    } else {
        t->stride[2] = dim;
        t->stride[1] = heads * dim;
        t->stride[0] = tokens * heads * dim;
        if (layout == CALL_SHARED && which == CALL_Q) t->stride[2] = 0;
        if (layout == CALL_SHARED && which == CALL_K) t->stride[0] = 0;
        if (layout == CALL_SHARED && which == CALL_V) t->stride[1] = 0;
    }
    int64_t whole =
        layout == CALL_GAPS ? batch * t->stride[0] + offset : batch * tokens * heads * dim;
    t->data = allocate(c, which, whole) +
              offset * (int64_t)tp_dtype_bytes((tp_dtype)call_dtype(c, which));
}

static void place_qkv(call *c) {
    const call_tensor inputs[] = {CALL_Q, CALL_K, CALL_V};
    int64_t tokens = 0, width = 0, batch = packed(c, CALL_Q) ? 1 : c->problem.batch;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(call_dtype(c, inputs[i]), c->problem.q_dtype);
        assert_int_equal(packed(c, inputs[i]), packed(c, CALL_Q));
        if (held(c, inputs[i]) > tokens) tokens = held(c, inputs[i]);
        width += call_heads(c, inputs[i]) * call_dim(c, inputs[i]);
    }
    char *at = allocate(c, CALL_Q, batch * tokens * width);
    for (int i = 0; i < 3; i++) {
        tp_tensor *t = call_tensor_of(c, inputs[i]);
        int64_t heads = call_heads(c, inputs[i]), dim = call_dim(c, inputs[i]);
        *t = (tp_tensor){at, {tokens * width, width, dim}};
        at += heads * dim * (int64_t)tp_dtype_bytes((tp_dtype)c->problem.q_dtype);
    }
}

static void fill(call *c, const call_shape *shape) {
    const float sizes[] = {shape->q_size, shape->k_size, shape->v_size};
    for (int which = CALL_Q; which <= (c->problem.latent ? CALL_K : CALL_V); which++) {
        float size = sizes[which] != 0 ? sizes[which] : 1.0f;
        tp_dtype dtype = (tp_dtype)call_dtype(c, which);
        for (int64_t s = 0; s < c->problem.batch; s++) {
            int64_t request = shape->request != NULL ? shape->request[s] : s;
            uint64_t sequence = stir((uint64_t)which + 1, request);
            for (int64_t t = 0; t < call_tokens(c, which, s); t++)
                for (int64_t h = 0; h < call_heads(c, which); h++) {
                    char *row = call_at(c, which, s, t, h);
                    uint64_t place = stir(stir(sequence, t), h);
                    for (int64_t x = 0; x < call_dim(c, which); x++)
                        tp_from_float(dtype, size * noise(place, x), row + (size_t)x * tp_dtype_bytes(dtype));
                }
        }
    }
}

call *call_new(const char *text, const call_shape *shape) {
    static const call_shape plain = {0};
    call *c = calloc(1, sizeof *c);
    tp_lengths lengths = {.struct_size = sizeof lengths};
    tp_error error = TP_ERROR_INIT;
    assert_non_null(c);
    if (shape == NULL) shape = &plain;
    if (tp_problem_parse(text, &c->problem, &lengths, &error)) fail_msg("%s", error.text);
    tp_tensors_init(&c->tensors, &c->problem, NULL, NULL, NULL, NULL);
    c->tensors.index_type = shape->index_type;
    take_lengths(c, &lengths);
    make_indices(c, lengths.padded);
    const struct mask_lengths of_masks = {c->q_lens, c->kv_lens, c->q_starts, c->kv_starts};
    assert_int_equal(
        mask_data_create(&c->masks, &c->problem, &c->tensors, &of_masks, shape->seed), 0);
    if (c->problem.sparse_len > 0) make_lists(c);
    if (c->problem.kv_layout == TP_PAGED) make_tables(c, shape->two_tables);
    if (shape->layout == CALL_QKV) place_qkv(c);
    for (int which = CALL_Q; which < CALL_TENSORS; which++)
        if (call_tensor_of(c, which)->data == NULL)
            place(c, which,
                  which >= CALL_O && shape->layout >= CALL_QKV ? CALL_BSHD : shape->layout);
    if (c->problem.latent) { /* at the end of k's rows, which shows that it need not be the beginning */
        int64_t spare = c->problem.head_dim_qk - c->problem.head_dim_v;
        c->tensors.v = c->tensors.k;
        c->tensors.v.data = (char *)c->tensors.k.data +
                            spare * (int64_t)tp_dtype_bytes((tp_dtype)c->problem.k_dtype);
    }
    fill(c, shape);
    return c;
}

void call_free(call *c) {
    for (int i = 0; i < CALL_TENSORS; i++) free(c->capacity[i].memory);
    for (int i = 0; i < COUNT(c->index); i++) free(c->index[i]);
    for (int i = 0; i < 2; i++) free(c->table[i]);
    mask_data_destroy(&c->masks);
    call_oracle_free(c->oracle);
    free(c->q_lens);
    free(c);
}
