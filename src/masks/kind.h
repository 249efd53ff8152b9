/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of mask kinds share. */
#ifndef TP_MASKS_KIND_H
#define TP_MASKS_KIND_H

#include "base/error.h"
#include "masks/mask.h"

/* Positions stay within +-2^40, so that no sum of a position and a value can overflow. */
#define TP__MASK_VALUE_MAX ((int64_t)1 << 40)

/*
 * What one row sees, as pairs.c adds it up: each end of an interval of keys is a constant, or q_pos plus a constant.
 * Where that holds up to some q_pos only, the kind says so, and is asked again from there on.
 */
struct tp__ends {
    int64_t fixed[2 + 2 * TP__MASK_PARTS], moving[2 * TP__MASK_PARTS]; /* moving: q_pos + c, as c */
    int fixed_count, moving_count;
    int64_t until;
};

static inline void tp__ends_fixed(tp__ends *ends, int64_t key) { ends->fixed[ends->fixed_count++] = key; }

static inline void tp__ends_moving(tp__ends *ends, int64_t distance) { ends->moving[ends->moving_count++] = distance; }

static inline void tp__ends_until(tp__ends *ends, int64_t q_pos) {
    if (q_pos < ends->until) ends->until = q_pos;
}

/* view.c: the first key at a position, or -1 where there is none. */
int64_t tp__mask_key_at(const tp__mask_view *view, int64_t position);
/* The keys whose positions lie in an interval; as an interval (is it exact?), or as bits. */
int tp__mask_keys_at(const tp__mask_view *view, tp__interval positions, tp__interval *keys);
void tp__mask_words_at(const tp__mask_view *view, tp__interval positions, int64_t key, int64_t count,
                       uint64_t *words);

/* ids.c: the same id, which is not negative. */
int tp__ids_allowed(tp__mask_view *view, tp__mask_ids *ids, int64_t row, int64_t key);
int tp__ids_interval(tp__mask_view *view, tp__mask_ids *ids, int64_t row, tp__interval *keys);
void tp__ids_words(tp__mask_view *view, tp__mask_ids *ids, int64_t row, int64_t key, int64_t count,
                   uint64_t *words);
void tp__ids_look(tp__mask_view *view, tp__mask_ids *ids);

#endif
