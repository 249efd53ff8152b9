/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's tensors, and the structs that they point to, as this library knows them. */
#include "base/structs.h"
#include "problem/sequence.h"

tp_status tp__tensors_in(const tp_tensors **tensors, int32_t op, tp__tensors_here *here, tp_error *error) {
    if (*tensors == NULL) return TP_OK;
    const tp_tensors *t = TP_IN(tp_tensors, *tensors, &here->tensors, error);
    if (t == NULL) return TP_INVALID;
    const tp_gradients *gradients = t->gradients;
    const tp_tags *tags = t->tags;
    if (op == TP_BACKWARD && gradients != NULL) {
        gradients = TP_IN(tp_gradients, gradients, &here->gradients, error);
        if (gradients == NULL) return TP_INVALID;
    }
    if (tags != NULL) {
        tags = TP_IN(tp_tags, tags, &here->tags, error);
        if (tags == NULL) return TP_INVALID;
    }
    *tensors = t;
    if (gradients == t->gradients && tags == t->tags) return TP_OK;
    here->tensors = *t;
    here->tensors.gradients = gradients;
    here->tensors.tags = tags;
    *tensors = &here->tensors;
    return TP_OK;
}
