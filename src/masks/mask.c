/* SPDX-License-Identifier: Apache-2.0 */
/* The tree, and what follows from the kinds' intervals. */
#include "masks/mask.h"

#include "base/error.h"

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

tp_status tp__mask_check(const tp_problem *problem, tp_error *error) {
    int n = problem->mask_nodes, depth = 0;
    TP_REQUIRE(n >= 0 && n <= TP_MAX_MASK_NODES, error, TP_INVALID,
               "mask_nodes is %d: it must be in 0..%d", n, TP_MAX_MASK_NODES);
    for (int i = 0; i < n; i++) {
        const tp_mask_node *node = &problem->mask[i];
        TP_REQUIRE(node->reserved == 0, error, TP_INVALID,
                   "mask[%d].reserved is %d: it must be 0", i, node->reserved);
        if (node->kind == TP_MASK_AND) {
            TP_REQUIRE(depth >= 2, error, TP_INVALID,
                       "mask[%d] is an AND of %d nodes: it takes two, written before it", i, depth);
            depth--;
            continue;
        }
        const tp__mask_kind *kind = tp__mask_kind_of(node->kind);
        TP_REQUIRE(kind != NULL, error, TP_INVALID,
                   "mask[%d].kind is %d: it must be and (1), causal (16) or window (17)", i,
                   node->kind);
        TP_TRY(kind->check(node, error));
        depth++;
    }
    TP_REQUIRE(depth <= 1, error, TP_INVALID,
               "the mask tree leaves %d nodes unjoined: it must end as one", depth);
    return TP_OK;
}

int64_t tp__mask_first_position(const tp_problem *problem, int64_t q_len, int64_t kv_len) {
    return problem->align == TP_TOP_LEFT ? 0 : kv_len - q_len;
}

/* A tree of ANDs alone allows what every leaf allows, and sees where all leaves' intervals meet. */

int tp__mask_allowed(const tp_problem *problem, int64_t q_pos, int64_t k_pos) {
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp__mask_kind *kind = tp__mask_kind_of(problem->mask[i].kind);
        if (kind != NULL && !kind->allowed(&problem->mask[i], q_pos, k_pos)) return 0;
    }
    return 1;
}

tp__interval tp__mask_interval(const tp_problem *problem, int64_t q_pos, int64_t kv_len) {
    tp__interval seen = {0, kv_len};
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp__mask_kind *kind = tp__mask_kind_of(problem->mask[i].kind);
        if (kind == NULL) continue;
        tp__interval one = kind->interval(&problem->mask[i], q_pos);
        if (one.lo > seen.lo) seen.lo = one.lo;
        if (one.hi < seen.hi) seen.hi = one.hi;
    }
    if (seen.hi <= seen.lo) seen = (tp__interval){0, 0};
    return seen;
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
    if (problem == NULL || row < 0 || row >= q_len || key < 0 || key >= kv_len) return -1;
    return tp__mask_allowed(problem, tp__mask_first_position(problem, q_len, kv_len) + row, key);
}
