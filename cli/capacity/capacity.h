/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof capacity: what serving a model's attention takes of memory, and what this host can do with it at best. The counting
 * is the library's (tp_capacity_create); here options are read, the host is measured, and the figures are written.
 *
 *     capacity.c  the command        host.c   memory and limits of this host
 *     text.c      text and md        json.c   JSON
 */
#ifndef TILEPROOF_CLI_CAPACITY_CAPACITY_H
#define TILEPROOF_CLI_CAPACITY_CAPACITY_H

#include "cli.h"

/* What is written. */
struct capacity_report {
    const tp_model *model;
    const tp_capacity *capacity;
    tp_capacity_options asked; /* with the threads and the limit that count */
    char cache[64];            /* the name of its format */
    int own_limit;             /* the limit is --limit's, not this host's memory */
    const char *isa;           /* of the multiply-adds that were measured */
};

/* host.c: bytes that this process may have: the host's memory, or less where its cgroup says so. */
int64_t host_memory(void);
/* The host's limits into asked: gflops and read_gbps; isa names the vectors. Exit code, reason printed. */
int host_limits(const struct options *options, tp_context *context, struct capacity_report *report);

tp_capacity_cache capacity_cache(const struct capacity_report *report, int group, int evicts);
tp_capacity_work capacity_work(const struct capacity_report *report, int group, int decode);
/* Cache and the larger workspace of the two phases. */
int64_t capacity_total(const struct capacity_report *report, int evicts);
/* Would an engine that evicts keep less? */
int capacity_evicts(const struct capacity_report *report);

void capacity_text(const struct capacity_report *report, int md);
int capacity_json(const struct capacity_report *report); /* exit code */

#endif
