/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of one kernel function, on its own: sizes and values from dice, every buffer at the edge of a page without access,
 * inputs read only, what was written against plain C in double. kernel_functions.c walks functions.inc; each op has its
 * test, test_<op>, in one of the other files. A row of the table without a test does not link.
 */
#ifndef TP_TESTS_KERNELS_TRIAL_H
#define TP_TESTS_KERNELS_TRIAL_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "kernels/set.h"
#include "support/guard.h"

enum { MAX_ZONES = 40 };

/* What is in the floats of a trial, beside ordinary numbers. */
enum content { ORDINARY, WITH_NAN /* and zeros, which NaN meets */, WITH_SUBNORMALS, WITH_LARGE, CONTENTS };

struct zone {
    guard memory;
    char *at;
    size_t bytes;
    int is_input;
};

struct trial {
    const tp__kernel_set *set;
    tp_dtype dtype;
    const char *name; /* "tp_qk_bf16_avx2" */
    uint64_t seed, rolled;
    enum content content;
    int bench, failed;
    double ns;        /* of one call, where bench */
    char shape[400];  /* "rows 5 d 40 ..." */
    char reason[400];
    struct zone zone[MAX_ZONES];
    int zones;
    tp__trace trace;
};

uint64_t roll(struct trial *t);
/* 0..below-1 */
int64_t roll_below(struct trial *t, int64_t below);
int one_in(struct trial *t, int n);
/* A size in lo..hi, often at an end or near a multiple of 16; the typical one where it is timed. */
int64_t pick(struct trial *t, const char *name, int64_t lo, int64_t hi, int64_t typical);
/* Ordinary numbers of both signs, and now and then one of the trial's content. */
float ordinary(struct trial *t);
float any_value(struct trial *t);
/* What a tensor of the dtype holds of a value. */
float as_held(tp_dtype dtype, float value);

/* Memory of exactly these bytes, aligned to the unit and to nothing else, with a page without access on one side. Inputs are
   filled in first, and cannot be written once the trial runs. */
void *input(struct trial *t, int64_t count, size_t unit);
void *output(struct trial *t, int64_t count, size_t unit);
float *input_floats(struct trial *t, int64_t count);  /* of any value */
float *output_floats(struct trial *t, int64_t count); /* full of a NaN that nothing computes */
int is_untouched(float value);

/* Runs the call: once, with its count checked; or for some milliseconds, timed. */
void trial_seal(struct trial *t);
void trial_count(struct trial *t);
int trial_again(struct trial *t);
#define RUN(t, call)                              \
    do {                                          \
        trial_seal(t);                            \
        do {                                      \
            call;                                 \
        } while (trial_again(t));                 \
    } while (0)

/* Fails the trial. */
void wrong(struct trial *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Fails it unless both are the same float, NaN whatever its bits. */
void expect_same(struct trial *t, const char *what, int64_t row, int64_t column, float got, float expected);
/* Unless the error is within the tolerance. Where the expected value is not finite, or the tolerance is not: NaN must be NaN,
   infinity that infinity or NaN, and anything is right where no tolerance is known. */
void expect_near(struct trial *t, const char *what, int64_t row, int64_t column, float got, double expected, double tolerance);

static inline int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/* Errors of sums of n products in float: of the products and of the additions. */
static inline double sum_error(int64_t n) { return (double)(2 * n + 16) * 0x1p-24; }

/* Keys of a block somewhere in memory: [row][count] elements of the dtype, those of first..last-1 at the edges of pages. */
struct keys {
    tp__keys_in in;
    tp__ahead ahead;
    const char **row;
    int64_t count, d;
    float *value; /* [count][d], as they are held */
};
void keys_make(struct trial *t, struct keys *keys, tp_dtype dtype, int64_t count, int64_t first, int64_t last, int64_t d);
/* The same of codes: dtype is one of tp__stored_as. What they are held as is code * scale, rounded to a float. */
void codes_make(struct trial *t, struct keys *keys, int dtype, int64_t count, int64_t first, int64_t last, int64_t d);

/* Every op of functions.inc. */
#define TP_FUNCTION(op, dtype, ...) void test_##op(struct trial *t);
#include "kernels/functions.inc"
#undef TP_FUNCTION

#endif
