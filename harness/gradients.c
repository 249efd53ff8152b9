/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/gradients.h"

#include <stdlib.h>
#include <string.h>

void gradients_destroy(struct gradients *gradients) {
    enum guarded_side side = gradients->held.style.guarded;
    tensors_destroy(&gradients->held);
    guarded_free(side, gradients->d_bias);
    guarded_free(side, gradients->d_slopes);
    guarded_free(side, gradients->d_sinks);
    *gradients = (struct gradients){0};
}

void gradients_poison(struct gradients *gradients, int byte) {
    const tp_problem *p = &gradients->held.problem;
    gradients->held.poison = byte;
    for (int id = TENSOR_Q; id <= TENSOR_V; id++)
        if (gradients->held.buffer[id].memory)
            memset(gradients->held.buffer[id].memory, byte, gradients->held.buffer[id].bytes);
    if (gradients->d_bias) memset(gradients->d_bias, byte, (size_t)gradients->bias_count * sizeof(float));
    if (gradients->d_slopes) memset(gradients->d_slopes, byte, (size_t)gradients->slope_count * sizeof(float));
    if (gradients->d_sinks) memset(gradients->d_sinks, byte, (size_t)p->q_heads * sizeof(float));
}

static float *take_floats(const struct tensors *tensors, int64_t count) {
    return guarded_take(tensors->style.guarded, (size_t)count * sizeof(float), sizeof(float), 0xFF);
}

int gradients_create(struct gradients *gradients, struct tensors *tensors, const tp_lengths *lengths,
                     uint64_t seed) {
    const tp_problem *p = &tensors->problem;
    tp_tensors *call = &tensors->call;
    *gradients = (struct gradients){.call = TP_GRADIENTS_INIT};
    tp_problem plain = *p; /* at the lengths that were asked for: slack is added once more */
    plain.bias_dtype = plain.alibi = plain.sinks = 0;
    plain.q_len -= tensors->style.slack;
    plain.kv_len -= tensors->style.slack;
    if (tensors_create(&gradients->held, &plain, lengths, &tensors->style)) return 1;
    const struct tensors *held = &gradients->held;
    if (p->bias_dtype) gradients->bias_count = tensors->masks.bias_count;
    gradients->slope_count = p->alibi ? p->q_heads * (call->alibi_stride ? p->batch : 1) : 0;
    if (p->bias_dtype && !(gradients->d_bias = take_floats(tensors, gradients->bias_count))) return 1;
    if (p->alibi && !(gradients->d_slopes = take_floats(tensors, gradients->slope_count))) return 1;
    if (p->sinks && !(gradients->d_sinks = take_floats(tensors, p->q_heads))) return 1;
    tensors_fill_one(&gradients->held, TENSOR_O, seed ^ 0xD0, 1);
    if (tensors->style.lse) tensors_fill_one(&gradients->held, TENSOR_LSE, seed ^ 0xD1, 1);
    gradients->call.d_q = held->call.q;
    gradients->call.d_k = held->call.k;
    gradients->call.d_v = held->call.v;
    gradients->call.d_o = held->call.o;
    if (seed % 2) gradients->call.d_lse = held->call.lse;
    gradients->call.d_bias = gradients->d_bias;
    memcpy(gradients->call.d_bias_stride, call->bias_stride, sizeof call->bias_stride);
    gradients->call.d_alibi_slopes = gradients->d_slopes;
    gradients->call.d_alibi_stride = call->alibi_stride;
    gradients->call.d_sinks = gradients->d_sinks;
    call->gradients = &gradients->call;
    tensors->gradients = gradients;
    return 0;
}

tp_status gradients_forward(struct tensors *tensors, tp_context *context, tp_error *error) {
    tp_problem forward = tensors->problem;
    tp_choice choice = TP_CHOICE_INIT;
    choice.policy = TP_PERMIT;
    forward.op = TP_FORWARD;
    return tp_attention(context, &forward, &choice, &tensors->call, NULL, error);
}
