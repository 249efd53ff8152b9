/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/sight.h"

#include <stdatomic.h>
#include <string.h>

#include "strategies/prepare.h"

tp__sight tp__sight_take(tp__arena *arena, const tp_problem *problem, int64_t range_rows, int tile_rows,
                         int block) {
    tp__sight sight = {.tile_rows = tile_rows, .problem = problem};
    sight.lo = TP_TAKE(arena, int64_t, range_rows);
    sight.hi = TP_TAKE(arena, int64_t, range_rows);
    sight.tile_lo = TP_TAKE(arena, int32_t, tile_rows);
    sight.tile_hi = TP_TAKE(arena, int32_t, tile_rows);
    if (!tp__mask_is_plain(problem)) {
        sight.parts_most = tp__mask_parts_most(problem);
        sight.part = TP_TAKE(arena, tp__interval, range_rows * sight.parts_most);
        sight.parts = TP_TAKE(arena, int32_t, range_rows);
        sight.hull = TP_TAKE(arena, tp__interval, (range_rows + tile_rows - 1) / tile_rows);
        sight.words = TP_TAKE(arena, uint64_t, tp__max(range_rows, tile_rows) * tp__block_words(block));
    }
    if (problem->qscale_length > 0) sight.scale = TP_TAKE(arena, float, range_rows);
    if (problem->alibi) {
        sight.slope = TP_TAKE(arena, float, range_rows);
        sight.q_at = TP_TAKE(arena, float, tile_rows);
        sight.k_at = TP_TAKE(arena, float, block);
    }
    if (problem->bias_dtype != 0) sight.bias = TP_TAKE(arena, const void *, tile_rows);
    if (problem->dropout > 0) sight.drop_rows = TP_TAKE(arena, tp__dropout_row, range_rows);
    return sight;
}

/* Slots of a sorted list from this key on. */
static int64_t slot_of(const tp__keys *keys, int64_t key) {
    int64_t lo = 0, hi = keys->count;
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        if (tp__list_key(keys->tensors, &keys->seq, keys->token, middle) < key)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

tp__interval tp__sight_plain(const tp__keys *keys, int64_t q_pos) {
    const tp_problem *problem = keys->problem;
    if (problem->list_len > 0 && problem->mask_nodes == 0) return (tp__interval){0, keys->count};
    tp__interval seen = tp__mask_interval(problem, q_pos, keys->seq.kv_len);
    if (problem->list_len == 0) return seen;
    seen = (tp__interval){slot_of(keys, seen.lo), slot_of(keys, seen.hi)};
    return seen.lo < seen.hi ? seen : (tp__interval){0, 0};
}

static int64_t look_plain(tp__sight *sight, const tp__keys *keys) {
    int64_t position = tp__mask_first_position(sight->problem, keys->seq.q_len, keys->seq.kv_len);
    int64_t group = sight->group, token = sight->first / group, head = sight->first % group, pairs = 0;
    tp__interval seen = tp__sight_plain(keys, position + token);
    tp__interval any = {INT64_MAX, 0}, every = {0, INT64_MAX};
    for (int64_t i = 0; i < sight->count; i++) {
        if (head == group) {
            head = 0;
            seen = tp__sight_plain(keys, position + ++token);
        }
        head++;
        sight->lo[i] = seen.lo;
        sight->hi[i] = seen.hi;
        pairs += seen.hi - seen.lo;
        every.lo = tp__max(every.lo, seen.lo);
        every.hi = tp__min(every.hi, seen.hi);
        if (seen.lo == seen.hi) continue;
        any.lo = tp__min(any.lo, seen.lo);
        any.hi = tp__max(any.hi, seen.hi);
    }
    sight->any = any.lo < any.hi ? any : (tp__interval){0, 0};
    sight->every = every;
    return pairs;
}

/* As parts, which are exact or else a superset that words refine. */
static int64_t look_parts(tp__sight *sight) {
    tp__interval any = {INT64_MAX, 0};
    tp__parts parts = {.count = 0};
    int64_t last = -1, keys = 0, pairs = 0;
    int exact = 1;
    for (int64_t i = 0; i < sight->count; i++) {
        int64_t token = (sight->first + i) / sight->group;
        tp__interval *hull = &sight->hull[i / sight->tile_rows];
        if (i % sight->tile_rows == 0) *hull = (tp__interval){INT64_MAX, 0};
        if (token != last) {
            exact &= tp__mask_parts(&sight->view, token, &parts);
            last = token;
            keys = 0;
            for (int p = 0; p < parts.count; p++) keys += parts.part[p].hi - parts.part[p].lo;
        }
        memcpy(sight->part + i * sight->parts_most, parts.part,
               (size_t)parts.count * sizeof parts.part[0]);
        sight->parts[i] = parts.count;
        sight->lo[i] = parts.count > 0 ? parts.part[0].lo : 0;
        sight->hi[i] = parts.count > 0 ? parts.part[parts.count - 1].hi : 0;
        pairs += keys;
        if (parts.count == 0) continue;
        hull->lo = tp__min(hull->lo, sight->lo[i]);
        hull->hi = tp__max(hull->hi, sight->hi[i]);
        any.lo = tp__min(any.lo, sight->lo[i]);
        any.hi = tp__max(any.hi, sight->hi[i]);
    }
    sight->any = any.lo < any.hi ? any : (tp__interval){0, 0};
    sight->form = exact ? TP__SIGHT_PARTS : TP__SIGHT_WORDS;
    return exact ? pairs : 0;
}

static void look_at_scores(tp__sight *sight) {
    const tp_problem *problem = sight->problem;
    const tp_tensors *tensors = sight->view.tensors;
    for (int64_t i = 0; i < sight->count; i++) {
        int64_t row = sight->first + i;
        if (sight->scale != NULL)
            sight->scale[i] = (float)tp__row_scale(
                problem, tp__mask_q_pos(&sight->view, row / sight->group));
        for (int64_t part = 0; sight->slope != NULL && part < sight->heads; part++)
            sight->slope[part * sight->count + i] = tp__slope_of(
                tensors, sight->view.seq, sight->head + part * sight->group + row % sight->group);
    }
}

static void look_at_dropout(tp__sight *sight, const tp__keys *keys) {
    const tp_tensors *tensors = keys->tensors;
    sight->drop = (tp__drop){.offset = tensors->dropout_offset,
                             .threshold = tp__dropout_threshold(sight->problem->dropout)};
    for (int64_t i = 0; i < sight->count; i++) {
        int64_t row = sight->first + i;
        sight->drop_rows[i] = tp__dropout_row_of(tensors->dropout_seed, keys->index, sight->head + row % sight->group,
                                                 row / sight->group);
    }
}

void tp__sight_open(tp__sight *sight, const tp__job *job, const tp__keys *keys, int64_t head, int64_t heads,
                    int block) {
    const tp_problem *problem = job->problem;
    sight->problem = problem;
    sight->block = block;
    sight->group = problem->q_heads / problem->kv_heads;
    sight->head = head * sight->group;
    sight->heads = heads;
    sight->units = job->units;
    if (sight->part != NULL || tp__modifies_scores(problem)) sight->view = tp__prepared_view(job, &keys->seq);
    if (sight->part == NULL) return;
    sight->by_head = tp__mask_has(problem, TP_MASK_BITS) && job->tensors->bits_stride[1] != 0;
    sight->seen = tp__prepared_seen(job, keys->index, head);
    tp__mask_look(&sight->view);
}

int64_t tp__sight_rows(tp__sight *sight, const tp__keys *keys, int64_t first, int64_t count) {
    sight->first = first;
    sight->count = count;
    sight->form = TP__SIGHT_PLAIN;
    if (tp__modifies_scores(sight->problem)) look_at_scores(sight);
    if (sight->drop_rows != NULL) look_at_dropout(sight, keys);
    return sight->part == NULL ? look_plain(sight, keys) : look_parts(sight);
}

/* Keys that some row sees, for the receipt. Most are marked already when a task comes to them. */
static void mark_seen(const tp__sight *sight, int64_t key) {
    for (int w = 0; w < tp__block_words(sight->block); w++) {
        _Atomic uint64_t *to = (_Atomic uint64_t *)&sight->seen[key / 64 + w];
        uint64_t bits = sight->here[w] << (key % 64); /* of a block of 32 keys: the upper half */
        if (bits & ~atomic_load_explicit(to, memory_order_relaxed))
            atomic_fetch_or_explicit(to, bits, memory_order_relaxed);
    }
}

static tp__glimpse block_parts(tp__sight *sight, int64_t key, int64_t *first, int64_t *last) {
    memset(sight->here, 0, sizeof sight->here);
    int64_t end = key + sight->block, lo = INT64_MAX, hi = 0, all_lo = 0, all_hi = INT64_MAX;
    tp__interval before[TP__MASK_PARTS] = {{0, 0}};
    int whole = 1; /* every row sees one interval */
    for (int64_t i = 0; i < sight->count; i++) {
        const tp__interval *part = sight->part + i * sight->parts_most;
        int met = 0;
        if (i % sight->tile_rows == 0 && !tp__tile_meets(sight, i, key)) {
            whole = 0;
            i += sight->tile_rows - 1;
            continue;
        }
        for (int p = 0; p < sight->parts[i]; p++) {
            int64_t from = tp__max(part[p].lo, key), to = tp__min(part[p].hi, end);
            if (from >= to) continue;
            met++;
            all_lo = tp__max(all_lo, from);
            all_hi = tp__min(all_hi, to);
            if (from == before[p].lo && to == before[p].hi) continue; /* as the row before */
            before[p] = (tp__interval){from, to};
            tp__words_fill(sight->here, from, to, key, sight->block);
            lo = tp__min(lo, from);
            hi = tp__max(hi, to);
        }
        whole &= met == 1;
    }
    if (lo >= hi) return TP__SEES_NONE;
    mark_seen(sight, key);
    *first = lo - key;
    *last = hi - key;
    return whole && all_lo <= lo && all_hi >= hi ? TP__SEES_ALL : TP__SEES_SOME;
}

static tp__glimpse block_words(tp__sight *sight, int64_t key, int64_t *first, int64_t *last,
                               tp__trace *trace) {
    int count = tp__block_words(sight->block);
    int64_t keys = tp__min(sight->view.kv_len - key, sight->block), before = -1;
    uint64_t *any = sight->here, all[TP__MASK_WORDS];
    memset(any, 0, sizeof sight->here);
    memset(all, 0xff, sizeof all);
    for (int64_t i = 0; i < sight->count; i++) {
        int64_t row = sight->first + i, token = row / sight->group;
        uint64_t *words = sight->words + i * count;
        if (i % sight->tile_rows == 0 && !tp__tile_meets(sight, i, key)) { /* its words are never read */
            memset(all, 0, sizeof all);
            i += sight->tile_rows - 1;
            before = -1;
            continue;
        }
        if (sight->lo[i] >= key + keys || sight->hi[i] <= key)
            memset(words, 0, (size_t)count * sizeof *words);
        else if (token == before && !sight->by_head)
            memcpy(words, words - count, (size_t)count * sizeof *words);
        else
            tp__mask_words(&sight->view, sight->head + row % sight->group, token, key, keys, words);
        for (int w = (int)((keys + 63) / 64); w < count; w++) words[w] = 0;
        before = token;
        for (int w = 0; w < count; w++) {
            any[w] |= words[w];
            all[w] &= words[w];
            trace->pairs_visible += sight->heads * __builtin_popcountll(words[w]);
        }
    }
    if (tp__mask_has(sight->problem, TP_MASK_BITS)) tp__trace_masks(trace, sight->count * ((keys + 7) / 8));
    int64_t lo = tp__first_bit(any, count), hi = tp__last_bit(any, count) + 1;
    if (lo < 0) return TP__SEES_NONE;
    mark_seen(sight, key);
    *first = lo;
    *last = hi;
    uint64_t hull[TP__MASK_WORDS] = {0};
    tp__words_fill(hull, lo, hi, 0, sight->block);
    for (int w = 0; w < count; w++)
        if (hull[w] & ~all[w]) return TP__SEES_SOME;
    return TP__SEES_ALL;
}

tp__glimpse tp__sight_block(tp__sight *sight, int64_t key, int64_t *first, int64_t *last,
                            tp__trace *trace) {
    tp__glimpse glimpse;
    if (sight->form == TP__SIGHT_WORDS) {
        glimpse = block_words(sight, key, first, last, trace);
    } else if (sight->form == TP__SIGHT_PARTS) {
        glimpse = block_parts(sight, key, first, last);
    } else {
        *first = tp__max(sight->any.lo - key, 0);
        *last = tp__min(sight->any.hi - key, sight->block);
        glimpse = sight->every.lo <= key + *first && sight->every.hi >= key + *last ? TP__SEES_ALL
                                                                                    : TP__SEES_SOME;
    }
    for (int64_t j = 0; sight->k_at != NULL && glimpse != TP__SEES_NONE && j < sight->block; j++)
        sight->k_at[j] = key + j < sight->view.kv_len
                             ? (float)(tp__mask_k_pos(&sight->view, key + j) -
                                       tp__mask_k_pos(&sight->view, key))
                             : 0.0f;
    return glimpse;
}
