/* SPDX-License-Identifier: Apache-2.0 */
/* The receipt of a call on a device. */
#include "base/arena.h"
#include "masks/mask.h"
#include "problem/sequence.h"
#include "strategies/strategy.h"
#include "telemetry/receipt.h"

enum { NAMES = sizeof(((tp_receipt *)0)->launch_name) / sizeof(char *) };

/* Each row and each key once; of masks with holes, and where lengths cannot be read, all there can be. */
void tp__receipt_submitted(tp_receipt *receipt, const tp_problem *problem, const tp_tensors *tensors) {
    int64_t rows = 0, keys = 0;
    if (!tp__reads_indices(tensors)) {
        rows = tp__sparse_rows(problem, tensors);
        keys = problem->kv_layout == TP_PACKED ? tensors->kv_tokens : tp__times(tensors->batch, tensors->kv_len);
    }
    for (int64_t s = 0; tp__reads_indices(tensors) && s < tensors->batch; s++) {
        tp__sequence seq = tp__sequence_at(problem, tensors, s);
        int plain = tp__mask_is_plain(problem) && problem->sparse_len == 0;
        tp__interval seen = {0, seq.q_len > 0 ? seq.kv_len : 0};
        if (plain) seen = tp__mask_hull(problem, seq.q_len, seq.kv_len);
        rows += seq.q_len;
        keys += seen.hi - seen.lo;
    }
    receipt->bytes_compulsory = tp__times(tp__times(rows, problem->q_heads), tp__row_bytes(problem, tensors)) +
                                tp__times(tp__times(keys, problem->kv_heads), tp__key_bytes(problem));
}

void tp__receipt_outcome(tp_receipt *receipt, const tp__device *device, const tp_outcome *outcome) {
    receipt->kernel = outcome->kernel >= 0 ? device->kernel[outcome->kernel].name : "none";
    for (int i = 0; i < outcome->launch_count && outcome->launches != NULL; i++) {
        const tp_launch *launch = &outcome->launches[i];
        receipt->launches += launch->calls;
        if (receipt->function_count == NAMES) continue;
        receipt->launch_name[receipt->function_count] = launch->name != NULL ? launch->name : "?";
        receipt->function_id[receipt->function_count] = (uint16_t)(TP__LAUNCHED + receipt->function_count);
        receipt->function_calls[receipt->function_count++] = launch->calls;
    }
    receipt->tiles = outcome->tiles_counted;
    receipt->device_ns = outcome->device_ns;
    receipt->pairs_visible = outcome->pairs_visible;
    receipt->pairs_computed = outcome->pairs_computed;
    receipt->panels_full = outcome->panels_full;
    receipt->panels_partial = outcome->panels_partial;
    receipt->panels_skipped = outcome->panels_skipped;
    receipt->bytes_model = outcome->bytes_model;
}
