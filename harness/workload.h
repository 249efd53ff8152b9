/* SPDX-License-Identifier: Apache-2.0 */
/* A problem with everything that a run of it takes: tensors with random values, and the gradients of a backward call. */
#ifndef TILEPROOF_HARNESS_WORKLOAD_H
#define TILEPROOF_HARNESS_WORKLOAD_H

#include "harness/gradients.h"

enum { WORKLOAD_WORDS = 512 };

struct workload {
    char words[WORKLOAD_WORDS]; /* as the caller names it, in reports */
    struct tensors tensors;     /* the problem, too */
    struct gradients gradients; /* of a backward problem */
};

/* Refuses what would take more than 3/4 of this host's memory. Values recur (see tensors_style), so that large tensors
   are filled fast. Close it in any case but an error. */
tp_status workload_open(struct workload *workload, const char *words, const tp_problem *problem,
                        const tp_lengths *lengths, enum tensors_form form, uint64_t seed, tp_error *error);
void workload_close(struct workload *workload);
/* Runs what must have run before the call itself: the forward call, whose o and lse a backward one reads. */
tp_status workload_prepare(struct workload *workload, tp_context *context, tp_error *error);
/* After a backward call: 0 when all gradients keep their rule. Costs more than any run. */
int workload_gradients_wrong(const struct workload *workload, char *reason, size_t size);

#endif
