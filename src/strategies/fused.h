/* SPDX-License-Identifier: Apache-2.0 */
/* What the two fused loops, prefill and decode, share: a task's scratch, and what is done with a chunk. */
#ifndef TP_STRATEGIES_FUSED_H
#define TP_STRATEGIES_FUSED_H

#include "strategies/keys.h"
#include "strategies/schedule.h"
#include "strategies/visibility.h"
#include "strategies/strategy.h"

/* Rows of keys that are asked for ahead of those that are packed. */
#define TP__AHEAD_KEYS 32

/* A range whose chunks are worked on by several threads: their states are merged in order. */
typedef struct tp__split_kv {
    atomic_llong next_chunk; /* the chunk whose state may be merged next */
    tp__state state;
} tp__split_kv;

/* Whether decode asks for lines before it reads them. That is worth a lot where keys come from memory, and costs up to a fifth
   of the time where they lie in a cache, which no caller tells us: the first block of a task, for which nobody has asked, shows
   it. Changes no bit. */
typedef struct tp__pace {
    int asks;
    int watches;           /* times blocks that nobody asked for */
    int64_t bytes, since;  /* read since then */
} tp__pace;

/* One task's part of the workspace. */
typedef struct tp__scratch {
    tp__trace *trace;
    tp__pace pace;
    void *q, *k, *v; /* in the set's form */
    float *s;
    tp__state whole, chunk;
    tp__visibility visibility;
    const char **k_row, **v_row; /* where the keys of a block lie, and those ahead; behind them, their scales */
} tp__scratch;

typedef struct tp__fused {
    const tp__job *job;
    tp__schedule schedule;
    tp__cut cut;
    int64_t ldq, ldo;
    int block, decode_block, tile_rows;
    int64_t key_scales; /* tp__keys.scales; 0: k and v have none */
    tp__scratch *scratch;
    tp__split_kv *split;
    tp__cascade cascade;
} tp__fused;

/* What is at work: a task, its keys, its scratch. */
typedef struct tp__work {
    const tp__fused *fused;
    const tp__task *task;
    tp__scratch *scratch;
    tp__keys keys;
    int64_t from, to; /* of these keys, those that the task is about: what lies before is in the rows' state */
} tp__work;

/* Attends the keys from..to-1, which lie in one chunk, into the state, whose rows are those of the task's
   first head, then those of its next. */
typedef void tp__chunk_fn(const tp__work *work, int64_t from, int64_t to, const tp__state *state);
tp__chunk_fn tp__prefill_chunk, tp__decode_chunk;

/* Resolves where keys first..last-1 of the block from `key` on lie, and `ahead` keys behind them to ask for. */
void tp__work_keys(const tp__work *work, int64_t key, int64_t first, int64_t last, int64_t ahead);

/* A tile of the task's rows row..row+rows-1 of its head number `part`, with all but k, v, the block and what
   tp__visibility_tile sets. */
tp__row_tile tp__work_tile(const tp__work *work, int64_t part, int64_t row, int64_t rows,
                       const tp__state *state);

#endif
