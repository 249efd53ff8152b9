/* SPDX-License-Identifier: Apache-2.0 */
/* What a run checks of page tables, sparse indices and a latent cache. */
#include <stdlib.h>

#include "base/error.h"
#include "masks/mask.h"
#include "problem/sequence.h"

int64_t tp__sparse_rows(const tp_problem *problem, const tp_tensors *tensors) {
    return problem->q_layout == TP_PACKED ? tensors->q_tokens : tensors->batch * tensors->q_len;
}

static tp_status check_array(const tp_tensors *t, const char *name, const void *data, tp_error *error) {
    TP_REQUIRE((uintptr_t)data % (uintptr_t)tp__index_size(t) == 0, error, TP_INVALID,
               "%s is %p: it must be aligned to its elements of %lld bytes", name, data,
               (long long)tp__index_size(t));
    return TP_OK;
}

/* Does some row see a key of the page? Asked only where much depends on it: a mask of bits or a callback is
   evaluated key by key. */
static int page_is_seen(const tp_problem *p, tp__mask_view *view, int64_t slot) {
    tp__interval page = {slot * p->page_size, (slot + 1) * p->page_size};
    int64_t heads = tp__mask_by_head(p, NULL) ? p->q_heads : 1;
    if (page.hi > view->kv_len) page.hi = view->kv_len;
    for (int64_t row = 0; row < view->q_len; row++) {
        tp__parts parts;
        int exact = tp__mask_parts(view, row, &parts);
        for (int i = 0; i < parts.count; i++) {
            int64_t lo = parts.part[i].lo > page.lo ? parts.part[i].lo : page.lo;
            int64_t hi = parts.part[i].hi < page.hi ? parts.part[i].hi : page.hi;
            if (exact && lo < hi) return 1;
            for (int64_t key = lo; key < hi; key++)
                for (int64_t head = 0; head < heads; head++)
                    if (tp__mask_allowed(view, head, row, key)) return 1;
        }
    }
    return 0;
}

static tp_status check_page(const tp_tensors *t, int64_t seq, int64_t slot, tp_error *error) {
    const struct {
        const char *name;
        const void *table;
    } tables[] = {{"k_pages", t->k_pages}, {"v_pages", t->v_pages}};
    for (int i = 0; i < 2; i++) {
        if (tables[i].table == NULL) continue;
        int64_t page = tp__index_at(t, tables[i].table, seq * t->page_slots + slot);
        TP_REQUIRE(page >= 0 && page < t->pages, error, TP_INVALID,
                   "%s[%lld][%lld] is %lld: a page that is seen must be at least 0 and below pages = %lld, what the "
                   "pool holds",
                   tables[i].name, (long long)seq, (long long)slot, (long long)page, (long long)t->pages);
    }
    return TP_OK;
}

/* A plain mask leaves no holes; with others, whether a page is seen is asked only of numbers that would be
   wrong. */
static tp_status check_pages(const tp_problem *p, const tp_tensors *t, const tp__sequence *s,
                             const tp__answers *answers, tp_error *error) {
    if (s->q_len == 0) return TP_OK; /* nothing of it is read */
    int plain = tp__mask_is_plain(p), looked = 0;
    tp__interval seen = plain ? tp__mask_hull(p, s->q_len, s->kv_len) : (tp__interval){0, s->kv_len};
    tp__mask_view view = tp__sequence_view(p, s);
    view.called_words = answers->words;
    if (answers->bits != NULL) view.called = answers->bits + s->index * answers->rows * answers->words;
    for (int64_t slot = seen.lo / p->page_size; slot * p->page_size < seen.hi; slot++) {
        if (plain) {
            TP_TRY(check_page(t, s->index, slot, error));
            continue;
        }
        if (check_page(t, s->index, slot, NULL) == TP_OK) continue;
        if (!tp__reads_data(t) && tp__mask_has(p, TP_MASK_BITS)) continue; /* the device knows whether it is seen */
        if (!looked++) tp__mask_look(&view);
        if (page_is_seen(p, &view, slot)) return check_page(t, s->index, slot, error);
    }
    return TP_OK;
}

static tp_status check_tables(const tp_problem *p, const tp_tensors *t, tp_error *error) {
    int64_t entries;
    TP_REQUIRE(t->page_slots >= 0 && !__builtin_mul_overflow(t->page_slots, t->batch, &entries) &&
                   entries <= (int64_t)1 << 58,
               error, TP_INVALID, "page_slots is %lld for %lld sequences: it must be at least 0, and the "
               "tables addressable", (long long)t->page_slots, (long long)t->batch);
    TP_REQUIRE(t->pages >= 0, error, TP_INVALID, "pages is %lld: it must be at least 0",
               (long long)t->pages);
    TP_TRY(check_array(t, "k_pages", t->k_pages, error));
    TP_TRY(check_array(t, "v_pages", t->v_pages, error));
    if (!tp__reads_indices(t)) {
        TP_REQUIRE(t->k_pages != NULL || t->batch == 0 || t->kv_len == 0, error, TP_INVALID,
                   "k_pages is NULL with up to %lld keys a sequence: TP_PAGED needs its table", (long long)t->kv_len);
        return TP_OK;
    }
    for (int64_t seq = 0; seq < t->batch; seq++) {
        tp__sequence s = tp__sequence_at(p, t, seq);
        int64_t slots = s.kv_len > 0 ? (s.kv_len - 1) / p->page_size + 1 : 0;
        TP_REQUIRE(slots <= t->page_slots, error, TP_INVALID,
                   "sequence %lld has %lld keys in pages of %lld: its table must have %lld slots, and "
                   "page_slots is %lld",
                   (long long)seq, (long long)s.kv_len, (long long)p->page_size, (long long)slots,
                   (long long)t->page_slots);
        TP_REQUIRE(slots == 0 || t->k_pages != NULL, error, TP_INVALID,
                   "k_pages is NULL though sequence %lld has %lld keys: TP_PAGED needs its table",
                   (long long)seq, (long long)s.kv_len);
        /* Sparse indices: only their pages are seen (check_sparse). Callback: checked after it has been asked
           (tp__called_pages_check). */
        if (p->sparse_len > 0 || tp__mask_has(p, TP_MASK_CALLBACK)) continue;
        TP_TRY(check_pages(p, t, &s, &(tp__answers){NULL, 0, 0}, error));
    }
    return TP_OK;
}

tp_status tp__called_pages_check(const tp_problem *problem, const tp_tensors *tensors, const tp__answers *answers,
                                 tp_error *error) {
    if (problem->kv_layout != TP_PAGED || problem->sparse_len > 0 || !tp__mask_has(problem, TP_MASK_CALLBACK))
        return TP_OK;
    for (int64_t seq = 0; seq < tensors->batch; seq++) {
        tp__sequence s = tp__sequence_at(problem, tensors, seq);
        TP_TRY(check_pages(problem, tensors, &s, answers, error));
    }
    return TP_OK;
}

static tp_status check_sparse_row(const tp_problem *p, const tp_tensors *t, int64_t seq, const tp__sequence *s, int64_t token,
                                  tp_error *error) {
    int64_t last = -1;
    tp__interval seen = {0, 0}; /* whose pages must be there */
    if (p->kv_layout == TP_PAGED)
        seen = tp__mask_interval(p, tp__mask_first_position(p, s->q_len, s->kv_len) + token, s->kv_len);
    for (int64_t i = 0; i < p->sparse_len; i++) {
        int64_t key = tp__sparse_key(t, s, token, i);
        if (key == -1) return TP_OK;
        TP_REQUIRE(key >= 0 && key < s->kv_len, error, TP_INVALID,
                   "sparse_indices: sequence %lld, token %lld, entry %lld is %lld: it must be at least 0 and below the "
                   "sequence's %lld keys, or -1 at the end",
                   (long long)seq, (long long)token, (long long)i, (long long)key, (long long)s->kv_len);
        TP_REQUIRE(!p->sparse_sorted || key > last, error, TP_INVALID,
                   "sparse_indices: sequence %lld, token %lld, entry %lld is %lld after %lld: sparse_sorted "
                   "promises that it ascends",
                   (long long)seq, (long long)token, (long long)i, (long long)key, (long long)last);
        if (key >= seen.lo && key < seen.hi) /* a mask may hide it all the same */
            TP_TRY(check_page(t, seq, key / p->page_size, error));
        last = key;
    }
    return TP_OK;
}

static tp_status check_sparse(const tp_problem *p, const tp_tensors *t, tp_error *error) {
    int64_t reach, rows = tp__sparse_rows(p, t);
    TP_REQUIRE(t->sparse_stride >= 0 && !__builtin_mul_overflow(t->sparse_stride, rows, &reach) &&
                   reach <= (int64_t)1 << 58,
               error, TP_INVALID, "sparse_stride is %lld for %lld tokens: it must be at least 0, and the "
               "sparse indices addressable", (long long)t->sparse_stride, (long long)rows);
    TP_TRY(check_array(t, "sparse_indices", t->sparse_indices, error));
    if (!tp__reads_indices(t)) {
        TP_REQUIRE(rows == 0 || t->sparse_indices != NULL, error, TP_INVALID,
                   "sparse_indices is NULL with sparse_len %lld: every row needs its list", (long long)p->sparse_len);
        return TP_OK;
    }
    for (int64_t seq = 0; seq < t->batch; seq++) {
        tp__sequence s = tp__sequence_at(p, t, seq);
        TP_REQUIRE(s.q_len == 0 || t->sparse_indices != NULL, error, TP_INVALID,
                   "sparse_indices is NULL with sparse_len %lld: every row needs its list",
                   (long long)p->sparse_len);
        for (int64_t token = 0; token < s.q_len; token++) TP_TRY(check_sparse_row(p, t, seq, &s, token, error));
    }
    return TP_OK;
}

tp_status tp__stored_check(const tp_problem *problem, const tp_tensors *tensors, const int64_t extent[3], tp_error *error) {
    const struct {
        const char *name;
        const tp_tensor *tensor, *scales;
        int32_t dtype, kind;
    } both[] = {{"k", &tensors->k, &tensors->k_scales, problem->k_dtype, problem->k_scales},
                {"v", &tensors->v, &tensors->v_scales, problem->v_dtype, problem->v_scales}};
    for (int i = 0; i < 2; i++) {
        int inside = both[i].kind == TP_SCALES_Q8_0;
        for (int j = 0; j < 3 && both[i].dtype == TP_I4; j++)
            TP_REQUIRE(both[i].tensor->stride[j] % 2 == 0 || extent[j] <= 1, error, TP_INVALID,
                       "%s.stride[%d] is %lld with i4: it must be even, because two elements share a byte", both[i].name, j,
                       (long long)both[i].tensor->stride[j]);
        TP_REQUIRE((both[i].kind != TP_SCALES_NONE && !inside) || both[i].scales->data == NULL, error, TP_INVALID,
                   "%s_scales.data is %p with %s in %s%s: it must be NULL, %s", both[i].name, both[i].scales->data, both[i].name,
                   tp_dtype_name((tp_dtype)both[i].dtype), inside ? " and q8_0" : "",
                   inside ? "the scales lie inside the blocks" : "only i8, i4 and e4m3 have scales");
    }
    return TP_OK;
}

/* v's rows begin where a group of k's does, and its scales with that group's. */
static tp_status check_latent_scales(const tp_problem *p, const tp_tensors *t, int64_t distance, tp_error *error) {
    int64_t group = p->k_scales == TP_SCALES_GROUP ? TP__GROUP / 2 : p->k_scales == TP_SCALES_Q8_0 ? TP__Q8_0_BYTES : 1;
    if (p->k_scales == TP_SCALES_NONE) return TP_OK;
    TP_REQUIRE(distance % group == 0, error, TP_INVALID,
               "v.data is %lld bytes behind k.data: latent needs a multiple of %lld with %s, so that v begins with a group of k",
               (long long)distance, (long long)group, tp_scales_name((tp_scales)p->k_scales));
    int64_t skipped = p->k_scales == TP_SCALES_GROUP ? distance / group * (int64_t)sizeof(uint16_t) : 0;
    TP_REQUIRE((uintptr_t)t->v_scales.data == (uintptr_t)t->k_scales.data + (uintptr_t)skipped, error, TP_INVALID,
               "v_scales.data is %p and k_scales.data %p: latent needs it %lld bytes behind, at the scales of v's elements",
               t->v_scales.data, t->k_scales.data, (long long)skipped);
    for (int i = 0; i < 3 && p->k_scales != TP_SCALES_TENSOR && p->k_scales != TP_SCALES_Q8_0; i++)
        TP_REQUIRE(t->k_scales.stride[i] == t->v_scales.stride[i], error, TP_INVALID,
                   "v_scales.stride[%d] is %lld and k_scales' %lld: latent needs them equal", i,
                   (long long)t->v_scales.stride[i], (long long)t->k_scales.stride[i]);
    return TP_OK;
}

static tp_status check_latent(const tp_problem *p, const tp_tensors *t, tp_error *error) {
    int64_t spare = tp__units_bytes(p->k_dtype, tp__row_units(p->k_scales, p->head_dim_qk)) -
                    tp__units_bytes(p->k_dtype, tp__row_units(p->k_scales, p->head_dim_v));
    intptr_t distance = (intptr_t)t->v.data - (intptr_t)t->k.data;
    TP_REQUIRE(distance >= 0 && distance <= spare, error, TP_INVALID,
               "v.data is %p, %lld bytes behind k.data: latent needs it within 0..%lld", t->v.data,
               (long long)distance, (long long)spare);
    for (int i = 0; i < 3; i++)
        TP_REQUIRE(t->k.stride[i] == t->v.stride[i], error, TP_INVALID,
                   "v.stride[%d] is %lld and k's %lld: latent needs them equal", i,
                   (long long)t->v.stride[i], (long long)t->k.stride[i]);
    TP_REQUIRE(t->v_pages == NULL || t->v_pages == t->k_pages, error, TP_INVALID,
               "v_pages is %p and k_pages %p: latent needs one table", t->v_pages, t->k_pages);
    return check_latent_scales(p, t, distance, error);
}

/* One table, of which the first keys of both sequences are to be the same. */
static tp_status check_same_pages(const tp_problem *p, const tp_tensors *t, const char *name, const void *table, int64_t seq,
                                  int64_t with, int64_t keys, tp_error *error) {
    for (int64_t slot = 0; table != NULL && slot * p->page_size < keys; slot++) {
        int64_t page = tp__index_at(t, table, seq * t->page_slots + slot);
        int64_t other = tp__index_at(t, table, with * t->page_slots + slot);
        TP_REQUIRE(page == other, error, TP_INVALID,
                   "%s[%lld][%lld] is %lld and %s[%lld][%lld] is %lld: sequences %lld and %lld share %lld keys by shared_lens, "
                   "and must have the same pages for them",
                   name, (long long)seq, (long long)slot, (long long)page, name, (long long)with, (long long)slot,
                   (long long)other, (long long)seq, (long long)with, (long long)keys);
    }
    return TP_OK;
}

static tp_status check_shared(const tp_problem *p, const tp_tensors *t, int64_t seq, tp_error *error) {
    int64_t with = tp__index_at(t, t->shared_with, seq), keys = tp__index_at(t, t->shared_lens, seq);
    TP_REQUIRE(with >= -1 && with < seq, error, TP_INVALID,
               "shared_with[%lld] is %lld: it must be an earlier sequence, or -1: it begins with the keys of none",
               (long long)seq, (long long)with);
    if (with < 0) return TP_OK;
    int64_t own = tp__sequence_at(p, t, seq).kv_len, others = tp__sequence_at(p, t, with).kv_len;
    TP_REQUIRE(keys >= 0 && keys <= own && keys <= others, error, TP_INVALID,
               "shared_lens[%lld] is %lld: it must be in 0..%lld, what sequences %lld (%lld keys) and %lld (%lld keys) hold",
               (long long)seq, (long long)keys, (long long)(own < others ? own : others), (long long)seq, (long long)own,
               (long long)with, (long long)others);
    TP_REQUIRE(keys <= p->cascade, error, TP_INVALID,
               "shared_lens[%lld] is %lld: it must be at most the problem's cascade = %lld", (long long)seq, (long long)keys,
               (long long)p->cascade);
    TP_TRY(check_same_pages(p, t, "k_pages", t->k_pages, seq, with, keys, error));
    return check_same_pages(p, t, "v_pages", t->v_pages, seq, with, keys, error);
}

static tp_status check_cascade(const tp_problem *p, const tp_tensors *t, tp_error *error) {
    const struct {
        const char *name;
        const void *data;
    } arrays[] = {{"shared_with", t->shared_with}, {"shared_lens", t->shared_lens}};
    for (int i = 0; i < 2; i++) {
        TP_REQUIRE(arrays[i].data != NULL || t->batch == 0, error, TP_INVALID,
                   "%s is NULL: cascade %lld needs it (tp_cache_prefixes fills it)", arrays[i].name, (long long)p->cascade);
        TP_TRY(check_array(t, arrays[i].name, arrays[i].data, error));
    }
    for (int64_t seq = 0; tp__reads_indices(t) && seq < t->batch; seq++) TP_TRY(check_shared(p, t, seq, error));
    return TP_OK;
}

tp_status tp__cache_check(const tp_problem *problem, const tp_tensors *tensors, tp_error *error) {
    if (problem->latent) TP_TRY(check_latent(problem, tensors, error));
    if (problem->kv_layout == TP_PAGED) TP_TRY(check_tables(problem, tensors, error));
    if (problem->sparse_len > 0) TP_TRY(check_sparse(problem, tensors, error));
    if (problem->cascade > 0) TP_TRY(check_cascade(problem, tensors, error));
    return TP_OK;
}

typedef struct owner {
    int64_t page, seq, slot;
} owner;

static int by_page(const void *one, const void *other) {
    const owner *a = one, *b = other;
    if (a->page != b->page) return a->page < b->page ? -1 : 1;
    if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
    return (a->seq > b->seq) - (a->seq < b->seq);
}

/* The pages that are seen, of one table: asked once each, into room for all. */
static size_t list_owners(const tp_problem *p, const tp_tensors *t, const void *table, owner *owners) {
    size_t n = 0;
    for (int64_t seq = 0; seq < t->batch; seq++) {
        tp__sequence s = tp__sequence_at(p, t, seq);
        if (s.q_len == 0) continue;
        int plain = tp__mask_is_plain(p);
        tp__interval seen = plain ? tp__mask_hull(p, s.q_len, s.kv_len) : (tp__interval){0, s.kv_len};
        tp__mask_view view = tp__sequence_view(p, &s);
        if (!plain) tp__mask_look(&view);
        for (int64_t slot = seen.lo / p->page_size; slot * p->page_size < seen.hi; slot++)
            if (plain || page_is_seen(p, &view, slot))
                owners[n++] = (owner){tp__index_at(t, table, seq * t->page_slots + slot), seq, slot};
    }
    return n;
}

/* Slots of all tables that hold keys. */
static size_t count_slots(const tp_problem *p, const tp_tensors *t) {
    size_t n = 0;
    for (int64_t seq = 0; seq < t->batch; seq++) {
        int64_t keys = tp__sequence_at(p, t, seq).kv_len;
        if (keys > 0) n += (size_t)((keys - 1) / p->page_size + 1);
    }
    return n;
}

tp_status tp__pages_check_owners(const tp_problem *problem, const tp_tensors *tensors, tp_error *error) {
    const char *const names[] = {"k_pages", "v_pages"};
    const void *const tables[] = {tensors->k_pages, tensors->v_pages};
    if (problem->kv_layout != TP_PAGED || problem->sparse_len > 0) return TP_OK;
    size_t capacity = count_slots(problem, tensors);
    for (int i = 0; i < 2; i++) {
        if (tables[i] == NULL) continue;
        owner *owners = capacity > 0 ? malloc(capacity * sizeof *owners) : NULL;
        TP_REQUIRE(capacity == 0 || owners != NULL, error, TP_NO_MEMORY,
                   "the deep check needs memory for %zu pages, which failed", capacity);
        size_t n = capacity > 0 ? list_owners(problem, tensors, tables[i], owners) : 0;
        if (n > 1) qsort(owners, n, sizeof *owners, by_page);
        tp_status status = TP_OK;
        for (size_t j = 1; j < n && status == TP_OK; j++)
            if (owners[j].page == owners[j - 1].page && owners[j].slot != owners[j - 1].slot)
                status = tp__fail(error, TP_INVALID,
                                  "page %lld stands in %s[%lld][%lld] and in %s[%lld][%lld]: a page may be "
                                  "shared only at the same place of two tables",
                                  (long long)owners[j].page, names[i], (long long)owners[j - 1].seq,
                                  (long long)owners[j - 1].slot, names[i], (long long)owners[j].seq,
                                  (long long)owners[j].slot);
        free(owners);
        TP_TRY(status);
    }
    return TP_OK;
}
