/* SPDX-License-Identifier: Apache-2.0 */
/* Between tensors of any dtype and the packed float32 forms: load_q, pack_k, pack_v, store_o. */
#include "kernels/function.h"
#include "kernels/rows.h"

#include <math.h>

#define BODY "kernels/convert_body.inc"
#include "kernels/each_dtype.inc"
