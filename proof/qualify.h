/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qualification, inside. Each file has one part of it:
 *
 *     cells.c              which calls qualify a layer group
 *     qualify.c            the cells of models or of a lock, and who uses them
 *     qualify_cell.c       one cell: plan, run, compare with the reference, what the lock keeps of it
 *     qualify_isolated.c   packed sequences as if each were alone, neighbours full of NaN
 *     qualify_trust.c      could this cell have failed at all?
 *     qualify_time.c       its time, and math's beside it
 *     qualify_engine.c     the same cell run by an engine: right or not, its properties, does its memory fit its kernel's name
 *     engine_call.c        what an engine is given: dense tensors, and which keys each row sees
 *     qualify_lock.c       cells compared with a lock, or written into it
 */
#ifndef TP_PROOF_QUALIFY_H
#define TP_PROOF_QUALIFY_H

#include "cache_format.h"
#include "harness/attempt.h"
#include "harness/oracle.h"
#include "sized.h"

typedef struct tp__slot {
    tp_cell cell;  /* what callers see; its address stays */
    tp_cell *seen; /* packed: the cell without what a comparison says of it */
    char *note;    /* the reason that a comparison gave it, or NULL */
} tp__slot;

struct tp_qualification {
    tp_model *const *models; /* a list of its own; the models are the caller's */
    int model_count;
    tp__slot *slots; /* no two with one problem */
    int64_t slot_count, slot_capacity;
    tp_qualify_use *uses;
    int64_t use_count, use_capacity;
    char **notes; /* of the lock as a whole; NULL ends them */
    int quick;
    char cache[TP__FORMAT_TEXT]; /* the format's name */
};

/* The slot shows what was seen, and the last comparison is forgotten. */
void tp__slot_reset(tp__slot *slot);
/* The cell's result is this one from now on. TP_NO_MEMORY: it has the one before. */
tp_status tp__slot_set(tp__slot *slot, const tp_cell *seen, tp_error *error);
void tp__notes_free(char **notes);

/* cells.c: hands over the cells of a group, until one is not taken. Options have no 0 any more. */
typedef tp_status tp__cell_taker(void *user, const tp_cell *cell, tp_error *error);
tp_status tp__group_cells(const tp_layer_group *group, const tp_qualify_options *options, tp__cell_taker *take, void *user,
                          tp_error *error);

/* One cell while it is at work. */
typedef struct tp__trial {
    tp_context *context;
    const tp_engine *engine; /* NULL: this library */
    tp_choice choice;
    int quick;
    double time_ns;
    struct workspace workspace;
    tp_cell cell; /* with what is seen; its texts are those of the slot, of the library and these: */
    char numerics_id[128], output[65], reason[1024];
    char kernel[256], observed[64], rule[64], engine_reasons[1024], doubt[256]; /* of an engine */
    int32_t arithmetic; /* of the kernel that ran */
    tp_problem problem;
    tp_lengths lengths;
    struct tensors tensors;
    struct oracle oracle;
    tp_plan *plan;
    tp_status broken; /* it could not be judged */
    tp_error error;   /* why */
} tp__trial;
/* A verdict on the cell: sets status and reason. Returns 1. */
int tp__trial_fail(tp__trial *trial, tp_cell_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* No verdict is possible. Returns 1. */
int tp__trial_break(tp__trial *trial, tp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Whether this status says something of the cell, or only of this process. */
int tp__is_verdict(tp_status status);
/* Tensors and oracle of a problem that has been read. The same 1. */
int tp__trial_make(tp__trial *trial);
/* The run's output against the oracle: error, allowed, the hash of the output. The same 1. */
int tp__trial_compare(tp__trial *trial);
/* The cell on the engine. The same 1. */
int tp__trial_engine(tp__trial *trial);
/* Runs the plan on so many tasks; 1: a verdict, or none is possible. */
int tp__trial_run(tp__trial *trial, int threads, tp_receipt *receipt);
/* The same 1. */
int tp__trial_isolated(tp__trial *trial);
int tp__trial_trust(tp__trial *trial);
void tp__trial_time(tp__trial *trial);

/* The call that an engine gets, and the memory behind it. */
typedef struct tp__dense {
    tp_engine_call call;
    tp_problem problem;
    int64_t *lengths; /* q_lens, kv_lens */
    char *bytes[4];   /* q, k, v, o */
    uint8_t *visible;
    float *slopes, *factors;
    char text[512];
} tp__dense;
/* TP_UNSUPPORTED: the problem has words that an engine cannot be told. Freed by tp__dense_free in any case. */
tp_status tp__dense_make(tp__dense *dense, const struct tensors *tensors, const char *text, tp_error *error);
void tp__dense_free(tp__dense *dense);
/* q, k and v as the tensors have them now; NaN in o. */
void tp__dense_load(tp__dense *dense, const struct tensors *tensors);
void tp__dense_store(const tp__dense *dense, struct tensors *tensors);

#endif
