/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/sight.h"

tp__sight tp__sight_take(tp__arena *arena, int64_t range_rows, int tile_rows) {
    tp__sight sight;
    sight.lo = TP_TAKE(arena, int64_t, range_rows);
    sight.hi = TP_TAKE(arena, int64_t, range_rows);
    sight.tile_lo = TP_TAKE(arena, int32_t, tile_rows);
    sight.tile_hi = TP_TAKE(arena, int32_t, tile_rows);
    sight.any = sight.every = (tp__interval){0, 0};
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

static tp__interval see(const tp_problem *problem, const tp__keys *keys, int64_t q_pos) {
    if (problem->list_len > 0 && problem->mask_nodes == 0) return (tp__interval){0, keys->count};
    tp__interval seen = tp__mask_interval(problem, q_pos, keys->seq.kv_len);
    if (problem->list_len == 0) return seen;
    seen = (tp__interval){slot_of(keys, seen.lo), slot_of(keys, seen.hi)};
    return seen.lo < seen.hi ? seen : (tp__interval){0, 0};
}

static int64_t look(tp__sight *sight, const tp_problem *problem, const tp__keys *keys, int64_t group,
                    int64_t first, int64_t count) {
    int64_t position = tp__mask_first_position(problem, keys->seq.q_len, keys->seq.kv_len);
    int64_t token = first / group, head = first % group, pairs = 0;
    tp__interval seen = see(problem, keys, position + token);
    tp__interval any = {INT64_MAX, 0}, every = {0, INT64_MAX};
    for (int64_t i = 0; i < count; i++) {
        if (head == group) {
            head = 0;
            seen = see(problem, keys, position + ++token);
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

int64_t tp__sight_range(tp__sight *sight, const tp_problem *problem, const tp__keys *keys, int64_t first,
                        int64_t count) {
    return look(sight, problem, keys, problem->q_heads / problem->kv_heads, first, count);
}

int64_t tp__sight_tokens(tp__sight *sight, const tp_problem *problem, const tp__keys *keys,
                         int64_t first, int64_t count) {
    return look(sight, problem, keys, 1, first, count);
}

int tp__sight_tile(const tp__sight *sight, int64_t row, int64_t rows, int64_t key, int64_t last) {
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
