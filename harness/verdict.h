/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What paired times say, and how sure that is. Everything here is a log ratio of times: 0 is equal,
 * below 0 the second one is faster. docs/statistics.md has the method and what it was tested with.
 */
#ifndef TILEPROOF_HARNESS_VERDICT_H
#define TILEPROOF_HARNESS_VERDICT_H

#include <stddef.h>
#include <stdint.h>

enum speed { SPEED_SAME, SPEED_FAST, SPEED_SLOW, SPEED_AMBIGUOUS };
extern const char *const speed_words[];

struct interval {
    double low, middle, high; /* low and high infinite: too few values for the level asked */
};

/* Ratios within 1/(1+t)..1+t count as the same. */
static const double same_share = 0.03;
/* Share of intervals that may miss: 99 % hold. */
static const double miss_share = 0.01;

/* Rounds after which a comparison looks at its times and may stop. Each look may miss by its part
   of the share, so that all of them together keep it. */
enum { LOOK_COUNT = 4 };
extern const size_t look_rounds[LOOK_COUNT];
extern const double look_miss;

/* Median of the values and its bootstrap interval, never narrower than that of the sign test. The
   order of the values does not matter; equal seeds give equal intervals. miss 0: only the median.
 */
struct interval interval_median(const double *values, size_t count, double miss, uint64_t seed);
/* median(second) - median(first) of two sets that were not taken in pairs. */
struct interval interval_shift(const double *first, size_t first_count, const double *second,
                               size_t second_count, double miss, uint64_t seed);
/* log(second/first) round by round: slots 2i and 2i+1 are one round, forth and back. Returns how
   many; ratios has room for slots / 2. */
size_t paired_ratios(const double *first, const double *second, size_t slots, double *ratios);

/* The rule for one interval. */
enum speed speed_of(struct interval ratio);
/* The same, if the A/A control of the run is SAME; otherwise AMBIGUOUS. */
enum speed speed_judge(struct interval ratio, struct interval control);
/* No further round can be worth its time: decided. */
int speed_is_final(struct interval ratio, struct interval control);

/* What the A/A controls of a run say of the host: the widest one counts. */
struct trust {
    int controls;
    struct interval widest;
};
void trust_add(struct trust *trust, struct interval control);
/* "host: trusted, A/A SAME (0.998..1.003)", or why not. Nonzero when it is trusted. */
int trust_line(const struct trust *trust, char *text, size_t size);

#endif
