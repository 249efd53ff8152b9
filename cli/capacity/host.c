/* SPDX-License-Identifier: Apache-2.0 */
#include "capacity/capacity.h"
#include "harness/limits.h"

#include <stdlib.h>
#include <unistd.h>

enum { ATTEMPTS = 8 }; /* spaced by each other: a busy host gives its best in some */

/* A number alone in a file; 0: there is none ("max"). */
static int64_t number_in(const char *path) {
    char text[32];
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    long long value = fgets(text, sizeof text, file) ? strtoll(text, NULL, 10) : 0;
    fclose(file);
    return value > 0 ? value : 0;
}

/* Containers see their own cgroup at the top of the tree, of either version. */
int64_t host_memory(void) {
    static const char *const files[] = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    for (int i = 0; i < 2; i++) {
        int64_t limit = number_in(files[i]);
        if (limit && limit < bytes) bytes = limit;
    }
    return bytes;
}

int host_limits(const struct options *options, tp_context *context, struct capacity_report *report) {
    tp_error error = TP_ERROR_INIT;
    struct limits limits;
    int threads = tp_context_threads(context);
    if (!options->read_mib) return EXIT_FINE; /* without reads there is no roof */
    tp_status status = limits_open(&limits, context, options->read_mib, &error);
    if (status == TP_OK) {
        report->isa = limits.reader;
        limits_want(&limits, report->isa, threads);
        for (int i = 1; i < ATTEMPTS; i++) limits_measure(&limits, 1);
        report->asked.gflops = limits_fma(&limits, report->isa, threads);
        report->asked.read_gbps = limits_read(&limits, threads);
    }
    limits_close(&limits);
    return status == TP_OK ? EXIT_FINE : complain_status(&error);
}
