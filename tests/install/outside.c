/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <tileproof.h>

int main(void) {
    static float q[64 * 4 * 32], k[64 * 2 * 32], v[64 * 2 * 32], o[64 * 4 * 32];
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    tp_problem problem;
    tp_tensors tensors;
    tp_receipt receipt;
    for (int i = 0; i < 64 * 2 * 32; i++) v[i] = 1.0f;
    if (tp_context_create(NULL, &context, &error) != TP_OK) return puts(error.text), 1;
    if (tp_problem_parse("h4/2 q64 k64 d32 causal", &problem, NULL, &error) != TP_OK)
        return puts(error.text), 1;
    tp_tensors_init(&tensors, &problem, q, k, v, o);
    tp_receipt_init(&receipt);
    if (tp_attention(context, &problem, NULL, &tensors, &receipt, &error) != TP_OK)
        return puts(error.text), 1;
    printf("%s ran on %s, o[0] = %g\n", receipt.problem, receipt.kernel, o[0]);
    tp_context_destroy(context);
    return o[0] != 1.0f;
}
