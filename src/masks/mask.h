/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks speak of positions, rows see keys. A kind gives
 *
 *     allowed(view, node, head, row, key)   the definition, used by the reference and by tests
 *     reach(view, node, row)                the positions [lo, hi) one row sees, where these say it all
 *     interval, words                       otherwise: a superset of the keys it sees, and the bits
 *
 * and everything else follows: the parts of a row (a union of intervals of keys), the bits of a block of
 * keys, the classes of blocks and panels, counts. So a new kind is one small file and one row of masks.inc.
 */
#ifndef TP_MASKS_MASK_H
#define TP_MASKS_MASK_H

#include "tileproof.h"

typedef struct tp__interval {
    int64_t lo, hi; /* [lo, hi); lo >= hi: empty */
} tp__interval;

enum {
    TP__MASK_PARTS = 8,        /* a tree of 15 nodes has 8 leaves, hence at most 8 parts a row */
    TP__MASK_KEYS = 512,       /* keys whose bits are evaluated at a time, at most */
    TP__MASK_WORDS = TP__MASK_KEYS / 64
};

/* Ids by key, as documents and spans have them, and where one id was last found. */
typedef struct tp__mask_ids {
    const void *q, *k; /* NULL: none */
    int runs;          /* each id is one run of keys, and runs ascend */
    int64_t id;        /* of the run [at.lo, at.hi); -1: none yet */
    tp__interval at;
    int64_t asked, row_id; /* the row that was last asked for, plus 1 (0: none yet), and its id */
} tp__mask_ids;

/* The callback's answers of a call. */
typedef struct tp__answers {
    const uint64_t *bits;  /* [batch][rows][words]; NULL: it has not been asked */
    int64_t rows, words;
} tp__answers;

/* One sequence of a call, as masks see it. Copies are cheap; searches leave hints, so one view serves one
   thread. */
typedef struct tp__mask_view {
    const tp_problem *problem;
    const tp_tensors *tensors; /* NULL: no data */
    int64_t seq, q_len, kv_len;
    int64_t q_token, kv_token; /* where arrays by row and by key hold the sequence */
    int64_t first;             /* q_pos of row 0 by alignment */
    const void *q_pos, *k_pos; /* explicit positions, or NULL */
    int sorted;                /* k_pos never falls */
    tp__mask_ids documents, spans;
    const uint64_t *called;    /* the callback's answers: bits of the sequence's rows */
    int64_t called_words;      /* from row to row */
} tp__mask_view;

/* A word's place in the formula of the text form; words of one place join in the order given. */
typedef enum tp__place { TP__WINDOWS, TP__FIRST, TP__INNER, TP__ALSO, TP__OUTER } tp__place;

enum { TP__KIND_WORDS = 2 }; /* of one kind, at most */

typedef struct tp__ends tp__ends; /* kind.h */

/* A row of masks.inc. */
typedef struct tp__mask_kind {
    tp_mask_info info;
    struct {
        const char *name; /* NULL: none */
        tp__place place;
    } word[TP__KIND_WORDS];
    int (*allowed)(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row,
                   int64_t key);
    tp__interval (*reach)(tp__mask_view *view, const tp_mask_node *node, int64_t row);
    /* Where reach is NULL. Keys outside are not seen; returns whether all keys inside are, which depends
       on the view and not on the row. */
    int (*interval)(tp__mask_view *view, const tp_mask_node *node, int64_t row, tp__interval *keys);
    /* Sets the bits of keys key..key+count-1 that the row sees; words come in as 0. */
    void (*words)(tp__mask_view *view, const tp_mask_node *node, int64_t head, int64_t row, int64_t key,
                  int64_t count, uint64_t *words);
    /* Adds the ends of what the row at q_pos sees; NULL: pairs are counted row by row. Never asked of a node
       that reads data. */
    void (*ends)(const tp_mask_node *node, int64_t q_pos, tp__ends *ends);
} tp__mask_kind;

/* Those that a kind's row asks for are defined. */
#define TP_MASK(NAME, ...)                                                                             \
    int tp__mask_##NAME##_allowed(tp__mask_view *view, const tp_mask_node *node, int64_t head,         \
                                  int64_t row, int64_t key);                                           \
    tp__interval tp__mask_##NAME##_reach(tp__mask_view *view, const tp_mask_node *node, int64_t row);  \
    int tp__mask_##NAME##_interval(tp__mask_view *view, const tp_mask_node *node, int64_t row,         \
                                   tp__interval *keys);                                                \
    void tp__mask_##NAME##_words(tp__mask_view *view, const tp_mask_node *node, int64_t head,          \
                                 int64_t row, int64_t key, int64_t count, uint64_t *words);            \
    void tp__mask_##NAME##_ends(const tp_mask_node *node, int64_t q_pos, tp__ends *ends);
#include "masks/masks.inc"
#undef TP_MASK

/* By index, NULL behind the last; by number, NULL when that is no kind. */
const tp__mask_kind *tp__mask_kind_at(int index);
const tp__mask_kind *tp__mask_kind_of(int32_t kind);
/* Does this leaf read tensors? Does a leaf of the tree, or positions that come from them? */
int tp__mask_node_reads(const tp_mask_node *node);
int tp__mask_reads_data(const tp_problem *problem);
int tp__mask_has(const tp_problem *problem, int32_t kind);
/* May query heads of one KV head see different keys? Without tensors: whatever they hold. */
int tp__mask_by_head(const tp_problem *problem, const tp_tensors *tensors);
/* Only kinds with the trait TP_MASK_MONOTONE, under ANDs alone, at the positions of the alignment: a row sees one
   interval, whose ends never move left from row to row. */
int tp__mask_is_plain(const tp_problem *problem);
/* Parts a row of this problem can have, at most. */
int tp__mask_parts_max(const tp_problem *problem);

/* Every rule a tree must keep. */
tp_status tp__mask_check(const tp_problem *problem, tp_error *error);

/* q_pos of row 0 under the problem's alignment. */
int64_t tp__mask_first_position(const tp_problem *problem, int64_t q_len, int64_t kv_len);

/* A view without data, of a sequence of these lengths. */
tp__mask_view tp__mask_view_plain(const tp_problem *problem, int64_t q_len, int64_t kv_len);
/* Finds out which arrays ascend; O(keys). Before this call none is assumed to. */
void tp__mask_look(tp__mask_view *view);

/* Whether the whole tree shows one pair. Kinds whose data is not there allow what the others do. */
int tp__mask_allowed(tp__mask_view *view, int64_t head, int64_t row, int64_t key);

/* The union of intervals, ascending and without overlap, within which the row sees keys; returns whether it sees all
   of these. Kinds whose data is not there are left out. */
typedef struct tp__parts {
    int count;
    tp__interval part[TP__MASK_PARTS];
} tp__parts;
int tp__mask_parts(tp__mask_view *view, int64_t row, tp__parts *parts);

/* The bits of keys key..key+count-1, count <= TP__MASK_KEYS; bits beyond are 0. */
void tp__mask_words(tp__mask_view *view, int64_t head, int64_t row, int64_t key, int64_t count,
                    uint64_t *words);

/* Without data, the hull of the keys [lo, hi) that the row at q_pos sees, within 0..kv_len. */
tp__interval tp__mask_interval(const tp_problem *problem, int64_t q_pos, int64_t kv_len);
/* The same for a row of a view, where the tree is plain: for those who ask for many rows. */
tp__interval tp__mask_plain(tp__mask_view *view, int64_t row);

/* From the first key that any row of the sequence sees to the last, of a plain mask. */
tp__interval tp__mask_hull(const tp_problem *problem, int64_t q_len, int64_t kv_len);

/* Visible pairs of one head of one sequence. Exact, or an estimate: nodes that read data are left out, and so
   much may be asked for that only a part of it is counted. */
int64_t tp__mask_pairs(const tp_problem *problem, int64_t q_len, int64_t kv_len, int *exact);

static inline int64_t tp__mask_index(const tp__mask_view *view, const void *array, int64_t i) {
    return view->tensors->index_type == TP_I64 ? ((const int64_t *)array)[i]
                                               : ((const int32_t *)array)[i];
}

static inline int64_t tp__mask_q_pos(const tp__mask_view *view, int64_t row) {
    return view->q_pos != NULL ? tp__mask_index(view, view->q_pos, view->q_token + row)
                               : view->first + row;
}

static inline int64_t tp__mask_k_pos(const tp__mask_view *view, int64_t key) {
    return view->k_pos != NULL ? tp__mask_index(view, view->k_pos, view->kv_token + key) : key;
}

/* Sets bits lo..hi-1 of words that stand for keys key..key+count-1. */
void tp__words_fill(uint64_t *words, int64_t lo, int64_t hi, int64_t key, int64_t count);

static inline int tp__word_bit(const uint64_t *words, int64_t i) {
    return (int)(words[i / 64] >> (i % 64) & 1);
}

#endif
