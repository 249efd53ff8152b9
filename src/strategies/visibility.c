/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/visibility.h"

#include <stdatomic.h>
#include <string.h>

#include "strategies/prepare.h"

tp__visibility tp__visibility_take(tp__arena *arena, const tp_problem *problem, int64_t range_rows, int tile_rows,
                         int block) {
    tp__visibility visibility = {.tile_rows = tile_rows, .problem = problem, .looked_at = -1};
    visibility.lo = TP_TAKE(arena, int64_t, range_rows);
    visibility.hi = TP_TAKE(arena, int64_t, range_rows);
    visibility.tile_lo = TP_TAKE(arena, int32_t, tile_rows);
    visibility.tile_hi = TP_TAKE(arena, int32_t, tile_rows);
    if (!tp__mask_is_plain(problem)) {
        visibility.parts_max = tp__mask_parts_max(problem);
        visibility.part = TP_TAKE(arena, tp__interval, range_rows * visibility.parts_max);
        visibility.parts = TP_TAKE(arena, int32_t, range_rows);
        visibility.tile = TP_TAKE(arena, tp__tile_seen, (range_rows + tile_rows - 1) / tile_rows);
        visibility.words = TP_TAKE(arena, uint64_t, tp__max(range_rows, tile_rows) * tp__block_words(block));
    }
    if (problem->qscale_length > 0) visibility.scale = TP_TAKE(arena, float, range_rows);
    if (problem->alibi) {
        visibility.slope = TP_TAKE(arena, float, range_rows);
        visibility.q_at = TP_TAKE(arena, float, tile_rows);
        visibility.k_at = TP_TAKE(arena, float, block);
    }
    if (problem->bias_dtype != 0) visibility.bias = TP_TAKE(arena, const void *, tile_rows);
    if (problem->dropout > 0) visibility.drop_rows = TP_TAKE(arena, tp__dropout_row, range_rows);
    return visibility;
}

/* Slots of sorted sparse indices from this key on. */
static int64_t slot_of(const tp__keys *keys, int64_t key) {
    int64_t lo = 0, hi = keys->count;
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if (tp__sparse_key(keys->tensors, &keys->seq, keys->token, middle) < key)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

tp__interval tp__visibility_plain(const tp__keys *keys, int64_t q_pos) {
    const tp_problem *problem = keys->problem;
    if (problem->sparse_len > 0 && problem->mask_nodes == 0) return (tp__interval){0, keys->count};
    tp__interval seen = tp__mask_interval(problem, q_pos, keys->seq.kv_len);
    if (problem->sparse_len == 0) return seen;
    seen = (tp__interval){slot_of(keys, seen.lo), slot_of(keys, seen.hi)};
    return seen.lo < seen.hi ? seen : (tp__interval){0, 0};
}

static int64_t look_plain(tp__visibility *visibility, const tp__keys *keys) {
    int64_t position = tp__mask_first_position(visibility->problem, keys->seq.q_len, keys->seq.kv_len);
    int64_t group = visibility->group, token = visibility->first / group, head = visibility->first % group, pairs = 0;
    tp__mask_view view = tp__mask_view_plain(visibility->problem, keys->seq.q_len, keys->seq.kv_len);
    tp__interval seen = tp__visibility_plain(keys, position + token);
    tp__interval any = {INT64_MAX, 0}, every = {0, INT64_MAX};
    for (int64_t i = 0; i < visibility->count; i++) {
        if (head == group) {
            head = 0;
            token++;
            seen = visibility->problem->sparse_len > 0 ? tp__visibility_plain(keys, position + token)
                                                       : tp__mask_plain(&view, token);
        }
        head++;
        visibility->lo[i] = seen.lo;
        visibility->hi[i] = seen.hi;
        pairs += seen.hi - seen.lo;
        every.lo = tp__max(every.lo, seen.lo);
        every.hi = tp__min(every.hi, seen.hi);
        if (seen.lo == seen.hi) continue;
        any.lo = tp__min(any.lo, seen.lo);
        any.hi = tp__max(any.hi, seen.hi);
    }
    visibility->any = any.lo < any.hi ? any : (tp__interval){0, 0};
    visibility->every = every;
    return pairs;
}

/* One more row of a tile, and the last one before it that sees any key. */
static void join_tile(tp__tile_seen *tile, tp__interval seen, int parts, tp__interval *before) {
    tile->every.lo = tp__max(tile->every.lo, seen.lo);
    tile->every.hi = tp__min(tile->every.hi, seen.hi);
    if (parts == 0) return;
    tile->any.lo = tp__min(tile->any.lo, seen.lo);
    tile->any.hi = tp__max(tile->any.hi, seen.hi);
    if (parts > 1 || (before->lo < before->hi && (seen.lo > before->hi || seen.hi < before->lo))) tile->run = 0;
    *before = seen;
}

/* As parts, which are exact or else a superset that words refine. */
static int64_t look_parts(tp__visibility *visibility) {
    tp__interval any = {INT64_MAX, 0}, before = {0, 0};
    tp__parts parts = {.count = 0};
    int64_t last = -1, keys = 0, pairs = 0;
    int exact = 1;
    for (int64_t i = 0; i < visibility->count; i++) {
        int64_t token = (visibility->first + i) / visibility->group;
        tp__tile_seen *tile = &visibility->tile[i / visibility->tile_rows];
        if (i % visibility->tile_rows == 0) {
            *tile = (tp__tile_seen){{INT64_MAX, 0}, {0, INT64_MAX}, 1};
            before = (tp__interval){0, 0};
        }
        if (token != last) {
            exact &= tp__mask_parts(&visibility->view, token, &parts);
            last = token;
            keys = 0;
            for (int p = 0; p < parts.count; p++) keys += parts.part[p].hi - parts.part[p].lo;
        }
        memcpy(visibility->part + i * visibility->parts_max, parts.part,
               (size_t)parts.count * sizeof parts.part[0]);
        visibility->parts[i] = parts.count;
        visibility->lo[i] = parts.count > 0 ? parts.part[0].lo : 0;
        visibility->hi[i] = parts.count > 0 ? parts.part[parts.count - 1].hi : 0;
        pairs += keys;
        join_tile(tile, (tp__interval){visibility->lo[i], visibility->hi[i]}, parts.count, &before);
        if (parts.count == 0) continue;
        any.lo = tp__min(any.lo, visibility->lo[i]);
        any.hi = tp__max(any.hi, visibility->hi[i]);
    }
    visibility->any = any.lo < any.hi ? any : (tp__interval){0, 0};
    visibility->form = exact ? TP__VISIBILITY_PARTS : TP__VISIBILITY_WORDS;
    return exact ? pairs : 0;
}

static void look_at_scores(tp__visibility *visibility) {
    const tp_problem *problem = visibility->problem;
    const tp_tensors *tensors = visibility->view.tensors;
    for (int64_t i = 0; i < visibility->count; i++) {
        int64_t row = visibility->first + i;
        if (visibility->scale != NULL)
            visibility->scale[i] = (float)tp__row_scale(
                problem, tp__mask_q_pos(&visibility->view, row / visibility->group));
        for (int64_t part = 0; visibility->slope != NULL && part < visibility->heads; part++)
            visibility->slope[part * visibility->count + i] = tp__slope_of(
                tensors, visibility->view.seq, visibility->head + part * visibility->group + row % visibility->group);
    }
}

static void look_at_dropout(tp__visibility *visibility, const tp__keys *keys) {
    const tp_tensors *tensors = keys->tensors;
    visibility->drop = (tp__drop){.offset = tensors->dropout_offset,
                             .threshold = tp__dropout_threshold(visibility->problem->dropout)};
    for (int64_t i = 0; i < visibility->count; i++) {
        int64_t row = visibility->first + i;
        visibility->drop_rows[i] = tp__dropout_row_of(tensors->dropout_seed, keys->index,
                                                      visibility->head + row % visibility->group, row / visibility->group);
    }
}

void tp__visibility_open(tp__visibility *visibility, const tp__job *job, const tp__keys *keys, int64_t head, int64_t heads,
                    int block) {
    const tp_problem *problem = job->problem;
    visibility->problem = problem;
    visibility->block = block;
    visibility->group = problem->q_heads / problem->kv_heads;
    visibility->head = head * visibility->group;
    visibility->heads = heads;
    visibility->units = job->units;
    if (visibility->part != NULL || tp__modifies_scores(problem)) visibility->view = tp__prepared_view(job, &keys->seq);
    if (visibility->part == NULL) return;
    visibility->by_head = tp__mask_by_head(problem, job->tensors);
    visibility->seen = tp__prepared_seen(job, keys->index, head);
    tp__mask_look(&visibility->view);
}

int64_t tp__visibility_rows(tp__visibility *visibility, const tp__keys *keys, int64_t first, int64_t count) {
    int same = visibility->looked_at == keys->index && visibility->first == first && visibility->count == count;
    visibility->first = first;
    visibility->count = count;
    if (tp__modifies_scores(visibility->problem)) look_at_scores(visibility);
    if (visibility->drop_rows != NULL) look_at_dropout(visibility, keys);
    if (same) return visibility->pairs; /* no kind of mask tells heads apart by intervals */
    visibility->form = TP__VISIBILITY_PLAIN;
    visibility->pairs = visibility->part == NULL ? look_plain(visibility, keys) : look_parts(visibility);
    visibility->looked_at = keys->index;
    return visibility->pairs;
}

void tp__visibility_shared(tp__visibility *visibility, int64_t count, int64_t from, int64_t to) {
    visibility->looked_at = -1;
    visibility->first = 0;
    visibility->count = count;
    visibility->form = TP__VISIBILITY_PLAIN;
    for (int64_t i = 0; i < count; i++) {
        visibility->lo[i] = from;
        visibility->hi[i] = to;
    }
    visibility->any = visibility->every = (tp__interval){from, to};
}

void tp__visibility_scales(tp__visibility *visibility, const tp__sequence *seq, int64_t first, int64_t count, int64_t at) {
    const tp_problem *problem = visibility->problem;
    int64_t position = tp__mask_first_position(problem, seq->q_len, seq->kv_len);
    for (int64_t i = 0; visibility->scale != NULL && i < count; i++)
        visibility->scale[at + i] = (float)tp__row_scale(problem, position + (first + i) / visibility->group);
}

int64_t tp__visibility_from(tp__visibility *visibility, int64_t from) {
    visibility->looked_at = -1;
    for (int64_t i = 0; i < visibility->count; i++) visibility->lo[i] = from;
    visibility->any.lo = visibility->every.lo = from;
    return visibility->count * from;
}

/* Keys that some row sees, for the receipt. Most are marked already when a task comes to them. */
static void mark_seen(const tp__visibility *visibility, int64_t key) {
    for (int w = 0; w < tp__block_words(visibility->block); w++) {
        _Atomic uint64_t *to = (_Atomic uint64_t *)&visibility->seen[key / 64 + w];
        uint64_t bits = visibility->here[w] << (key % 64); /* of a block of 32 keys: the upper half */
        if (bits & ~atomic_load_explicit(to, memory_order_relaxed))
            atomic_fetch_or_explicit(to, bits, memory_order_relaxed);
    }
}

/* What rows see of a block. */
typedef struct block_seen {
    tp__interval any, every; /* hulls, within the block */
    int whole;               /* no row sees nothing, or several intervals */
} block_seen;

static void join_block(block_seen *b, int64_t lo, int64_t hi, int64_t every_lo, int64_t every_hi) {
    b->any.lo = tp__min(b->any.lo, lo);
    b->any.hi = tp__max(b->any.hi, hi);
    b->every.lo = tp__max(b->every.lo, every_lo);
    b->every.hi = tp__min(b->every.hi, every_hi);
}

static void look_at_rows(tp__visibility *visibility, int64_t first, int64_t end, int64_t key, block_seen *b) {
    tp__interval before[TP__MASK_PARTS] = {{0, 0}};
    for (int64_t i = first; i < end; i++) {
        const tp__interval *part = visibility->part + i * visibility->parts_max;
        int met = 0;
        for (int p = 0; p < visibility->parts[i]; p++) {
            int64_t from = tp__max(part[p].lo, key), to = tp__min(part[p].hi, key + visibility->block);
            if (from >= to) continue;
            met++;
            join_block(b, from, to, from, to);
            if (from == before[p].lo && to == before[p].hi) continue; /* as the row before */
            before[p] = (tp__interval){from, to};
            tp__words_fill(visibility->here, from, to, key, visibility->block);
        }
        b->whole &= met == 1;
    }
}

static tp__block_class block_parts(tp__visibility *visibility, int64_t key, int64_t *first, int64_t *last) {
    memset(visibility->here, 0, sizeof visibility->here);
    int64_t end = key + visibility->block;
    block_seen b = {{INT64_MAX, 0}, {0, INT64_MAX}, 1};
    for (int64_t i = 0; i < visibility->count; i += visibility->tile_rows) {
        const tp__tile_seen *tile = &visibility->tile[i / visibility->tile_rows];
        if (!tp__tile_meets(visibility, i, key)) {
            b.whole = 0;
        } else if (!tile->run) {
            look_at_rows(visibility, i, tp__min(i + visibility->tile_rows, visibility->count), key, &b);
        } else {
            int64_t lo = tp__max(tile->any.lo, key), hi = tp__min(tile->any.hi, end);
            join_block(&b, lo, hi, tp__max(tile->every.lo, key), tp__min(tile->every.hi, end));
            tp__words_fill(visibility->here, lo, hi, key, visibility->block);
        }
    }
    if (b.any.lo >= b.any.hi) return TP__BLOCK_HIDDEN;
    mark_seen(visibility, key);
    *first = b.any.lo - key;
    *last = b.any.hi - key;
    return b.whole && b.every.lo <= b.any.lo && b.every.hi >= b.any.hi ? TP__BLOCK_FULL : TP__BLOCK_PARTIAL;
}

static tp__block_class block_words(tp__visibility *visibility, int64_t key, int64_t *first, int64_t *last,
                               tp__trace *trace) {
    int count = tp__block_words(visibility->block);
    int64_t keys = tp__min(visibility->view.kv_len - key, visibility->block), before = -1;
    uint64_t *any = visibility->here, all[TP__MASK_WORDS];
    memset(any, 0, sizeof visibility->here);
    memset(all, 0xff, sizeof all);
    for (int64_t i = 0; i < visibility->count; i++) {
        int64_t row = visibility->first + i, token = row / visibility->group;
        uint64_t *words = visibility->words + i * count;
        if (i % visibility->tile_rows == 0 && !tp__tile_meets(visibility, i, key)) { /* its words are never read */
            memset(all, 0, sizeof all);
            i += visibility->tile_rows - 1;
            before = -1;
            continue;
        }
        if (visibility->lo[i] >= key + keys || visibility->hi[i] <= key)
            memset(words, 0, (size_t)count * sizeof *words);
        else if (token == before && !visibility->by_head)
            memcpy(words, words - count, (size_t)count * sizeof *words);
        else
            tp__mask_words(&visibility->view, visibility->head + row % visibility->group, token, key, keys, words);
        for (int w = (int)((keys + 63) / 64); w < count; w++) words[w] = 0;
        before = token;
        for (int w = 0; w < count; w++) {
            any[w] |= words[w];
            all[w] &= words[w];
            trace->pairs_visible += visibility->heads * __builtin_popcountll(words[w]);
        }
    }
    if (tp__mask_has(visibility->problem, TP_MASK_BITS)) tp__trace_masks(trace, visibility->count * ((keys + 7) / 8));
    int64_t lo = tp__first_bit(any, count), hi = tp__last_bit(any, count) + 1;
    if (lo < 0) return TP__BLOCK_HIDDEN;
    mark_seen(visibility, key);
    *first = lo;
    *last = hi;
    uint64_t hull[TP__MASK_WORDS] = {0};
    tp__words_fill(hull, lo, hi, 0, visibility->block);
    for (int w = 0; w < count; w++)
        if (hull[w] & ~all[w]) return TP__BLOCK_PARTIAL;
    return TP__BLOCK_FULL;
}

tp__block_class tp__visibility_block(tp__visibility *visibility, int64_t key, int64_t *first, int64_t *last,
                            tp__trace *trace) {
    tp__block_class block_class;
    if (visibility->form == TP__VISIBILITY_WORDS) {
        block_class = block_words(visibility, key, first, last, trace);
    } else if (visibility->form == TP__VISIBILITY_PARTS) {
        block_class = block_parts(visibility, key, first, last);
    } else {
        *first = tp__max(visibility->any.lo - key, 0);
        *last = tp__min(visibility->any.hi - key, visibility->block);
        block_class = visibility->every.lo <= key + *first && visibility->every.hi >= key + *last ? TP__BLOCK_FULL
                                                                                    : TP__BLOCK_PARTIAL;
    }
    for (int64_t j = 0; visibility->k_at != NULL && block_class != TP__BLOCK_HIDDEN && j < visibility->block; j++)
        visibility->k_at[j] = key + j < visibility->view.kv_len
                             ? (float)(tp__mask_k_pos(&visibility->view, key + j) -
                                       tp__mask_k_pos(&visibility->view, key))
                             : 0.0f;
    return block_class;
}
