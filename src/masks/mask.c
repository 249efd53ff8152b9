/* SPDX-License-Identifier: Apache-2.0 */
/* The tree: its rules, and its truth for one pair. */
#include "masks/kind.h"

#include "base/structs.h"

static const tp__mask_kind *const kinds[] = {
#define TP_MASK(NAME, KIND) &tp__mask_##NAME,
#include "masks/masks.inc"
#undef TP_MASK
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

const char *tp_mask_name(int index) {
    return index >= 0 && index < KINDS ? kinds[index]->name : NULL;
}

const tp__mask_kind *tp__mask_kind_of(int32_t kind) {
    for (int i = 0; i < KINDS; i++)
        if (kinds[i]->kind == kind) return kinds[i];
    return NULL;
}

static int joins(int32_t kind) { return kind == TP_MASK_AND || kind == TP_MASK_OR; }

int tp__mask_has(const tp_problem *problem, int32_t kind) {
    for (int i = 0; i < problem->mask_nodes; i++)
        if (problem->mask[i].kind == kind) return 1;
    return 0;
}

static int reads_data(const tp_mask_node *node) {
    const tp__mask_kind *kind = tp__mask_kind_of(node->kind);
    return kind != NULL && kind->data != NULL && kind->data(node);
}

int tp__mask_reads_data(const tp_problem *problem) {
    for (int i = 0; i < problem->mask_nodes; i++)
        if (reads_data(&problem->mask[i])) return 1;
    return problem->positions;
}

int tp__mask_is_plain(const tp_problem *problem) {
    for (int i = 0; i < problem->mask_nodes; i++) {
        int32_t kind = problem->mask[i].kind;
        if (kind != TP_MASK_AND && kind != TP_MASK_CAUSAL && kind != TP_MASK_WINDOW) return 0;
    }
    return !problem->positions;
}

/* One, and one more for each OR: where intervals meet, there are no more of them than before. */
int tp__mask_parts_max(const tp_problem *problem) {
    int max = 1;
    for (int i = 0; i < problem->mask_nodes; i++) max += problem->mask[i].kind == TP_MASK_OR;
    return max;
}

tp_status tp__mask_check(const tp_problem *problem, tp_error *error) {
    int n = problem->mask_nodes, depth = 0;
    TP_REQUIRE(n >= 0 && n <= TP_MAX_MASK_NODES, error, TP_INVALID,
               "mask_nodes is %d: it must be in 0..%d", n, TP_MAX_MASK_NODES);
    for (int i = 0; i < n; i++) {
        const tp_mask_node *node = &problem->mask[i];
        TP_REQUIRE(node->reserved == 0, error, TP_INVALID,
                   "mask[%d].reserved is %d: it must be 0", i, node->reserved);
        if (joins(node->kind)) {
            TP_REQUIRE(depth >= 2, error, TP_INVALID,
                       "mask[%d] is an %s of %d nodes: it takes two, written before it", i,
                       node->kind == TP_MASK_AND ? "AND" : "OR", depth);
            depth--;
            continue;
        }
        const tp__mask_kind *kind = tp__mask_kind_of(node->kind);
        TP_REQUIRE(kind != NULL, error, TP_INVALID,
                   "mask[%d].kind is %d: it must be and (1), or (2), or causal (16) to callback (25)", i,
                   node->kind);
        TP_TRY(kind->check(node, error));
        depth++;
    }
    TP_REQUIRE(depth <= 1, error, TP_INVALID,
               "the mask tree leaves %d nodes unjoined: it must end as one", depth);
    return TP_OK;
}

/* 1, 0, or -1 for a leaf whose data is not there, which joins as if it were not. */
static int join(int32_t kind, int a, int b) {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    return kind == TP_MASK_AND ? a && b : a || b;
}

int tp__mask_allowed(tp__mask_view *view, int64_t head, int64_t row, int64_t key) {
    const tp_problem *problem = view->problem;
    int stack[TP_MAX_MASK_NODES + 1], depth = 0;
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp_mask_node *node = &problem->mask[i];
        if (joins(node->kind)) {
            depth--;
            stack[depth - 1] = join(node->kind, stack[depth - 1], stack[depth]);
        } else if (view->tensors == NULL && reads_data(node)) {
            stack[depth++] = -1;
        } else {
            stack[depth++] = tp__mask_kind_of(node->kind)->allowed(view, node, head, row, key);
        }
    }
    return depth == 0 || stack[0] != 0;
}

/* Both ends of a row's interval never move left as its position grows, so the first row that sees anything
   has the left end and the last one the right end. */
tp__interval tp__mask_hull(const tp_problem *problem, int64_t q_len, int64_t kv_len) {
    int64_t position = tp__mask_first_position(problem, q_len, kv_len);
    tp__interval first = {0, 0}, last = {0, 0};
    for (int64_t row = 0; row < q_len && first.lo == first.hi; row++)
        first = tp__mask_interval(problem, position + row, kv_len);
    for (int64_t row = q_len; row-- > 0 && last.lo == last.hi;)
        last = tp__mask_interval(problem, position + row, kv_len);
    return (tp__interval){first.lo, last.hi};
}

int tp_mask_allowed(const tp_problem *problem, int64_t q_len, int64_t kv_len, int64_t row,
                    int64_t key) {
    tp_problem here;
    problem = TP_IN(tp_problem, problem, &here, NULL);
    if (problem == NULL || row < 0 || row >= q_len || key < 0 || key >= kv_len) return -1;
    if (tp__mask_check(problem, NULL) != TP_OK || tp__mask_reads_data(problem)) return -1;
    tp__mask_view view = tp__mask_view_plain(problem, q_len, kv_len);
    return tp__mask_allowed(&view, 0, row, key);
}
