/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting visible pairs without walking every row, so that explain answers at once at any length.
 *
 * Every end of every kind's interval is a constant, or q_pos + c, or a border of q_pos's chunk. The number
 * of keys a row sees is linear in q_pos between the points where some q_pos + c meets a constant or a
 * border, or a chunk ends. So it is summed piece by piece as (first + last) * rows / 2.
 */
#include "masks/kind.h"

#define PIECES_MAX (1 << 20) /* beyond, with tiny chunks of huge sequences, the rest is taken as one */

static int64_t keys_at(const tp_problem *problem, int64_t q_pos, int64_t kv_len) {
    if (tp__mask_is_plain(problem)) {
        tp__interval seen = tp__mask_interval(problem, q_pos, kv_len);
        return seen.hi - seen.lo;
    }
    tp__mask_view view = {.problem = problem, .q_len = 1, .kv_len = kv_len, .first = q_pos};
    tp__parts parts;
    int64_t keys = 0;
    tp__mask_parts(&view, 0, &parts);
    for (int i = 0; i < parts.count; i++) keys += parts.part[i].hi - parts.part[i].lo;
    return keys;
}

typedef struct ends {
    int64_t fixed[2 + 2 * TP__MASK_PARTS], moving[2 * TP__MASK_PARTS]; /* moving: q_pos + c, as c */
    int fixed_count, moving_count;
    int64_t border; /* the nearest end of a chunk behind q_pos */
} ends;

static void collect(const tp_problem *problem, int64_t at, int64_t kv_len, ends *e) {
    *e = (ends){.fixed = {0, kv_len}, .fixed_count = 2, .border = INT64_MAX};
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp_mask_node *node = &problem->mask[i];
        tp__mask_view view = {.problem = problem, .q_len = 1, .kv_len = kv_len};
        if (node->kind == TP_MASK_CAUSAL || node->kind == TP_MASK_WINDOW) {
            tp__interval zero = tp__mask_kind_of(node->kind)->reach(&view, node, 0);
            if (zero.lo != INT64_MIN) e->moving[e->moving_count++] = zero.lo;
            if (zero.hi != INT64_MAX) e->moving[e->moving_count++] = zero.hi;
        } else if (node->kind == TP_MASK_CHUNK) {
            view.first = at;
            tp__interval chunk = tp__mask_chunk.reach(&view, node, 0);
            e->fixed[e->fixed_count++] = chunk.lo;
            e->fixed[e->fixed_count++] = chunk.hi;
            if (chunk.hi < e->border) e->border = chunk.hi;
        } else if ((node->kind == TP_MASK_PREFIX || node->kind == TP_MASK_FIRST) && node->a >= 0) {
            e->fixed[e->fixed_count++] = node->a;
        }
    }
}

int64_t tp__mask_pairs(const tp_problem *problem, int64_t q_len, int64_t kv_len) {
    int64_t at = tp__mask_first_position(problem, q_len, kv_len), end = at + q_len;
    unsigned __int128 twice = 0;
    for (int piece = 0; at < end; piece++) {
        int64_t next = end; /* the nearest point beyond `at` where the slope may change */
        ends e;
        collect(problem, at, kv_len, &e);
        if (e.border < next) next = e.border;
        for (int m = 0; m < e.moving_count; m++)
            for (int f = 0; f < e.fixed_count; f++) {
                int64_t cut = e.fixed[f] - e.moving[m];
                if (cut > at && cut < next) next = cut;
                if (cut + 1 > at && cut + 1 < next) next = cut + 1;
            }
        if (piece == PIECES_MAX) next = end;
        twice += (unsigned __int128)(keys_at(problem, at, kv_len) + keys_at(problem, next - 1, kv_len)) *
                 (unsigned __int128)(next - at);
        at = next;
    }
    return twice / 2 > INT64_MAX ? INT64_MAX : (int64_t)(twice / 2);
}
