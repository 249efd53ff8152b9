/* SPDX-License-Identifier: Apache-2.0 */
/* The device of --device: opened once for the process, closed when it ends. */
#ifndef TILEPROOF_CLI_TOOL_DEVICE_H
#define TILEPROOF_CLI_TOOL_DEVICE_H

#include "cli.h"

/* For tp_context_options.backend and tp_choice.device: NULL and TP_CPU without --device. */
const tp_backend *device_backend(void);
int device_number(void);
/* "opencl:NAME" as locks name it; "cpu". */
const char *device_name(void);
/* This process on the device: its name, and of driver, device and kernels what makes a lock stale. */
void device_identity(const tp_identity *here, tp_identity *now);
/* Kernels of the device, or those of the CPU; NULL ends the list. */
const tp_kernel_info *device_kernel_at(int index);
/* Why none of its kernels can run; "" where they may. */
const char *device_absent(void);

/* Opens what --device names: exit code, reason printed. A device that is not there is none: explain says why. */
int device_open(const struct options *options);
void device_close(void);
/* For a command whose child processes run everything: drivers do not survive a fork, so this process asks a child whether the
   device is there, and knows its kernels alone. Each child then opens it for itself. Exit codes, reasons printed. */
int device_open_in_children(const struct options *options);
int device_open_in_child(void);

/* As its driver says: all memory, the largest buffer, local memory of a work-group. 0 without a device. */
struct device_bytes {
    int64_t memory, buffer, local;
};
struct device_bytes device_bytes(void);
/* "gpu", "cpu", ...; "" without a device. */
const char *device_kind(void);

/* For `info`: devices that the driver shows, or why there are none; where kernels were checked, by a lock (tool/evidence.h). Exit
   code, reason printed. */
int device_list(int json, const char *record);
/* That last line alone. */
int device_say_evidence(const char *record);

#endif
