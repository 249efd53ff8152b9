/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_KVCACHE_ROTATE_H
#define TP_KVCACHE_ROTATE_H

#include "kvcache/kvcache.h"
#include "rope/rope.h"

/* Cosines and sines of one token. */
typedef struct tp__kv_rotation {
    const float *cosines, *sines;
    float scratch[2][TP__ROPE_PAIRS_MAX];
} tp__kv_rotation;

/* append.c: data is there and aligned, strides are sound. */
tp_status tp__kv_check_tensor(const char *name, const tp_tensor *tensor, int32_t dtype, tp_error *error);

/* The rules of rotary, positions, norms and q; `all` rows, whose sequences have been checked. */
tp_status tp__kv_check_rotation(const tp_cache *cache, int64_t layer, const tp_cache_rows *rows, int64_t all, tp_error *error);

/* By which dynamic and longrope go: the caller's, or that of the greatest position of the sequence's rows. */
int64_t tp__kv_current_length(const tp_cache_rows *rows, int64_t all, int64_t row, int64_t token, int64_t tokens);
/* Returns the token's position, or TP__KV_NOWHERE where only its angles are known. */
int64_t tp__kv_angles(tp__kv_rotation *rotation, const tp_cache_rows *rows, int64_t all, int64_t row, int64_t token,
                      int64_t length);

#endif
