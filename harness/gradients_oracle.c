/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/gradients.h"
#include "harness/oracle.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double float_ulp = 0x1p-23;
enum { FEW_ROWS = 32 };

void gradients_oracle_destroy(struct gradients_oracle *oracle) {
    for (int64_t i = 0; oracle->head && i < oracle->count; i++) free(oracle->head[i].d_q); /* the first of its memory */
    free(oracle->head);
    free(oracle->distance);
    *oracle = (struct gradients_oracle){0};
}

/* Outputs of one KV head in one piece of memory. */
static int place(tp_reference_gradients *out, const struct tensors *t, int64_t seq, int naive) {
    const tp_problem *p = &t->problem;
    int64_t group = p->q_heads / p->kv_heads, rows = t->q_lens[seq] * group, keys = t->kv_lens[seq];
    *out = (tp_reference_gradients){.struct_size = sizeof *out};
    double *bounds = NULL, **const at[] = {&out->d_q, &out->d_k, &out->d_v, &out->d_alibi_slopes, &out->d_sinks,
                                           &bounds, &out->d_bias};
    const int64_t count[] = {rows * p->head_dim_qk, keys * p->head_dim_qk, keys * p->head_dim_v, group, group,
                             rows + 2 * keys, p->bias_dtype ? rows * keys : 0};
    int64_t sum = 0;
    for (int i = 0; i < 7; i++) sum += count[i];
    double *memory = malloc(((size_t)sum + 1) * sizeof *memory);
    if (!memory) return 1;
    for (int i = 0; i < 7; memory += count[i++]) *at[i] = memory;
    if (!p->bias_dtype) out->d_bias = NULL;
    if (naive) return 0;
    out->d_q_bound = bounds;
    out->d_k_bound = bounds + rows;
    out->d_v_bound = bounds + rows + keys;
    return 0;
}

static double root_mean_square(const struct tensors *t, enum tensor_id id) {
    double sum = 0, count = 0;
    for (int64_t s = 0; s < t->sequences; s++)
        for (int64_t token = 0; token < tensors_len(t, id, s); token++)
            for (int64_t h = 0; h < tensors_heads(t, id); h++)
                for (int64_t x = 0; x < tensors_dim(t, id); x++) {
                    double value = tensors_get(t, id, s, token, h, x);
                    if (isfinite(value)) sum += value * value, count++;
                }
    return count > 0 ? sqrt(sum / count) : 0;
}

tp_status gradients_oracle_create(struct gradients_oracle *oracle, const struct tensors *tensors,
                                 const struct gradients *gradients, tp_error *error) {
    const tp_problem *p = &tensors->problem;
    double scale = p->scale_set ? fabs((double)p->scale) : 1 / sqrt((double)p->head_dim_qk);
    *oracle = (struct gradients_oracle){.count = tensors->sequences * p->kv_heads * 2};
    oracle->pair = sqrt((double)p->head_dim_v) * root_mean_square(&gradients->held, TENSOR_O) *
                  root_mean_square(tensors, TENSOR_V);
    if (gradients->call.d_lse.data) oracle->pair += tensors_max(&gradients->held, TENSOR_LSE);
    oracle->size[0] = scale * oracle->pair * tensors_max(tensors, TENSOR_K);
    oracle->size[1] = scale * oracle->pair * tensors_max(tensors, TENSOR_Q);
    oracle->size[2] = tensors_max(&gradients->held, TENSOR_O);
    oracle->head = calloc((size_t)oracle->count + 1, sizeof *oracle->head);
    tp_status status = oracle->head ? gradients_look_at_rows(oracle, tensors, error) : TP_NO_MEMORY;
    for (int64_t i = 0; status == TP_OK && i < oracle->count; i++) {
        int64_t seq = i / 2 / p->kv_heads, head = i / 2 % p->kv_heads;
        if (place(&oracle->head[i], tensors, seq, i % 2)) status = TP_NO_MEMORY;
        if (status == TP_OK)
            status = tp_reference_backward(p, &tensors->call, i % 2 ? TP_NAIVE : TP_DOUBLE, seq, head,
                                           &oracle->head[i], error);
    }
    if (status == TP_NO_MEMORY) snprintf(error->text, sizeof error->text, "no memory for the reference's gradients");
    if (status != TP_OK) gradients_oracle_destroy(oracle);
    return status;
}

/* What the rule looks at, of one gradient over all sequences and heads. */
struct totals {
    const char *name;
    double max, naive_max, sum, naive_sum, largest, worst_expected, worst_got;
    int huge; /* an lse so large that a float says nothing of P: no bound is finite */
    int64_t values, rows;
};

/* One value; nonzero when it disagrees about being finite, is beyond its bound, or has none that is finite. FLT_MAX
   says that there is none by design. */
static int add_value(struct totals *t, double expected, double naive, double got, double bound, char *reason,
                     size_t size) {
    double error = fabs(got - expected), naive_error = isfinite(naive) ? fabs(naive - expected) : 0;
    int odd = isfinite(expected) ? !isfinite(got) : !isnan(got) && got != expected; /* infinity may show as NaN */
    int loose = isfinite(expected) && bound == INFINITY && !t->huge;
    if (odd || loose || (isfinite(expected) && error > bound)) {
        snprintf(reason, size, "%s: expected %.9g, got %.9g%s (error %.3g, allowed %.3g)", t->name, expected, got,
                 odd     ? ""
                 : loose ? ", without a finite bound: nothing would be checked"
                         : ", beyond its derived bound",
                 error, bound);
        return 1;
    }
    if (!isfinite(expected)) return 0;
    if (error > t->max) t->max = error, t->worst_expected = expected, t->worst_got = got;
    t->naive_max = fmax(t->naive_max, naive_error);
    t->largest = fmax(t->largest, fabs(expected));
    t->sum += error;
    t->naive_sum += naive_error;
    t->values++;
    return 0;
}

/* Rows, or keys, of one gradient of one head. */
static int add_head(const struct gradients_oracle *oracle, struct totals *t, const struct tensors *held, enum tensor_id id,
                    int64_t seq, int64_t kv_head, const double *expected, const double *naive, const double *bound, char *reason,
                    size_t size) {
    int64_t group = id == TENSOR_Q ? held->problem.q_heads / held->problem.kv_heads : 1, dim = tensors_dim(held, id);
    for (int64_t row = 0; row < tensors_len(held, id, seq); row++)
        for (int64_t g = 0; g < group; g++, t->rows++)
            for (int64_t x = 0; x < dim; x++) {
                int64_t at = (row * group + g) * dim + x;
                if (oracle->may_overflow && !(bound[row * group + g] < INFINITY)) continue;
                double got = tensors_get(held, id, seq, row, kv_head * group + g, x);
                if (add_value(t, expected[at], naive[at], got, bound[row * group + g], reason, size)) {
                    size_t used = 0;
                    while (reason[used]) used++;
                    snprintf(reason + used, size - used, " at seq %lld KV head %lld %s %lld column %lld", (long long)seq,
                             (long long)kv_head, id == TENSOR_Q ? "row" : "key", (long long)row, (long long)x);
                    return 1;
                }
            }
    return 0;
}

/* bounded: every value was held to a bound. What has none is always compared with naive. */
static int judge(const struct gradients_oracle *oracle, const struct totals *t, int bounded, double floor, double luck,
                 char *reason, size_t size) {
    if (t->values == 0 || (bounded && oracle->bounds_alone)) return 0;
    if (oracle->allowance > 0) luck *= oracle->allowance;
    double count = (double)t->values, max = luck * (2 * t->naive_max + floor);
    double mean = luck * (2 * t->naive_sum / count + floor / 2);
    if (t->max > max)
        snprintf(reason, size, "%s worse than twice the naive backward: expected %.9g, got %.9g (error %.3g, allowed %.3g)",
                 t->name, t->worst_expected, t->worst_got, t->max, max);
    else if (t->sum / count > mean)
        snprintf(reason, size, "mean error of %s: %.3g, allowed %.3g (twice naive's %.3g + floor/2)", t->name,
                 t->sum / count, mean, t->naive_sum / count);
    return t->max > max || t->sum / count > mean;
}

/* What a pair's gradient loses where its products and differences are subnormal. */
static double min_of_pair(const tp_problem *p) { return (double)(p->head_dim_v + 2) * 0x1p-149; }

/* Elements of the bias that several heads, rows or sequences share get the sum. */
static int compare_bias(const struct gradients_oracle *oracle, const struct tensors *tensors,
                        const struct gradients *gradients, double coarse, char *reason, size_t size) {
    const tp_problem *p = &tensors->problem;
    const int64_t *stride = tensors->call.bias_stride;
    int64_t group = p->q_heads / p->kv_heads;
    double *sums = calloc((size_t)gradients->bias_count * 3 + 1, sizeof *sums); /* double, naive, how many */
    struct totals t = {.name = "d_bias"};
    double shared = (double)p->q_heads; /* terms of one element */
    int failed = sums == NULL;
    for (int64_t i = 0; !failed && i < oracle->count; i++) {
        int64_t seq = i / 2 / p->kv_heads, kv_head = i / 2 % p->kv_heads, keys = tensors->kv_lens[seq];
        for (int64_t r = 0; r < tensors->q_lens[seq] * group; r++)
            for (int64_t j = 0; j < keys; j++) {
                int64_t at = seq * stride[0] + (kv_head * group + r % group) * stride[1] + r / group * stride[2] + j;
                sums[3 * at + i % 2] += oracle->head[i].d_bias[r * keys + j];
                shared = fmax(shared, ++sums[3 * at + 2] / 2);
            }
    }
    for (int64_t at = 0; !failed && at < gradients->bias_count; at++)
        if (sums[3 * at + 2] > 0)
            failed = add_value(&t, sums[3 * at], sums[3 * at + 1], gradients->d_bias[at], FLT_MAX, reason, size);
    free(sums);
    double floor = 4 * float_ulp * coarse * oracle->pair * sqrt(shared) +
                   min_of_pair(p) * (double)(p->q_heads * p->q_len * tensors->sequences);
    return failed || judge(oracle, &t, 0, floor, 1, reason, size);
}

/* Few values, each the sum of many: naive's error is a matter of luck. */
static int compare_heads(const struct gradients_oracle *oracle, const struct tensors *tensors,
                         const struct gradients *gradients, double coarse, char *reason, size_t size) {
    const tp_problem *p = &tensors->problem;
    int64_t group = p->q_heads / p->kv_heads;
    double rows = (double)(tensors->sequences * p->q_len);
    double unit = 4 * float_ulp * coarse * oracle->pair * sqrt(rows) + min_of_pair(p) * rows * (double)(p->kv_len + 1);
    double stored_slopes, stored_sinks;
    struct totals slopes = {.name = "d_alibi_slopes"}, sinks = {.name = "d_sinks"};
    for (int64_t h = 0; h < p->q_heads; h++) {
        double sum = 0, naive = 0;
        for (int64_t s = 0; s < tensors->sequences; s++) {
            const tp_reference_gradients *of = &oracle->head[2 * (s * p->kv_heads + h / group)];
            sum += of[0].d_sinks[h % group];
            naive += of[1].d_sinks[h % group];
            if (p->alibi && add_value(&slopes, of[0].d_alibi_slopes[h % group], of[1].d_alibi_slopes[h % group],
                                      gradients->d_slopes[s * tensors->call.alibi_stride + h], FLT_MAX, reason, size))
                return 1;
        }
        if (p->sinks && add_value(&sinks, sum, naive, gradients->d_sinks[h], FLT_MAX, reason, size)) return 1;
    }
    gradients_stored(oracle, tensors, gradients, &stored_slopes, &stored_sinks); /* six of each, 4 * 3/2 */
    return judge(oracle, &slopes, 0, unit * (double)(p->q_len + p->kv_len) + 3.0 / 2 * stored_slopes, 4, reason, size) ||
           judge(oracle, &sinks, 0, unit + 3.0 / 2 * stored_sinks, 4, reason, size);
}

int64_t gradients_unbounded(const struct gradients_oracle *oracle, const struct tensors *tensors, int64_t *all) {
    int64_t group = tensors->problem.q_heads / tensors->problem.kv_heads, found = 0;
    *all = 0;
    for (int64_t i = 0; i < oracle->count; i += 2) {
        int64_t seq = i / 2 / tensors->problem.kv_heads, count = tensors->q_lens[seq] * group + 2 * tensors->kv_lens[seq];
        *all += count;
        for (int64_t k = 0; k < count; k++) found += !(oracle->head[i].d_q_bound[k] < INFINITY); /* three, one behind another */
    }
    return found;
}

/* Where something is promised of each row and key; otherwise what is summed over all has no promise either. */
static int sums_count(const struct gradients_oracle *oracle, const struct tensors *tensors) {
    int64_t all;
    return !oracle->may_overflow || gradients_unbounded(oracle, tensors, &all) == 0;
}

/* How much further than 16 pairs the errors of a key's sum walk. */
static double walk(const struct tensors *tensors, enum tensor_id id) {
    double max = 1, group = (double)(tensors->problem.q_heads / tensors->problem.kv_heads);
    for (int64_t s = 0; id != TENSOR_Q && s < tensors->sequences; s++)
        if (tensors->kv_lens[s] > 0)
            max = fmax(max, sqrt((double)tensors->q_lens[s] * group / (double)tensors->kv_lens[s]) / 4);
    return max;
}

int gradients_compare(const struct gradients_oracle *oracle, const struct tensors *tensors,
                      const struct gradients *gradients, char *reason, size_t size) {
    static const char *const names[] = {"d_q", "d_k", "d_v"};
    const tp_problem *p = &tensors->problem;
    double coarse = fmax(1, oracle->max_lse * 3 / 8);
    for (int id = TENSOR_Q; id <= TENSOR_V; id++) {
        struct totals t = {.name = names[id], .huge = coarse > 0x1p64};
        for (int64_t i = 0; i < oracle->count; i += 2) {
            const tp_reference_gradients *of = &oracle->head[i];
            const double *values[] = {of[0].d_q, of[0].d_k, of[0].d_v}, *naive[] = {of[1].d_q, of[1].d_k, of[1].d_v};
            const double *bounds[] = {of[0].d_q_bound, of[0].d_k_bound, of[0].d_v_bound};
            if (add_head(oracle, &t, &gradients->held, (enum tensor_id)id, i / 2 / p->kv_heads, i / 2 % p->kv_heads,
                         values[id], naive[id], bounds[id], reason, size))
                return 1;
        }
        tp_dtype dtype = tensors_dtype(tensors, (enum tensor_id)id);
        double floor = 4 * float_ulp * coarse * walk(tensors, (enum tensor_id)id) * oracle->size[id] +
                       half_ulp(dtype) * t.largest + (dtype == TP_F16 ? 0x1p-25 : 0) +
                       (double)(p->q_len * (p->q_heads / p->kv_heads) + p->kv_len) * 0x1p-149;
        if (judge(oracle, &t, 1, floor, t.rows < FEW_ROWS ? 2 : 1, reason, size)) return 1;
    }
    if (!sums_count(oracle, tensors)) return 0;
    if (p->bias_dtype && compare_bias(oracle, tensors, gradients, coarse, reason, size)) return 1;
    return (p->alibi || p->sinks) && compare_heads(oracle, tensors, gradients, coarse, reason, size);
}
