/* SPDX-License-Identifier: Apache-2.0 */
/* The tree: its rules, and whether one pair is visible. */
#include "masks/kind.h"

#include "base/structs.h"

/* What a row of the table says, as initialisers. */
#define NONE .values = 0
#define ONE(A, A_MIN) .values = 1, .min = {A_MIN, 0}, .value = {A, NULL}
#define TWO(A, A_MIN, B, B_MIN) .values = 2, .min = {A_MIN, B_MIN}, .value = {A, B}
#define TRAITS_plain TP_MASK_MONOTONE
#define TRAITS_reach 0
#define TRAITS_keys 0
#define TRAITS_holes TP_MASK_HOLES
#define SEES_plain(NAME) .reach = tp__mask_##NAME##_reach
#define SEES_reach(NAME) .reach = tp__mask_##NAME##_reach
#define SEES_keys(NAME) .interval = tp__mask_##NAME##_interval
#define SEES_holes(NAME) .interval = tp__mask_##NAME##_interval, .words = tp__mask_##NAME##_words
#define PAIRS_rows_plain(NAME) NULL
#define PAIRS_rows_reach(NAME) NULL
#define PAIRS_rows_keys(NAME) NULL
#define PAIRS_rows_holes(NAME) NULL
#define PAIRS_ends_plain(NAME) tp__mask_##NAME##_ends
#define PAIRS_ends_reach(NAME) tp__mask_##NAME##_ends
#define PAIRS_ends_keys(NAME) tp__mask_##NAME##_ends
/* no PAIRS_ends_holes: keys between two ends are not all seen */

static const tp__mask_kind kinds[] = {
#define TP_MASK(NAME, NUMBER, SEES, PAIRS, VALUES, READS, TRAITS, WORDS, EXAMPLES, ...)               \
    {.info = {.struct_size = sizeof(tp_mask_info), .kind = NUMBER, .name = #NAME, .words = WORDS,    \
              .examples = EXAMPLES, VALUES, .reads = TP_MASK_READS_##READS,                          \
              .traits = (TRAITS) | TRAITS_##SEES},                                                   \
     .word = {__VA_ARGS__},                                                                          \
     .allowed = tp__mask_##NAME##_allowed,                                                           \
     .ends = PAIRS_##PAIRS##_##SEES(NAME),                                                           \
     SEES_##SEES(NAME)},
#include "masks/masks.inc"
#undef TP_MASK
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

const tp__mask_kind *tp__mask_kind_at(int index) {
    return index >= 0 && index < KINDS ? &kinds[index] : NULL;
}

const tp_mask_info *tp_mask_at(int index) {
    return index >= 0 && index < KINDS ? &kinds[index].info : NULL;
}

const tp__mask_kind *tp__mask_kind_of(int32_t kind) {
    int64_t i = (int64_t)kind - kinds[0].info.kind; /* the table has them by number, one after another */
    return i >= 0 && i < KINDS && kinds[i].info.kind == kind ? &kinds[i] : NULL;
}

static int joins(int32_t kind) { return kind == TP_MASK_AND || kind == TP_MASK_OR; }

int tp__mask_has(const tp_problem *problem, int32_t kind) {
    for (int i = 0; i < problem->mask_nodes; i++)
        if (problem->mask[i].kind == kind) return 1;
    return 0;
}

int tp__mask_node_reads(const tp_mask_node *node) {
    const tp__mask_kind *kind = tp__mask_kind_of(node->kind);
    if (kind == NULL || kind->info.reads == TP_MASK_READS_NO_DATA) return 0;
    return kind->info.reads == TP_MASK_READS_DATA || node->a < 0;
}

int tp__mask_reads_data(const tp_problem *problem) {
    for (int i = 0; i < problem->mask_nodes; i++)
        if (tp__mask_node_reads(&problem->mask[i])) return 1;
    return problem->positions;
}

int tp__mask_by_head(const tp_problem *problem, const tp_tensors *tensors) {
    for (int i = 0; i < problem->mask_nodes; i++) {
        const tp__mask_kind *kind = tp__mask_kind_of(problem->mask[i].kind);
        if (kind == NULL || !(kind->info.traits & TP_MASK_BY_HEAD)) continue;
        if (kind->info.kind != TP_MASK_BITS || tensors == NULL || tensors->bits_stride[1] != 0) return 1;
    }
    return 0;
}

int tp__mask_is_plain(const tp_problem *problem) {
    for (int i = 0; i < problem->mask_nodes; i++) {
        if (problem->mask[i].kind == TP_MASK_AND) continue;
        const tp__mask_kind *kind = tp__mask_kind_of(problem->mask[i].kind);
        if (kind == NULL || !(kind->info.traits & TP_MASK_MONOTONE)) return 0;
    }
    return !problem->positions;
}

/* One, and one more for each OR: where intervals meet, there are no more of them than before. */
int tp__mask_parts_max(const tp_problem *problem) {
    int max = 1;
    for (int i = 0; i < problem->mask_nodes; i++) max += problem->mask[i].kind == TP_MASK_OR;
    return max;
}

static tp_status check_values(const tp_mask_info *info, const tp_mask_node *node, tp_error *error) {
    const int64_t value[2] = {node->a, node->b};
    for (int i = 0; i < 2; i++) {
        if (i >= info->values) {
            TP_REQUIRE(value[i] == 0, error, TP_INVALID, "mask %s has values %lld,%lld: it takes %s", info->name,
                       (long long)node->a, (long long)node->b, info->values == 0 ? "none" : "one");
            continue;
        }
        TP_REQUIRE(value[i] >= info->min[i] && value[i] <= TP__MASK_VALUE_MAX, error, TP_INVALID,
                   "mask %s has %s %lld: it must be %s%lld..2^40", info->name, info->value[i], (long long)value[i],
                   info->min[i] >= 0                       ? "in "
                   : info->reads == TP_MASK_READS_LEFT_OUT ? "-1 (it comes with the tensors) or in "
                                                           : "-1 (unbounded) or in ",
                   (long long)(info->min[i] > 0 ? info->min[i] : 0));
    }
    return TP_OK;
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
                   "mask[%d].kind is %d: it must be and (1), or (2), or %s (%d) to %s (%d)", i, node->kind,
                   kinds[0].info.name, kinds[0].info.kind, kinds[KINDS - 1].info.name, kinds[KINDS - 1].info.kind);
        TP_TRY(check_values(&kind->info, node, error));
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
        } else if (view->tensors == NULL && tp__mask_node_reads(node)) {
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
