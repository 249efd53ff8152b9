/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a call's tensors: outputs apart from one another and from every input. */
#include "base/arena.h"
#include "base/error.h"
#include "problem/overlap.h"
#include "problem/side.h"

enum { INPUTS = 16, OUTPUTS = 6 };

/* All regions of a call; one that is not there has no bytes. */
typedef struct regions {
    const tp_problem *problem;
    const tp_tensors *tensors;
    const tp__side *q, *kv;
    tp__region input[INPUTS], output[OUTPUTS];
    int inputs, outputs;
    tp_error *error;
} regions;

/* Rows that a tensor of this side has, along each stride. */
static void side_extent(const tp_tensors *t, const tp__side *s, int64_t extent[3]) {
    extent[0] = s->page_size > 0 ? s->pages : s->packed ? 1 : t->batch;
    extent[1] = s->page_size > 0 ? s->page_size : s->packed ? s->tokens : s->len;
    extent[2] = s->heads;
}

static tp_status make_region(const regions *all, tp__region *region, const char *name, const tp_tensor *tensor,
                             const tp__side *s, int64_t dim, int32_t dtype) {
    const tp_tensors *t = all->tensors;
    tp__region_array(region, name, NULL, 0);
    for (int i = s->packed ? 1 : 0; i < 3; i++)
        TP_REQUIRE(tensor->stride[i] >= 0, all->error, TP_INVALID,
                   "%s.stride[%d] is %lld: it must be at least 0", name, i,
                   (long long)tensor->stride[i]);
    if (!s->used) return TP_OK;
    int64_t extent[3];
    side_extent(t, s, extent);
    TP_REQUIRE(tensor->data != NULL, all->error, TP_INVALID,
               "%s.data is NULL: it must point to %lld x %lld tokens x %lld heads", name,
               (long long)extent[0], (long long)extent[1], (long long)extent[2]);
    return tp__region_tensor(region, name, tensor, extent, dim, dtype, all->error);
}

static tp_status add_input(regions *all, const char *name, const tp_tensor *tensor, const tp__side *s,
                           int64_t dim, int32_t dtype) {
    return make_region(all, &all->input[all->inputs++], name, tensor, s, dim, dtype);
}

/* k or v. Two elements of i4 share a byte: strides and dim are halved, and bytes remain. */
static tp_status add_stored(regions *all, const char *name, const tp_tensor *tensor, int64_t dim, int32_t dtype, int32_t scales) {
    if (dtype != TP_I4) return add_input(all, name, tensor, all->kv, tp__row_units(scales, dim), dtype);
    tp_tensor bytes = *tensor;
    for (int i = 0; i < 3; i++) bytes.stride[i] /= 2;
    return add_input(all, name, &bytes, all->kv, dim / 2, TP_I8);
}

/* Of a whole tensor there is one, and its strides are ignored. */
static tp_status add_scales(regions *all, const char *name, const tp_tensor *scales, int64_t dim, int32_t kind) {
    tp_tensor one = {scales->data, {0, 0, 0}};
    if (kind == TP_SCALES_TENSOR) return add_input(all, name, &one, all->kv, 1, TP_F32);
    int64_t count = tp__row_scales(kind, dim);
    return count > 0 ? add_input(all, name, scales, all->kv, count, tp__scale_dtype(kind)) : TP_OK;
}

/* One whose data is NULL is not wanted, where that may be. */
static tp_status add_output(regions *all, const char *name, const tp_tensor *tensor, const tp__side *s,
                            int64_t dim, int32_t dtype) {
    tp__region *region = &all->output[all->outputs++];
    TP_TRY(make_region(all, region, name, tensor, s, dim, dtype));
    return tp__region_check_output(region, all->error);
}

static void add_array(regions *all, const char *name, const void *data, int64_t bytes) {
    tp__region_array(&all->input[all->inputs++], name, data, bytes);
}

static tp_status forward_outputs(regions *all) {
    const tp_tensors *t = all->tensors;
    TP_TRY(add_output(all, "o", &t->o, all->q, all->problem->head_dim_v, all->problem->o_dtype));
    return t->lse.data == NULL ? TP_OK : add_output(all, "lse", &t->lse, all->q, 1, TP_F32);
}

/* o and lse are inputs of a backward call, its outputs are gradients. */
static tp_status backward_regions(regions *all) {
    const tp_problem *p = all->problem;
    const tp_tensors *t = all->tensors;
    const tp_gradients *g = t->gradients;
    TP_TRY(add_input(all, "o", &t->o, all->q, p->head_dim_v, p->o_dtype));
    TP_TRY(add_input(all, "lse", &t->lse, all->q, 1, TP_F32));
    TP_TRY(add_input(all, "d_o", &g->d_o, all->q, p->head_dim_v, p->o_dtype));
    if (g->d_lse.data != NULL) TP_TRY(add_input(all, "d_lse", &g->d_lse, all->q, 1, TP_F32));
    if (g->d_q.data != NULL) TP_TRY(add_output(all, "d_q", &g->d_q, all->q, p->head_dim_qk, p->q_dtype));
    if (g->d_k.data != NULL) TP_TRY(add_output(all, "d_k", &g->d_k, all->kv, p->head_dim_qk, p->k_dtype));
    if (g->d_v.data != NULL) TP_TRY(add_output(all, "d_v", &g->d_v, all->kv, p->head_dim_v, p->v_dtype));
    for (int i = 0;; i++) {
        tp__mask_array array = tp__gradient_array_at(p, t, i);
        if (array.name == NULL) return TP_OK;
        tp__region_array(&all->output[all->outputs++], array.name, array.data, array.bytes);
    }
}

static tp_status check_disjoint(const regions *all, const tp__region *input) {
    for (int i = 0; i < all->outputs; i++) TP_TRY(tp__region_check_disjoint(&all->output[i], input, all->error));
    return TP_OK;
}

tp_status tp__regions_check(const tp_problem *p, const tp_tensors *t, const tp__side *q, const tp__side *kv,
                            tp_error *error) {
    /* not set to 0: a call makes many of these and reads few fields */
    regions all;
    all.problem = p, all.tensors = t, all.q = q, all.kv = kv, all.error = error;
    all.inputs = all.outputs = 0;
    int64_t size = tp__index_size(t), tables = p->kv_layout == TP_PAGED ? t->batch * t->page_slots : 0;
    int64_t sparse = p->sparse_len > 0 ? tp__sparse_rows(p, t) : 0;
    if (sparse > 0) sparse = (sparse - 1) * t->sparse_stride + p->sparse_len;
    int64_t extent[3];
    side_extent(t, kv, extent);
    TP_TRY(tp__stored_check(p, t, extent, error));
    TP_TRY(add_input(&all, "q", &t->q, q, p->head_dim_qk, p->q_dtype));
    TP_TRY(add_stored(&all, "k", &t->k, p->head_dim_qk, p->k_dtype, p->k_scales));
    TP_TRY(add_stored(&all, "v", &t->v, p->head_dim_v, p->v_dtype, p->v_scales));
    TP_TRY(add_scales(&all, "k_scales", &t->k_scales, p->head_dim_qk, p->k_scales));
    TP_TRY(add_scales(&all, "v_scales", &t->v_scales, p->head_dim_v, p->v_scales));
    TP_TRY(p->op == TP_BACKWARD ? backward_regions(&all) : forward_outputs(&all));
    add_array(&all, "cu_seqlens_q", q->cu, (t->batch + 1) * size);
    add_array(&all, "cu_seqlens_kv", kv->cu, (t->batch + 1) * size);
    add_array(&all, "q_lens", q->lens, t->batch * size);
    add_array(&all, "kv_lens", kv->lens, t->batch * size);
    add_array(&all, "k_pages", t->k_pages, tables * size);
    add_array(&all, "v_pages", t->v_pages, tables * size);
    add_array(&all, "sparse_indices", t->sparse_indices, sparse * size);
    for (int i = 0; i < all.inputs; i++) TP_TRY(check_disjoint(&all, &all.input[i]));
    for (int i = 0; i < all.outputs; i++)
        for (int j = i + 1; j < all.outputs; j++)
            TP_TRY(tp__region_check_disjoint(&all.output[i], &all.output[j], error));
    for (int i = 0;; i++) {
        tp__mask_array array = tp__mask_array_at(p, t, i);
        if (array.name == NULL) return TP_OK;
        if (array.data == NULL) continue;
        tp__region_array(&all.input[0], array.name, array.data, array.bytes);
        TP_TRY(check_disjoint(&all, &all.input[0]));
    }
}
