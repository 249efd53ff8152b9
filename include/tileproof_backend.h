/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For those who write a backend: kernels on a device, behind the plans, policies, receipts and tickets of
 * tileproof.h. Programs that use a backend need tileproof.h alone. docs/backends.md shows how to write one;
 * tests/support/device.c is a whole one.
 *
 * A backend is a value: a table of functions, and a pointer that every one of them gets. It stands for one device.
 * Whoever makes it gives it to tp_context_options.backend and keeps it, and what it points to, until every context that
 * got it is destroyed. A device that is not there is a backend as well: one whose kernels say so by TP_WHY_ABSENT.
 *
 * Rules for every function
 * - It may be called on any thread and on several at once, and must not call the context back.
 * - It returns a status of its own errors (TP_INVALID, TP_UNSUPPORTED, TP_NO_MEMORY, TP_WORKSPACE, TP_DEVICE_FAILED) and
 *   writes what failed into error->text: the driver's call, its code, the end of a compiler's log. The library never passes
 *   NULL for the error. Other statuses become TP_DEVICE_FAILED.
 * - It throws nothing and does not end the program.
 * - In a forked child the library calls none of them.
 *
 * Addresses  Device memory has addresses, which the library adds to and compares (strides, overlap, v within k) and never
 *            reads. A device whose memory is known by handles (cl_mem) gives each buffer a range of addresses that neither
 *            another buffer nor memory of the host has, for example by mmap(PROT_NONE), and finds handle and offset again when
 *            work is submitted.
 * Growth     Structs that the library gives may be longer or shorter than this header's, by their struct_size; so may those
 *            that a backend gives. A problem or tensors with a field that is set and that the backend cannot know, by the
 *            sizes in its table, never reaches it: the library refuses it.
 */
#ifndef TILEPROOF_BACKEND_H
#define TILEPROOF_BACKEND_H

#include "tileproof.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds one reason why a kernel does not serve a problem. have and need as tp_reason_code says for the code; the text, of at
   most 95 bytes, is copied: "needs 28672 bytes of local memory, device gives 16384". */
typedef void (*tp_add_reason)(void *reasons, tp_reason_code code, int64_t have, int64_t need, const char *text);

/* What a kernel would be for a problem, at its bounds. */
typedef struct tp_backend_figures {
    uint32_t struct_size;   /* of the library's struct, which is all 0: a field that lies beyond is not to be written */
    int32_t decode;         /* 1: sequences of few rows have a loop of their own and take it */
    int64_t workspace_bytes; /* of the device's memory */
    int64_t chunk_keys;     /* keys are cut at its multiples; 0: not cut */
    char numerics_id[96];   /* equal id and equal input: equal bits. Kernel, tile sizes, device and driver, in short */
} tp_backend_figures;

typedef struct tp_launch {
    const char *name; /* of the kernel function, as the driver's profiler shows it; lives as long as the backend */
    int64_t calls;
} tp_launch;

/* How a submission ended. What the device writes itself is the evidence: marks and counters in its memory that the kernels
   set, read back by the backend. Nothing here is copied from the plan. */
typedef struct tp_outcome {
    uint32_t struct_size;
    int32_t status;          /* TP_OK, or what failed after submit had returned TP_OK */
    const char *text;        /* what failed; NULL when nothing did */
    int32_t kernel;          /* index of the kernel whose mark the device wrote; -1: none ran, there were no pairs */
    int32_t launch_count;
    const tp_launch *launches; /* counted on the host, where they were queued */
    int64_t tiles_planned;   /* tiles that the host cut the call into; -1: the lengths are on the device, so it does not know */
    int64_t tiles_counted;   /* by the device. If both are known and differ, the call has failed: TP_DEVICE_FAILED */
    int64_t pairs_visible, pairs_computed;                /* counted by the device; 0: not counted */
    int64_t panels_full, panels_partial, panels_skipped;  /* likewise */
    int64_t bytes_model;     /* bytes that its tiles read and wrote; 0: not counted */
    int64_t device_ns;       /* time on the device by its own clock; 0: not known */
} tp_outcome;
#define TP_OUTCOME_INIT { sizeof(tp_outcome), TP_OK, NULL, -1, 0, NULL, -1, 0, 0, 0, 0, 0, 0, 0, 0 }

/* One call. The structs and the index arrays that lie on the host may be read until submit returns; device memory that
   they name, and the workspace, until `done` is called. */
typedef struct tp_submission {
    uint32_t struct_size;
    int32_t kernel;
    const tp_problem *problem; /* of the plan: upper bounds */
    const tp_tensors *tensors; /* checked, as far as the host can */
    void *prepared;            /* what prepare made */
    void *workspace;           /* a device address, 64-byte aligned, of at least workspace_bytes of tp_backend_figures */
    size_t workspace_bytes;
    void *queue;               /* tp_exec.queue; NULL: the backend's own */
    /* To be called exactly once when submit returns TP_OK, and never otherwise: on any thread, before submit returns or
       later, when nothing of the call is read or written any more. The backend holds no lock meanwhile that its functions
       take, and the thread has 64 KiB of stack left: the caller's functions run there. */
    void (*done)(void *completion, const tp_outcome *outcome);
    void *completion;
} tp_submission;

typedef enum tp_copy { TP_COPY_TO_DEVICE = 1, TP_COPY_TO_HOST = 2, TP_COPY_ON_DEVICE = 3 } tp_copy;

#define TP_BACKEND_INDEX_ON_DEVICE 1u /* tp_tensors.index_device may be the device: kernels follow no index of an array that
                                         is out of range, and such a call ends as TP_INVALID */

struct tp_backend {
    uint32_t struct_size;
    int32_t device;         /* its number in tp_choice and tp_tensors: 1..255 */
    const char *name;       /* of the device in decisions, receipts, counts: 1..31 of a-z 0-9 . _ -, not "cpu" */
    uint32_t flags;         /* TP_BACKEND_* */
    uint32_t problem_size, tensors_size, gradients_size; /* sizeof of the structs that the backend was compiled with */
    void *user;             /* first argument of every function */

    /* Kernels, best first, 1 to 8; NULL ends the list. Names are 1..31 of the same characters as the device's, and no
       kernel of the CPU has them. strategy "math": it writes the score matrix to memory. What is returned lives as long as the
       backend. */
    const tp_kernel_info *(*kernel_at)(void *user, int index);
    /* Does this kernel serve the problem? Adds every reason why not, at most 4; none: it does. Quick: it compiles and
       waits for nothing, because every plan and explain asks. */
    void (*serves)(void *user, int kernel, const tp_problem *problem, tp_add_reason add, void *reasons);
    /* Of a kernel that serves the problem. Quick. */
    void (*figures)(void *user, int kernel, const tp_problem *problem, tp_backend_figures *figures);

    /* What a plan keeps: compiled kernels. The device's compiler runs here, once for each specialisation: tp_attention
       makes a plan for every call, so a backend keeps what it has compiled. release_prepared is called once for each. */
    tp_status (*prepare)(void *user, int kernel, const tp_problem *problem, void **prepared, tp_error *error);
    void (*release_prepared)(void *user, void *prepared);

    /* Device memory, 64-byte aligned. copy returns when the bytes are there; it is not ordered with submissions that are not
       done. */
    tp_status (*allocate)(void *user, size_t bytes, void **memory, tp_error *error);
    void (*release)(void *user, void *memory);
    tp_status (*copy)(void *user, tp_copy kind, void *to, const void *from, size_t bytes, tp_error *error);

    /* Queues a call and returns. *event may be set to the driver's event of its completion, which tp_ticket_event hands
       out; release_event, which may be NULL where none is ever set, is called once for it. Both happen even if `done` was
       called. */
    tp_status (*submit)(void *user, const tp_submission *submission, void **event, tp_error *error);
    void (*release_event)(void *user, void *event);
};
/* Sizes alone; set the rest. */
#define TP_BACKEND_INIT \
    { sizeof(struct tp_backend), 0, NULL, 0, sizeof(tp_problem), sizeof(tp_tensors), sizeof(tp_gradients), NULL, NULL, NULL, \
      NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

#ifdef __cplusplus
}
#endif
#endif
