/* SPDX-License-Identifier: Apache-2.0 */
/* causal: k_pos <= q_pos */
#include "masks/mask.h"

#include "base/error.h"

static tp_status check(const tp_mask_node *node, tp_error *error) {
    TP_REQUIRE(node->a == 0 && node->b == 0, error, TP_INVALID,
               "mask causal has values %lld,%lld: it takes none", (long long)node->a,
               (long long)node->b);
    return TP_OK;
}

static int allowed(const tp_mask_node *node, int64_t q_pos, int64_t k_pos) {
    (void)node;
    return k_pos <= q_pos;
}

static tp__interval interval(const tp_mask_node *node, int64_t q_pos) {
    (void)node;
    return (tp__interval){INT64_MIN, q_pos + 1};
}

const tp__mask_kind tp__mask_causal = {TP_MASK_CAUSAL, "causal", check, allowed, interval};
