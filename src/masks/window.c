/* SPDX-License-Identifier: Apache-2.0 */
/* window(a, b): q_pos - a <= k_pos <= q_pos + b, self included; -1 leaves a side unbounded */
#include "masks/mask.h"

#include "base/error.h"

/* Positions stay below 2^40, so that no sum of a position and a side can overflow. */
#define SIDE_MAX ((int64_t)1 << 40)

static tp_status check(const tp_mask_node *node, tp_error *error) {
    TP_REQUIRE(node->a >= -1 && node->a <= SIDE_MAX, error, TP_INVALID,
               "window left is %lld: it must be -1 (unbounded) or in 0..2^40", (long long)node->a);
    TP_REQUIRE(node->b >= -1 && node->b <= SIDE_MAX, error, TP_INVALID,
               "window right is %lld: it must be -1 (unbounded) or in 0..2^40", (long long)node->b);
    return TP_OK;
}

static int allowed(const tp_mask_node *node, int64_t q_pos, int64_t k_pos) {
    return (node->a < 0 || k_pos >= q_pos - node->a) && (node->b < 0 || k_pos <= q_pos + node->b);
}

static tp__interval interval(const tp_mask_node *node, int64_t q_pos) {
    return (tp__interval){node->a < 0 ? INT64_MIN : q_pos - node->a,
                          node->b < 0 ? INT64_MAX : q_pos + node->b + 1};
}

const tp__mask_kind tp__mask_window = {TP_MASK_WINDOW, "window", check, allowed, interval};
