/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exact check: the bytes of every row that will be written are collected, sorted and compared;
 * then every row that will be read is looked up among them. It trusts none of the reasoning of
 * overlap.c, which it stands beside.
 */
#include <stdlib.h>

#include "base/structs.h"
#include "masks/mask.h"
#include "problem/overlap.h"
#include "problem/sequence.h"

typedef struct range {
    uintptr_t lo, hi;
} range;

typedef struct ranges {
    range *list;
    size_t count, capacity;
} ranges;

/* One tensor of a walk over all its rows. */
typedef struct walk {
    const char *name;
    const tp_tensor *tensor;
    int64_t heads, row_bytes;
    int32_t dtype; /* by which offsets become bytes */
    int of_q;     /* follows the q lengths */
    int written;
} walk;

enum { TENSORS = 12 };

static int64_t stored_bytes(int32_t dtype, int32_t scales, int64_t dim) {
    return tp__units_bytes(dtype, tp__row_units(scales, dim));
}

/* Of the scales of a row; of one for all tensors not: it is none of the rows. */
static int64_t scales_bytes(int32_t kind, int64_t dim) {
    return tp__row_scales(kind, dim) * (int64_t)tp_dtype_bytes((tp_dtype)tp__scale_dtype(kind));
}

/* Those that are there. */
static int make_walks(const tp_problem *p, const tp_tensors *t, walk walks[TENSORS]) {
    int64_t o = (int64_t)tp_dtype_bytes(p->o_dtype), q = (int64_t)tp_dtype_bytes(p->q_dtype);
    int64_t k = stored_bytes(p->k_dtype, p->k_scales, p->head_dim_qk), v = stored_bytes(p->v_dtype, p->v_scales, p->head_dim_v);
    int forward = p->op == TP_FORWARD, count = 0;
    static const tp_gradients none = TP_GRADIENTS_INIT;
    const tp_gradients *g = forward ? &none : t->gradients;
    const walk all[TENSORS] = {
        {"o", &t->o, p->q_heads, p->head_dim_v * o, p->o_dtype, 1, forward},
        {"lse", &t->lse, p->q_heads, 4, TP_F32, 1, forward},
        {"q", &t->q, p->q_heads, p->head_dim_qk * q, p->q_dtype, 1, 0},
        {"k", &t->k, p->kv_heads, k, p->k_dtype, 0, 0},
        {"v", &t->v, p->kv_heads, v, p->v_dtype, 0, 0},
        {"k_scales", &t->k_scales, p->kv_heads, scales_bytes(p->k_scales, p->head_dim_qk), tp__scale_dtype(p->k_scales), 0, 0},
        {"v_scales", &t->v_scales, p->kv_heads, scales_bytes(p->v_scales, p->head_dim_v), tp__scale_dtype(p->v_scales), 0, 0},
        {"d_o", &g->d_o, p->q_heads, p->head_dim_v * o, p->o_dtype, 1, 0},
        {"d_lse", &g->d_lse, p->q_heads, 4, TP_F32, 1, 0},
        {"d_q", &g->d_q, p->q_heads, p->head_dim_qk * q, p->q_dtype, 1, 1},
        {"d_k", &g->d_k, p->kv_heads, k, p->k_dtype, 0, 1},
        {"d_v", &g->d_v, p->kv_heads, v, p->v_dtype, 0, 1},
    };
    for (int i = 0; i < TENSORS; i++)
        if (all[i].tensor->data != NULL && all[i].row_bytes > 0) walks[count++] = all[i];
    return count;
}

typedef tp_status (*visit)(void *user, const walk *w, int64_t seq, int64_t token, int64_t head,
                           range row);

static int64_t row_start(const tp_problem *problem, const tp_tensors *tensors, const walk *w, int64_t seq,
                         const tp__sequence *s, int64_t token) {
    if (w->of_q || problem->kv_layout != TP_PAGED)
        return tp__sequence_start(problem, tensors, w->tensor, w->of_q, seq) + token * w->tensor->stride[1];
    tp__key_place place = tp__key_place_of(problem, tensors, seq, s, token);
    return w->tensor == &tensors->v          ? place.v
           : w->tensor == &tensors->k_scales ? place.k_scales
           : w->tensor == &tensors->v_scales ? place.v_scales
                                             : place.k;
}

/* True if the table entry is no valid page. Then no row sees the key; otherwise the call was refused earlier. */
static int is_nowhere(const tp_problem *problem, const tp_tensors *tensors, const walk *w, int64_t seq,
                      int64_t token) {
    if (w->of_q || problem->kv_layout != TP_PAGED) return 0;
    int64_t slot = seq * tensors->page_slots + token / problem->page_size;
    int of_v = w->tensor == &tensors->v || w->tensor == &tensors->v_scales;
    const void *table = of_v && tensors->v_pages != NULL ? tensors->v_pages : tensors->k_pages;
    int64_t page = tp__index_at(tensors, table, slot);
    return page < 0 || page >= tensors->pages;
}

static tp_status walk_rows(const tp_problem *problem, const tp_tensors *tensors, const walk *w,
                           visit visit_row, void *user) {
    for (int64_t seq = 0; seq < tensors->batch; seq++) {
        tp__sequence s = tp__sequence_at(problem, tensors, seq);
        tp__interval tokens = {0, s.q_len};
        if (!w->of_q && w->written)
            tokens.hi = s.kv_len;
        else if (!w->of_q)
            tokens = tp__mask_is_plain(problem) ? tp__mask_hull(problem, s.q_len, s.kv_len)
                                                : (tp__interval){0, s.kv_len};
        for (int64_t token = tokens.lo; token < tokens.hi; token++) {
            if (is_nowhere(problem, tensors, w, seq, token)) continue;
            for (int64_t head = 0; head < w->heads; head++) {
                int64_t element = row_start(problem, tensors, w, seq, &s, token) +
                                  head * w->tensor->stride[2];
                uintptr_t lo = (uintptr_t)w->tensor->data + (uintptr_t)tp__units_bytes(w->dtype, element);
                range row = {lo, lo + (uintptr_t)w->row_bytes};
                TP_TRY(visit_row(user, w, seq, token, head, row));
            }
        }
    }
    return TP_OK;
}

/* Neighbours that touch become one range, so that a contiguous output costs almost nothing. */
static tp_status collect(void *user, const walk *w, int64_t seq, int64_t token, int64_t head,
                         range row) {
    ranges *all = user;
    (void)w, (void)seq, (void)token, (void)head;
    if (all->count > 0 && all->list[all->count - 1].hi == row.lo) {
        all->list[all->count - 1].hi = row.hi;
        return TP_OK;
    }
    if (all->count == all->capacity) {
        size_t capacity = all->capacity > 0 ? all->capacity * 2 : 1024, bytes;
        if (__builtin_mul_overflow(capacity, sizeof(range), &bytes)) return TP_NO_MEMORY;
        range *list = realloc(all->list, bytes);
        if (list == NULL) return TP_NO_MEMORY;
        all->list = list;
        all->capacity = capacity;
    }
    all->list[all->count++] = row;
    return TP_OK;
}

/* Which row holds a byte: the skip-th one found. */
typedef struct search {
    uintptr_t byte;
    int skip;
    const char *name;
    int64_t seq, token, head;
} search;

static tp_status holds_byte(void *user, const walk *w, int64_t seq, int64_t token, int64_t head,
                            range row) {
    search *s = user;
    if (s->byte < row.lo || s->byte >= row.hi || s->skip-- > 0) return TP_OK;
    s->name = w->name;
    s->seq = seq;
    s->token = token;
    s->head = head;
    return TP_BUSY; /* found: ends the walk */
}

typedef struct checker {
    const tp_problem *problem;
    const tp_tensors *tensors;
    walk walks[TENSORS];
    int count;
    ranges written;
    tp_error *error;
} checker;

static search find_output(const checker *c, uintptr_t byte, int skip) {
    search s = {.byte = byte, .skip = skip, .name = "?"};
    for (int i = 0; i < c->count; i++)
        if (c->walks[i].written &&
            walk_rows(c->problem, c->tensors, &c->walks[i], holds_byte, &s) != TP_OK) break;
    return s;
}

static tp_status refuse(const checker *c, const char *verb, const char *name, int64_t seq,
                        int64_t token, int64_t head, const search *output) {
    return tp__fail(c->error, TP_INVALID,
                    "byte %p is written by %s (sequence %lld, token %lld, head %lld) and %s by %s "
                    "(sequence %lld, token %lld, head %lld): output rows must share no byte",
                    (void *)output->byte, output->name, (long long)output->seq,
                    (long long)output->token, (long long)output->head, verb, name, (long long)seq,
                    (long long)token, (long long)head);
}

static int by_lo(const void *one, const void *other) {
    const range *a = one, *b = other;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

static tp_status check_written(checker *c) {
    range *list = c->written.list;
    if (c->written.count > 1) qsort(list, c->written.count, sizeof *list, by_lo);
    for (size_t i = 1; i < c->written.count; i++) {
        if (list[i].lo >= list[i - 1].hi) continue;
        search first = find_output(c, list[i].lo, 0), second = find_output(c, list[i].lo, 1);
        return refuse(c, "again", second.name, second.seq, second.token, second.head, &first);
    }
    return TP_OK;
}

/* The first written byte within the row, or 0. */
static uintptr_t first_written(const ranges *written, range row) {
    size_t low = 0, high = written->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (written->list[middle].hi <= row.lo)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == written->count || written->list[low].lo >= row.hi) return 0;
    return written->list[low].lo > row.lo ? written->list[low].lo : row.lo;
}

static tp_status check_read(void *user, const walk *w, int64_t seq, int64_t token, int64_t head,
                            range row) {
    checker *c = user;
    uintptr_t byte = first_written(&c->written, row);
    if (byte == 0) return TP_OK;
    search output = find_output(c, byte, 0);
    return refuse(c, "read", w->name, seq, token, head, &output);
}

static tp_status check_arrays(checker *c) {
    const tp_tensors *t = c->tensors;
    const tp_problem *p = c->problem;
    int paged = p->kv_layout == TP_PAGED;
    int64_t entries = paged ? t->batch * t->page_slots : 0, sparse = p->sparse_len > 0 ? tp__sparse_rows(p, t) : 0;
    if (sparse > 0) sparse = (sparse - 1) * t->sparse_stride + p->sparse_len;
    const struct {
        const char *name;
        const void *data;
        int64_t count;
    } arrays[] = {{"cu_seqlens_q", t->cu_seqlens_q, t->batch + 1},
                  {"cu_seqlens_kv", t->cu_seqlens_kv, t->batch + 1},
                  {"q_lens", t->q_lens, t->batch},
                  {"kv_lens", t->kv_lens, t->batch},
                  {"k_pages", t->k_pages, entries},
                  {"v_pages", t->v_pages, entries},
                  {"sparse_indices", t->sparse_indices, sparse}};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if (arrays[i].data == NULL || arrays[i].count == 0) continue;
        uintptr_t lo = (uintptr_t)arrays[i].data;
        uintptr_t size = (uintptr_t)arrays[i].count * (uintptr_t)tp__index_size(t);
        uintptr_t byte = first_written(&c->written, (range){lo, lo + size});
        TP_REQUIRE(byte == 0, c->error, TP_INVALID,
                   "byte %p is written by %s and read by %s: output rows must share no byte",
                   (void *)byte, find_output(c, byte, 0).name, arrays[i].name);
    }
    for (int i = 0;; i++) {
        tp__mask_array array = tp__mask_array_at(c->problem, t, i);
        if (array.name == NULL) return TP_OK;
        if (array.data == NULL) continue;
        uintptr_t lo = (uintptr_t)array.data;
        uintptr_t byte = first_written(&c->written, (range){lo, lo + (uintptr_t)array.bytes});
        TP_REQUIRE(byte == 0, c->error, TP_INVALID,
                   "byte %p is written by %s and read by %s: output rows must share no byte",
                   (void *)byte, find_output(c, byte, 0).name, array.name);
    }
}

static tp_status check_all(checker *c) {
    for (int i = 0; i < c->count; i++) {
        if (!c->walks[i].written) continue;
        tp_status status = walk_rows(c->problem, c->tensors, &c->walks[i], collect, &c->written);
        TP_REQUIRE(status == TP_OK, c->error, status,
                   "the deep check needs memory for more than %zu output ranges, which failed",
                   c->written.count);
    }
    TP_TRY(check_written(c));
    for (int i = 0; i < c->count; i++)
        if (!c->walks[i].written) TP_TRY(walk_rows(c->problem, c->tensors, &c->walks[i], check_read, c));
    return check_arrays(c);
}

tp_status tp__check_rows(const tp_problem *problem, const tp_tensors *tensors, tp_error *error) {
    checker c = {.problem = problem, .tensors = tensors, .error = error};
    c.count = make_walks(problem, tensors, c.walks);
    tp_status status = check_all(&c);
    free(c.written.list);
    return status;
}

tp_status tp_check_deep(const tp_problem *problem, const tp_tensors *tensors, tp_error *error) {
    TP_STRUCT_IN(tp_problem, problem, error);
    TP_TRY(tp_problem_check(problem, error));
    tp__tensors_here here;
    TP_TRY(tp__tensors_in(&tensors, problem->op, &here, error));
    TP_TRY(tp__tensors_check(problem, tensors, error));
    return tp__check_deep(problem, tensors, error);
}

tp_status tp__check_deep(const tp_problem *problem, const tp_tensors *tensors, tp_error *error) {
    TP_REQUIRE(tp__reads_indices(tensors), error, TP_UNSUPPORTED,
               "index_device is %d: the deep check reads index arrays on the host, TP_CPU (0)", tensors->index_device);
    TP_TRY(tp__called_pages_check(problem, tensors, &(tp__answers){NULL, 0, 0}, error));
    TP_TRY(tp__pages_check_owners(problem, tensors, error));
    return tp__check_rows(problem, tensors, error);
}
