/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pv: o = o*c + p v for few rows, straight from the values as they lie in memory. The chain of each element is
 * that of values_body in gemm.h, so the bits are the same as by way of the packed form.
 */
#include "kernels/function.h"

/* Vectors of o at a time: as many as leave the accumulators in registers. */
#define PV_WIDTH(rows) \
    ((rows)*8 <= VEC_MR * VEC_NRV ? 8 : (rows)*4 <= VEC_MR * VEC_NRV ? 4 : VEC_NRV)

#define BODY "kernels/pv_body.inc"
#include "kernels/each_dtype.inc"
