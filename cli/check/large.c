/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile cases of values as large as a float holds, and of rows that see nothing but a sink. */
#include "check/check.h"

#include <float.h>
#include <math.h>

static int visible(const struct tensors *t, tp_row at, int64_t key) {
    return tp_mask_visible(&t->problem, &t->call, at.seq, at.head, at.row, key) == 1;
}

/* A finite bias is no mask, however low: of rows that have no other the output is the mean of what they see. */
static int lowest_bias(struct check_env *env) {
    struct tensors t;
    int failed = check_make_own(env, &t);
    tp_dtype dtype = (tp_dtype)t.problem.bias_dtype;
    float low = dtype == TP_F16 ? -65504 : dtype == TP_BF16 ? -0x1.fep127f : -FLT_MAX;
    int64_t unit = failed ? 0 : (int64_t)tp_dtype_bytes(dtype), group = t.problem.q_heads / t.problem.kv_heads;
    for (int64_t h = 0; !failed && h < t.problem.q_heads; h++)
        for (int64_t r = 0; r < t.q_lens[0]; r++)
            for (int64_t j = 0; j < t.kv_lens[0]; j++) {
                const int64_t *stride = t.call.bias_stride;
                int64_t at = h * stride[1] + r * stride[2] + j * stride[3];
                if (r % 2 || (j + r) % 3)
                    tp_from_float(dtype, low, (char *)(uintptr_t)t.call.bias + at * unit);
            }
    if (!failed) failed = check_attend(env, &t) || check_oracle(env, &t);
    for (int64_t h = 0; !failed && low < -1e38f && h < t.problem.q_heads; h++)
        for (int64_t r = 1; !failed && r < t.q_lens[0]; r += 2) {
            tp_row at = {0, h, r};
            double sum = 0, count = 0, got = tensors_get(&t, TENSOR_O, 0, r, h, 0);
            for (int64_t j = 0; j < t.kv_lens[0]; j++)
                if (visible(&t, at, j)) sum += tensors_get(&t, TENSOR_V, 0, j, h / group, 0), count++;
            if (count > 0 && !(fabs(got - sum / count) < 2e-2))
                failed = check_fail(env, "head %lld row %lld, whose every bias is %g: expected the mean of v, %.9g, got %.9g",
                                    (long long)h, (long long)r, (double)low, sum / count, got);
        }
    tensors_destroy(&t);
    return failed;
}

/* Where a row sees no key its lse is the sink, to the bit, and o is 0; q is NaN there. Sinks are of any size. */
static int sink_rows(struct check_env *env) {
    static const float sizes[] = {3e38f, -FLT_MAX, FLT_MAX, 0, 3, -0.1f};
    struct tensors t;
    int64_t found = 0;
    int failed = check_make_own(env, &t);
    for (int64_t h = 0; !failed && h < t.problem.q_heads; h++) {
        float *sinks = (float *)(uintptr_t)t.call.sinks;
        if ((h + (int64_t)env->seed) % 2) sinks[h] = sizes[(h + (int64_t)env->seed) / 2 % 6];
        for (int64_t r = 0; r < t.q_lens[0]; r++) {
            int sees = 0;
            for (int64_t j = 0; !sees && j < t.kv_lens[0]; j++) sees = visible(&t, (tp_row){0, h, r}, j);
            if (!sees) tensors_set(&t, TENSOR_Q, 0, r, h, 0, NAN), found++;
        }
    }
    if (!failed && !found) failed = check_fail(env, "the case has no row without keys: it tests nothing");
    if (!failed) failed = check_attend(env, &t) || check_oracle(env, &t);
    for (int64_t h = 0; !failed && h < t.problem.q_heads; h++)
        for (int64_t r = 0; !failed && r < t.q_lens[0]; r++) {
            float lse = tensors_get(&t, TENSOR_LSE, 0, r, h, 0), sink = t.call.sinks[h];
            if (isnan(tensors_get(&t, TENSOR_Q, 0, r, h, 0)) && lse != sink)
                failed = check_fail(env, "lse of head %lld row %lld: expected the sink, %.9g, got %.9g", (long long)h,
                                    (long long)r, (double)sink, (double)lse);
        }
    tensors_destroy(&t);
    return failed;
}

void check_add_large(struct check_list *list) {
    static const struct tensors_style style = {.lse = 1};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    for (int t = 0; t < 3; t++)
        for (int b = 0; b < 3; b++) {
            check_add(list, "hostile", "lowest-bias", lowest_bias, style, "h4/2 q40 k90 d24 %s bias=%s", dtypes[t],
                      dtypes[b]);
            check_add(list, "hostile", "lowest-bias", lowest_bias, style, "h4/2 q5 k1100 d40 %s causal bias=%s",
                      dtypes[t], dtypes[b]);
        }
    for (int t = 0; t < 3; t++) {
        check_add(list, "hostile", "sink-rows", sink_rows, style, "h4/2 q50 k20 d24 %s causal sinks", dtypes[t]);
        check_add(list, "hostile", "sink-rows", sink_rows, style, "h6/2 q40 k90 d260 %s documents sinks softcap=9",
                  dtypes[t]);
        check_add(list, "hostile", "sink-rows", sink_rows, style, "h4/1 q4 k0 d24 %s sinks", dtypes[t]);
    }
}
