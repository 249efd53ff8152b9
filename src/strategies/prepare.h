/* SPDX-License-Identifier: Apache-2.0 */
/* What a mask needs before any tile, once a call: the callback's answers, and bits that note which keys
   are seen. It lies at the start of the workspace. */
#ifndef TP_STRATEGIES_PREPARE_H
#define TP_STRATEGIES_PREPARE_H

#include "problem/sequence.h"
#include "strategies/strategy.h"

/* Bytes of workspace for any call within the problem's bounds; SIZE_MAX: cannot be addressed. 0 for plain
   masks. */
size_t tp__prepare_bytes(const tp_problem *problem);
/* All the workspace that a run of a strategy needs, this part included. */
size_t tp__workspace(const tp__strategy *strategy, const tp_problem *problem, const tp__kernel_set *kernels,
                     int path, int threads);
/* Takes them from the job's workspace, asks the callback, clears the notes. */
void tp__prepare(tp__job *job);

/* What could not be checked of the tensors before the callback had been asked. */
tp_status tp__prepared_check(const tp__job *job, tp_error *error);

tp__mask_view tp__prepared_view(const tp__job *job, const tp__sequence *seq);
/* Bits of the sequence's keys, of whole blocks; NULL for plain masks. */
uint64_t *tp__prepared_seen(const tp__job *job, int64_t seq, int64_t kv_head);
/* Keys over all sequences and KV heads that any row has seen. */
int64_t tp__prepared_keys(const tp__job *job);

/* The ALiBi slope of a query head; and where the bias of a row's key stands. */
float tp__slope_of(const tp_tensors *tensors, int64_t seq, int64_t head);
const void *tp__bias_at(const tp_problem *problem, const tp_tensors *tensors, int64_t seq, int64_t head,
                        int64_t row, int64_t key);

/* One more logit of a query head, without a value; -inf: none. */
float tp__sink_of(const tp_problem *problem, const tp_tensors *tensors, int64_t head);

#endif
