/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that ends at any allocation. Every call of tileproof_proof.h that can allocate is made again and again, with
 * the first, the second, ... allocation failing, alone or with all that follow, until none is left to fail. Each
 * time: the status is TP_NO_MEMORY with a text, or the result is the very one of a call with memory; what was given is
 * as it was, nothing was written, nothing is lost. Allocations are those of the two libraries and of jansson (the
 * linker's --wrap, and json_set_alloc_funcs with blocks that free() would not take).
 */
#ifndef TEST_PROOF_MEMORY_H
#define TEST_PROOF_MEMORY_H

#include "support.h"

struct walk {
    const char *name;
    void *(*open)(const void *about); /* what the call is made on; NULL: nothing */
    tp_status (*call)(void *subject, const void *about, tp_error *error);
    /* What there is to see afterwards, written to memory_collect; `status` is the call's. */
    void (*show)(void *subject, const void *about, tp_status status);
    void (*close)(void *subject);
    int no_text; /* it takes no tp_error */
};

enum { MEMORY_OUT = 1 << 20 };
extern char memory_out[MEMORY_OUT]; /* what a call wrote */
extern size_t memory_used;
int memory_collect(void *cookie, const char *bytes, size_t size); /* a tp_write */

/* Before any call of jansson. */
void memory_begin(void);
/* The n-th allocation from now on fails; 0: none does. */
void memory_fail(long n);
/* How many allocations the call makes. */
long exhaust(const struct walk *walk, const void *about, tp_status expected);

#endif
