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

void tp__sight_range(tp__sight *sight, const tp_problem *problem, const tp__sequence *seq,
                     int64_t first, int64_t count, tp__trace *trace) {
    int64_t group = problem->q_heads / problem->kv_heads;
    int64_t position = tp__mask_first_position(problem, seq->q_len, seq->kv_len);
    int64_t token = first / group, head = first % group;
    tp__interval seen = tp__mask_interval(problem, position + token, seq->kv_len);
    tp__interval any = {INT64_MAX, 0}, every = {0, INT64_MAX};
    for (int64_t i = 0; i < count; i++) {
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
