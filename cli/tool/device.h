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
/* What makes a lock stale, as tp_identity.host: "platform=...\ndriver=..."; "". */
const char *device_host(void);
/* Kernels of the device, or those of the CPU; NULL ends the list. */
const tp_kernel_info *device_kernel_at(int index);
/* Why none of its kernels can run; "" where they may. */
const char *device_absent(void);

/* Opens what --device names: exit code, reason printed. A device that is not there is none: explain says why. */
int device_open(const struct options *options);
void device_close(void);

/* For `info`: devices that the driver shows, or why there are none. */
void device_list_text(void);
void device_list_json(void);

#endif
