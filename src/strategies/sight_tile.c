/* SPDX-License-Identifier: Apache-2.0 */
/* What the rows of one tile see of a block, and what changes their scores. */
#include <string.h>

#include "strategies/prepare.h"
#include "strategies/sight.h"

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

/* Whether there are keys between what two neighbouring rows see, rows without any left out: a strip's hull would
   then count and compute keys that none of its rows sees. */
static int rows_leave_gap(const tp__sight *sight, int64_t rows) {
    int64_t before = -1;
    for (int64_t i = 0; i < rows; i++) {
        if (sight->tile_lo[i] >= sight->tile_hi[i]) continue;
        if (before >= 0 && (sight->tile_lo[i] > sight->tile_hi[before] || sight->tile_hi[i] < sight->tile_lo[before]))
            return 1;
        before = i;
    }
    return 0;
}

/* Bits only where some row meets more than one of its parts here, or neighbours are apart. */
static int tile_parts(const tp__sight *sight, tp__tile *tile, int64_t row, int64_t key, int64_t last) {
    int any = 0, holes = 0;
    if (!tp__tile_meets(sight, row, key)) return 0;
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
    if (!holes && !rows_leave_gap(sight, tile->rows)) return any;
    int count = tp__block_words(sight->block);
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
    int count = tp__block_words(sight->block), any = 0, holes = 0;
    if (!tp__tile_meets(sight, row, key)) return 0;
    for (int64_t i = 0; i < tile->rows; i++) {
        const uint64_t *words = sight->words + (row + i) * count;
        int64_t lo = tp__first_bit(words, count), hi = tp__last_bit(words, count) + 1, seen = 0;
        for (int w = 0; w < count; w++) seen += __builtin_popcountll(words[w]);
        sight->tile_lo[i] = lo < 0 ? 0 : (int32_t)lo;
        sight->tile_hi[i] = (int32_t)hi;
        any |= seen > 0;
        holes |= seen > 0 && seen != hi - lo;
    }
    if (holes || rows_leave_gap(sight, tile->rows)) tile->bits = sight->words + row * count;
    return any;
}

/* Points at what changes the scores of these rows. */
static void set_modify(const tp__sight *sight, tp__tile *tile, tp__modify *modify, int64_t part,
                       int64_t row, int64_t key, tp__trace *trace) {
    const tp_problem *problem = sight->problem;
    *modify = (tp__modify){.gain = sight->units.gain, .cap = problem->softcap};
    if (sight->scale != NULL) modify->scale = sight->scale + row;
    if (sight->slope != NULL) {
        modify->slope = sight->slope + part * sight->count + row;
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
                                     sight->head + part * sight->group + merged % sight->group, token,
                                     key);
        tp__trace_masks(trace,
                        (tile->hi[i] - tile->lo[i]) * (int64_t)tp_dtype_bytes(problem->bias_dtype));
    }
    tile->modify = modify;
}

static void set_drop(const tp__sight *sight, tp__tile *tile, tp__drop *drop, int64_t row, int64_t key) {
    drop->row = sight->drop_rows + row;
    drop->key = key;
    tile->drop = drop;
}

int tp__sight_tile(const tp__sight *sight, tp__tile *tile, int64_t part, int64_t row, int64_t key,
                   int64_t last, tp__glimpse glimpse, tp__trace *trace) {
    int any = 1;
    tile->lo = sight->tile_lo;
    tile->hi = sight->tile_hi;
    tile->unit = sight->units.unit;
    tile->bits = NULL;
    tile->bit_words = tp__block_words(sight->block);
    /* where every row sees the whole block, what the first tile sees all see */
    if (glimpse != TP__SEES_ALL || row == 0)
        any = sight->form == TP__SIGHT_WORDS   ? tile_words(sight, tile, row, key)
              : sight->form == TP__SIGHT_PARTS ? tile_parts(sight, tile, row, key, last)
                                               : tile_intervals(sight, row, tile->rows, key, last);
    if (any && tp__modifies_scores(sight->problem))
        set_modify(sight, tile, (tp__modify *)&sight->modify, part, row, key, trace);
    if (any && sight->drop_rows != NULL) set_drop(sight, tile, (tp__drop *)&sight->drop, row, key);
    return any;
}
