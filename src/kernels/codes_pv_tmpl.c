/* SPDX-License-Identifier: Apache-2.0 */
/* o = o*c + p v for few rows, straight from codes: the bits are the same as by way of packed codes and tp__row_tile's v_scale. */
#include "kernels/codes.h"

/* Vectors of o at a time: as many as leave the accumulators in registers. */
#define PV_WIDTH(rows) ((rows)*8 <= VEC_MR * VEC_NRV ? 8 : (rows)*4 <= VEC_MR * VEC_NRV ? 4 : VEC_NRV)

#define BODY "kernels/codes_pv_body.inc"
#include "kernels/each_code.inc"
