/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two rows that were not interleaved. What lies between them is the change that is looked for and
 * whatever the host did meanwhile, and only part of the second can be known:
 *
 *     own spread   each file's slots are cut into 16 stretches; the medians of these give an
 *                  interval, which so holds slow windows within the run
 *     limits       multiply-add peak, the peak seen beside this very row, and read limit: the
 *                  interval must hold the ratio as measured and as a share of each limit
 *     noise        both A/A intervals are added
 */
#include "compare/compare.h"

#include <math.h>
#include <string.h>

enum { STRETCHES = 16 };

struct interval record_control(const struct record *record) {
    if (isnan(record->aa_low) || isnan(record->aa_high))
        return (struct interval){-INFINITY, NAN, INFINITY};
    return (struct interval){log(record->aa_low), log(record->aa_ratio), log(record->aa_high)};
}

/* Log medians of stretches of slots, or of the slots themselves where there are few. */
static size_t stretch_medians(const struct samples *rounds, double medians[STRETCHES]) {
    size_t count = rounds->count < STRETCHES ? rounds->count : STRETCHES;
    for (size_t i = 0; i < count; i++) {
        size_t from = i * rounds->count / count, to = (i + 1) * rounds->count / count;
        medians[i] = log(interval_median(rounds->values + from, to - from, 0, 0).middle);
    }
    return count;
}

static int add_limit(double a, double b, double *low, double *high, double *max) {
    double change = log(b / a); /* a faster host: the same time is a smaller share of it */
    if (!isfinite(change)) return 0;
    *low = fmin(*low, change);
    *high = fmax(*high, change);
    if (!(fabs(change) <= fabs(*max))) *max = change;
    return 1;
}

static double noise(const struct record *record) {
    struct interval control = record_control(record);
    return fmax(-control.low, control.high);
}

static void refuse(struct comparison *comparison, const char *note) {
    comparison->ratio.low = -INFINITY;
    comparison->ratio.high = INFINITY;
    snprintf(comparison->note, sizeof comparison->note, "%s", note);
}

void compare_records(const struct record *a, const struct record *b, uint64_t seed,
                     struct comparison *comparison) {
    double first[STRETCHES], second[STRETCHES], low = 0, high = 0, max = NAN;
    size_t first_count = stretch_medians(&a->rounds, first);
    size_t second_count = stretch_medians(&b->rounds, second);
    int same_isa = !strcmp(a->isa, b->isa), limits = 0;
    *comparison = (struct comparison){
        .ratio = interval_shift(first, first_count, second, second_count, miss_share, seed)};
    limits += same_isa && add_limit(a->peak, b->peak, &low, &high, &max);
    limits += same_isa && add_limit(a->here, b->here, &low, &high, &max);
    limits += add_limit(a->read, b->read, &low, &high, &max);
    comparison->host_change = max;
    comparison->ratio.low += low - noise(a) - noise(b);
    comparison->ratio.high += high + noise(a) + noise(b);
    int a_same = speed_of(record_control(a)) == SPEED_SAME;
    int b_same = speed_of(record_control(b)) == SPEED_SAME;
    if (strcmp(a->machine, b->machine))
        refuse(comparison, "another machine");
    else if (!a_same || !b_same)
        refuse(comparison, a_same   ? "A/A of B is not SAME"
                           : b_same ? "A/A of A is not SAME"
                                    : "A/A of both is not SAME");
    else if (!limits)
        refuse(comparison, "no limit in common");
    else if (!isfinite(comparison->ratio.low))
        refuse(comparison, "too few rounds");
}

/* Borders are where the plan changes: the table of key blocks by head dim, one block, one chunk. */
tp_status record_bucket(struct record *record, tp_error *error) {
    static const int64_t dims[] = {64, 128, 256, TP_MAX_HEAD_DIM};
    tp_problem problem;
    tp_status status = bench_words_check(record->problem, &problem, error);
    if (status != TP_OK) return status;
    int64_t dim =
        problem.head_dim_qk > problem.head_dim_v ? problem.head_dim_qk : problem.head_dim_v;
    int64_t block = tp_block_keys(dim), keys = problem.kv_len;
    char dim_class[32] = "d>576", key_class[32];
    for (int i = 3; i >= 0; i--)
        if (dim <= dims[i]) snprintf(dim_class, sizeof dim_class, "d<=%d", (int)dims[i]);
    if (keys > TP_CHUNK_KEYS)
        snprintf(key_class, sizeof key_class, "k>%d", TP_CHUNK_KEYS);
    else
        snprintf(key_class, sizeof key_class, "k<=%d", keys <= block ? (int)block : TP_CHUNK_KEYS);
    snprintf(record->bucket, sizeof record->bucket, "%.16s %s %s %s", record->phase,
             tp_dtype_name((tp_dtype)problem.k_dtype), dim_class, key_class);
    return TP_OK;
}
