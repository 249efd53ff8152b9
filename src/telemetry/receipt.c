/* SPDX-License-Identifier: Apache-2.0 */
#include "telemetry/receipt.h"

#include <string.h>

#include "base/arena.h"
#include "base/structs.h"
#include "masks/mask.h"
#include "problem/sequence.h"
#include "strategies/visibility.h"

#define SLOTS ((int)(sizeof(((tp_receipt *)0)->function_id) / sizeof(uint16_t)))
#define NAMES ((int)(sizeof(((tp_receipt *)0)->launch_name) / sizeof(char *)))
/* A run calls one function of each op, which are as many as have one of f32. */
#define IS_f32 1
#define IS_f16 0
#define IS_bf16 0
#define IS_e4m3 0
#define IS_i8 0
#define IS_i4 0
#define IS_q8_0 0
#define TP_FUNCTION(op, dtype, slot, forms) +IS_##dtype
enum {
    OPS = 0
#include "kernels/functions.inc"
};
#undef TP_FUNCTION
_Static_assert((int)OPS <= SLOTS, "a receipt has a slot for every op of a kernel set");

void tp_receipt_init_sized(tp_receipt *receipt, size_t size) {
    static const tp_receipt none;
    TP_STRUCT_INIT(tp_receipt, receipt, size, &none);
}

tp_status tp__receipt_in(tp_receipt **filled, tp_receipt *here, tp_error *error) {
    if (*filled == NULL || (*filled)->struct_size == sizeof *here) return TP_OK;
    TP_REQUIRE_SIZE(tp_receipt, (*filled)->struct_size, error);
    *filled = here;
    return TP_OK;
}

void tp__receipt_out(tp_receipt *receipt, const tp_receipt *filled) {
    if (receipt != filled) tp__struct_out(receipt, receipt->struct_size, filled, sizeof *filled);
}

int tp_receipt_function(const tp_receipt *receipt, int index, const char **name, int64_t *calls) {
    tp_receipt here;
    receipt = TP_IN(tp_receipt, receipt, &here, NULL);
    if (receipt == NULL || index < 0 || index >= receipt->function_count || index >= SLOTS) return 0;
    int id = receipt->function_id[index], launched = id - TP__LAUNCHED;
    if (name != NULL && launched < 0) *name = tp__function_name(id);
    if (name != NULL && launched >= 0) *name = launched < NAMES ? receipt->launch_name[launched] : NULL;
    if (calls != NULL) *calls = receipt->function_calls[index];
    return 1;
}

/* Keys that any row sees; with sparse indices, the entries of all that the mask does not hide. */
static int64_t keys_read(const tp_problem *problem, const tp_tensors *tensors, const tp__sequence *seq) {
    int64_t entries = 0, position = tp__mask_first_position(problem, seq->q_len, seq->kv_len);
    tp__interval seen = tp__mask_hull(problem, seq->q_len, seq->kv_len);
    if (problem->sparse_len == 0) return seen.hi - seen.lo;
    for (int64_t token = 0; token < seq->q_len; token++) {
        tp__keys keys = tp__keys_of(problem, tensors, seq->index, token);
        seen = tp__visibility_plain(&keys, position + token);
        entries += seen.hi - seen.lo;
    }
    return entries;
}

/* Each bit of a mask and each element of a bias that belongs to some row and key, once: dims with a stride of 0
   are shared. More than a run reads where other masks hide keys. */
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

static void fill_bytes(tp_receipt *receipt, const tp_problem *problem, const tp_tensors *tensors,
                       const tp__trace *trace, int64_t keys_seen) {
    int64_t rows = 0, keys = keys_seen >= 0 ? keys_seen : 0;
    for (int64_t s = 0; s < tensors->batch; s++) {
        tp__sequence seq = tp__sequence_at(problem, tensors, s);
        rows += seq.q_len;
        if (keys_seen < 0) keys += keys_read(problem, tensors, &seq) * problem->kv_heads;
    }
    int64_t q_row = problem->head_dim_qk * (int64_t)tp_dtype_bytes(problem->q_dtype);
    int64_t row = tp__row_bytes(problem, tensors);
    receipt->bytes_compulsory = rows * problem->q_heads * row +
                                keys * tp__key_bytes(problem) - trace->bytes_shared +
                                tp__min(compulsory_data(problem, tensors), trace->bytes_masks);
    receipt->bytes_model = trace->bytes;
    receipt->bytes_model_written = rows * problem->q_heads * (row - q_row) + trace->bytes_scratch;
    if (problem->op == TP_BACKWARD) /* d_q, d_k and d_v: of each row, and of each key, as much as is read of q, k, v */
        receipt->bytes_model_written = rows * problem->q_heads * q_row +
                                       keys * tp__key_bytes(problem) / 2 + trace->bytes_scratch;
}

/* The candidate whose kernel function did the scores, told by the functions alone. */
static const char *kernel_of(const tp__trace *trace) {
    for (int set = 0; set < TP__SETS; set++) {
        const int64_t *calls = trace->calls + (TP__SETS - 1 - set) * TP__FUNCTIONS_PER_SET;
        if (calls[TP__FUNCTION_attend_f32] > 0 || calls[TP__FUNCTION_backward_f32] > 0) return tp__kernel_sets[set]->isa;
        if (calls[TP__FUNCTION_math_f32] > 0) return "math";
    }
    return "none";
}

const char *tp__trace_kernel(const tp__trace *trace) { return kernel_of(trace); }

void tp__receipt_begin(tp_receipt *receipt, const tp_problem *problem, const tp_tensors *tensors,
                       const tp_decision *decision) {
    memset(receipt, 0, sizeof *receipt);
    receipt->struct_size = sizeof *receipt;
    receipt->fallback = decision->fallback;
    receipt->rewrites = decision->rewrites;
    receipt->decision = decision;
    receipt->device = decision->device;
    if (tp_problem_print(problem, tensors, receipt->problem, sizeof receipt->problem) != TP_OK)
        strcpy(receipt->problem, "(its text form is too long)");
    size_t id = strlen(decision->numerics_id), max = sizeof receipt->numerics_id - 1;
    memcpy(receipt->numerics_id, decision->numerics_id, id < max ? id : max);
    receipt->arithmetic = decision->arithmetic;
    if (problem->k_scales != 0) receipt->lossy |= 1 << problem->k_dtype;
    if (problem->v_scales != 0) receipt->lossy |= 1 << problem->v_dtype;
    if (tensors->kv_loss != NULL) __atomic_load(tensors->kv_loss, &receipt->kv_loss, __ATOMIC_RELAXED);
}

void tp__receipt_fill(tp_receipt *receipt, const tp_problem *problem, const tp_tensors *tensors,
                      const tp_decision *decision, const tp__trace *trace, int64_t keys_seen) {
    tp__receipt_begin(receipt, problem, tensors, decision);
    for (int i = 0; i < TP__FUNCTION_COUNT && receipt->function_count < SLOTS; i++) {
        if (trace->calls[i] == 0) continue;
        receipt->function_id[receipt->function_count] = (uint16_t)i;
        receipt->function_calls[receipt->function_count++] = trace->calls[i];
    }
    receipt->kernel = kernel_of(trace);
    receipt->pairs_visible = trace->pairs_visible;
    receipt->pairs_computed = trace->pairs_computed;
    receipt->padded_rows = trace->padded_rows;
    receipt->panels_full = trace->panels_full;
    receipt->panels_partial = trace->panels_partial;
    receipt->panels_skipped = trace->panels_skipped;
    fill_bytes(receipt, problem, tensors, trace, keys_seen);
    receipt->scores_written = trace->scores_written;
    receipt->panels_conservative = trace->panels_conservative;
    receipt->pairs_shared = trace->pairs_shared;
}
