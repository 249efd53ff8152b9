/* SPDX-License-Identifier: Apache-2.0 */
/* The labels of a call: a walk over its sequences, which stops as soon as all are known. Of a call whose lengths the host
   cannot read they are those of the bounds. */
#include <string.h>

#include "problem/sequence.h"
#include "strategies/schedule.h"
#include "telemetry/counts.h"

static const char *const phases[TP__PHASES] = {"prefill", "decode", "mixed", "backward"};
static const char *const buckets[TP__BUCKETS] = {"few-rows", "many-rows", "mixed"};

const char *tp__phase_name(int phase) { return phase < TP__PHASES ? phases[phase] : "other"; }
const char *tp__bucket_name(int bucket) { return bucket < TP__BUCKETS ? buckets[bucket] : "other"; }

uint8_t tp__kernel_index(const tp__kernel_names *names, const char *name) {
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->name[i], name) == 0) return (uint8_t)i;
    return TP__NO_KERNEL;
}

const char *tp__kernel_name(const tp__kernel_names *names, int index) {
    return index < names->count ? names->name[index] : index == TP__OTHER ? "other" : "none";
}

const char *tp__kernel_device(const tp__kernel_names *names, int device) {
    return device == 0 ? "cpu" : device == TP__OTHER ? "other" : names->device;
}

static uint8_t phase_of(int64_t q_len, int64_t kv_len) {
    return tp__phase(q_len, kv_len)[0] == 'd' ? TP__DECODES : TP__PREFILLS;
}

static uint8_t bucket_of(const tp_problem *problem, int64_t q_len) {
    return tp__bucket(problem, q_len)[0] == 'f' ? TP__FEW_ROWS : TP__MANY_ROWS;
}

tp__labels tp__labels_of(const tp_problem *problem, const tp_tensors *tensors) {
    tp__labels l = {.dtype = (uint8_t)problem->k_dtype,
                    .phase = phase_of(problem->q_len, problem->kv_len),
                    .bucket = bucket_of(problem, problem->q_len)};
    int read = tensors != NULL && tp__reads_indices(tensors);
    for (int64_t s = 0; read && s < tensors->batch; s++) {
        tp__sequence seq = tp__sequence_at(problem, tensors, s);
        uint8_t phase = phase_of(seq.q_len, seq.kv_len), bucket = bucket_of(problem, seq.q_len);
        l.phase = s == 0 || l.phase == phase ? phase : TP__MIXES;
        l.bucket = s == 0 || l.bucket == bucket ? bucket : TP__BOTH_ROWS;
        int varies = tensors->q_lens != NULL || tensors->kv_lens != NULL || tensors->cu_seqlens_q != NULL ||
                     tensors->cu_seqlens_kv != NULL;
        if (!varies || (l.phase == TP__MIXES && l.bucket == TP__BOTH_ROWS)) break;
    }
    if (problem->op == TP_BACKWARD) l.phase = TP__BACKWARDS;
    return l;
}
