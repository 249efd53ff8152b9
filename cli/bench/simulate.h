/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run of attention in a child process under callgrind's cache simulation: what goes between the
 * last cache and main memory, with no prefetcher, from a cold cache.
 */
#ifndef TILEPROOF_CLI_BENCH_SIMULATE_H
#define TILEPROOF_CLI_BENCH_SIMULATE_H

#include "cli.h"

enum { CACHE_LINE = 64 };

struct cache {
    int64_t bytes, ways;
};

struct caches {
    struct cache d1, ll;
    char note[256]; /* what had to be rounded; "" when nothing was */
};

struct simulation {
    /* of the child's receipt */
    char problem[512], kernel[64];
    int64_t bytes_compulsory, bytes_model, bytes_model_written;
    int64_t scores_written, workspace_bytes, pairs_visible;
    int64_t output_bytes; /* o, once */
    /* simulated, in bytes of whole lines */
    int64_t read;     /* lines that came from memory, */
    int64_t allocate; /* of these because a store missed them, */
    int64_t written;  /* dirty lines that went to memory, */
    int64_t leftover; /* of these after the call: they were still in the cache at its end */
    char reason[512]; /* why it was not run here, or what broke */
};

/* Sizes of this machine that callgrind can simulate; ll_asked 0: the machine's own last cache.
   Exit code, reason printed. */
int simulate_caches(const tp_machine *machine, int64_t ll_asked, struct caches *caches);
/* kernel NULL: the best that valgrind can run. Exit code with the reason in the struct:
   EXIT_REFUSED when it cannot run here, EXIT_FAILED when something broke. */
int simulate_run(const char *words, const char *kernel, int64_t seed, const struct caches *caches,
                 struct simulation *simulation);

#endif
