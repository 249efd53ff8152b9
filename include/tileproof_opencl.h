/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend for OpenCL 1.2 devices: libtileproof_opencl.
 *
 *     tp_opencl *cl;
 *     tp_opencl_create(NULL, &cl, &err);                  // the first device; one that is not there is no error here
 *     options.backend = tp_opencl_backend(cl);            // tp_context_options
 *     choice.device = tp_opencl_backend(cl)->device;      // tp_choice
 *     ...
 *     tp_context_destroy(ctx);
 *     tp_opencl_destroy(cl);                              // last
 *
 * The library loads libOpenCL.so.1 when a tp_opencl is made, and links with nothing of OpenCL. Without it, or without a
 * device, the backend's kernel is a candidate that is refused with the reason: tp_explain shows it.
 *
 * Run on PoCL (a CPU) and oclgrind; never run on a GPU. docs/backends.md says what that means, and what the kernel serves.
 */
#ifndef TILEPROOF_OPENCL_H
#define TILEPROOF_OPENCL_H

#include "tileproof_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tp_opencl tp_opencl;

/* cl_context, cl_device_id, cl_command_queue and cl_mem are passed as void *, so that no header of OpenCL is needed. What the
   caller gives is retained; it must belong together. */
typedef struct tp_opencl_options {
    uint32_t struct_size;
    int32_t number;      /* of the device in tp_choice and tp_tensors, 1..255; 0: 1 */
    int32_t index;       /* which device of tp_opencl_device_at; not with a context */
    int32_t reserved;    /* 0 */
    void *context;       /* the caller's cl_context; NULL: one of the library's own */
    void *device;        /* the caller's cl_device_id, of that context; NULL with a context: its first */
    const char *library; /* the loader's file; NULL: libOpenCL.so.1 */
    const char *cache;   /* a folder for compiled kernels, which must exist; NULL: nothing is written. SECURITY.md says what is */
} tp_opencl_options;
#define TP_OPENCL_OPTIONS_INIT { sizeof(tp_opencl_options), 0, 0, 0, NULL, NULL, NULL, NULL }

/* Fails only where the arguments are wrong (TP_INVALID: a queue's or device's context is another, a number out of range, a
   cache folder that is not there) or memory ran out. */
TP_API tp_status tp_opencl_create(const tp_opencl_options *options, tp_opencl **made, tp_error *error);
/* After every context that has its backend. */
TP_API void tp_opencl_destroy(tp_opencl *cl);
TP_API const tp_backend *tp_opencl_backend(const tp_opencl *cl);

/* tp_exec.queue may be a cl_command_queue of the same context and device: calls are then ordered with the caller's own work.
   tp_ticket_event gives the cl_event of a call's last command. */

/* A buffer of the caller's, by an address for tp_tensors and tp_exec.workspace. It is retained until tp_opencl_forget, which no
   open call may need any more. */
TP_API tp_status tp_opencl_import(tp_opencl *cl, void *buffer, void **address, tp_error *error);
TP_API tp_status tp_opencl_forget(tp_opencl *cl, void *address, tp_error *error);

/* A device, or why there is none. Texts live as long as the tp_opencl. */
typedef struct tp_opencl_device {
    uint32_t struct_size;
    int32_t usable;          /* 1: kernels may run there */
    const char *name, *platform, *driver;
    const char *why;         /* not usable: the reason; otherwise "" */
    int64_t memory_bytes;    /* as the driver says */
    int64_t allocation_bytes; /* of one buffer, at most */
    int64_t local_bytes;     /* of a work-group */
    int64_t work_group;      /* work-items of one, at most */
    int64_t units;           /* compute units */
    const char *kind;        /* as the driver says: "gpu", "cpu", "accelerator", "custom"; "": no device. A simulator that says
                                it is all of them is a cpu */
    const char *kernels;     /* hash of this library's kernels, in hex: their sources decide results as the driver does */
} tp_opencl_device;
/* That which the tp_opencl was made for. */
TP_API tp_status tp_opencl_device_of_sized(const tp_opencl *cl, tp_opencl_device *device, size_t size);
static inline tp_status tp_opencl_device_of(const tp_opencl *cl, tp_opencl_device *device) {
    return tp_opencl_device_of_sized(cl, device, sizeof *device);
}
/* How many devices the loader shows; 0: none, and tp_opencl_device_of says why. */
TP_API int tp_opencl_device_count(const tp_opencl *cl);

#ifdef __cplusplus
}
#endif
#endif
