/* SPDX-License-Identifier: Apache-2.0 */
/* tp_reference: the entry point. Everything is checked before the first result is written. */
#include "reference/reference.h"

#include <stdlib.h>

#include "base/control.h"
#include "base/structs.h"
#include "reference/rounding.h"

static tp_status check_row(const tp_problem *problem, const tp_tensors *tensors, int64_t i,
                           const tp_row *row, int64_t *kv_len, tp_error *error) {
    TP_REQUIRE(row->seq >= 0 && row->seq < tensors->batch, error, TP_INVALID,
               "rows[%lld].seq is %lld: it must be at least 0 and below batch = %lld", (long long)i, (long long)row->seq,
               (long long)tensors->batch);
    TP_REQUIRE(row->head >= 0 && row->head < problem->q_heads, error, TP_INVALID,
               "rows[%lld].head is %lld: it must be a query head in 0..%lld", (long long)i,
               (long long)row->head, (long long)problem->q_heads - 1);
    tp__sequence sequence = tp__sequence_at(problem, tensors, row->seq);
    TP_REQUIRE(row->row >= 0 && row->row < sequence.q_len, error, TP_INVALID,
               "rows[%lld].row is %lld: it must be at least 0 and below %lld, the rows of sequence %lld",
               (long long)i, (long long)row->row, (long long)sequence.q_len, (long long)row->seq);
    TP_TRY(tp__reference_data(problem, tensors, row->seq, &sequence, error));
    int64_t keys = problem->sparse_len > 0 ? tp__sparse_count(problem, tensors, &sequence, row->row) : sequence.kv_len;
    if (keys > *kv_len) *kv_len = keys;
    return TP_OK;
}

tp_status tp_reference(const tp_problem *problem, const tp_tensors *tensors, tp_precision precision,
                       tp_arithmetic arithmetic, int64_t count, const tp_row *rows, double *o, double *lse,
                       double *bound, double *lse_bound, tp_error *error) {
    TP_STRUCT_IN(tp_problem, problem, error);
    TP_TRY(tp_problem_check(problem, error));
    tp__tensors_here here;
    TP_TRY(tp__tensors_in(&tensors, problem->op, &here, error));
    tp_tensors inputs; /* outputs are neither read nor written */
    TP_TRY(tp__reference_inputs(problem, tensors, &inputs, error));
    TP_REQUIRE(precision == TP_DOUBLE || precision == TP_NAIVE, error, TP_INVALID,
               "precision is %d: it must be TP_DOUBLE (0) or TP_NAIVE (1)", (int)precision);
    TP_REQUIRE(tp__rounding_of(arithmetic) != NULL, error, TP_INVALID,
               "arithmetic is %d: it must be one of tp_arithmetic, as a receipt says", (int)arithmetic);
    TP_REQUIRE(count >= 0, error, TP_INVALID, "count is %lld: it must be >= 0", (long long)count);
    TP_REQUIRE(rows != NULL || count == 0, error, TP_INVALID,
               "rows is NULL: it must hold count = %lld rows", (long long)count);
    int64_t kv_len = 0, dv = problem->head_dim_v;
    int bounds = bound != NULL || lse_bound != NULL;
    for (int64_t i = 0; i < count; i++)
        TP_TRY(check_row(problem, &inputs, i, &rows[i], &kv_len, error));

    void *memory = malloc(tp__row_scratch(problem, kv_len));
    TP_REQUIRE(memory != NULL, error, TP_NO_MEMORY, "no memory for a row of %lld keys",
               (long long)kv_len);
    tp__control saved = tp__control_take();
    tp__reference_row row = {.problem = problem, .rounding = tp__rounding_of(arithmetic), .tensors = &inputs,
                             .scale = tp__scale(problem)};
    tp__row_memory(&row, kv_len, memory);
    for (int64_t i = 0; i < count; i++) {
        double row_bound = 0, row_lse_bound = 0;
        tp__row_place(&row, &rows[i]);
        if (precision == TP_DOUBLE || bounds)
            tp__row_double(&row);
        else
            tp__row_keys(&row);
        if (bounds) tp__row_bound(&row, &row_bound, &row_lse_bound);
        if (precision == TP_NAIVE) tp__row_naive(&row);
        for (int64_t x = 0; x < dv && o != NULL; x++) o[i * dv + x] = row.o[x];
        if (lse != NULL) lse[i] = row.lse;
        if (bound != NULL) bound[i] = row_bound;
        if (lse_bound != NULL) lse_bound[i] = row_lse_bound;
    }
    tp__control_restore(saved);
    free(memory);
    return TP_OK;
}
