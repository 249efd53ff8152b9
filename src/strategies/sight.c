/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/sight.h"

#include <stdatomic.h>
#include <string.h>

#include "strategies/prepare.h"

tp__sight tp__sight_take(tp__arena *arena, const tp_problem *problem, int64_t range_rows, int tile_rows,
                         int block) {
    tp__sight sight = {.block = block, .tile_rows = tile_rows, .problem = problem};
    sight.lo = TP_TAKE(arena, int64_t, range_rows);
    sight.hi = TP_TAKE(arena, int64_t, range_rows);
    sight.tile_lo = TP_TAKE(arena, int32_t, tile_rows);
    sight.tile_hi = TP_TAKE(arena, int32_t, tile_rows);
    if (!tp__mask_is_plain(problem)) {
        sight.parts_most = tp__mask_parts_most(problem);
        sight.part = TP_TAKE(arena, tp__interval, range_rows * sight.parts_most);
        sight.parts = TP_TAKE(arena, int32_t, range_rows);
        sight.hull = TP_TAKE(arena, tp__interval, (range_rows + tile_rows - 1) / tile_rows);
        sight.words = TP_TAKE(arena, uint64_t, tp__max(range_rows, tile_rows) * (block / 64));
    }
    if (problem->qscale_length > 0) sight.scale = TP_TAKE(arena, float, range_rows);
    if (problem->alibi) {
        sight.slope = TP_TAKE(arena, float, range_rows);
        sight.q_at = TP_TAKE(arena, float, tile_rows);
        sight.k_at = TP_TAKE(arena, float, block);
    }
    if (problem->bias_dtype != 0) sight.bias = TP_TAKE(arena, const void *, tile_rows);
    return sight;
}

static void look_plain(tp__sight *sight, const tp_problem *problem, const tp__sequence *seq,
                       tp__trace *trace) {
    int64_t group = sight->group, position = tp__mask_first_position(problem, seq->q_len, seq->kv_len);
    int64_t token = sight->first / group, head = sight->first % group;
    tp__interval seen = tp__mask_interval(problem, position + token, seq->kv_len);
    tp__interval any = {INT64_MAX, 0}, every = {0, INT64_MAX};
    for (int64_t i = 0; i < sight->count; i++) {
        if (head == group) {
            head = 0;
            seen = tp__mask_interval(problem, position + ++token, seq->kv_len);
        }
        head++;
        sight->lo[i] = seen.lo;
        sight->hi[i] = seen.hi;
        trace->pairs_visible += seen.hi - seen.lo;
        every.lo = tp__max(every.lo, seen.lo);
        every.hi = tp__min(every.hi, seen.hi);
        if (seen.lo == seen.hi) continue;
        any.lo = tp__min(any.lo, seen.lo);
        any.hi = tp__max(any.hi, seen.hi);
    }
    sight->any = any.lo < any.hi ? any : (tp__interval){0, 0};
    sight->every = every;
}

/* As parts, which are exact or else a superset that words refine. */
static void look_parts(tp__sight *sight, tp__trace *trace) {
    tp__interval any = {INT64_MAX, 0};
    tp__parts parts = {.count = 0};
    int64_t last = -1, keys = 0;
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
        if (exact) trace->pairs_visible += keys;
        if (parts.count == 0) continue;
        hull->lo = tp__min(hull->lo, sight->lo[i]);
        hull->hi = tp__max(hull->hi, sight->hi[i]);
        any.lo = tp__min(any.lo, sight->lo[i]);
        any.hi = tp__max(any.hi, sight->hi[i]);
    }
    sight->any = any.lo < any.hi ? any : (tp__interval){0, 0};
    sight->form = exact ? TP__SIGHT_PARTS : TP__SIGHT_WORDS;
}

static void look_at_scores(tp__sight *sight) {
    const tp_problem *problem = sight->problem;
    const tp_tensors *tensors = sight->view.tensors;
    for (int64_t i = 0; i < sight->count; i++) {
        int64_t row = sight->first + i, head = sight->head + row % sight->group;
        if (sight->scale != NULL)
            sight->scale[i] = (float)tp__row_scale(
                problem, tp__mask_q_pos(&sight->view, row / sight->group));
        if (sight->slope != NULL)
            sight->slope[i] = tp__slope_log2(tensors, sight->view.seq, head);
    }
}

void tp__sight_range(tp__sight *sight, const tp__job *job, const tp__sequence *seq, int64_t kv_head,
                     int64_t first, int64_t count, tp__trace *trace) {
    const tp_problem *problem = job->problem;
    sight->problem = problem;
    sight->group = problem->q_heads / problem->kv_heads;
    sight->head = kv_head * sight->group;
    sight->first = first;
    sight->count = count;
    sight->form = TP__SIGHT_PLAIN;
    if (sight->part == NULL && !tp__modifies_scores(problem)) {
        look_plain(sight, problem, seq, trace);
        return;
    }
    sight->view = tp__prepared_view(job, seq);
    if (tp__modifies_scores(problem)) look_at_scores(sight);
    if (sight->part == NULL) {
        look_plain(sight, problem, seq, trace);
        return;
    }
    sight->by_head = tp__mask_has(problem, TP_MASK_BITS) && seq->tensors->bits_stride[1] != 0;
    sight->seen = tp__prepared_seen(job, seq->index);
    tp__mask_look(&sight->view);
    look_parts(sight, trace);
}

/* Keys that some row sees, for the receipt. Most are marked already when a task comes to them. */
static void mark_seen(const tp__sight *sight, int64_t key, const uint64_t *any) {
    for (int w = 0; w < sight->block / 64; w++) {
        _Atomic uint64_t *to = (_Atomic uint64_t *)&sight->seen[key / 64 + w];
        if (any[w] & ~atomic_load_explicit(to, memory_order_relaxed))
            atomic_fetch_or_explicit(to, any[w], memory_order_relaxed);
    }
}

static int first_bit(const uint64_t *words, int count) {
    for (int w = 0; w < count; w++)
        if (words[w] != 0) return 64 * w + __builtin_ctzll(words[w]);
    return -1;
}

static int last_bit(const uint64_t *words, int count) {
    for (int w = count; w-- > 0;)
        if (words[w] != 0) return 64 * w + 63 - __builtin_clzll(words[w]);
    return -1;
}

/* May this tile's rows see any key of the block? */
static int tile_meets(const tp__sight *sight, int64_t row, int64_t key) {
    const tp__interval *hull = &sight->hull[row / sight->tile_rows];
    return hull->lo < key + sight->block && hull->hi > key;
}

static tp__glimpse block_parts(tp__sight *sight, int64_t key, int64_t *first, int64_t *last) {
    uint64_t any[TP__MASK_WORDS] = {0};
    int64_t end = key + sight->block, lo = INT64_MAX, hi = 0, all_lo = 0, all_hi = INT64_MAX;
    int whole = 1; /* every row sees one interval */
    for (int64_t i = 0; i < sight->count; i++) {
        const tp__interval *part = sight->part + i * sight->parts_most;
        int met = 0;
        if (i % sight->tile_rows == 0 && !tile_meets(sight, i, key)) {
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
            if (from >= lo && to <= hi) continue; /* as a row before */
            tp__words_fill(any, from, to, key, sight->block);
            lo = tp__min(lo, from);
            hi = tp__max(hi, to);
        }
        whole &= met == 1;
    }
    if (lo >= hi) return TP__SEES_NONE;
    mark_seen(sight, key, any);
    *first = lo - key;
    *last = hi - key;
    return whole && all_lo <= lo && all_hi >= hi ? TP__SEES_ALL : TP__SEES_SOME;
}

static tp__glimpse block_words(tp__sight *sight, int64_t key, int64_t *first, int64_t *last,
                               tp__trace *trace) {
    int count = sight->block / 64;
    int64_t keys = tp__min(sight->view.kv_len - key, sight->block), before = -1;
    uint64_t any[TP__MASK_WORDS] = {0}, all[TP__MASK_WORDS];
    memset(all, 0xff, sizeof all);
    for (int64_t i = 0; i < sight->count; i++) {
        int64_t row = sight->first + i, token = row / sight->group;
        uint64_t *words = sight->words + i * count;
        if (i % sight->tile_rows == 0 && !tile_meets(sight, i, key)) { /* its words are never read */
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
            trace->pairs_visible += __builtin_popcountll(words[w]);
        }
    }
    if (tp__mask_has(sight->problem, TP_MASK_BITS)) trace->bytes += sight->count * ((keys + 7) / 8);
    int lo = first_bit(any, count), hi = last_bit(any, count) + 1;
    if (lo < 0) return TP__SEES_NONE;
    mark_seen(sight, key, any);
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

static int tile_intervals(const tp__sight *sight, int64_t row, int64_t rows, int64_t key,
                          int64_t last) {
    int any = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t lo = tp__max(sight->lo[row + i] - key, 0);
        int64_t hi = tp__min(sight->hi[row + i] - key, last);
        int sees = lo < hi;
        sight->tile_lo[i] = sees ? (int32_t)lo : 0;
        sight->tile_hi[i] = sees ? (int32_t)hi : 0;
        any |= sees;
    }
    return any;
}

/* Bits only where some row meets more than one of its parts here. */
static int tile_parts(const tp__sight *sight, tp__tile *tile, int64_t row, int64_t key, int64_t last) {
    int any = 0, holes = 0;
    if (!tile_meets(sight, row, key)) return 0;
    for (int64_t i = 0; i < tile->rows; i++) {
        const tp__interval *part = sight->part + (row + i) * sight->parts_most;
        int64_t lo = last, hi = 0, met = 0;
        for (int p = 0; p < sight->parts[row + i]; p++) {
            int64_t from = tp__max(part[p].lo - key, 0), to = tp__min(part[p].hi - key, last);
            if (from >= to) continue;
            met++;
            lo = tp__min(lo, from);
            hi = to;
        }
        sight->tile_lo[i] = met > 0 ? (int32_t)lo : 0;
        sight->tile_hi[i] = (int32_t)hi;
        any |= met > 0;
        holes |= met > 1;
    }
    if (!holes) return any;
    int count = sight->block / 64;
    memset(sight->words, 0, (size_t)(tile->rows * count) * sizeof *sight->words);
    for (int64_t i = 0; i < tile->rows; i++)
        for (int p = 0; p < sight->parts[row + i]; p++) {
            tp__interval part = sight->part[(row + i) * sight->parts_most + p];
            tp__words_fill(sight->words + i * count, part.lo, part.hi, key, last);
        }
    tile->bits = sight->words;
    return any;
}

static int tile_words(const tp__sight *sight, tp__tile *tile, int64_t row, int64_t key) {
    int count = sight->block / 64, any = 0, holes = 0;
    if (!tile_meets(sight, row, key)) return 0;
    for (int64_t i = 0; i < tile->rows; i++) {
        const uint64_t *words = sight->words + (row + i) * count;
        int lo = first_bit(words, count), hi = last_bit(words, count) + 1, seen = 0;
        for (int w = 0; w < count; w++) seen += __builtin_popcountll(words[w]);
        sight->tile_lo[i] = lo < 0 ? 0 : lo;
        sight->tile_hi[i] = hi;
        any |= seen > 0;
        holes |= seen > 0 && seen != hi - lo;
    }
    if (holes) tile->bits = sight->words + row * count;
    return any;
}

/* Points at what changes the scores of these rows. */
static void set_modify(const tp__sight *sight, tp__tile *tile, tp__modify *modify, int64_t row,
                       int64_t key, tp__trace *trace) {
    const tp_problem *problem = sight->problem;
    *modify = (tp__modify){.cap = problem->softcap};
    if (sight->scale != NULL) modify->scale = sight->scale + row;
    if (sight->slope != NULL) {
        modify->slope = sight->slope + row;
        modify->q_at = sight->q_at;
        modify->k_at = sight->k_at;
    }
    if (sight->bias != NULL) {
        modify->bias = sight->bias;
        modify->bias_stride = sight->view.tensors->bias_stride[3];
        modify->bias_dtype = problem->bias_dtype;
    }
    for (int64_t i = 0; i < tile->rows; i++) {
        int64_t merged = sight->first + row + i, token = merged / sight->group;
        if (sight->slope != NULL)
            sight->q_at[i] = (float)(tp__mask_q_pos(&sight->view, token) -
                                     tp__mask_k_pos(&sight->view, key));
        if (sight->bias == NULL) continue;
        sight->bias[i] = tp__bias_at(problem, sight->view.tensors, sight->view.seq,
                                     sight->head + merged % sight->group, token, key);
        trace->bytes += (tile->hi[i] - tile->lo[i]) * (int64_t)tp_dtype_bytes(problem->bias_dtype);
    }
    tile->modify = modify;
}

int tp__sight_tile(const tp__sight *sight, tp__tile *tile, int64_t row, int64_t key, int64_t last,
                   tp__glimpse glimpse, tp__trace *trace) {
    int any = 1;
    tile->lo = sight->tile_lo;
    tile->hi = sight->tile_hi;
    tile->bits = NULL;
    tile->bit_words = sight->block / 64;
    /* where every row sees the whole block, what the first tile sees all see */
    if (glimpse != TP__SEES_ALL || row == 0)
        any = sight->form == TP__SIGHT_WORDS   ? tile_words(sight, tile, row, key)
              : sight->form == TP__SIGHT_PARTS ? tile_parts(sight, tile, row, key, last)
                                               : tile_intervals(sight, row, tile->rows, key, last);
    if (any && tp__modifies_scores(sight->problem))
        set_modify(sight, tile, (tp__modify *)&sight->modify, row, key, trace);
    return any;
}
