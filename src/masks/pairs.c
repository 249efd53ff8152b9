/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting visible pairs without walking every row, so that explain answers at once at any length.
 *
 * Every end of every kind's interval is unbounded or q_pos + c. Cut off at 0 and kv_len, the number of
 * keys a row sees is linear in q_pos between the points where some q_pos + c meets 0 or kv_len. So it
 * is summed piece by piece as (first + last) * rows / 2.
 */
#include "masks/mask.h"

#include "base/arena.h"

static int64_t keys_at(const tp_problem *problem, int64_t q_pos, int64_t kv_len) {
    tp__interval seen = tp__mask_interval(problem, q_pos, kv_len);
    return seen.hi - seen.lo;
}

int64_t tp__mask_pairs(const tp_problem *problem, int64_t q_len, int64_t kv_len) {
    int64_t at = tp__mask_first_position(problem, q_len, kv_len), end = at + q_len;
    unsigned __int128 twice = 0;
    while (at < end) {
        int64_t next = end; /* the nearest point beyond `at` where the slope may change */
        for (int i = 0; i < problem->mask_nodes; i++) {
            const tp__mask_kind *kind = tp__mask_kind_of(problem->mask[i].kind);
            if (kind == NULL) continue;
            tp__interval zero = kind->interval(&problem->mask[i], 0);
            int64_t ends[2] = {zero.lo, zero.hi};
            for (int e = 0; e < 2; e++) {
                if (ends[e] == INT64_MIN || ends[e] == INT64_MAX) continue;
                int64_t cuts[4] = {-ends[e], -ends[e] + 1, kv_len - ends[e], kv_len - ends[e] + 1};
                for (int c = 0; c < 4; c++)
                    if (cuts[c] > at && cuts[c] < next) next = cuts[c];
            }
        }
        twice += (unsigned __int128)(keys_at(problem, at, kv_len) + keys_at(problem, next - 1, kv_len)) *
                 (unsigned __int128)(next - at);
        at = next;
    }
    return twice / 2 > INT64_MAX ? INT64_MAX : (int64_t)(twice / 2);
}
