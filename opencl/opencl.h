/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this library share.
 *
 *     driver.c    OpenCL's functions and the names of its errors
 *     device.c    which device, and whether kernels may run there
 *     memory.c    buffers by addresses
 *     tiles.c     what is served, tile sizes, workspace
 *     program.c   compiled kernels, one for each specialisation; cache.c keeps them in a folder
 *     arrays.c    index arrays and counters on their way to the device
 *     submit.c    a call: arguments, launches
 *     complete.c  the thread that tells who waits
 *     backend.c   the table of tileproof_backend.h, creation and destruction
 */
#ifndef TP_OPENCL_OPENCL_H
#define TP_OPENCL_OPENCL_H

#include <pthread.h>

#include "driver.h"
#include "kernels/call.inc"

enum {
    TP__HEAD_DIM_MAX = 256,
    TP__SPLIT_KEYS = 512, /* of one split; part of the numerics */
    TP__SPLIT_ROWS = 16,  /* rows times query heads of a KV head that split-KV takes, at most; part of the numerics */
    TP__SPLIT_TILE = 8,   /* rows of its tiles */
    TP__LANES = 64,       /* work-items of a work-group */
    TP__BLOCK = 32        /* KEYS of the kernels */
};

typedef struct tp__ocl_buffer {
    char *address; /* a range that nothing else has; never read */
    size_t bytes;
    cl_mem handle;
    int imported;
} tp__ocl_buffer;

/* Where an address of a call lies. */
typedef struct tp__ocl_place {
    cl_mem handle;
    size_t offset;
} tp__ocl_place;

typedef struct tp__ocl_program tp__ocl_program;
typedef struct tp__ocl_job tp__ocl_job;

struct tp_opencl {
    tp_backend backend;
    tp__ocl_driver cl;
    long pid; /* that made it */
    char name[128], platform[128], version[128], why[160], numerics[24], kernels[24];
    tp_opencl_device info;
    int device_count;
    char *cache; /* folder; NULL: none */
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;

    pthread_mutex_t memory_lock;
    tp__ocl_buffer *buffers; /* by address */
    int buffer_count, buffer_room;

    pthread_mutex_t program_lock;
    tp__ocl_program *programs;

    pthread_mutex_t done_lock;
    pthread_cond_t done_more;
    tp__ocl_job *done_first, *done_last;
    int done_thread, ends;
    pthread_t thread;
};

/* device.c: fills info; why is "" where kernels may run. TP_INVALID: what the caller gave does not belong together. */
tp_status tp__ocl_device_open(tp_opencl *cl, const tp_opencl_options *options, tp_error *error);

/* memory.c */
tp_status tp__ocl_memory_allocate(void *user, size_t bytes, void **memory, tp_error *error);
void tp__ocl_memory_release(void *user, void *memory);
tp_status tp__ocl_memory_copy(void *user, tp_copy kind, void *to, const void *from, size_t bytes, tp_error *error);
void tp__ocl_memory_destroy(tp_opencl *cl);
/* Bytes from an address to the end of its buffer; 0: it lies in none. */
size_t tp__ocl_memory_find(tp_opencl *cl, const void *address, tp__ocl_place *place);

/* tiles.c */
typedef struct tp__ocl_tiles {
    int dq, dv;     /* head dims, rounded up to slices */
    int rows;       /* of a forward tile; TP__SPLIT_TILE with split-KV */
    int back;       /* rows and keys of a backward tile */
    int decode;     /* all sequences of the problem go by split-KV */
    int64_t few;    /* rows times query heads of a KV head that do, at the bounds; 0: none do */
    int64_t splits; /* of a sequence, at the bounds */
    int64_t local;  /* bytes of local memory */
} tp__ocl_tiles;
tp__ocl_tiles tp__ocl_tiles_of(const tp_opencl *cl, const tp_problem *problem);
void tp__ocl_serves(void *user, int kernel, const tp_problem *problem, tp_add_reason add, void *reasons);
void tp__ocl_figures(void *user, int kernel, const tp_problem *problem, tp_backend_figures *figures);
const tp_kernel_info *tp__ocl_kernel_at(void *user, int index);
/* Where things lie in the workspace of a problem, in bytes from its start. */
typedef struct tp__ocl_workspace {
    int64_t arrays, states, deltas, row_slopes, bytes;
} tp__ocl_workspace;
tp__ocl_workspace tp__ocl_workspace_of(const tp_opencl *cl, const tp_problem *problem);
/* Bits that masks become: tp_problem's are an AND of causal, window and chunk, or the kernel does not serve it. */
int tp__ocl_mask_of(const tp_problem *problem, call *c, const char **unserved);

/* program.c, cache.c */
struct tp__ocl_program {
    tp__ocl_program *next;
    char options[160]; /* the specialisation */
    cl_program program;
};
/* The program of a problem's kernels; split: those of split-KV. Compiled when it is first asked for. */
tp_status tp__ocl_program_of(tp_opencl *cl, const tp_problem *problem, int split, cl_program *program, tp_error *error);
tp_status tp__ocl_prepare(void *user, int kernel, const tp_problem *problem, void **prepared, tp_error *error);
void tp__ocl_release_prepared(void *user, void *prepared);
void tp__ocl_programs_destroy(tp_opencl *cl);
extern const char tp__ocl_source_forward[], tp__ocl_source_backward[];
/* A program of this key, built; NULL: there is none that can be used. */
cl_program tp__ocl_cache_load(tp_opencl *cl, const char *key, const char *options);
void tp__ocl_cache_store(tp_opencl *cl, const char *key, cl_program program);

/* A call on its way. */
enum { TP__LAUNCHES = 4 };
struct tp__ocl_job {
    tp__ocl_job *next;
    tp_opencl *cl;
    tp_submission submission;
    call call;
    void *staged;                  /* what is written to the workspace */
    cl_event events[TP__LAUNCHES]; /* of launches */
    cl_event last;                 /* of the last command so far, which the next waits for */
    int launches, timed;
    tp_launch launch[TP__LAUNCHES];
    int64_t planned;
    int32_t status; /* of the last command */
    int32_t counters[COUNTERS];
};

/* arrays.c: puts counters and index arrays where kernels read them; job->planned is set where the host can count. */
tp_status tp__ocl_arrays_queue(tp__ocl_job *job, cl_command_queue queue, const tp__ocl_place *workspace, tp_error *error);
/* Lengths of the call's sequences, as far as the host knows: the most rows and keys, and the fewest rows of one that has any. */
typedef struct tp__ocl_lengths {
    int64_t q_max, kv_max, q_min;
} tp__ocl_lengths;
tp__ocl_lengths tp__ocl_lengths_of(const tp_problem *problem, const tp_tensors *tensors);
int64_t tp__ocl_tiles_planned(const tp_opencl *cl, const tp_problem *problem, const tp_tensors *tensors);

/* submit.c */
tp_status tp__ocl_submit(void *user, const tp_submission *submission, void **event, tp_error *error);
void tp__ocl_release_event(void *user, void *event);
/* Adds a command to the job's chain: its event is the one that the next waits for. */
void tp__ocl_job_chain(tp__ocl_job *job, cl_event event);
void tp__ocl_job_free(tp__ocl_job *job);

/* complete.c */
tp_status tp__ocl_complete_begin(tp_opencl *cl, tp_error *error);
void tp__ocl_complete_end(tp_opencl *cl);
void CL_CALLBACK tp__ocl_complete_event(cl_event event, cl_int status, void *job);

#endif
