/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels serve, and with which tiles: from the problem and the device's local memory alone. */
#include <stdio.h>
#include <string.h>

#include "opencl.h"

enum { SLICE = 32, ALIGN = 64 };

static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
static int64_t plus(int64_t a, int64_t b) {
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}
static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Bytes of the local arrays of `attend`, and of `back_keys` and `back_rows`. */
static int64_t forward_local(int rows, int dq) {
    int64_t floats = (int64_t)rows * (dq + 1) + TP__BLOCK * (SLICE + 1) + (int64_t)rows * (TP__BLOCK + 1) + rows * 8;
    return 4 * floats + 8 * (2 * (int64_t)rows + TP__BLOCK + 4);
}
static int64_t backward_local(int tile) {
    int64_t floats = 2 * (int64_t)tile * (SLICE + 1) + 2 * (int64_t)tile * (tile + 1) + 2 * tile;
    return 4 * floats + 8 * 2 * (int64_t)tile;
}

/* Tiles of rows, and those of backward, change no bit: a device with less local memory has smaller ones. */
tp__ocl_tiles tp__ocl_tiles_of(const tp_opencl *cl, const tp_problem *p) {
    int64_t group = p->kv_heads > 0 ? p->q_heads / p->kv_heads : 1;
    tp__ocl_tiles t = {.dq = (int)((p->head_dim_qk + SLICE - 1) / SLICE * SLICE),
                       .dv = (int)((p->head_dim_v + SLICE - 1) / SLICE * SLICE)};
    int wide = t.dq > 128 || t.dv > 128;
    int64_t max = times(p->q_len, group);
    t.few = p->op == TP_FORWARD && !p->invariant ? smaller(max, TP__SPLIT_ROWS) : 0;
    t.decode = t.few > 0 && max <= TP__SPLIT_ROWS;
    t.splits = t.few > 0 ? larger(1, (p->kv_len + TP__SPLIT_KEYS - 1) / TP__SPLIT_KEYS) : 1;
    t.back = wide ? 16 : 32;
    t.rows = t.decode ? TP__SPLIT_TILE : wide ? 16 : 32;
    if (p->op == TP_BACKWARD) {
        while (t.back > 8 && backward_local(t.back) > cl->info.local_bytes) t.back /= 2;
        t.local = backward_local(t.back);
        return t;
    }
    while (t.rows > 8 && forward_local(t.rows, t.dq) > cl->info.local_bytes) t.rows /= 2;
    t.local = forward_local(t.rows, t.dq);
    return t;
}

const tp_kernel_info *tp__ocl_kernel_at(void *user, int index) {
    static const tp_kernel_info info = {.struct_size = sizeof info,
                                        .name = "opencl",
                                        .strategy = "fused",
                                        .nr = TP__BLOCK,
                                        .max_head_dim = TP__HEAD_DIM_MAX,
                                        .dtypes = 1u << TP_F32 | 1u << TP_F16 | 1u << TP_BF16,
                                        .arithmetic = TP_ARITHMETIC_OPENCL,
                                        .ops = 1u << TP_FORWARD | 1u << TP_BACKWARD};
    (void)user;
    return index == 0 ? &info : NULL;
}

/* An AND of causal, window and chunk is one interval around a row's position. Postfix order of AND alone says nothing. */
int tp__ocl_mask_of(const tp_problem *p, call *c, const char **unserved) {
    c->left = c->right = -1;
    c->chunk = 0;
    *unserved = NULL;
    for (int i = 0; i < p->mask_nodes; i++) {
        const tp_mask_node *node = &p->mask[i];
        switch (node->kind) {
        case TP_MASK_AND: break;
        case TP_MASK_CAUSAL: c->right = 0; break;
        case TP_MASK_WINDOW:
            if (node->a >= 0 && (c->left < 0 || node->a < c->left)) c->left = node->a;
            if (node->b >= 0 && (c->right < 0 || node->b < c->right)) c->right = node->b;
            break;
        case TP_MASK_CHUNK:
            if (c->chunk != 0 && c->chunk != node->a) *unserved = "two chunk masks, need one";
            c->chunk = node->a;
            break;
        case TP_MASK_OR: *unserved = "mask with OR, need an AND of causal, window and chunk"; break;
        default: *unserved = "mask beyond causal, window and chunk";
        }
    }
    return *unserved == NULL;
}

static int is_served(int32_t dtype) {
    return dtype == TP_F32 || dtype == TP_F16 || dtype == TP_BF16;
}

void tp__ocl_serves(void *user, int kernel, const tp_problem *p, tp_add_reason add, void *reasons) {
    const tp_opencl *cl = user;
    call masks;
    const char *mask;
    char text[96];
    (void)kernel;
    if (cl->queue == NULL) {
        add(reasons, TP_WHY_ABSENT, 0, 0, cl->why);
        return;
    }
    const int32_t dtypes[] = {p->q_dtype, p->k_dtype, p->v_dtype};
    for (int i = 0; i < 3; i++)
        if (!is_served(dtypes[i])) {
            snprintf(text, sizeof text, "dtype %d, need f32, f16 or bf16", dtypes[i]);
            add(reasons, TP_WHY_DTYPE, dtypes[i], tp__ocl_kernel_at(user, 0)->dtypes, text);
            break;
        }
    int64_t dim = larger(p->head_dim_qk, p->head_dim_v);
    if (dim > TP__HEAD_DIM_MAX) {
        snprintf(text, sizeof text, "head_dim %lld, need <= %d", (long long)dim, TP__HEAD_DIM_MAX);
        add(reasons, TP_WHY_HEAD_DIM, dim, TP__HEAD_DIM_MAX, text);
    } else {
        tp__ocl_tiles tiles = tp__ocl_tiles_of(cl, p);
        if (tiles.local > cl->info.local_bytes) {
            snprintf(text, sizeof text, "needs %lld KiB of local memory, device gives %lld",
                     (long long)(tiles.local + 1023) / 1024, (long long)cl->info.local_bytes / 1024);
            add(reasons, TP_WHY_MEMORY, cl->info.local_bytes, tiles.local, text);
        }
        int64_t bytes = tp__ocl_workspace_of(cl, p).bytes;
        if (cl->info.allocation_bytes > 0 && bytes > cl->info.allocation_bytes) {
            snprintf(text, sizeof text, "needs a workspace of %lld bytes, device gives %lld", (long long)bytes,
                     (long long)cl->info.allocation_bytes);
            add(reasons, TP_WHY_MEMORY, cl->info.allocation_bytes, bytes, text);
        }
    }
    const struct {
        int asked;
        const char *text;
    } features[] = {
        {p->sparse_len > 0, "sparse indices, need none"}, {p->bias_dtype != 0, "bias, need none"},
        {p->dropout > 0, "dropout, need none"},           {p->positions != 0, "explicit positions, need those of the alignment"},
        {p->qscale_length > 0, "qscale, need none"},      {!tp__ocl_mask_of(p, &masks, &mask), mask},
        {p->cascade > 0, "cascade, need none"},
    };
    int said = 0;
    for (size_t i = 0; i < sizeof features / sizeof *features && said < 2; i++)
        if (features[i].asked) {
            add(reasons, TP_WHY_FEATURE, 0, 0, features[i].text);
            said++;
        }
}

static int64_t take(int64_t *at, int64_t bytes) {
    int64_t start = *at;
    *at = plus(start, bytes);
    if (*at < INT64_MAX - ALIGN) *at = (*at + ALIGN - 1) / ALIGN * ALIGN;
    return start;
}

tp__ocl_workspace tp__ocl_workspace_of(const tp_opencl *cl, const tp_problem *p) {
    tp__ocl_workspace w = {.bytes = 4 * COUNTERS};
    int64_t rows = times(times(p->batch, p->q_len), p->q_heads), slots = 0;
    if (p->page_size > 0) slots = (p->kv_len + p->page_size - 1) / p->page_size;
    int64_t entries = plus(times(4, plus(p->batch, 1)), times(2, times(p->batch, slots)));
    w.arrays = take(&w.bytes, times(8, entries));
    tp__ocl_tiles tiles = tp__ocl_tiles_of(cl, p);
    int64_t few = times(times(p->batch, p->kv_heads), tiles.few);
    if (few > 0) w.states = take(&w.bytes, times(4, times(times(few, tiles.splits), p->head_dim_v + 2)));
    if (p->op == TP_BACKWARD) {
        w.deltas = take(&w.bytes, times(4, rows));
        if (p->alibi) w.row_slopes = take(&w.bytes, times(4, rows));
    }
    return w;
}

void tp__ocl_figures(void *user, int kernel, const tp_problem *p, tp_backend_figures *f) {
    const tp_opencl *cl = user;
    tp__ocl_tiles tiles = tp__ocl_tiles_of(cl, p);
    (void)kernel;
    f->workspace_bytes = tp__ocl_workspace_of(cl, p).bytes;
    f->decode = tiles.decode;
    f->chunk_keys = tiles.decode ? TP__SPLIT_KEYS : 0;
    char cut[32] = "";
    if (p->op == TP_FORWARD && !p->invariant) snprintf(cut, sizeof cut, " r%d:c%d", TP__SPLIT_ROWS, TP__SPLIT_KEYS);
    snprintf(f->numerics_id, sizeof f->numerics_id, "opencl/%s-1 bk%d%s exp2p5%s dev-%s",
             p->op == TP_BACKWARD ? "backward" : "attend", TP__BLOCK, cut, p->softcap > 0 ? " tanhp6" : "", cl->numerics);
}
