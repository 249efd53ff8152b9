/* SPDX-License-Identifier: Apache-2.0 */
/* What rows see: of a whole range of merged rows, and of one tile of them within one block of keys. */
#ifndef TP_STRATEGIES_SIGHT_H
#define TP_STRATEGIES_SIGHT_H

#include "base/arena.h"
#include "kernels/kernel.h"
#include "masks/mask.h"
#include "strategies/keys.h"

typedef struct tp__sight {
    int64_t *lo, *hi;           /* [range rows] keys each row sees, absolute */
    int32_t *tile_lo, *tile_hi; /* [tile rows] the same within one block */
    tp__interval any, every;    /* keys that any row, and that every row of the range sees */
} tp__sight;

/* Room for ranges of this many rows. */
tp__sight tp__sight_take(tp__arena *arena, int64_t range_rows, int tile_rows);

/* Looks at merged rows first..first+count-1 of the sequence, and returns the pairs that they see. With lists
   what is seen are slots of the list, and the rows are of one token. */
int64_t tp__sight_range(tp__sight *sight, const tp_problem *problem, const tp__keys *keys, int64_t first,
                        int64_t count);
/* The same for tokens: rows of one query head. */
int64_t tp__sight_tokens(tp__sight *sight, const tp_problem *problem, const tp__keys *keys,
                         int64_t first, int64_t count);

/* Fills tile_lo and tile_hi for rows row..row+rows-1 of the range and the `last` keys from `key` on; 0
   when none of them sees any. */
int tp__sight_tile(const tp__sight *sight, int64_t row, int64_t rows, int64_t key, int64_t last);

#endif
