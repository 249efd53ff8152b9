/* SPDX-License-Identifier: Apache-2.0 */
/* The tree as sets of keys that one row sees: unions of intervals, and bits. */
#include <string.h>

#include "masks/kind.h"

static void add(tp__parts *to, tp__interval one) {
    if (one.lo >= one.hi) return;
    if (to->count > 0 && to->part[to->count - 1].hi >= one.lo) { /* they touch */
        if (one.hi > to->part[to->count - 1].hi) to->part[to->count - 1].hi = one.hi;
        return;
    }
    to->part[to->count++] = one;
}

static tp__parts meet(const tp__parts *a, const tp__parts *b) {
    tp__parts both = {.count = 0};
    for (int i = 0, j = 0; i < a->count && j < b->count;) {
        tp__interval x = a->part[i], y = b->part[j];
        add(&both, (tp__interval){x.lo > y.lo ? x.lo : y.lo, x.hi < y.hi ? x.hi : y.hi});
        if (x.hi < y.hi)
            i++;
        else
            j++;
    }
    return both;
}

static tp__parts unite(const tp__parts *a, const tp__parts *b) {
    tp__parts either = {.count = 0};
    for (int i = 0, j = 0; i < a->count || j < b->count;) {
        int first = j == b->count || (i < a->count && a->part[i].lo <= b->part[j].lo);
        add(&either, first ? a->part[i++] : b->part[j++]);
    }
    return either;
}

/* Of one leaf; returns whether it is exact. */
static int leaf_keys(tp__mask_view *view, const tp__mask_kind *kind, const tp_mask_node *node,
                     int64_t row, tp__interval *keys) {
    if (kind->reach == NULL) return kind->interval(view, node, row, keys);
    return tp__mask_keys_at(view, kind->reach(view, node, row), keys);
}

/* Under ANDs alone, which is the common case. */
static int one_part(tp__mask_view *view, int64_t row, tp__parts *parts) {
    const tp_problem *problem = view->problem;
    tp__interval seen = {0, view->kv_len}, keys;
    int exact = 1;
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp_mask_node *node = &problem->mask[i];
        if (node->kind == TP_MASK_AND || (view->tensors == NULL && tp__mask_node_reads(node))) continue;
        exact &= leaf_keys(view, tp__mask_kind_of(node->kind), node, row, &keys);
        if (keys.lo > seen.lo) seen.lo = keys.lo;
        if (keys.hi < seen.hi) seen.hi = keys.hi;
    }
    parts->count = 0;
    add(parts, seen);
    return exact;
}

int tp__mask_parts(tp__mask_view *view, int64_t row, tp__parts *parts) {
    const tp_problem *problem = view->problem;
    if (tp__mask_parts_max(problem) == 1) return one_part(view, row, parts);
    tp__parts stack[TP__MASK_PARTS];
    int depth = 0, exact = 1;
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp_mask_node *node = &problem->mask[i];
        if (node->kind == TP_MASK_AND || node->kind == TP_MASK_OR) {
            tp__parts *a = &stack[depth - 2], *b = &stack[depth - 1];
            depth--;
            if (a->count < 0 || b->count < 0) /* the data is not there */
                *a = a->count < 0 ? *b : *a;
            else
                *a = node->kind == TP_MASK_AND ? meet(a, b) : unite(a, b);
            continue;
        }
        const tp__mask_kind *kind = tp__mask_kind_of(node->kind);
        tp__parts *leaf = &stack[depth++];
        leaf->count = -1;
        if (view->tensors == NULL && tp__mask_node_reads(node)) continue;
        tp__interval keys;
        exact &= leaf_keys(view, kind, node, row, &keys);
        leaf->count = 0;
        add(leaf, keys);
    }
    if (depth == 0 || stack[0].count < 0) {
        stack[0].count = 0;
        add(&stack[0], (tp__interval){0, view->kv_len});
    }
    *parts = stack[0];
    return exact;
}

static void leaf_words(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                       int64_t key, int64_t count, uint64_t *words) {
    const tp__mask_kind *kind = tp__mask_kind_of(node->kind);
    tp__interval keys;
    memset(words, 0, TP__MASK_WORDS * sizeof *words);
    if (leaf_keys(view, kind, node, row, &keys))
        tp__words_fill(words, keys.lo, keys.hi, key, count);
    else if (kind->reach != NULL)
        tp__mask_words_at(view, kind->reach(view, node, row), key, count, words);
    else
        kind->words(view, node, head, row, key, count, words);
}

void tp__mask_words(tp__mask_view *view, int64_t head, int64_t row, int64_t key, int64_t count,
                    uint64_t *words) {
    const tp_problem *problem = view->problem;
    uint64_t stack[TP__MASK_PARTS][TP__MASK_WORDS];
    int depth = 0;
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp_mask_node *node = &problem->mask[i];
        if (node->kind != TP_MASK_AND && node->kind != TP_MASK_OR) {
            leaf_words(view, node, head, row, key, count, stack[depth++]);
            continue;
        }
        depth--;
        uint64_t *a = stack[depth - 1], *b = stack[depth];
        for (int w = 0; w < TP__MASK_WORDS; w++)
            a[w] = node->kind == TP_MASK_AND ? a[w] & b[w] : a[w] | b[w];
    }
    if (depth == 0) {
        memset(stack[0], 0, sizeof stack[0]);
        tp__words_fill(stack[0], key, key + count, key, count);
    }
    memcpy(words, stack[0], (size_t)((count + 63) / 64) * sizeof *words);
}

tp__interval tp__mask_plain(tp__mask_view *view, int64_t row) {
    const tp_problem *problem = view->problem;
    tp__interval seen = {0, view->kv_len};
    for (int i = 0; i < problem->mask_nodes; i++) {
        if (problem->mask[i].kind == TP_MASK_AND) continue;
        tp__interval one = tp__mask_kind_of(problem->mask[i].kind)->reach(view, &problem->mask[i], row);
        if (one.lo > seen.lo) seen.lo = one.lo;
        if (one.hi < seen.hi) seen.hi = one.hi;
    }
    if (seen.hi <= seen.lo) seen = (tp__interval){0, 0};
    return seen;
}

tp__interval tp__mask_interval(const tp_problem *problem, int64_t q_pos, int64_t kv_len) {
    tp__mask_view view = {.problem = problem, .q_len = 1, .kv_len = kv_len, .first = q_pos};
    tp__parts parts;
    if (tp__mask_is_plain(problem)) return tp__mask_plain(&view, 0);
    tp__mask_parts(&view, 0, &parts);
    if (parts.count == 0) return (tp__interval){0, 0};
    return (tp__interval){parts.part[0].lo, parts.part[parts.count - 1].hi};
}
