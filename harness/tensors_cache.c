/* SPDX-License-Identifier: Apache-2.0 */
/* Page tables and sparse indices: where a call finds its keys, and what must never be looked at. */
#include "harness/tensors.h"

#include <stdlib.h>
#include <string.h>

#include "harness/mask_words.h"

enum { GAP = 3, SPARE_PAGES = 2, SPARE_SLOTS = 1 };
#define LOOK_MAX 0x1p22 /* rows, keys and heads that are asked for */
enum random_stream { STREAM_PAGES = 301, STREAM_SPARSE = 302, STREAM_PREFIXES = 303 };

static int64_t pages_of(const tp_problem *problem, int64_t tokens) {
    return (tokens + problem->page_size - 1) / problem->page_size;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Of keys that a sequence shares with an earlier one: those whose pages it shares, too. The last one only where nothing of its
   own lies in it. */
static int64_t shared_by_page(const tp_problem *problem, int64_t keys, int64_t kv_len) {
    return keys == kv_len ? keys : keys / problem->page_size * problem->page_size;
}

/* A quarter more than the sequences need. */
int64_t cache_pages(const tp_problem *problem, const tp_lengths *lengths, const struct tensors_style *style) {
    int64_t used = 0, runs = lengths ? lengths->count : 0, first = runs ? lengths->seq[0].kv_len : problem->kv_len;
    for (int64_t i = 0; i < (runs ? runs : 1); i++) {
        int64_t keys = runs ? lengths->seq[i].kv_len : problem->kv_len, repeat = runs ? lengths->seq[i].repeat : problem->batch;
        int64_t shared = style->prefixes ? 0 : shared_by_page(problem, smaller(problem->cascade, smaller(keys, first)), keys);
        used += repeat * (pages_of(problem, keys) - pages_of(problem, shared)) + (i == 0) * pages_of(problem, shared);
    }
    return used + used / 4 + SPARE_PAGES;
}

static int64_t sparse_rows(const struct tensors *tensors) {
    return tensors->problem.q_layout == TP_PACKED ? tensors->call.q_tokens
                                                  : tensors->sequences * tensors->call.q_len;
}

static int create_tables(struct tensors *tensors, int64_t pages) {
    tp_tensors *call = &tensors->call;
    call->pages = pages;
    call->page_slots = pages_of(&tensors->problem, tensors->problem.kv_len) + SPARE_SLOTS;
    size_t entries = (size_t)(tensors->sequences * call->page_slots);
    size_t unit = tensors->style.index64 ? sizeof(int64_t) : sizeof(int32_t);
    for (int i = 0; i < 2; i++) {
        tensors->pages[i] = calloc(entries + 1, sizeof(int64_t));
        tensors->indices[INDEX_K_PAGES + i] = guarded_take(tensors->style.guarded, entries * unit, unit, 0);
        if (!tensors->pages[i] || !tensors->indices[INDEX_K_PAGES + i]) return 1;
    }
    call->k_pages = tensors->indices[INDEX_K_PAGES];
    call->v_pages = tensors->style.two_tables ? tensors->indices[INDEX_V_PAGES] : NULL;
    return 0;
}

static int create_prefixes(struct tensors *tensors) {
    size_t unit = tensors->style.index64 ? sizeof(int64_t) : sizeof(int32_t), bytes = (size_t)tensors->sequences * unit;
    tensors->shared_with = calloc((size_t)tensors->sequences + 1, sizeof(int64_t));
    tensors->shared_keys = calloc((size_t)tensors->sequences + 1, sizeof(int64_t));
    for (int i = 0; i < 2; i++)
        tensors->indices[INDEX_SHARED_WITH + i] = guarded_take(tensors->style.guarded, bytes, unit, 0);
    tensors->call.shared_with = tensors->indices[INDEX_SHARED_WITH];
    tensors->call.shared_lens = tensors->indices[INDEX_SHARED_LENS];
    return !tensors->shared_with || !tensors->shared_keys || !tensors->call.shared_with || !tensors->call.shared_lens;
}

int cache_create(struct tensors *tensors, int64_t pages) {
    const tp_problem *problem = &tensors->problem;
    tp_tensors *call = &tensors->call;
    if (problem->kv_layout == TP_PAGED && create_tables(tensors, pages)) return 1;
    if (problem->cascade && create_prefixes(tensors)) return 1;
    if (!problem->sparse_len) return 0;
    call->sparse_stride = problem->sparse_len + (tensors->style.ragged || tensors->style.spare ? GAP : 0);
    size_t unit = tensors->style.index64 ? sizeof(int64_t) : sizeof(int32_t);
    size_t entries = (size_t)(sparse_rows(tensors) * call->sparse_stride);
    /* numbers beyond every sequence */
    call->sparse_indices = guarded_take(tensors->style.guarded, entries * unit, unit, 0x7F);
    tensors->indices[INDEX_SPARSE] = (void *)(uintptr_t)call->sparse_indices;
    return call->sparse_indices == NULL;
}

static void set_index(struct tensors *tensors, enum index_id id, int64_t at, int64_t value) {
    if (tensors->style.index64)
        ((int64_t *)tensors->indices[id])[at] = value;
    else
        ((int32_t *)tensors->indices[id])[at] = (int32_t)value;
}

static int64_t get_index(const struct tensors *tensors, enum index_id id, int64_t at) {
    return tensors->style.index64 ? ((const int64_t *)tensors->indices[id])[at]
                                  : ((const int32_t *)tensors->indices[id])[at];
}

static int by_value(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

static int64_t common_divisor(int64_t a, int64_t b) {
    return b ? common_divisor(b, a % b) : a;
}

/* Keys of one token: steps of a length that meets every key before it comes back. Indices that are not promised
   sorted may be more than there are keys, and come back then; one of four others names each key twice. */
static void fill_sparse_row(struct tensors *tensors, int64_t row, int64_t keys, uint64_t bits, int64_t *scratch, int empty) {
    const tp_problem *problem = &tensors->problem;
    int64_t max = problem->sparse_len, twice = !problem->sparse_sorted && bits >> 62 == 0 ? 2 : 1;
    if (max > keys && (problem->sparse_sorted || !keys)) max = keys;
    int64_t count = max;
    int cut = tensors->style.short_sparse == 1 ? bits % 4 != 0 : tensors->style.short_sparse == 2 && bits % 3 == 0;
    if (cut) /* one of eight rows has none */
        count = bits % 8 == 1 ? 0 : (int64_t)(bits >> 40) % (max + 1);
    int64_t start = keys ? (int64_t)(bits >> 8 & 0xFFFFFFFF) % keys : 0;
    int64_t step = keys ? 1 + (int64_t)(bits >> 20 & 0xFFFFFFFF) % keys : 1;
    while (keys && common_divisor(keys, step) > 1) step++;
    if (empty) count = 0;
    for (int64_t i = 0; i < count; i++) scratch[i] = (start + i / twice * (step % keys)) % keys;
    if (problem->sparse_sorted) qsort(scratch, (size_t)count, sizeof *scratch, by_value);
    for (int64_t i = 0; i < count; i++) set_index(tensors, INDEX_SPARSE, row * tensors->call.sparse_stride + i, scratch[i]);
    if (count < problem->sparse_len) set_index(tensors, INDEX_SPARSE, row * tensors->call.sparse_stride + count, -1);
}

static int64_t sparse_row(const struct tensors *tensors, int64_t seq, int64_t token) {
    return tensors->problem.q_layout == TP_PACKED ? tensors->q_start[seq] + token
                                                  : seq * tensors->call.q_len + token;
}

static int fill_sparse(struct tensors *tensors, uint64_t seed) {
    uint64_t index = 0;
    int64_t *scratch = malloc((size_t)tensors->problem.sparse_len * sizeof *scratch);
    if (!scratch) return 1;
    for (int64_t s = 0; s < tensors->sequences; s++)
        for (int64_t t = 0; t < tensors->q_lens[s]; t++, index++)
            fill_sparse_row(tensors, sparse_row(tensors, s, t), tensors->kv_lens[s], random_bits(seed, STREAM_SPARSE, index),
                            scratch, tensors->style.empty_ends && (t == 0 || t == tensors->q_lens[s] - 1));
    free(scratch);
    return 0;
}

int64_t tensors_key(const struct tensors *tensors, int64_t seq, int64_t token, int64_t i) {
    int64_t sparse_len = tensors->problem.sparse_len;
    if (!sparse_len) return i < tensors->kv_lens[seq] ? i : -1;
    int64_t row = sparse_row(tensors, seq, token) * tensors->call.sparse_stride;
    return i < sparse_len ? get_index(tensors, INDEX_SPARSE, row + i) : -1;
}

static int seen_by_any(const struct tensors *tensors, int64_t seq, int64_t key) {
    for (int64_t r = tensors->q_lens[seq] - 1; r >= 0; r--)
        if (tp_mask_allowed(&tensors->problem, tensors->q_lens[seq], tensors->kv_lens[seq], r, key))
            return 1;
    return 0;
}

/* From the first key that any row sees to the last: a run may look at every page between. */
static void mark_hull(const struct tensors *tensors, int64_t seq, char *seen) {
    int64_t lo = 0, hi = tensors->q_lens[seq] ? tensors->kv_lens[seq] : 0;
    while (lo < hi && !seen_by_any(tensors, seq, lo)) lo++;
    while (lo < hi && !seen_by_any(tensors, seq, hi - 1)) hi--;
    int64_t size = tensors->problem.page_size;
    for (int64_t slot = lo / size; slot * size < hi; slot++) seen[slot] = 1;
}

/* Masks may leave holes, and pages in them have any number; where it takes long to find out, none has. */
static void mark_exactly(const struct tensors *tensors, int64_t seq, char *seen) {
    int64_t rows = tensors->q_lens[seq], keys = tensors->kv_lens[seq], heads = tensors->problem.q_heads;
    int sure = (double)rows * (double)keys * (double)heads > LOOK_MAX;
    for (int64_t key = 0; key < keys; key++) {
        char *page = &seen[key / tensors->problem.page_size];
        *page |= (char)sure;
        for (int64_t i = 0; !*page && i < rows * heads; i++)
            *page = tp_mask_visible(&tensors->problem, &tensors->call, seq, i % heads, i / heads, key) == 1;
    }
}

/* One interval a row, whose ends never fall. */
static int is_plain(const tp_problem *problem) {
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp_mask_info *info = mask_kind(problem->mask[i].kind);
        if (info ? !(info->traits & TP_MASK_MONOTONE) : problem->mask[i].kind != TP_MASK_AND) return 0;
    }
    return !problem->positions;
}

static void mark_sparse(const struct tensors *tensors, int64_t seq, char *seen) {
    int64_t key, rows = tensors->q_lens[seq], heads = is_plain(&tensors->problem) ? 1 : tensors->problem.q_heads;
    int sure = (double)rows * (double)tensors->problem.sparse_len * (double)heads > LOOK_MAX;
    for (int64_t t = 0; t < rows; t++)
        for (int64_t i = 0; (key = tensors_key(tensors, seq, t, i)) >= 0; i++) {
            char *page = &seen[key / tensors->problem.page_size];
            *page |= (char)sure;
            for (int64_t h = 0; !*page && h < heads; h++)
                *page = tp_mask_visible(&tensors->problem, &tensors->call, seq, h, t, key) == 1;
        }
}

/* Which sequence begins with the keys of which earlier one, and with how many of them: often with all that both have. */
static void fill_prefixes(struct tensors *tensors, uint64_t seed) {
    for (int64_t s = 0; s < tensors->sequences; s++) {
        uint64_t bits = random_bits(seed, STREAM_PREFIXES, (uint64_t)s);
        int64_t with = s == 0 || (tensors->style.prefixes && bits % 6 == 0) ? -1
                       : tensors->style.prefixes                           ? (int64_t)(bits >> 8) % s
                                                                           : 0;
        int64_t keys = with < 0 ? 0 : smaller(tensors->problem.cascade, smaller(tensors->kv_lens[s], tensors->kv_lens[with]));
        if (tensors->style.prefixes && bits >> 4 & 1) keys = (int64_t)((bits >> 20) % (uint64_t)(keys + 1));
        tensors->shared_with[s] = with;
        tensors->shared_keys[s] = keys;
        set_index(tensors, INDEX_SHARED_WITH, s, with);
        set_index(tensors, INDEX_SHARED_LENS, s, with < 0 ? -1 : shared_by_page(&tensors->problem, keys, tensors->kv_lens[s]));
    }
}

int64_t cache_source(const struct tensors *tensors, int64_t seq, int64_t key) {
    while (tensors->shared_with && tensors->shared_with[seq] >= 0 && key < tensors->shared_keys[seq])
        seq = tensors->shared_with[seq];
    return seq;
}

/* The pages of a pool in the seed's order. */
static void shuffle(int64_t *order, int64_t count, uint64_t seed, uint64_t stream) {
    for (int64_t i = 0; i < count; i++) {
        int64_t j = (int64_t)(random_bits(seed, stream, (uint64_t)i) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
}

static int fill_tables(struct tensors *tensors, uint64_t seed) {
    void (*mark)(const struct tensors *, int64_t, char *) = tensors->problem.sparse_len   ? mark_sparse
                                                            : is_plain(&tensors->problem) ? mark_hull
                                                                                          : mark_exactly;
    int64_t slots = tensors->call.page_slots, pages = tensors->call.pages;
    int64_t *order = malloc((size_t)(2 * pages) * sizeof *order);
    char *seen = malloc((size_t)slots);
    int failed = !order || !seen;
    for (int i = 0; i < 2 && !failed; i++)
        shuffle(order + i * pages, pages, seed,
                STREAM_PAGES + (tensors->style.two_tables ? 10 * (uint64_t)i : 0));
    int64_t taken = 0;
    for (int64_t s = 0; s < tensors->sequences && !failed; s++) {
        int64_t held = pages_of(&tensors->problem, tensors->kv_lens[s]);
        memset(seen, 0, (size_t)slots);
        mark(tensors, s, seen);
        int64_t with = tensors->shared_with ? tensors->shared_with[s] : -1, same = 0;
        if (with >= 0) same = shared_by_page(&tensors->problem, tensors->shared_keys[s], tensors->kv_lens[s]);
        if (tensors->shared_with) memset(seen, 1, (size_t)held); /* sharers must name the same pages, seen or not */
        for (int64_t slot = 0; slot < slots; slot++) {
            int64_t at = s * slots + slot, hidden = slot % 2 ? -1 : 1 << 30;
            int old = slot * tensors->problem.page_size < same;
            for (int i = 0; i < 2; i++) {
                tensors->pages[i][at] = old           ? tensors->pages[i][with * slots + slot]
                                        : slot < held ? order[i * pages + taken]
                                                      : -1;
                set_index(tensors, (enum index_id)(INDEX_K_PAGES + i), at,
                          seen[slot] ? tensors->pages[i][at] : hidden);
            }
            taken += slot < held && !old;
        }
    }
    free(order);
    free(seen);
    return failed;
}

int cache_fill(struct tensors *tensors, uint64_t seed) {
    if (tensors->shared_with) fill_prefixes(tensors, seed);
    return (tensors->problem.sparse_len && fill_sparse(tensors, seed)) ||
           (tensors->problem.kv_layout == TP_PAGED && fill_tables(tensors, seed));
}
