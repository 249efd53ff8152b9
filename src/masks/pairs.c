/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting visible pairs without data.
 *
 * Where every kind of the tree gives the ends of its intervals as lines over q_pos, no row is walked, so that explain
 * answers at once at any length: the number of keys a row sees is linear in q_pos between the points where some
 * q_pos + c meets a constant, or where a kind's lines end. It is summed piece by piece as (first + last) * rows / 2.
 *
 * Otherwise each row is counted, by its intervals where these are exact and by its bits where they are not. Where that
 * would take long, rows and blocks of keys are sampled evenly.
 */
#include "masks/kind.h"

enum {
    PIECES_MAX = 1 << 20,   /* beyond, with tiny chunks of huge sequences, the rest is taken as one */
    BLOCKS_MAX = 1 << 17,   /* of TP__MASK_KEYS keys, of all rows */
    ROW_BLOCKS_MAX = 1 << 12
};

/* Takes the nodes that read data out of the tree, and the joins that they leave with one side. */
static void leave_data_out(tp_problem *problem) {
    int present[TP_MAX_MASK_NODES + 1], depth = 0, count = 0;
    for (int i = 0; i < problem->mask_nodes; i++) {
        tp_mask_node node = problem->mask[i];
        if (node.kind == TP_MASK_AND || node.kind == TP_MASK_OR) {
            depth--;
            int both = present[depth - 1] && present[depth];
            present[depth - 1] |= present[depth];
            if (!both) continue;
        } else {
            present[depth++] = !tp__mask_node_reads(&node);
            if (!present[depth - 1]) continue;
        }
        problem->mask[count++] = node;
    }
    problem->mask_nodes = count;
}

static int64_t keys_within(const tp__parts *parts) {
    int64_t keys = 0;
    for (int i = 0; i < parts->count; i++) keys += parts->part[i].hi - parts->part[i].lo;
    return keys;
}

static int64_t keys_at(const tp_problem *problem, int64_t q_pos, int64_t kv_len) {
    if (tp__mask_is_plain(problem)) {
        tp__interval seen = tp__mask_interval(problem, q_pos, kv_len);
        return seen.hi - seen.lo;
    }
    tp__mask_view view = {.problem = problem, .q_len = 1, .kv_len = kv_len, .first = q_pos};
    tp__parts parts;
    tp__mask_parts(&view, 0, &parts);
    return keys_within(&parts);
}

static int has_ends(const tp_problem *problem) {
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp__mask_kind *kind = tp__mask_kind_of(problem->mask[i].kind);
        if (kind != NULL && kind->ends == NULL) return 0;
    }
    return 1;
}

static tp__ends ends_at(const tp_problem *problem, int64_t q_pos, int64_t kv_len) {
    tp__ends ends = {.fixed = {0, kv_len}, .fixed_count = 2, .until = INT64_MAX};
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp__mask_kind *kind = tp__mask_kind_of(problem->mask[i].kind);
        if (kind != NULL) kind->ends(&problem->mask[i], q_pos, &ends);
    }
    return ends;
}

/* The nearest q_pos behind this one where the slope may change. */
static int64_t next_turn(const tp__ends *ends, int64_t q_pos, int64_t end) {
    int64_t next = ends->until < end ? ends->until : end;
    for (int m = 0; m < ends->moving_count; m++)
        for (int f = 0; f < ends->fixed_count; f++) {
            int64_t cut = ends->fixed[f] - ends->moving[m];
            if (cut > q_pos && cut < next) next = cut;
            if (cut + 1 > q_pos && cut + 1 < next) next = cut + 1;
        }
    return next;
}

static int64_t by_pieces(const tp_problem *problem, int64_t q_len, int64_t kv_len, int *exact) {
    int64_t at = tp__mask_first_position(problem, q_len, kv_len), end = at + q_len;
    unsigned __int128 twice = 0;
    for (int piece = 0; at < end; piece++) {
        tp__ends ends = ends_at(problem, at, kv_len);
        int64_t next = next_turn(&ends, at, end);
        if (piece == PIECES_MAX) {
            *exact = 0;
            next = end;
        }
        twice += (unsigned __int128)(keys_at(problem, at, kv_len) + keys_at(problem, next - 1, kv_len)) *
                 (unsigned __int128)(next - at);
        at = next;
    }
    return twice / 2 > INT64_MAX ? INT64_MAX : (int64_t)(twice / 2);
}

/* Of every step-th block of the row's keys. */
static int64_t bits_of_row(tp__mask_view *view, int64_t row, int64_t step) {
    int64_t keys = 0;
    for (int64_t key = 0; key < view->kv_len; key += step * TP__MASK_KEYS) {
        uint64_t words[TP__MASK_WORDS];
        int64_t count = view->kv_len - key < TP__MASK_KEYS ? view->kv_len - key : TP__MASK_KEYS;
        tp__mask_words(view, 0, row, key, count, words);
        for (int64_t i = 0; i < (count + 63) / 64; i++) keys += __builtin_popcountll(words[i]);
    }
    return keys;
}

static int64_t by_rows(const tp_problem *problem, int64_t q_len, int64_t kv_len, int *exact) {
    tp__mask_view view = tp__mask_view_plain(problem, q_len, kv_len);
    int64_t blocks = kv_len / TP__MASK_KEYS + 1, key_step = (blocks + ROW_BLOCKS_MAX - 1) / ROW_BLOCKS_MAX;
    int64_t rows_max = BLOCKS_MAX / ((blocks + key_step - 1) / key_step);
    int64_t row_step = (q_len + rows_max - 1) / rows_max, rows = 0;
    unsigned __int128 sum = 0;
    for (int64_t row = 0; row < q_len; row += row_step, rows++) {
        tp__parts parts;
        if (tp__mask_parts(&view, row, &parts))
            sum += (unsigned __int128)keys_within(&parts);
        else
            sum += (unsigned __int128)bits_of_row(&view, row, key_step) * (unsigned __int128)key_step;
    }
    if (key_step > 1 || row_step > 1) *exact = 0;
    if (rows > 0) sum = sum * (unsigned __int128)q_len / (unsigned __int128)rows;
    return sum > INT64_MAX ? INT64_MAX : (int64_t)sum;
}

int64_t tp__mask_pairs(const tp_problem *problem, int64_t q_len, int64_t kv_len, int *exact) {
    tp_problem known = *problem;
    *exact = !tp__mask_reads_data(problem);
    leave_data_out(&known);
    return has_ends(&known) ? by_pieces(&known, q_len, kv_len, exact) : by_rows(&known, q_len, kv_len, exact);
}
