/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_TELEMETRY_RECEIPT_H
#define TP_TELEMETRY_RECEIPT_H

#include "device/device.h"
#include "kernels/kernel.h"
#include "tileproof.h"

/* What is known before a run: its text, numerics id, decision, device. The decision is of this library's. */
void tp__receipt_begin(tp_receipt *receipt, const tp_problem *problem, const tp_tensors *tensors,
                       const tp_decision *decision);

/* receipt_device.c: a call on a device, first what its tensors say, then what its backend tells in the end. Only the
   outcome of a call that went well is told. */
#define TP__LAUNCHED 0x8000 /* function_id: of this plus i is launch_name[i] */
void tp__receipt_submitted(tp_receipt *receipt, const tp_problem *problem, const tp_tensors *tensors);
void tp__receipt_outcome(tp_receipt *receipt, const tp__device *device, const tp_outcome *outcome);

/* tp__receipt_begin, and everything that the kernel functions wrote and the call asked; tasks, workspace and time come from
   the entry point. keys_seen: keys over all sequences and KV heads that any row saw; -1: it follows from a plain mask. */
void tp__receipt_fill(tp_receipt *receipt, const tp_problem *problem, const tp_tensors *tensors,
                      const tp_decision *decision, const tp__trace *trace, int64_t keys_seen);

/* The caller's receipt may be NULL or have the size of another version. *filled is what a run writes to: the caller's own
   receipt if it has this library's size, otherwise `here`, which tp__receipt_out then copies to the caller's. */
tp_status tp__receipt_in(tp_receipt **filled, tp_receipt *here, tp_error *error);
void tp__receipt_out(tp_receipt *receipt, const tp_receipt *filled);

/* The kernel whose functions computed the scores, told by these functions alone; "none" when there were no scores. */
const char *tp__trace_kernel(const tp__trace *trace);

#endif
