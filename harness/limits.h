/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this host can do at best, measured in the same process and over the whole run: f32
 * multiply-adds from registers by ISA and thread count, plain reads of a buffer by thread count and
 * size. The highest figure is kept; share.h puts probes of a given length beside calls.
 */
#ifndef TILEPROOF_HARNESS_LIMITS_H
#define TILEPROOF_HARNESS_LIMITS_H

#include "harness/stats.h"
#include "tileproof.h"

enum { MAX_LIMITS = 64 };

struct limits {
    tp_context *context;
    void *buffer;
    size_t bytes;
    const char *reader; /* the kernel whose vectors read: the host's best */
    int fma_count, read_count;
    struct fma_limit {
        const char *isa;
        int threads;
        double gflops;
        int attempts;
        struct samples here; /* since limits_forget */
    } fma[MAX_LIMITS];
    struct read_limit {
        int threads, streams; /* of the best attempt */
        size_t bytes;         /* read: the first ones of the buffer, or all */
        double gbps;
        int attempts;
    } read[MAX_LIMITS];
};

/* mib: size of the buffer; 0: reads are not measured. Close it in any case. */
tp_status limits_open(struct limits *limits, tp_context *context, int64_t mib, tp_error *error);
void limits_close(struct limits *limits);

const tp_kernel_info *kernel_named(const char *name); /* NULL: no such kernel in this build */
/* Can this host run it? */
int kernel_runs(const tp_context *context, const tp_kernel_info *kernel);
/* Does the table say that it serves the problem: head dims, op, dtypes? */
int kernel_takes(const tp_kernel_info *kernel, const tp_problem *problem);
/* Whose multiply-add peak limits this kernel: its own, and the best one's for math. */
const char *limits_isa(const struct limits *limits, const char *kernel);

/* Adds to what limits_measure looks at, and measures it once. */
void limits_want(struct limits *limits, const char *isa, int threads);
/* One more short attempt of every peak; of reads too when asked, with the streams that were best
   (all kinds the first time). */
void limits_measure(struct limits *limits, int reads);
/* The rate over about so many ns: attempts one after another, which also count for the highest. Reads are of so many
   bytes, but of 1 MiB and at most of the whole buffer, in the streams that are best for that size, and begin with one
   that is not timed: what fits in a cache comes from there. NAN when it cannot be measured. */
double limits_probe_fma(struct limits *limits, const char *isa, int threads, double ns);
double limits_probe_read(struct limits *limits, int threads, double bytes, double ns);
/* The highest seen of reads of so many bytes. */
double limits_read_of(struct limits *limits, int threads, double bytes);
/* The highest seen with at most so many threads, of reads that of the whole buffer; NAN when none was measured. */
double limits_fma(const struct limits *limits, const char *isa, int threads);
double limits_read(const struct limits *limits, int threads);
/* The median of the attempts since limits_forget: what the host gave while a group ran. */
double limits_here(struct limits *limits, const char *isa, int threads);
void limits_forget(struct limits *limits);
/* The least time in ns that limits of reading and of multiply-adds leave; NAN where one is unknown. */
double limits_roofline(const struct limits *limits, const char *isa, int threads, double flops, double bytes);

#endif
