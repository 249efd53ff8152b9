/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merging states of disjoint key sets, row by row, with M = max_i lse_i over the non-empty states:
 *
 *     z = sum_i exp(lse_i - M),   lse = M + log z,   o = sum_i exp(lse_i - M)/z * o_i
 *
 * Weights and sums are double, left to right, and each result is rounded to float once, so that the
 * error is u|o| and does not grow with the number of states. What the inputs' own rounding costs is
 * in docs/maths.md.
 */
#include "tileproof.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/control.h"
#include "base/error.h"

typedef struct merge {
    int64_t parts, dim;
    const float *const *o_parts;
    const float *const *lse_parts;
} merge;

enum { BATCH = 64 }; /* columns summed at a time, so that no memory is needed */

static int overlap(const float *a, size_t a_count, const float *b, size_t b_count) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    if (a_count == 0 || b_count == 0) return 0;
    return x < y + b_count * sizeof(float) && y < x + a_count * sizeof(float);
}

static tp_status check_pointers(const merge *all, int64_t rows, const float *o, const float *lse,
                                tp_error *error) {
    size_t values = (size_t)(rows * all->dim), sums = (size_t)rows;
    TP_REQUIRE(o != NULL || values == 0, error, TP_INVALID,
               "o is NULL: it must hold rows * dim = %zu floats", values);
    TP_REQUIRE(lse != NULL || sums == 0, error, TP_INVALID,
               "lse is NULL: it must hold rows = %zu floats", sums);
    TP_REQUIRE(!overlap(o, values, lse, sums), error, TP_INVALID,
               "o at %p and lse at %p overlap: outputs must be apart", (const void *)o,
               (const void *)lse);
    TP_REQUIRE(all->parts == 0 || sums == 0 || (all->o_parts != NULL && all->lse_parts != NULL),
               error, TP_INVALID, "%s is NULL: it must hold parts = %lld pointers",
               all->o_parts == NULL ? "o_parts" : "lse_parts", (long long)all->parts);
    for (int64_t i = 0; i < all->parts && sums > 0; i++) {
        const float *part = all->o_parts[i], *part_lse = all->lse_parts[i];
        long long n = i;
        TP_REQUIRE(part != NULL || values == 0, error, TP_INVALID,
                   "o_parts[%lld] is NULL: it must hold rows * dim = %zu floats", n, values);
        TP_REQUIRE(part_lse != NULL, error, TP_INVALID,
                   "lse_parts[%lld] is NULL: it must hold rows = %zu floats", n, sums);
        TP_REQUIRE((i == 0 && o == part) || !overlap(o, values, part, values), error, TP_INVALID,
                   "o at %p overlaps o_parts[%lld] at %p: it may only be o_parts[0] itself",
                   (const void *)o, n, (const void *)part);
        TP_REQUIRE((i == 0 && lse == part_lse) || !overlap(lse, sums, part_lse, sums), error,
                   TP_INVALID,
                   "lse at %p overlaps lse_parts[%lld] at %p: it may only be lse_parts[0] itself",
                   (const void *)lse, n, (const void *)part_lse);
        TP_REQUIRE(!overlap(o, values, part_lse, sums), error, TP_INVALID,
                   "o at %p overlaps lse_parts[%lld] at %p: they must be apart", (const void *)o, n,
                   (const void *)part_lse);
        TP_REQUIRE(!overlap(lse, sums, part, values), error, TP_INVALID,
                   "lse at %p overlaps o_parts[%lld] at %p: they must be apart", (const void *)lse,
                   n, (const void *)part);
    }
    return TP_OK;
}

/* o = sum of the non-empty states, each by its share; every column is read before it is written. */
static void weighted_sum(const merge *all, int64_t row, double max, double sum, float *o) {
    for (int64_t first = 0; first < all->dim; first += BATCH) {
        int64_t count = all->dim - first < BATCH ? all->dim - first : BATCH;
        double total[BATCH] = {0};
        for (int64_t i = 0; i < all->parts; i++) {
            double lse = all->lse_parts[i][row];
            if (lse == -INFINITY) continue;
            double share = exp(lse - max) / sum;
            const float *part = all->o_parts[i] + row * all->dim + first;
            for (int64_t x = 0; x < count; x++) total[x] += share * part[x];
        }
        for (int64_t x = 0; x < count; x++) o[first + x] = (float)total[x];
    }
}

static void merge_row(const merge *all, int64_t row, float *o, float *lse) {
    int64_t held = 0, last = 0;
    double max = -INFINITY, sum = 0;
    int spoilt = 0;
    for (int64_t i = 0; i < all->parts; i++) {
        double one = all->lse_parts[i][row];
        if (one == -INFINITY) continue;
        spoilt |= isnan(one) || one == INFINITY;
        if (one > max) max = one;
        held++;
        last = i;
    }
    if (spoilt || held == 0) {
        for (int64_t x = 0; x < all->dim; x++) o[x] = spoilt ? NAN : 0;
        *lse = spoilt ? NAN : -INFINITY;
        return;
    }
    if (held == 1) {
        /* may be the same memory; bit for bit, so that a NaN keeps its payload and 0 its sign */
        if (all->dim > 0)
            memmove(o, all->o_parts[last] + row * all->dim, (size_t)all->dim * sizeof *o);
        *lse = all->lse_parts[last][row];
        return;
    }
    for (int64_t i = 0; i < all->parts; i++) {
        double one = all->lse_parts[i][row];
        if (one > -INFINITY) sum += exp(one - max);
    }
    weighted_sum(all, row, max, sum, o);
    *lse = (float)(max + log(sum));
}

tp_status tp_merge(int64_t parts, int64_t rows, int64_t dim, const float *const *o_parts,
                   const float *const *lse_parts, float *o, float *lse, tp_error *error) {
    int64_t values, bytes;
    TP_REQUIRE(parts >= 0, error, TP_INVALID, "parts is %lld: it must be >= 0", (long long)parts);
    TP_REQUIRE(rows >= 0, error, TP_INVALID, "rows is %lld: it must be >= 0", (long long)rows);
    TP_REQUIRE(dim >= 0, error, TP_INVALID, "dim is %lld: it must be >= 0", (long long)dim);
    TP_REQUIRE(!__builtin_mul_overflow(rows, dim > 0 ? dim : 1, &values) &&
                   !__builtin_mul_overflow(values, (int64_t)sizeof(float), &bytes) &&
                   (uint64_t)bytes <= SIZE_MAX / 2,
               error, TP_INVALID,
               "rows * dim is %lld * %lld: the bytes of one state must be addressable",
               (long long)rows, (long long)dim);
    const merge all = {parts, dim, o_parts, lse_parts};
    TP_TRY(check_pointers(&all, rows, o, lse, error));
    tp__control saved = tp__control_take();
    for (int64_t row = 0; row < rows; row++)
        merge_row(&all, row, dim > 0 ? o + row * dim : o, lse + row);
    tp__control_restore(saved);
    return TP_OK;
}
