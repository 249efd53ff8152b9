/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tileproof compare: two files of `bench -o jsonl` that were recorded one after the other.
 *
 *     compare.c   the command: rows that belong together, buckets, the report
 *     file.c      the files
 *     judge.c     what two rows say of each other
 */
#ifndef TILEPROOF_CLI_COMPARE_COMPARE_H
#define TILEPROOF_CLI_COMPARE_COMPARE_H

#include "bench/bench.h"

struct record {
    char *problem, *phase, *kernel, *asked, *isa, *machine;
    int64_t threads;
    double peak, here, read;          /* limits of its file; NAN: not measured */
    double aa_ratio, aa_low, aa_high; /* NAN: too few rounds */
    struct samples rounds;            /* ns of each slot, in order */
    char bucket[96];
    int matched; /* the other file has this row */
};

struct recording {
    const char *name;
    struct record *records;
    size_t count;
};
/* Exit code; errors name file, line, field and rule. */
int recording_read(struct recording *recording, const char *name);
void recording_free(struct recording *recording);

struct comparison {
    struct interval ratio; /* time of b over that of a; infinite: nothing can be said */
    double host_change;    /* of the limit that changed most, as a log ratio; NAN: none in common */
    char note[128];        /* why nothing can be said */
};
/* Of one recording with another. */
void compare_records(const struct record *a, const struct record *b, uint64_t seed,
                     struct comparison *comparison);
struct interval record_control(const struct record *record);
/* Phase, dtype, class of head dim, class of keys. */
tp_status record_bucket(struct record *record, tp_error *error);

#endif
