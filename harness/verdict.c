/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/stats.h"

enum { RESAMPLES = 2000 };
const char *const speed_words[] = {"SAME", "FAST", "SLOW", "AMBIGUOUS"};
const double look_miss = 0.01 / LOOK_COUNT;
const size_t look_rounds[LOOK_COUNT] = {32, 128, 512, 2048};

/* splitmix64: a counter through a mixer. */
static uint64_t next_bits(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* How many of the lowest values the sign test may leave out: the largest k with
   2 P(Binomial(count, 1/2) < k) <= miss. 0: too few values for any interval. */
static size_t sign_rank(size_t count, double miss) {
    double log_part = -(double)count * log(2), below = exp(log_part);
    size_t k = 0;
    while (k < count / 2 && 2 * below <= miss) {
        k++;
        log_part += log((double)(count - k + 1)) - log((double)k);
        below += exp(log_part);
    }
    return k;
}

/* The median of one resample: how often each rank was drawn, then a walk to the middle. */
static double resampled_median(const double *sorted, size_t count, uint32_t *drawn,
                               uint64_t *state) {
    memset(drawn, 0, count * sizeof *drawn);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = next_bits(state) >> 32;
        drawn[(bits * count) >> 32]++;
    }
    size_t seen = 0, at = 0, lower = (count - 1) / 2, upper = count / 2;
    while (seen + drawn[at] <= lower) seen += drawn[at++];
    double low = sorted[at];
    while (seen + drawn[at] <= upper) seen += drawn[at++];
    return 0.5 * (low + sorted[at]);
}

struct interval interval_median(const double *values, size_t count, double miss, uint64_t seed) {
    struct interval interval = {-INFINITY, NAN, INFINITY};
    double *sorted = malloc((count + RESAMPLES + 1) * sizeof *sorted), *medians = sorted + count;
    uint32_t *drawn = malloc((count + 1) * sizeof *drawn);
    size_t rank = sign_rank(count, miss);
    if (sorted && drawn && count) {
        memcpy(sorted, values, count * sizeof *sorted);
        sort_values(sorted, count);
        interval.middle = sorted_quantile(sorted, count, 0.5);
    }
    if (sorted && drawn && rank) {
        for (int i = 0; i < RESAMPLES; i++)
            medians[i] = resampled_median(sorted, count, drawn, &seed);
        sort_values(medians, RESAMPLES);
        /* with few values the bootstrap of a median is too narrow; the sign test never is */
        interval.low = fmin(sorted_quantile(medians, RESAMPLES, miss / 2), sorted[rank - 1]);
        interval.high =
            fmax(sorted_quantile(medians, RESAMPLES, 1 - miss / 2), sorted[count - rank]);
    }
    free(sorted);
    free(drawn);
    return interval;
}

/* Both intervals hold together at least as often as asked, and then so does their difference. */
struct interval interval_shift(const double *first, size_t first_count, const double *second,
                               size_t second_count, double miss, uint64_t seed) {
    struct interval a = interval_median(first, first_count, miss / 2, seed);
    struct interval b = interval_median(second, second_count, miss / 2, ~seed);
    return (struct interval){b.low - a.high, b.middle - a.middle, b.high - a.low};
}

size_t paired_ratios(const double *first, const double *second, size_t slots, double *ratios) {
    size_t rounds = slots / 2;
    for (size_t i = 0; i < rounds; i++)
        ratios[i] =
            0.5 * (log(second[2 * i] / first[2 * i]) + log(second[2 * i + 1] / first[2 * i + 1]));
    return rounds;
}

enum speed speed_of(struct interval ratio) {
    double max = log1p(same_share);
    if (ratio.low >= -max && ratio.high <= max) return SPEED_SAME;
    if (ratio.high < -max) return SPEED_FAST;
    return ratio.low > max ? SPEED_SLOW : SPEED_AMBIGUOUS;
}

enum speed speed_judge(struct interval ratio, struct interval control) {
    return speed_of(control) == SPEED_SAME ? speed_of(ratio) : SPEED_AMBIGUOUS;
}

/* A control that is clearly off will not come right with more rounds. */
int speed_is_final(struct interval ratio, struct interval control) {
    enum speed host = speed_of(control);
    return host == SPEED_FAST || host == SPEED_SLOW ||
           (host == SPEED_SAME && speed_of(ratio) != SPEED_AMBIGUOUS);
}

void trust_add(struct trust *trust, struct interval control) {
    const struct interval *widest = &trust->widest;
    if (!trust->controls++ || !(control.high - control.low <= widest->high - widest->low))
        trust->widest = control;
}

int trust_line(const struct trust *trust, char *text, size_t size) {
    struct interval widest = trust->widest;
    int known = trust->controls && isfinite(widest.low) && isfinite(widest.high);
    enum speed word = known ? speed_of(widest) : SPEED_AMBIGUOUS;
    if (known)
        snprintf(text, size, "host: %s A/A %s (%.3f..%.3f)",
                 word == SPEED_SAME ? "trusted," : "untrusted:", speed_words[word], exp(widest.low),
                 exp(widest.high));
    else
        snprintf(text, size, "host: untrusted: too few rounds for an A/A control, -r makes more");
    return word == SPEED_SAME;
}
