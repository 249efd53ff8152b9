/* SPDX-License-Identifier: Apache-2.0 */
/* One run in a child process of its own, so that its peak memory is nobody else's. */
#ifndef TILEPROOF_CLI_BENCH_MEASURE_H
#define TILEPROOF_CLI_BENCH_MEASURE_H

#include "cli.h"

struct measurement {
    int failed; /* 0, or an exit code: EXIT_REFUSED when it does not run here */
    char reason[512];
    char kernel[64], problem[512]; /* of the receipt */
    int64_t scores_written, time_ns, pairs_visible;
    int64_t workspace_bytes; /* asked for */
    int64_t peak_bytes;      /* high-water mark of resident memory above the state before the run */
    double max_error;        /* against double, over rows sampled; NAN of a backward call, all of which is compared */
    int64_t rows;
    int threads;
    int32_t arithmetic;      /* tp_arithmetic of the receipt */
};

/* problem: words as bench takes them. kernel NULL: the library's own choice; otherwise that one,
   fallbacks permitted. */
void measure_in_child(const char *problem, const char *kernel, const struct options *options,
                      struct measurement *measurement);

#endif
