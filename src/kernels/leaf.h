/* SPDX-License-Identifier: Apache-2.0 */
/* Declares the leaves of the ISA being compiled, from the table. */
#ifndef TP_KERNELS_LEAF_H
#define TP_KERNELS_LEAF_H

#include "kernels/kernel.h"
#include "kernels/vec/vec.h"

#define TP_LEAF(op, dtype) tp__##op##_fn TP_LEAF_NAME(op##_##dtype);
#include "kernels/leaves.inc"
#undef TP_LEAF

#endif
