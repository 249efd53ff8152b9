/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rows see, and how their scores change: of a range of merged rows, of one block of keys, and of one
 * tile of rows within it.
 *
 *     plain     causal and windows: one interval a row, whose ends never move left
 *     parts     a row sees a union of intervals: exact, and O(rows) to prepare
 *     words     anything else: the bits of every row of the range are evaluated block by block
 */
#ifndef TP_STRATEGIES_VISIBILITY_H
#define TP_STRATEGIES_VISIBILITY_H

#include "base/arena.h"
#include "kernels/kernel.h"
#include "masks/mask.h"
#include "strategies/keys.h"
#include "strategies/schedule.h"
#include "strategies/strategy.h"

/* What the rows of one tile see. */
typedef struct tp__tile_seen {
    tp__interval any, every; /* keys that some row, and that every row sees; hulls */
    int run;                 /* every row that sees keys sees one interval, and there is no gap between neighbouring rows' */
} tp__tile_seen;

typedef struct tp__visibility {
    int64_t *lo, *hi;           /* [range rows] keys each row sees, absolute: the hull */
    int32_t *tile_lo, *tile_hi; /* [tile rows] the same within one block */
    tp__interval any, every;    /* keys that any row, and that every row of the range sees; hulls */
    int block, tile_rows;       /* keys, rows */
    /* of masks that are not plain */
    enum { TP__VISIBILITY_PLAIN, TP__VISIBILITY_PARTS, TP__VISIBILITY_WORDS } form;
    int parts_max, by_head;
    tp__interval *part;         /* [range rows][parts_max] */
    int32_t *parts;             /* [range rows] how many */
    tp__tile_seen *tile;        /* [tiles] most tiles see nothing of a block */
    uint64_t *words;            /* [range rows][block/64], or of one tile's rows where there are parts */
    tp__mask_view view;
    const tp_problem *problem;
    int64_t first, count, group; /* the range: merged rows */
    int64_t looked_at, pairs;    /* the sequence whose range this is, -1: none; what tp__visibility_rows returned of it */
    int64_t head, heads;         /* its first query head; KV heads whose rows see the same */
    uint64_t here[TP__MASK_WORDS]; /* keys of the block at hand that any row sees */
    uint64_t *seen;             /* keys of the sequence that any row sees: shared by all tasks */
    tp__units units;            /* of scores */
    /* of scores that change */
    tp__modify modify;
    float *scale;               /* [range rows] */
    float *slope;               /* [heads][range rows] */
    float *q_at, *k_at;         /* [tile rows], [block] */
    const void **bias;          /* [tile rows] */
    /* of dropout */
    tp__drop drop;
    tp__dropout_row *drop_rows; /* [range rows] */
} tp__visibility;

/* Scratch for ranges of this many rows and blocks of this many keys, or fewer. */
tp__visibility tp__visibility_take(tp__arena *arena, const tp_problem *problem, int64_t range_rows, int tile_rows,
                         int block);

/* What is looked at: rows of these KV heads, to be met in blocks of this many keys. */
void tp__visibility_open(tp__visibility *visibility, const tp__job *job, const tp__keys *keys, int64_t head, int64_t heads,
                    int block);
/* Looks at merged rows: once for all heads, whose tasks follow each other. Returns the pairs that the rows of one head see, or
   0 where tp__visibility_block counts them. With sparse indices what is seen are slots of them, and the rows are of one token. */
int64_t tp__visibility_rows(tp__visibility *visibility, const tp__keys *keys, int64_t first, int64_t count);

/* Rows of a shared segment instead: every one sees the keys [from, to). And the rows first.. of one of its sequences, which
   stand at `at` among them, where their scores are scaled by position. */
void tp__visibility_shared(tp__visibility *visibility, int64_t count, int64_t from, int64_t to);
void tp__visibility_scales(tp__visibility *visibility, const tp__sequence *seq, int64_t first, int64_t count, int64_t at);
/* Leaves out keys before `from`, which all rows see. Returns their pairs. */
int64_t tp__visibility_from(tp__visibility *visibility, int64_t from);

/* Keys that the row at q_pos sees under a plain mask; with sparse indices, slots. */
tp__interval tp__visibility_plain(const tp__keys *keys, int64_t q_pos);

/* What rows of the range see of the block of keys from `key` on: keys [first, last) of it, block-relative.
   Blocks are asked for in ascending order within `any`, each once. */
typedef enum tp__block_class { TP__BLOCK_HIDDEN, TP__BLOCK_PARTIAL, TP__BLOCK_FULL } tp__block_class;
tp__block_class tp__visibility_block(tp__visibility *visibility, int64_t key, int64_t *first, int64_t *last,
                            tp__trace *trace);

/* Sets what rows row..row+tile->rows-1 of the range see of the block, and what changes their scores in the
   task's head number `part`; 0 when none of them sees any of its keys up to `last`. */
int tp__visibility_tile(const tp__visibility *visibility, tp__row_tile *tile, int64_t part, int64_t row, int64_t key,
                   int64_t last, tp__block_class block_class, tp__trace *trace);

/* The same of a tile of any of the task's rows, where all see the block's keys first..last-1 and nothing changes their scores. */
void tp__visibility_whole(const tp__visibility *visibility, tp__row_tile *tile, int64_t first, int64_t last);

/* Words of bits that a block takes. */
static inline int tp__block_words(int block) { return (block + 63) / 64; }

/* The first and the last bit that is set; -1: none. */
static inline int64_t tp__first_bit(const uint64_t *words, int64_t count) {
    for (int64_t w = 0; w < count; w++)
        if (words[w] != 0) return 64 * w + __builtin_ctzll(words[w]);
    return -1;
}

static inline int64_t tp__last_bit(const uint64_t *words, int64_t count) {
    for (int64_t w = count; w-- > 0;)
        if (words[w] != 0) return 64 * w + 63 - __builtin_clzll(words[w]);
    return -1;
}

/* May the rows of the tile that begins with this row see any key of the block? */
static inline int tp__tile_meets(const tp__visibility *visibility, int64_t row, int64_t key) {
    const tp__interval *any = &visibility->tile[row / visibility->tile_rows].any;
    return any->lo < key + visibility->block && any->hi > key;
}

#endif
