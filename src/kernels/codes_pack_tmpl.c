/* SPDX-License-Identifier: Apache-2.0 */
/* pack_k and pack_v of quantised caches: from codes and scales to the packed float32 forms. */
#include "kernels/codes.h"
#include "kernels/rows.h"

#define BODY "kernels/codes_pack_body.inc"
#include "kernels/each_code.inc"
