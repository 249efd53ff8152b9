/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/gradients.h"
#include "harness/oracle.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double float_ulp = 0x1p-23;
static const double HUGE_LSE = 0x1p64;
enum { FEW_ROWS = 32 };

void gradients_oracle_destroy(struct gradients_oracle *oracle) {
    for (int64_t i = 0; oracle->head && i < oracle->count; i++) free(oracle->head[i].d_q); /* the first of its memory */
    free(oracle->head);
    *oracle = (struct gradients_oracle){0};
}

/* Outputs of one KV head in one piece of memory. */
static int place(tp_reference_gradients *out, const struct tensors *t, int64_t seq, int naive) {
    const tp_problem *p = &t->problem;
    int64_t group = p->q_heads / p->kv_heads, rows = t->q_lens[seq] * group, keys = t->kv_lens[seq];
    *out = (tp_reference_gradients){.struct_size = sizeof *out};
    int64_t pairs = p->bias_dtype ? rows * keys : 0, sum = 0;
    const struct {
        double **at;
        int64_t count;
    } parts[] = {{&out->d_q, rows * p->head_dim_qk}, {&out->d_k, keys * p->head_dim_qk}, {&out->d_v, keys * p->head_dim_v},
                 {&out->d_alibi_slopes, group}, {&out->d_sinks, group}, {&out->d_bias, pairs},
                 {&out->d_q_bound, rows}, {&out->d_k_bound, keys}, {&out->d_v_bound, keys}, /* one behind another */
                 {&out->d_alibi_slopes_bound, group}, {&out->d_sinks_bound, group}, {&out->d_bias_bound, pairs}};
    enum { PARTS = sizeof parts / sizeof *parts, BOUNDS = 6 };
    int used = naive ? BOUNDS : PARTS; /* only the definition has bounds */
    for (int i = 0; i < used; i++) sum += parts[i].count;
    double *memory = malloc(((size_t)sum + 1) * sizeof *memory);
    if (!memory) return 1;
    for (int i = 0; i < used; memory += parts[i++].count) *parts[i].at = memory;
    if (!p->bias_dtype) out->d_bias = out->d_bias_bound = NULL;
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

/* The largest |lse| that is finite, by the definition: the kernel's own would let it decide what it is allowed. */
static tp_status find_max_lse(struct gradients_oracle *oracle, const struct tensors *tensors, tp_error *error) {
    tp_row *rows = NULL;
    int64_t count = sample_rows(tensors, INT64_MAX, 0, &rows);
    double *lse = count >= 0 ? malloc(((size_t)count + 1) * sizeof *lse) : NULL;
    tp_status status = lse ? tp_reference(&tensors->problem, &tensors->call, TP_DOUBLE, TP_ARITHMETIC_F32, count, rows, NULL,
                                          lse, NULL, NULL, error)
                           : TP_NO_MEMORY;
    for (int64_t i = 0; status == TP_OK && i < count; i++)
        if (isfinite(lse[i])) oracle->max_lse = fmax(oracle->max_lse, fabs(lse[i]));
    free(lse);
    free(rows);
    return status;
}

tp_status gradients_oracle_create(struct gradients_oracle *oracle, const struct tensors *tensors,
                                 const struct gradients *gradients, tp_error *error) {
    const tp_problem *p = &tensors->problem;
    double scale = p->scale_set ? fabs((double)p->scale) : 1 / sqrt((double)p->head_dim_qk);
    *oracle = (struct gradients_oracle){.count = tensors->sequences * p->kv_heads * 2};
    double kept = 1 / (1 - (double)p->dropout); /* what a pair that is not dropped is multiplied by */
    oracle->pair = kept * sqrt((double)p->head_dim_v) * root_mean_square(&gradients->held, TENSOR_O) *
                  root_mean_square(tensors, TENSOR_V);
    if (gradients->call.d_lse.data) oracle->pair += tensors_max(&gradients->held, TENSOR_LSE);
    oracle->size[0] = scale * oracle->pair * tensors_max(tensors, TENSOR_K);
    oracle->size[1] = scale * oracle->pair * tensors_max(tensors, TENSOR_Q);
    oracle->size[2] = kept * tensors_max(&gradients->held, TENSOR_O);
    oracle->head = calloc((size_t)oracle->count + 1, sizeof *oracle->head);
    tp_status status = oracle->head ? find_max_lse(oracle, tensors, error) : TP_NO_MEMORY;
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

/* One value; nonzero when it disagrees about being finite, is beyond its bound, or has none that is finite. */
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

/* All values together against naive, after each was held to its bound. */
static int judge(const struct gradients_oracle *oracle, const struct totals *t, double floor, double luck, char *reason,
                 size_t size) {
    if (t->values == 0 || oracle->bounds_alone) return 0;
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

/* Gradients of what changes scores are compared with naive only where o is a float. The rounding of o to 16 bits causes
   nearly all of their error; it is the same for naive, whose error may by luck be a tenth of that. */
static int naive_says_something(const tp_problem *p) { return p->o_dtype == TP_F32; }

/* Elements of the bias that several heads, rows or sequences share get the sum. */
static int compare_bias(const struct gradients_oracle *oracle, const struct tensors *tensors,
                        const struct gradients *gradients, double coarse, char *reason, size_t size) {
    const tp_problem *p = &tensors->problem;
    const int64_t *stride = gradients->call.d_bias_stride;
    int64_t group = p->q_heads / p->kv_heads;
    struct element {
        double value, naive, bound, magnitudes, terms;
    } *sums = calloc((size_t)gradients->bias_count + 1, sizeof *sums);
    struct totals t = {.name = "d_bias", .huge = coarse > HUGE_LSE};
    double shared = (double)p->q_heads; /* terms of one element */
    int failed = sums == NULL;
    for (int64_t i = 0; !failed && i < oracle->count; i += 2) {
        int64_t seq = i / 2 / p->kv_heads, kv_head = i / 2 % p->kv_heads, keys = tensors->kv_lens[seq];
        const tp_reference_gradients *of = &oracle->head[i];
        for (int64_t r = 0; r < tensors->q_lens[seq] * group; r++)
            for (int64_t j = 0; j < keys; j++) {
                struct element *sum =
                    &sums[seq * stride[0] + (kv_head * group + r % group) * stride[1] + r / group * stride[2] + j];
                sum->value += of[0].d_bias[r * keys + j];
                sum->naive += of[1].d_bias[r * keys + j];
                sum->bound += of[0].d_bias_bound[r * keys + j];
                sum->magnitudes += fabs(of[0].d_bias[r * keys + j]);
                shared = fmax(shared, ++sum->terms);
            }
    }
    for (int64_t at = 0; !failed && at < gradients->bias_count; at++) {
        const struct element *sum = &sums[at];
        double bound = sum->bound + sum->terms * float_ulp / 2 * (sum->magnitudes + sum->bound);
        if (sum->terms > 0) failed = add_value(&t, sum->value, sum->naive, gradients->d_bias[at], bound, reason, size);
    }
    free(sums);
    double floor = 4 * float_ulp * coarse * oracle->pair * sqrt(shared) +
                   min_of_pair(p) * (double)(p->q_heads * p->q_len * tensors->sequences);
    return failed || (naive_says_something(p) && judge(oracle, &t, floor, 1, reason, size));
}

/* The value of one sink or slope: a sum over sequences. The reference's bound is for the terms of one of them. */
struct head_sum {
    double value, naive, bound;
};
static void add_sequence(struct head_sum *sum, double value, double naive, double bound, double terms, double all_terms) {
    sum->value += value;
    sum->naive += naive;
    sum->bound += bound * (all_terms + 8) / (terms + 8);
}
static int add_head_sum(struct totals *t, const struct head_sum *sum, double got, char *reason, size_t size) {
    return add_value(t, sum->value, sum->naive, got, sum->bound, reason, size);
}

/* Few values, each the sum of many: naive's error is a matter of luck. */
static int compare_heads(const struct gradients_oracle *oracle, const struct tensors *tensors,
                         const struct gradients *gradients, double coarse, char *reason, size_t size) {
    const tp_problem *p = &tensors->problem;
    int64_t group = p->q_heads / p->kv_heads;
    const tp_gradients *call = &gradients->call;
    int64_t stride = call->d_alibi_stride; /* 0: sequences share slopes */
    double rows = (double)(tensors->sequences * p->q_len), pairs = rows * (double)p->kv_len;
    double unit = 4 * float_ulp * coarse * oracle->pair * sqrt(rows) + min_of_pair(p) * rows * (double)(p->kv_len + 1);
    struct totals slopes = {.name = "d_alibi_slopes", .huge = coarse > HUGE_LSE};
    struct totals sinks = {.name = "d_sinks", .huge = slopes.huge};
    for (int64_t h = 0; h < p->q_heads; h++) {
        struct head_sum sink = {0}, slope = {0};
        for (int64_t s = 0; s < tensors->sequences; s++) {
            const tp_reference_gradients *of = &oracle->head[2 * (s * p->kv_heads + h / group)];
            double own = (double)tensors->q_lens[s], own_pairs = own * (double)tensors->kv_lens[s];
            int64_t g = h % group;
            add_sequence(&sink, of[0].d_sinks[g], of[1].d_sinks[g], of[0].d_sinks_bound[g], own, rows);
            if (stride) slope = (struct head_sum){0};
            add_sequence(&slope, of[0].d_alibi_slopes[g], of[1].d_alibi_slopes[g], of[0].d_alibi_slopes_bound[g], own_pairs,
                         stride ? own_pairs : pairs);
            const float *own_slopes = gradients->d_slopes + s * stride;
            if (call->d_alibi_slopes && stride && add_head_sum(&slopes, &slope, own_slopes[h], reason, size)) return 1;
        }
        if (call->d_alibi_slopes && !stride && add_head_sum(&slopes, &slope, gradients->d_slopes[h], reason, size)) return 1;
        if (call->d_sinks && add_head_sum(&sinks, &sink, gradients->d_sinks[h], reason, size)) return 1;
    }
    return naive_says_something(p) && (judge(oracle, &slopes, unit * (double)(p->q_len + p->kv_len), 4, reason, size) ||
                                       judge(oracle, &sinks, unit, 4, reason, size));
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
    const tp_gradients *call = &gradients->call;
    const void *const wanted[] = {call->d_q.data, call->d_k.data, call->d_v.data};
    const tp_problem *p = &tensors->problem;
    double coarse = fmax(1, oracle->max_lse * 3 / 8);
    for (int id = TENSOR_Q; id <= TENSOR_V; id++) {
        struct totals t = {.name = names[id], .huge = coarse > HUGE_LSE};
        if (!wanted[id]) continue;
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
        if (judge(oracle, &t, floor, t.rows < FEW_ROWS ? 2 : 1, reason, size)) return 1;
    }
    if (!sums_count(oracle, tensors)) return 0;
    if (call->d_bias && compare_bias(oracle, tensors, gradients, coarse, reason, size)) return 1;
    return (call->d_alibi_slopes || call->d_sinks) && compare_heads(oracle, tensors, gradients, coarse, reason, size);
}
