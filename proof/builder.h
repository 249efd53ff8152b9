/* SPDX-License-Identifier: Apache-2.0 */
/* Layers come one at a time; those that ask for the same attention become one group. */
#ifndef TP_PROOF_BUILDER_H
#define TP_PROOF_BUILDER_H

#include "scope.h"

typedef struct tp__builder {
    tp__source *source;
    tp_layer_group **groups;
    int count, capacity;
    tp_rope_options rotations[2]; /* of full layers, and of those that slide; their factors are the builder's own */
} tp__builder;

/* What tp_model_parse makes. */
typedef struct tp__owned_model {
    tp_model model;
    tp_rope_options rotations[2]; /* the builder's */
} tp__owned_model;

/* The prototype was zeroed whole before its fields were set; its layers are not read. kv_shared is 1 for a layer without keys of
   its own: a group counts those. */
tp_status tp__builder_add(tp__builder *builder, const tp_layer_group *prototype, int layer);
/* Every rule that all groups must keep: heads divide, the core accepts dims and mask. */
tp_status tp__group_check(const tp__scope *scope, const tp_layer_group *group);
/* Takes the groups over. */
tp_status tp__builder_finish(tp__builder *builder, const char *model_type, tp_model **model);
void tp__builder_discard(tp__builder *builder);

#endif
