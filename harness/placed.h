/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call's tensors in the memory of a device: a copy there of every tensor and of what scores read, poison and gaps included.
 * Index arrays stay on the host, or go along.
 */
#ifndef TILEPROOF_HARNESS_PLACED_H
#define TILEPROOF_HARNESS_PLACED_H

#include "harness/tensors.h"

enum { PLACED_PIECES = 24 };

struct placed {
    tp_context *context;
    int device;
    tp_tensors call; /* with addresses of the device */
    tp_gradients gradients;
    struct placed_piece {
        char *here, *there;
        size_t bytes;
        int written; /* by a run: o and lse, or gradients */
    } pieces[PLACED_PIECES];
    int count;
};

/* Everything is there when it returns. On failure nothing is left. */
tp_status placed_create(struct placed *placed, tp_context *context, int device, const struct tensors *tensors, int indices_too,
                        tp_error *error);
/* Copies what a run writes back to where it came from. */
tp_status placed_fetch(const struct placed *placed, tp_error *error);
void placed_destroy(struct placed *placed);

#endif
