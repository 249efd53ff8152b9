/* SPDX-License-Identifier: Apache-2.0 */
/* Counts by label. The table has a fixed size and no lock: a cell is claimed once, then only added to. */
#ifndef TP_TELEMETRY_COUNTS_H
#define TP_TELEMETRY_COUNTS_H

#include "base/reasons.h"
#include "kernels/kernel.h"
#include "tileproof.h"

typedef enum tp__phase_label { TP__PREFILLS, TP__DECODES, TP__MIXES, TP__BACKWARDS, TP__PHASES } tp__phase_label;
typedef enum tp__bucket_label { TP__FEW_ROWS, TP__MANY_ROWS, TP__BOTH_ROWS, TP__BUCKETS } tp__bucket_label;

/* One cell's labels, each a small number. */
typedef struct tp__labels {
    uint8_t kind;   /* tp_count_kind */
    uint8_t kernel; /* index of tp__kernel_names, or TP__NO_KERNEL */
    uint8_t phase, bucket;
    uint8_t dtype;  /* tp_dtype */
    uint8_t reason; /* tp_reason_code; 0: of a call */
    uint8_t model;  /* tp__counts_model; 0: not said */
    uint8_t device; /* 0: the CPU; 1: the context's device */
} tp__labels;
#define TP__NO_KERNEL 0xfe /* of calls without pairs, and of refusals */
#define TP__OTHER 0xff     /* a label that stands for all that found no room */

/* Places for what is kept by model: 0 not said, then those that are known, last TP__OTHER. */
enum { TP__MODELS = 32, TP__MODEL_SLOTS = TP__MODELS + 2 };
static inline int tp__model_slot(int model) { return model == TP__OTHER ? TP__MODELS + 1 : model; }
static inline uint8_t tp__slot_model(int slot) { return (uint8_t)(slot == TP__MODELS + 1 ? TP__OTHER : slot); }

/* Phase, bucket and dtype of a call or, without tensors, of the problem's bounds. */
tp__labels tp__labels_of(const tp_problem *problem, const tp_tensors *tensors);
const char *tp__phase_name(int phase);
const char *tp__bucket_name(int bucket);
/* The kernel that did the scores; TP__NO_KERNEL for a name that is no kernel's. */
uint8_t tp__kernel_index(const tp__kernel_names *names, const char *name);
const char *tp__kernel_name(const tp__kernel_names *names, int index);
const char *tp__kernel_device(const tp__kernel_names *names, int device);

typedef struct tp__counts tp__counts;
tp__counts *tp__counts_create(const tp__kernel_names *names);
void tp__counts_destroy(tp__counts *counts);

/* The number of a model, which is noted if it is new and there is room; 0 for NULL. */
int tp__counts_model(tp__counts *counts, const char *name);
const char *tp__counts_model_name(const tp__counts *counts, int model);
int tp__counts_models(const tp__counts *counts); /* how many are known; their numbers begin at 1 */

typedef struct tp__amounts {
    int64_t time_ns, bytes, workspace;
} tp__amounts;
void tp__counts_add(tp__counts *counts, tp__labels labels, const tp__amounts *amounts);

int tp__counts_next(const tp__counts *counts, int64_t *at, tp_count *count);

#endif
