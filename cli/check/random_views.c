/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a call, as calls of their own on the same memory: one sequence without its neighbours; with `invariant`, a
   few rows of a sequence and the keys up to theirs. Rows that see the same keys must have the same bits. */
#include "check/random.h"

#include <string.h>

#include "harness/mask_words.h"

struct view {
    struct tensors tensors; /* the memory is the subject's */
    int64_t seq, row;       /* where it begins */
    int64_t first[2];       /* for the callback: the same two */
    union {
        int32_t i32[2];
        int64_t i64[2];
    } q_starts, kv_starts, q_len, kv_len;
    int64_t lens[2], starts[2][2];
};

static const void *ahead(const struct tensors *t, const void *array, int64_t entries) {
    return array ? (const char *)array + entries * (t->style.index64 ? 8 : 4) : NULL;
}

static void *put_two(const struct tensors *t, void *to, int64_t a, int64_t b) {
    if (t->style.index64)
        ((int64_t *)to)[0] = a, ((int64_t *)to)[1] = b;
    else
        ((int32_t *)to)[0] = (int32_t)a, ((int32_t *)to)[1] = (int32_t)b;
    return to;
}

static void move(struct tensors *t, tp_tensor *tensor, enum tensor_id id, int64_t seq, int64_t token) {
    if (!tensor->data) return;
    int64_t place = seq * tensor->stride[0] + token * tensor->stride[1];
    tp_dtype dtype = tensors_dtype(t, id);
    tensor->data = (char *)tensor->data + (dtype == TP_I4 ? place / 2 : place * (int64_t)tp_dtype_bytes(dtype));
}

static void move_scales(tp_tensor *scales, int32_t kind, int64_t seq) {
    if (kind == TP_SCALES_TOKEN) scales->data = (float *)scales->data + seq * scales->stride[0];
    if (kind == TP_SCALES_GROUP) scales->data = (uint16_t *)scales->data + seq * scales->stride[0];
}

/* Arrays of rows and keys, and what belongs to a sequence. */
static void move_masks(struct tensors *t, int64_t seq, int64_t row) {
    tp_tensors *c = &t->call;
    const tp_problem *p = &t->problem;
    int64_t rows = p->q_layout == TP_PACKED ? 0 : seq * c->q_len + row, keys = p->kv_layout == TP_PACKED ? 0 : seq * c->kv_len;
    const void **by_row[] = {&c->q_positions, &c->q_documents, &c->q_spans, &c->parents};
    const void **by_key[] = {&c->k_positions, &c->k_documents, &c->k_spans};
    const void **by_sequence[] = {&c->prefix_lens, &c->span_offsets};
    for (int i = 0; i < 4; i++) *by_row[i] = ahead(t, *by_row[i], rows);
    for (int i = 0; i < 3; i++) *by_key[i] = ahead(t, *by_key[i], keys);
    for (int i = 0; i < 2; i++) *by_sequence[i] = ahead(t, *by_sequence[i], seq);
    c->k_pages = ahead(t, c->k_pages, seq * c->page_slots);
    c->v_pages = ahead(t, c->v_pages, seq * c->page_slots);
    c->sparse_indices = ahead(t, c->sparse_indices, rows * c->sparse_stride);
    if (c->bits) c->bits = (const char *)c->bits + seq * c->bits_stride[0] + row * c->bits_stride[2];
    if (c->bias)
        c->bias = (const char *)c->bias + (seq * c->bias_stride[0] + row * c->bias_stride[2]) *
                                              (int64_t)tp_dtype_bytes((tp_dtype)p->bias_dtype);
    if (c->alibi_slopes) c->alibi_slopes += seq * c->alibi_stride;
}

/* Rows row..row+rows-1 of one sequence on its first keys. */
static void look(struct view *v, const struct tensors *whole, int64_t seq, int64_t row, int64_t rows, int64_t keys) {
    *v = (struct view){.tensors = *whole, .seq = seq, .row = row, .first = {seq, row}, .lens = {rows, keys}};
    struct tensors *t = &v->tensors;
    tp_tensors *c = &t->call;
    int packed_q = t->problem.q_layout == TP_PACKED, packed_kv = t->problem.kv_layout == TP_PACKED;
    int64_t q_start = whole->q_start[seq] + row, kv_start = whole->kv_start[seq];
    move_masks(t, seq, row);
    c->batch = t->sequences = 1;
    t->problem.cascade = 0;
    t->problem.q_len = rows; /* bits and biases have so many left from here on */
    c->callback_user = v->first;
    t->q_lens = &v->lens[0];
    t->kv_lens = &v->lens[1];
    t->q_start = v->starts[0];
    t->kv_start = v->starts[1];
    t->q_start[0] = q_start;
    t->kv_start[0] = kv_start;
    for (int i = 0; i < 2; i++)
        if (t->pages[i]) t->pages[i] += seq * c->page_slots;
    if (packed_q) {
        c->cu_seqlens_q = put_two(t, &v->q_starts, q_start, q_start + rows);
        c->q_lens = NULL;
    } else {
        move(t, &c->q, TENSOR_Q, seq, row);
        move(t, &c->o, TENSOR_O, seq, row);
        move(t, &c->lse, TENSOR_LSE, seq, row);
        c->q_len = rows;
        c->q_lens = NULL;
    }
    if (packed_kv) {
        c->cu_seqlens_kv = put_two(t, &v->kv_starts, kv_start, kv_start + keys);
        c->kv_lens = NULL;
    } else if (t->problem.kv_layout == TP_PAGED) {
        c->kv_lens = put_two(t, &v->kv_len, keys, 0);
    } else {
        move(t, &c->k, TENSOR_K, seq, 0);
        move(t, &c->v, TENSOR_V, seq, 0);
        move_scales(&c->k_scales, t->problem.k_scales, seq);
        move_scales(&c->v_scales, t->problem.v_scales, seq);
        c->kv_len = keys;
        c->kv_lens = NULL;
    }
}

static int sees_the_same(const struct subject *s, const struct view *v, int64_t head, int64_t row) {
    const struct tensors *whole = &s->tensors;
    tp_row here = {0, head, row}, there = {v->seq, head, v->row + row};
    for (int64_t j = 0; j < whole->kv_lens[v->seq]; j++) {
        int in_whole = check_visible(whole, there, j), in_view = j < v->lens[1] && check_visible(&v->tensors, here, j);
        if (in_whole != in_view) return 0;
    }
    return 1;
}

static int run_view(struct subject *s, struct view *v, const struct kept *first, const char *what) {
    tp_receipt receipt;
    subject_step(s, what);
    if (check_attend_by(s->env, &v->tensors, ENTRY_SERIAL, 2, 0xFF, &receipt)) return 1;
    for (int64_t h = 0; h < s->tensors.problem.q_heads; h++)
        for (int64_t r = 0; r < v->lens[0]; r++) {
            tp_row at = {v->seq, h, v->row + r}, here = {0, h, r};
            if ((v->lens[1] < s->tensors.kv_lens[v->seq] || v->lens[0] < s->tensors.q_lens[v->seq]) &&
                !sees_the_same(s, v, h, r))
                continue;
            if (check_same_row(s->env, what, &first->tensors, at, &v->tensors, here)) return 1;
        }
    return 0;
}

int try_views(struct subject *s, const struct kept *first) {
    const struct tensors *t = &s->tensors;
    struct view v;
    int failed = 0;
    if (t->problem.dropout > 0) return 0; /* which pairs it drops hangs on sequence and row */
    if (t->problem.cascade > 0 && !t->problem.invariant) return 0; /* bits hang on what is shared */
    for (int64_t seq = 0; !failed && t->sequences > 1 && seq < t->sequences; seq++) {
        look(&v, t, seq, 0, t->q_lens[seq], t->kv_lens[seq]);
        failed = run_view(s, &v, first, "a sequence alone");
    }
    for (int64_t seq = 0; !failed && t->problem.invariant && seq < t->sequences && seq < 2; seq++) {
        int64_t rows = t->q_lens[seq], keys = t->kv_lens[seq];
        int sparse = t->problem.sparse_len > 0; /* its keys stay: positions of the alignment would move */
        if (rows < 2 || mask_has(&t->problem, TP_MASK_TREE)) continue; /* drafts are the last rows, whatever is cut */
        if (sparse && (t->problem.qscale_length || t->problem.mask_nodes) && t->problem.align != TP_TOP_LEFT) continue;
        for (int i = 0; !failed && i < 3; i++) {
            uint64_t bits = random_bits(s->trial->seed, 640, (uint64_t)(3 * seq + i));
            int64_t row = (int64_t)(bits % (uint64_t)rows), some = 1 + (int64_t)((bits >> 32) % (uint64_t)(rows - row));
            int64_t less = sparse || t->problem.align == TP_TOP_LEFT ? 0 : rows - row - some; /* keys behind the last row's own */
            if (t->problem.align == TP_TOP_LEFT) row = 0;
            if (less > keys) continue;
            look(&v, t, seq, row, some, keys - less);
            failed = run_view(s, &v, first, "rows in chunks");
        }
    }
    return failed;
}
