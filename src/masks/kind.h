/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of mask kinds share. */
#ifndef TP_MASKS_KIND_H
#define TP_MASKS_KIND_H

#include "base/error.h"
#include "masks/mask.h"

/* Positions stay within +-2^40, so that no sum of a position and a value can overflow. */
#define TP__MASK_VALUE_MAX ((int64_t)1 << 40)

static inline tp_status tp__mask_takes_none(const tp_mask_node *node, const char *name,
                                            tp_error *error) {
    TP_REQUIRE(node->a == 0 && node->b == 0, error, TP_INVALID,
               "mask %s has values %lld,%lld: it takes none", name, (long long)node->a,
               (long long)node->b);
    return TP_OK;
}

/* One value, from least on. */
static inline tp_status tp__mask_takes_one(const tp_mask_node *node, const char *name, int64_t min,
                                           tp_error *error) {
    TP_REQUIRE(node->a >= min && node->a <= TP__MASK_VALUE_MAX, error, TP_INVALID,
               "mask %s has value %lld: it must be in %lld..2^40", name, (long long)node->a,
               (long long)min);
    TP_REQUIRE(node->b == 0, error, TP_INVALID, "mask %s has a second value, %lld: it takes one", name,
               (long long)node->b);
    return TP_OK;
}

static inline int tp__mask_always_data(const tp_mask_node *node) {
    (void)node;
    return 1;
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
