/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and strides; what lies in them is tensors_fill.c. */
#include "harness/tensors.h"

#include <stdlib.h>
#include <string.h>

enum { GAP = 3, MARGIN = 64, SPARE_TOKENS = 2 };

struct sizes {
    int64_t sequences, q_tokens, kv_tokens; /* tokens the whole tensors hold */
    int64_t q_hold, kv_hold;                /* of one sequence, at most */
    int64_t pages;                          /* of a pool */
};

static void measure(struct sizes *sizes, const tp_problem *problem, const tp_lengths *lengths,
                    const struct tensors_style *style) {
    int slack = style->slack, around = slack + (style->spare ? 2 * SPARE_TOKENS : 0);
    *sizes = (struct sizes){.sequences = problem->batch,
                            .q_hold = problem->q_len + slack,
                            .kv_hold = problem->kv_len + slack};
    if (lengths && lengths->count && problem->q_layout == TP_PACKED)
        for (int64_t i = 0; i < lengths->count; i++)
            sizes->q_tokens += lengths->seq[i].repeat * (lengths->seq[i].q_len + slack);
    else
        sizes->q_tokens = sizes->sequences * sizes->q_hold;
    if (lengths && lengths->count && problem->kv_layout == TP_PACKED)
        for (int64_t i = 0; i < lengths->count; i++)
            sizes->kv_tokens += lengths->seq[i].repeat * (lengths->seq[i].kv_len + slack);
    else
        sizes->kv_tokens = sizes->sequences * sizes->kv_hold;
    if (problem->q_layout == TP_PACKED) sizes->q_tokens += around;
    if (problem->kv_layout == TP_PACKED) sizes->kv_tokens += around;
    if (problem->kv_layout != TP_PAGED) return;
    sizes->pages = cache_pages(problem, lengths, style);
    sizes->kv_tokens = sizes->pages * problem->page_size;
}

/* Tokens of all sequences; a side that is not packed holds the most of each. */
static double total_tokens(const tp_problem *problem, const tp_lengths *lengths, int keys) {
    int packed = (keys ? problem->kv_layout : problem->q_layout) == TP_PACKED;
    double tokens = 0;
    if (!packed || !lengths || !lengths->count)
        return (double)problem->batch * (double)(keys ? problem->kv_len : problem->q_len);
    for (int64_t i = 0; i < lengths->count; i++)
        tokens += (double)lengths->seq[i].repeat *
                  (double)(keys ? lengths->seq[i].kv_len : lengths->seq[i].q_len);
    return tokens;
}

double tensors_bytes(const tp_problem *problem, const tp_lengths *lengths,
                     const struct tensors_style *style) {
    double q_tokens = total_tokens(problem, lengths, 0);
    double kv_tokens = total_tokens(problem, lengths, 1),
           rows = q_tokens * (double)problem->q_heads;
    if (problem->kv_layout == TP_PAGED && kv_tokens < 0x1p50)
        kv_tokens = (double)cache_pages(problem, lengths, style) * (double)problem->page_size;
    double keys = kv_tokens * (double)problem->kv_heads;
    int64_t k_bytes = stored_row_bytes((tp_dtype)problem->k_dtype, (tp_scales)problem->k_scales, problem->head_dim_qk) +
                      tp_scales_bytes((tp_scales)problem->k_scales, problem->head_dim_qk);
    int64_t v_bytes = stored_row_bytes((tp_dtype)problem->v_dtype, (tp_scales)problem->v_scales, problem->head_dim_v) +
                      tp_scales_bytes((tp_scales)problem->v_scales, problem->head_dim_v);
    return rows * (double)problem->head_dim_qk * (double)tp_dtype_bytes(problem->q_dtype) +
           keys * (double)(k_bytes + (problem->latent ? 0 : v_bytes)) +
           rows * (double)problem->head_dim_v * (double)tp_dtype_bytes(problem->o_dtype) +
           q_tokens * (double)problem->sparse_len * sizeof(int64_t) +
           (style->lse ? rows * sizeof(float) : 0) + mask_data_bytes(problem);
}

int64_t tensors_heads(const struct tensors *tensors, enum tensor_id id) {
    return id == TENSOR_K || id == TENSOR_V ? tensors->problem.kv_heads : tensors->problem.q_heads;
}

int64_t tensors_dim(const struct tensors *tensors, enum tensor_id id) {
    if (id == TENSOR_LSE) return 1;
    return id == TENSOR_Q || id == TENSOR_K ? tensors->problem.head_dim_qk
                                            : tensors->problem.head_dim_v;
}

tp_dtype tensors_dtype(const struct tensors *tensors, enum tensor_id id) {
    const tp_problem *p = &tensors->problem;
    const int32_t dtypes[] = {p->q_dtype, p->k_dtype, p->v_dtype, p->o_dtype, TP_F32};
    return (tp_dtype)dtypes[id];
}

int64_t tensors_len(const struct tensors *tensors, enum tensor_id id, int64_t seq) {
    return (id == TENSOR_K || id == TENSOR_V ? tensors->kv_lens : tensors->q_lens)[seq];
}

static const tp_tensor *view(const struct tensors *tensors, enum tensor_id id) {
    const tp_tensor *views[] = {&tensors->call.q, &tensors->call.k, &tensors->call.v,
                                &tensors->call.o, &tensors->call.lse};
    return views[id];
}

static int is_paged(const struct tensors *tensors, enum tensor_id id) {
    return tensors->problem.kv_layout == TP_PAGED && (id == TENSOR_K || id == TENSOR_V);
}

static int is_packed(const struct tensors *tensors, enum tensor_id id) {
    return (id == TENSOR_K || id == TENSOR_V ? tensors->problem.kv_layout
                                             : tensors->problem.q_layout) == TP_PACKED;
}

int64_t tensors_place(const struct tensors *tensors, enum tensor_id id, const tp_tensor *tensor, int64_t seq, int64_t token,
                      int64_t head) {
    const int64_t *start = id == TENSOR_K || id == TENSOR_V ? tensors->kv_start : tensors->q_start;
    int64_t offset = head * tensor->stride[2];
    if (is_paged(tensors, id)) {
        int64_t size = tensors->problem.page_size;
        int64_t slot = seq * tensors->call.page_slots + token / size;
        offset += tensors->pages[id == TENSOR_V][slot] * tensor->stride[0] +
                  token % size * tensor->stride[1];
    } else if (is_packed(tensors, id))
        offset += (start[seq] + token) * tensor->stride[1];
    else
        offset += seq * tensor->stride[0] + token * tensor->stride[1];
    return offset;
}

/* Bytes of so many of what strides count; gaps of i4 are of whole bytes. */
static int64_t unit_bytes(const struct tensors *tensors, enum tensor_id id, int64_t units) {
    tp_dtype dtype = tensors_dtype(tensors, id);
    return dtype == TP_I4 ? units / 2 : units * (int64_t)tp_dtype_bytes(dtype);
}

void *tensors_at(const struct tensors *tensors, enum tensor_id id, int64_t seq, int64_t token, int64_t head, int64_t x) {
    const tp_tensor *tensor = view(tensors, id);
    return (char *)tensor->data + unit_bytes(tensors, id, tensors_place(tensors, id, tensor, seq, token, head) + x);
}

/* Strides of a tensor of rows of so many units; returns how many it spans. */
static int64_t set_strides(const struct tensors *tensors, enum tensor_id id, tp_tensor *tensor, int64_t row, int64_t gap,
                           int64_t tokens, int64_t hold) {
    int packed = is_packed(tensors, id), ragged = tensors->style.ragged, by_head = tensors->style.form == FORM_HEADS;
    int64_t heads = tensors_heads(tensors, id), length = packed ? tokens : hold;
    row += ragged ? gap : 0;
    int64_t rows = (by_head ? length : heads) * row + (ragged ? gap + 2 : 0); /* of a head, or of a token */
    int64_t all = (by_head ? heads : length) * rows + (ragged ? gap + 4 : 0);
    tensor->stride[0] = all;
    tensor->stride[by_head ? 1 : 2] = row;
    tensor->stride[by_head ? 2 : 1] = rows;
    if (tensors->style.form == FORM_BROADCAST && id <= TENSOR_V) {
        tensor->stride[2] = 0;
        if (id != TENSOR_Q && !packed && !is_paged(tensors, id)) tensor->stride[0] = 0;
    }
    return packed ? all : hold ? tokens / hold * all : 0;
}

/* Poison, and where a tensor begins in it. */
static int take(const struct tensors *tensors, void **memory, size_t *bytes, size_t needed, size_t unit, tp_tensor *tensor) {
    *bytes = needed + (tensors->style.ragged ? unit : 0) + (tensors->style.guarded || tensors->style.exact ? 0 : MARGIN);
    *memory = guarded_take(tensors->style.guarded, *bytes, unit, 0xFF);
    if (!*memory) return 1;
    tensor->data = (char *)*memory + (tensors->style.ragged ? unit : 0);
    return 0;
}

static int allocate(struct tensors *tensors, enum tensor_id id, tp_tensor *tensor, int64_t units) {
    size_t unit = tp_dtype_bytes(tensors_dtype(tensors, id));
    return take(tensors, &tensors->buffer[id].memory, &tensors->buffer[id].bytes, (size_t)unit_bytes(tensors, id, units),
                unit ? unit : 1, tensor);
}

/* What strides count along a row: elements, but bytes of q8_0. */
static int64_t row_units(const struct tensors *tensors, enum tensor_id id) {
    return tensors_scales(tensors, id) == TP_SCALES_Q8_0 ? (int64_t)tensors_row_bytes(tensors, id) : tensors_dim(tensors, id);
}

/* The scales of k or v, laid out like it; one scale of a whole tensor suits the numbers of tensors_fill. */
static int allocate_scales(struct tensors *tensors, enum tensor_id id, tp_tensor *scales, int64_t tokens, int64_t hold) {
    tp_scales kind = tensors_scales(tensors, id);
    int of_v = id == TENSOR_V;
    size_t unit = kind == TP_SCALES_GROUP ? 2 : 4, count = tensors_scales_bytes(tensors, id) / unit;
    if (kind == TP_SCALES_NONE || kind == TP_SCALES_Q8_0) return 0;
    int64_t all = kind == TP_SCALES_TENSOR ? 1 : set_strides(tensors, id, scales, (int64_t)count, GAP, tokens, hold);
    if (take(tensors, &tensors->scales[of_v].memory, &tensors->scales[of_v].bytes, (size_t)all * unit, unit, scales)) return 1;
    if (kind == TP_SCALES_TENSOR) *(float *)scales->data = 4.0f / 448.0f;
    return 0;
}

/* q, k and v of a token lie side by side: [q heads][k heads][v heads]. */
static int allocate_qkv(struct tensors *tensors, const struct sizes *sizes) {
    const tp_problem *p = &tensors->problem;
    int64_t q_width = p->q_heads * p->head_dim_qk, k_width = p->kv_heads * p->head_dim_qk;
    int64_t width = q_width + k_width + p->kv_heads * p->head_dim_v;
    int64_t tokens = sizes->q_tokens > sizes->kv_tokens ? sizes->q_tokens : sizes->kv_tokens;
    int64_t hold = sizes->q_hold > sizes->kv_hold ? sizes->q_hold : sizes->kv_hold;
    size_t unit = tp_dtype_bytes((tp_dtype)p->q_dtype);
    tp_tensor *views[] = {&tensors->call.q, &tensors->call.k, &tensors->call.v};
    const int64_t starts[] = {0, q_width, q_width + k_width};
    if (allocate(tensors, TENSOR_Q, views[0], tokens * width)) return 1;
    char *base = views[0]->data;
    for (int i = 0; i < 3; i++) {
        views[i]->data = base + starts[i] * (int64_t)unit;
        views[i]->stride[0] = hold * width;
        views[i]->stride[1] = width;
        views[i]->stride[2] = i == 2 ? p->head_dim_v : p->head_dim_qk;
    }
    return 0;
}

/* v is the first part of k's rows, or the last one. */
static void share_latent(struct tensors *tensors) {
    const tp_problem *p = &tensors->problem;
    int64_t spare = tensors->style.ragged || tensors->style.spare ? p->head_dim_qk - p->head_dim_v : 0;
    int grouped = p->k_scales == TP_SCALES_GROUP || p->k_scales == TP_SCALES_Q8_0;
    if (grouped) spare = spare / 32 * 32; /* it begins with a group */
    tensors->call.v = tensors->call.k;
    tensors->call.v_scales = tensors->call.k_scales;
    tensors->call.v.data =
        (char *)tensors->call.k.data + (p->k_scales == TP_SCALES_Q8_0 ? spare / 32 * 34 : unit_bytes(tensors, TENSOR_K, spare));
    if (p->k_scales == TP_SCALES_GROUP) tensors->call.v_scales.data = (uint16_t *)tensors->call.k_scales.data + spare / 32;
}

static void *index_array(const struct tensors *tensors, const int64_t *values, int64_t count) {
    size_t unit = tensors->style.index64 ? sizeof(int64_t) : sizeof(int32_t);
    void *array = guarded_take(tensors->style.guarded, (size_t)count * unit, unit, 0);
    for (int64_t i = 0; array && i < count; i++)
        if (tensors->style.index64)
            ((int64_t *)array)[i] = values[i];
        else
            ((int32_t *)array)[i] = (int32_t)values[i];
    return array;
}

/* Used lengths and starts by sequence. The first starts behind slack and what is spare: cu[0] may be > 0. */
static int set_lengths(struct tensors *tensors, const tp_lengths *lengths, int slack) {
    size_t bytes = ((size_t)tensors->sequences + 1) * sizeof(int64_t);
    int64_t **arrays[] = {&tensors->q_lens, &tensors->kv_lens, &tensors->q_start,
                          &tensors->kv_start};
    for (int i = 0; i < 4; i++)
        if (!(*arrays[i] = calloc(1, bytes))) return 1;
    int64_t at = 0;
    for (int64_t i = 0; lengths && i < lengths->count; i++)
        for (int64_t r = 0; r < lengths->seq[i].repeat && at < tensors->sequences; r++, at++) {
            tensors->q_lens[at] = lengths->seq[i].q_len;
            tensors->kv_lens[at] = lengths->seq[i].kv_len;
        }
    for (; at < tensors->sequences; at++) {
        tensors->q_lens[at] = tensors->problem.q_len;
        tensors->kv_lens[at] = tensors->problem.kv_len;
    }
    tensors->q_start[0] = tensors->kv_start[0] = slack + (tensors->style.spare ? SPARE_TOKENS : 0);
    for (int64_t s = 0; s < tensors->sequences; s++) {
        tensors->q_start[s + 1] = tensors->q_start[s] + tensors->q_lens[s] + slack;
        tensors->kv_start[s + 1] = tensors->kv_start[s] + tensors->kv_lens[s] + slack;
    }
    return 0;
}

static int set_indices(struct tensors *tensors, int used_lengths) {
    int64_t count = tensors->sequences;
    tp_tensors *call = &tensors->call;
    const struct {
        const int64_t *values;
        int64_t count;
        int wanted;
        const void **target;
    } arrays[4] = {
        {tensors->q_start, count + 1, tensors->problem.q_layout == TP_PACKED, &call->cu_seqlens_q},
        {tensors->kv_start, count + 1, tensors->problem.kv_layout == TP_PACKED,
         &call->cu_seqlens_kv},
        {tensors->q_lens, count, used_lengths, &call->q_lens},
        {tensors->kv_lens, count, used_lengths || tensors->problem.kv_layout == TP_PAGED,
         &call->kv_lens}};
    call->index_type = tensors->style.index64 ? TP_I64 : TP_I32;
    for (int i = 0; i < 4; i++) {
        if (!arrays[i].wanted) continue;
        tensors->indices[i] = index_array(tensors, arrays[i].values, arrays[i].count);
        if (!tensors->indices[i]) return 1;
        *arrays[i].target = tensors->indices[i];
    }
    return 0;
}

int tensors_create(struct tensors *tensors, const tp_problem *problem, const tp_lengths *lengths,
                   const struct tensors_style *style) {
    struct sizes sizes;
    memset(tensors, 0, sizeof *tensors);
    tensors->problem = *problem;
    tensors->style = *style;
    tensors->sequences = problem->batch;
    tensors->poison = 0xFF;
    if (set_lengths(tensors, lengths, style->slack)) return 1;
    measure(&sizes, problem, lengths, style);
    tensors->problem.q_len = sizes.q_hold;
    tensors->problem.kv_len = sizes.kv_hold;
    tp_tensors *call = &tensors->call;
    tp_tensors_init(call, &tensors->problem, NULL, NULL, NULL, NULL);
    call->q_tokens = sizes.q_tokens;
    call->kv_tokens = sizes.kv_tokens;
    int used_lengths = style->slack || (lengths && lengths->padded);
    if (set_indices(tensors, used_lengths) || cache_create(tensors, sizes.pages)) return 1;

    tp_tensor *views[] = {&call->q, &call->k, &call->v, &call->o, &call->lse};
    int first = TENSOR_Q, last = style->lse ? TENSOR_LSE : TENSOR_O;
    if (style->form == FORM_QKV) {
        if (allocate_qkv(tensors, &sizes)) return 1;
        first = TENSOR_O;
    }
    for (int i = first; i <= last; i++) {
        int keys = i == TENSOR_K || i == TENSOR_V;
        int64_t hold = !keys ? sizes.q_hold : sizes.pages ? problem->page_size : sizes.kv_hold;
        if (i == TENSOR_V && problem->latent) {
            share_latent(tensors);
            continue;
        }
        enum tensor_id id = (enum tensor_id)i;
        int64_t tokens = keys ? sizes.kv_tokens : sizes.q_tokens, gap = tensors_dtype(tensors, id) == TP_I4 ? GAP + 1 : GAP;
        int64_t units = set_strides(tensors, id, views[i], row_units(tensors, id), gap, tokens, hold);
        if (allocate(tensors, id, views[i], units)) return 1;
        if (keys && allocate_scales(tensors, id, i == TENSOR_V ? &call->v_scales : &call->k_scales, tokens, hold)) return 1;
    }
    return 0;
}

void tensors_destroy(struct tensors *tensors) {
    mask_data_destroy(&tensors->masks);
    for (int i = 0; i < TENSOR_COUNT; i++) guarded_free(tensors->style.guarded, tensors->buffer[i].memory);
    for (int i = 0; i < INDEX_COUNT; i++) guarded_free(tensors->style.guarded, tensors->indices[i]);
    for (int i = 0; i < 2; i++) guarded_free(tensors->style.guarded, tensors->scales[i].memory);
    for (int i = 0; i < 2; i++) free(tensors->pages[i]);
    free(tensors->shared_with);
    free(tensors->shared_keys);
    free(tensors->q_lens);
    free(tensors->kv_lens);
    free(tensors->q_start);
    free(tensors->kv_start);
    memset(tensors, 0, sizeof *tensors);
}
