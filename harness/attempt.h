/* SPDX-License-Identifier: Apache-2.0 */
/* One plan and one run of it, with a poisoned workspace of exactly the size asked for. */
#ifndef TILEPROOF_HARNESS_ATTEMPT_H
#define TILEPROOF_HARNESS_ATTEMPT_H

#include "harness/tensors.h"

enum entry {
    ENTRY_SERIAL, /* our own loop: the tasks run one after another */
    ENTRY_POOL,   /* the context's pool */
    ENTRY_CALLER  /* our own parallel-for: one pthread a task; on a device, whose threads are its own: index arrays there */
};

struct workspace {
    void *memory;
    size_t bytes;
    enum guarded_side guarded; /* GUARDED_END: it ends, but for alignment, where a page without access begins */
};

struct attempt {
    tp_context *context;
    const tp_choice *choice;
    struct workspace *workspace; /* grows as needed; freed by workspace_free */
    enum entry entry;
    int threads;
    int poison; /* byte that fills the workspace beforehand; -1: leave it */
};

void workspace_free(struct workspace *workspace);
/* Ensures size bytes and a guard on both sides of them. 0, or nonzero when memory ran out. */
int workspace_grow(struct workspace *workspace, size_t bytes);

/* Plans and runs with deep checks. The receipt's decision is gone when this returns. */
tp_status attempt_run(const struct attempt *attempt, const struct tensors *tensors,
                      tp_receipt *receipt, tp_error *error);
/* Runs a plan that the caller keeps. */
tp_status attempt_run_plan(const struct attempt *attempt, const tp_plan *plan,
                           const struct tensors *tensors, tp_receipt *receipt, tp_error *error);

#endif
