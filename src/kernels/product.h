/* SPDX-License-Identifier: Apache-2.0 */
/* What a register tile of scores is, whatever its operands are packed as. */
#ifndef TP_KERNELS_PRODUCT_H
#define TP_KERNELS_PRODUCT_H

#include <stdint.h>

/* out[i][0..n) = sum over x < d of a[i][x] * b[x][0..n), n a panel or half of one; lda and d count a's elements */
typedef void product_fn(const void *a, int64_t lda, const void *b, int64_t d, float *out, int64_t ldo);

#endif
