/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What serving a model's attention takes: capacity_cache.c counts what layers keep, capacity_work.c plans the calls of a step,
 * and capacity.c asks both, for the lengths that the caller names and for those that would still fit a limit.
 */
#ifndef TP_PROOF_CAPACITY_H
#define TP_PROOF_CAPACITY_H

#include "cache_format.h"
#include "sized.h"

/* How many tokens and sequences are asked about. */
typedef struct tp__load {
    int64_t context, concurrency;
} tp__load;

typedef struct tp__capacity_group {
    tp_capacity_cache cache[2]; /* by evicts */
    tp_capacity_work work[2];   /* by decode; `problem` is owned */
} tp__capacity_group;

struct tp_capacity {
    const tp_model *model;
    tp_context *context;
    tp_capacity_options options; /* threads and cache_dtype are known here */
    tp__format format;
    tp__capacity_group all;
    tp__capacity_group *groups;  /* as many as the model has */
};

/* Does this group keep keys and values at all? */
int tp__group_caches(const tp_layer_group *group);
/* Everything but what fits. Nonzero: beyond int64. */
int tp__cache_count(const tp_capacity *capacity, const tp_layer_group *group, const tp__load *load, int evicts,
                    tp_capacity_cache *cache);

/* The call of one layer of the group, planned. work, unless NULL, is filled in: of all layers of the group, `problem` to be
   freed. The error names model and layers. */
tp_status tp__work_plan(const tp_capacity *capacity, const tp_layer_group *group, const tp__load *load, int decode,
                        int64_t *workspace, tp_capacity_work *work, tp_error *error);

#endif
