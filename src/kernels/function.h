/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the kernel functions of the set being compiled, from the table. */
#ifndef TP_KERNELS_FUNCTION_H
#define TP_KERNELS_FUNCTION_H

#include "kernels/kernel.h"
#include "kernels/vec/vec.h"

#define TP_FUNCTION(op, dtype, slot, forms) tp__##op##_fn TP_FUNCTION_NAME(op##_##dtype);
#include "kernels/functions.inc"
#undef TP_FUNCTION

#endif
