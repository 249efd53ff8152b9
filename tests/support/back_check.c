/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients against tp_reference_backward, by the harness's oracle. */
#include "support/back.h"

#include <stdlib.h>

void back_forget(back *b) {
    if (b->oracle != NULL) gradients_oracle_destroy(b->oracle);
    free(b->oracle);
    b->oracle = NULL;
}

void back_check(back *b, const char *what) {
    struct tensors view = call_view(b->c);
    struct gradients gradients = back_view(b);
    tp_error error = TP_ERROR_INIT;
    char reason[512];
    view.problem = b->problem;
    if (b->oracle == NULL) {
        b->oracle = calloc(1, sizeof *b->oracle);
        assert_non_null(b->oracle);
        if (gradients_oracle_create(b->oracle, &view, &gradients, &error)) fail_msg("%s", error.text);
    }
    if (gradients_compare(b->oracle, &view, &gradients, reason, sizeof reason)) fail_msg("%s: %s", what, reason);
}
