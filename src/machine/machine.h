/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_MACHINE_MACHINE_H
#define TP_MACHINE_MACHINE_H

#include <stddef.h>

#include "tileproof.h"

/* The first "model name" of a /proc/cpuinfo, as the text form can hold it; or "unknown". */
void tp__machine_model(const char *cpuinfo, char *name, size_t size);

#endif
