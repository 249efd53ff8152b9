/* SPDX-License-Identifier: Apache-2.0 */
#include "telemetry/receipt.h"

#include <string.h>

#include "base/arena.h"
#include "masks/mask.h"
#include "problem/sequence.h"
#include "strategies/strategy.h"

void tp_receipt_init(tp_receipt *receipt) {
    if (receipt == NULL) return;
    memset(receipt, 0, sizeof *receipt);
    receipt->struct_size = sizeof *receipt;
}

/* Keys that any row sees. Both ends of a row's interval never move left as its position grows, so the
   first row that sees anything has the left end and the last one the right end. */
static int64_t keys_read(const tp_problem *problem, const tp__sequence *seq) {
    int64_t position = tp__mask_first_position(problem, seq->q_len, seq->kv_len);
    tp__interval first = {0, 0}, last = {0, 0};
    for (int64_t row = 0; row < seq->q_len && first.lo == first.hi; row++)
        first = tp__mask_interval(problem, position + row, seq->kv_len);
    for (int64_t row = seq->q_len; row-- > 0 && last.lo == last.hi;)
        last = tp__mask_interval(problem, position + row, seq->kv_len);
    return last.hi - first.lo;
}

/* Each bit of a mask and each element of a bias that belongs to some row and key, once: dims with a stride of 0
   are shared. */
static int64_t compulsory_data(const tp_problem *problem, const tp_tensors *tensors) {
    const int64_t *bits = tensors->bits_stride, *bias = tensors->bias_stride;
    int64_t of_bits = 0, of_bias = 0, unit = (int64_t)tp_dtype_bytes((tp_dtype)problem->bias_dtype);
    for (int64_t s = 0; s < tensors->batch; s++) {
        tp__sequence seq = tp__sequence_at(problem, tensors, s);
        int64_t one = (bits[1] ? problem->q_heads : 1) * (bits[2] ? seq.q_len : seq.q_len > 0) *
                      ((seq.kv_len + 7) / 8);
        of_bits = bits[0] ? of_bits + one : tp__max(of_bits, one);
        one = (bias[1] ? problem->q_heads : 1) * (bias[2] ? seq.q_len : seq.q_len > 0) *
              (bias[3] ? seq.kv_len : seq.kv_len > 0);
        of_bias = bias[0] ? of_bias + one : tp__max(of_bias, one);
    }
    return (tp__mask_has(problem, TP_MASK_BITS) ? of_bits : 0) +
           (problem->bias_dtype ? of_bias * unit : 0);
}

static int64_t compulsory(const tp_problem *problem, const tp_tensors *tensors, int64_t keys_seen) {
    int64_t rows = 0, keys = keys_seen >= 0 ? keys_seen : 0;
    for (int64_t s = 0; s < tensors->batch; s++) {
        tp__sequence seq = tp__sequence_at(problem, tensors, s);
        rows += seq.q_len;
        if (keys_seen < 0) keys += keys_read(problem, &seq);
    }
    return rows * problem->q_heads * tp__row_bytes(problem, tensors) +
           keys * problem->kv_heads * tp__key_bytes(problem) + compulsory_data(problem, tensors);
}

/* The option whose leaf did the scores, told by the leaves alone. */
static const char *kernel_of(const tp__trace *trace) {
    for (int set = 0; set < TP__SETS; set++) {
        const int64_t *calls = trace->calls + set * TP__LEAVES_PER_ISA;
        if (calls[TP__LEAF_attend_f32] > 0) return tp__kernel_sets[set]->isa;
        if (calls[TP__LEAF_math_f32] > 0) return "math";
    }
    return "none";
}

void tp__receipt_fill(tp_receipt *receipt, const tp_problem *problem, const tp_tensors *tensors,
                      const tp_decision *decision, const tp__trace *trace, int64_t keys_seen) {
    tp_receipt_init(receipt);
    receipt->fallback = decision->fallback;
    receipt->rewrites = decision->rewrites;
    for (int i = 0; i < TP__LEAF_COUNT && receipt->leaf_count < TP_MAX_RECEIPT_LEAVES; i++) {
        if (trace->calls[i] == 0) continue;
        receipt->leaf[receipt->leaf_count].name = tp_leaf_name(i);
        receipt->leaf[receipt->leaf_count++].calls = trace->calls[i];
    }
    receipt->kernel = kernel_of(trace);
    receipt->decision = decision;
    if (tp_problem_print(problem, tensors, receipt->problem, sizeof receipt->problem) != TP_OK)
        strcpy(receipt->problem, "(its text form is too long)");
    memcpy(receipt->numerics_id, decision->numerics_id, sizeof receipt->numerics_id);
    receipt->pairs_visible = trace->pairs_visible;
    receipt->pairs_computed = trace->pairs_computed;
    receipt->padded_rows = trace->padded_rows;
    receipt->tiles_full = trace->tiles_full;
    receipt->tiles_partial = trace->tiles_partial;
    receipt->tiles_skipped = trace->tiles_skipped;
    receipt->bytes_compulsory = compulsory(problem, tensors, keys_seen);
    receipt->bytes_model = trace->bytes;
    receipt->scores_written = trace->scores_written;
    receipt->tiles_conservative = trace->tiles_conservative;
}
