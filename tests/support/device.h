/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that is none: it holds the seams of tileproof_backend.h to their word.
 *
 * - Its addresses are those of host memory with a bit set that no address has: whoever reads one on the host dies.
 * - It completes calls on a thread of its own, one after another, as soon as nobody holds it back.
 * - It computes with the CPU's kernels, on what it copied at submission and on what its addresses name: results must be the
 *   CPU's, bit for bit.
 * - Each of its functions fails when told to, by the number of the call.
 */
#ifndef TP_TESTS_SUPPORT_DEVICE_H
#define TP_TESTS_SUPPORT_DEVICE_H

#include "tileproof_backend.h"

enum { DEVICE_NUMBER = 7 };

/* What can go wrong. */
typedef enum device_fault {
    DEVICE_ALLOCATE, /* no memory */
    DEVICE_COPY,
    DEVICE_PREPARE,  /* the compiler fails, with a log */
    DEVICE_SUBMIT,
    DEVICE_LATE,     /* fails on its way */
    DEVICE_STRANGE,  /* fails on its way with a number that is no status, and no text */
    DEVICE_IDLE,     /* says that it is done and has done nothing */
    DEVICE_MARK,     /* another kernel than the plan's left its mark */
    DEVICE_OUTPUT,   /* one wrong bit in o, and every counter as it should be */
    DEVICE_FAULTS
} device_fault;

typedef struct device device;

device *device_new(void);
/* Everything that the library took must have been given back: otherwise the test fails. */
void device_free(device *d);
/* To be changed before a context gets it. */
tp_backend *device_backend(device *d);

/* The n-th chance from now on goes wrong; 0: none does. */
void device_fail(device *d, device_fault fault, int n);
/* Every kernel says that the device is not there. */
void device_unplug(device *d);
/* Between these, submitted calls are not begun. */
void device_hold(device *d);
void device_resume(device *d);
/* Calls are done before submit returns. */
void device_at_once(device *d);
/* Calls that were begun, and events that are out. */
int device_begun(device *d);
int device_events(device *d);

/* The tensors of a call as they are on the device: host memory by its other addresses, nothing is copied. With index
   arrays there as well, or where they were. gradients: room for those of a backward call; NULL: it has none. */
tp_tensors device_tensors(const tp_tensors *host, int index_on_device, tp_gradients *gradients);
void *device_address(const void *host);
void *device_host(const void *address);

#endif
