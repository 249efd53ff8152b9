/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libOpenCL that passes every call on to the real one, counts, and fails when told to. Tests give its file to
 * tp_opencl_options.library and ask the same file for these functions.
 */
#ifndef TP_TESTS_OPENCL_SHIM_H
#define TP_TESTS_OPENCL_SHIM_H

/* What can be told beside failures. All are forgotten by shim_reset. */
typedef enum shim_knob {
    SHIM_LOCAL_BYTES, /* what the device says of its local memory; 0: the truth */
    SHIM_DROP,        /* 1: launches are not passed on, and say that they were */
    SHIM_LATE,        /* 1: the next call that completes is said to have failed on its way */
    SHIM_NO_DEVICE,   /* 1: there is no platform */
    SHIM_GONE,        /* 1: every call on the device fails, as when it vanished */
    SHIM_KNOBS
} shim_knob;

typedef struct shim {
    /* The n-th call of this name from now on gives CL_OUT_OF_RESOURCES, and nothing is passed on; n 0: none does. */
    void (*spoil)(const char *name, int n);
    void (*set)(shim_knob knob, long value);
    void (*reset)(void);
    /* Calls of this name since the last reset, and whether one of them was made to fail. */
    int (*calls)(const char *name);
    int (*failed)(void);
    /* Objects of OpenCL that were made or retained and not released: contexts, queues, buffers, programs, kernels, events. */
    int (*live)(void);
} shim;

/* Exported: const shim *shim_of(void) */
typedef const shim *(*shim_of_function)(void);

#endif
