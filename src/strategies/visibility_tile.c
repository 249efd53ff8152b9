/* SPDX-License-Identifier: Apache-2.0 */
/* What the rows of one tile see of a block, and what changes their scores. */
#include <string.h>

#include "strategies/prepare.h"
#include "strategies/visibility.h"

static int tile_intervals(const tp__visibility *visibility, int64_t row, int64_t rows, int64_t key,
                          int64_t last) {
    int any = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t lo = tp__max(visibility->lo[row + i] - key, 0);
        int64_t hi = tp__min(visibility->hi[row + i] - key, last);
        int sees = lo < hi;
        visibility->tile_lo[i] = sees ? (int32_t)lo : 0;
        visibility->tile_hi[i] = sees ? (int32_t)hi : 0;
        any |= sees;
    }
    return any;
}

/* Whether there are keys between what two neighbouring rows see, rows without any left out: a strip's hull would
   then count and compute keys that none of its rows sees. */
static int rows_leave_gap(const tp__visibility *visibility, int64_t rows) {
    int64_t before = -1;
    for (int64_t i = 0; i < rows; i++) {
        if (visibility->tile_lo[i] >= visibility->tile_hi[i]) continue;
        if (before >= 0 &&
            (visibility->tile_lo[i] > visibility->tile_hi[before] || visibility->tile_hi[i] < visibility->tile_lo[before]))
            return 1;
        before = i;
    }
    return 0;
}

/* A tile gets bits only where intervals do not describe it: a row has several intervals in it, or neighbouring rows have
   intervals that do not meet. */
static int tile_parts(const tp__visibility *visibility, tp__row_tile *tile, int64_t row, int64_t key, int64_t last) {
    int any = 0, holes = 0;
    if (!tp__tile_meets(visibility, row, key)) return 0;
    if (visibility->tile[row / visibility->tile_rows].run) return tile_intervals(visibility, row, tile->rows, key, last);
    for (int64_t i = 0; i < tile->rows; i++) {
        const tp__interval *part = visibility->part + (row + i) * visibility->parts_max;
        int64_t lo = last, hi = 0, met = 0;
        for (int p = 0; p < visibility->parts[row + i]; p++) {
            int64_t from = tp__max(part[p].lo - key, 0), to = tp__min(part[p].hi - key, last);
            if (from >= to) continue;
            met++;
            lo = tp__min(lo, from);
            hi = to;
        }
        visibility->tile_lo[i] = met > 0 ? (int32_t)lo : 0;
        visibility->tile_hi[i] = (int32_t)hi;
        any |= met > 0;
        holes |= met > 1;
    }
    if (!holes && !rows_leave_gap(visibility, tile->rows)) return any;
    int count = tp__block_words(visibility->block);
    memset(visibility->words, 0, (size_t)(tile->rows * count) * sizeof *visibility->words);
    for (int64_t i = 0; i < tile->rows; i++)
        for (int p = 0; p < visibility->parts[row + i]; p++) {
            tp__interval part = visibility->part[(row + i) * visibility->parts_max + p];
            tp__words_fill(visibility->words + i * count, part.lo, part.hi, key, last);
        }
    tile->bits = visibility->words;
    return any;
}

static int tile_words(const tp__visibility *visibility, tp__row_tile *tile, int64_t row, int64_t key) {
    int count = tp__block_words(visibility->block), any = 0, holes = 0;
    if (!tp__tile_meets(visibility, row, key)) return 0;
    for (int64_t i = 0; i < tile->rows; i++) {
        const uint64_t *words = visibility->words + (row + i) * count;
        int64_t lo = tp__first_bit(words, count), hi = tp__last_bit(words, count) + 1, seen = 0;
        for (int w = 0; w < count; w++) seen += __builtin_popcountll(words[w]);
        visibility->tile_lo[i] = lo < 0 ? 0 : (int32_t)lo;
        visibility->tile_hi[i] = (int32_t)hi;
        any |= seen > 0;
        holes |= seen > 0 && seen != hi - lo;
    }
    if (holes || rows_leave_gap(visibility, tile->rows)) tile->bits = visibility->words + row * count;
    return any;
}

/* Points at what changes the scores of these rows. */
static void set_modify(const tp__visibility *visibility, tp__row_tile *tile, tp__modify *modify, int64_t part,
                       int64_t row, int64_t key, tp__trace *trace) {
    const tp_problem *problem = visibility->problem;
    *modify = (tp__modify){.gain = visibility->units.gain, .cap = problem->softcap};
    if (visibility->scale != NULL) modify->scale = visibility->scale + row;
    if (visibility->slope != NULL) {
        modify->slope = visibility->slope + part * visibility->count + row;
        modify->q_at = visibility->q_at;
        modify->k_at = visibility->k_at;
    }
    if (visibility->bias != NULL) {
        modify->bias = visibility->bias;
        modify->bias_stride = visibility->view.tensors->bias_stride[3];
        modify->bias_dtype = problem->bias_dtype;
    }
    for (int64_t i = 0; i < tile->rows; i++) {
        int64_t merged = visibility->first + row + i, token = merged / visibility->group;
        if (visibility->slope != NULL)
            visibility->q_at[i] = (float)(tp__mask_q_pos(&visibility->view, token) -
                                     tp__mask_k_pos(&visibility->view, key));
        if (visibility->bias == NULL) continue;
        visibility->bias[i] = tp__bias_at(problem, visibility->view.tensors, visibility->view.seq,
                                     visibility->head + part * visibility->group + merged % visibility->group, token,
                                     key);
        tp__trace_masks(trace,
                        (tile->hi[i] - tile->lo[i]) * (int64_t)tp_dtype_bytes(problem->bias_dtype));
    }
    tile->modify = modify;
}

static void set_drop(const tp__visibility *visibility, tp__row_tile *tile, tp__drop *drop, int64_t row, int64_t key) {
    drop->row = visibility->drop_rows + row;
    drop->key = key;
    tile->drop = drop;
}

int tp__visibility_tile(const tp__visibility *visibility, tp__row_tile *tile, int64_t part, int64_t row, int64_t key,
                   int64_t last, tp__block_class block_class, tp__trace *trace) {
    int any = 1;
    tile->lo = visibility->tile_lo;
    tile->hi = visibility->tile_hi;
    tile->unit = visibility->units.unit;
    tile->bits = NULL;
    tile->bit_words = tp__block_words(visibility->block);
    /* where every row sees the whole block, what the first tile sees all see */
    if (block_class != TP__BLOCK_FULL || row == 0)
        any = visibility->form == TP__VISIBILITY_WORDS   ? tile_words(visibility, tile, row, key)
              : visibility->form == TP__VISIBILITY_PARTS ? tile_parts(visibility, tile, row, key, last)
                                               : tile_intervals(visibility, row, tile->rows, key, last);
    if (any && tp__modifies_scores(visibility->problem))
        set_modify(visibility, tile, (tp__modify *)&visibility->modify, part, row, key, trace);
    if (any && visibility->drop_rows != NULL) set_drop(visibility, tile, (tp__drop *)&visibility->drop, row, key);
    return any;
}

void tp__visibility_whole(const tp__visibility *visibility, tp__row_tile *tile, int64_t first, int64_t last) {
    for (int64_t i = 0; i < tile->rows; i++) {
        visibility->tile_lo[i] = (int32_t)first;
        visibility->tile_hi[i] = (int32_t)last;
    }
    tile->lo = visibility->tile_lo;
    tile->hi = visibility->tile_hi;
    tile->unit = visibility->units.unit;
}
