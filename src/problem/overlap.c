/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether tensors share bytes, in constant time. Take any s > 0 and call the dims whose stride is a
 * multiple of s outer and the others inner. Modulo s the outer dims vanish, so every byte of a
 * tensor lies in the circular interval [lo, lo + inner span). When these intervals of two tensors
 * do not meet for some s, the tensors share no byte. Every stride is tried as s: the token stride
 * proves an o that is a slice of one [token][q|k|v|o] buffer, the head stride one of
 * [token][head][q|k|v|o].
 */
#include "problem/overlap.h"

#include <string.h>

#include "base/error.h"

static const char *const dim_name[3] = {"batch", "token", "head"};

void tp__region_array(tp__region *region, const char *name, const void *data, int64_t bytes) {
    region->name = name;
    region->lo = (uintptr_t)data;
    region->span = region->row = data != NULL ? bytes : 0;
    region->element = 1;
    region->dims = 0;
}

/* *sum += count * step; 1 when that leaves int64 */
static int add_product(int64_t *sum, int64_t count, int64_t step) {
    int64_t product;
    return __builtin_mul_overflow(count, step, &product) ||
           __builtin_add_overflow(*sum, product, sum);
}

tp_status tp__region_tensor(tp__region *region, const char *name, const tp_tensor *tensor,
                            const int64_t extent[3], int64_t row_elements, tp_dtype dtype,
                            tp_error *error) {
    int64_t size = (int64_t)tp_dtype_bytes(dtype), last = 0;
    uintptr_t end;
    tp__region_array(region, name, tensor->data, 0);
    region->element = size;
    TP_REQUIRE((region->lo & (uintptr_t)(size - 1)) == 0, error, TP_INVALID,
               "%s.data is %p: it must be aligned to its element, %lld bytes of %s", name,
               tensor->data, (long long)size, tp_dtype_name(dtype));
    int beyond = __builtin_mul_overflow(row_elements, size, &region->row);
    for (int i = 0; i < 3; i++) {
        if (extent[i] <= 1) continue;
        int64_t bytes = 0;
        beyond |= __builtin_mul_overflow(tensor->stride[i], size, &bytes) ||
                  add_product(&last, extent[i] - 1, bytes);
        TP_REQUIRE(!beyond, error, TP_INVALID,
                   "%s.stride[%d] is %lld for %lld steps (%s): its last byte must be within int64",
                   name, i, (long long)tensor->stride[i], (long long)extent[i], dim_name[i]);
        region->dim[region->dims] = i;
        region->stride[region->dims] = bytes;
        region->extent[region->dims++] = extent[i];
    }
    beyond |= __builtin_add_overflow(last, region->row, &region->span) ||
              __builtin_add_overflow(region->lo, (uintptr_t)region->span, &end);
    TP_REQUIRE(!beyond, error, TP_INVALID,
               "%s spans %lld bytes from %p: its last byte must be within the address space", name,
               (long long)region->span, tensor->data);
    return TP_OK;
}

/* The region's dims, the smallest stride first. */
static void sort_dims(const tp__region *region, int order[3]) {
    for (int i = 0; i < region->dims; i++) {
        int j = i;
        for (; j > 0 && region->stride[order[j - 1]] > region->stride[i]; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
}

tp_status tp__region_check_output(const tp__region *region, tp_error *error) {
    int64_t covered = region->row;
    int order[3] = {0, 1, 2};
    sort_dims(region, order);
    for (int i = 0; i < region->dims; i++) {
        int64_t stride = region->stride[order[i]], extent = region->extent[order[i]];
        TP_REQUIRE(stride >= covered, error, TP_INVALID,
                   "%s.stride[%d] (%s) is %lld over %lld steps: it must be at least %lld, what the "
                   "smaller steps cover, because output rows must not overlap",
                   region->name, region->dim[order[i]], dim_name[region->dim[order[i]]],
                   (long long)(stride / region->element), (long long)extent,
                   (long long)(covered / region->element));
        covered += (extent - 1) * stride;
    }
    return TP_OK;
}

static int ranges_disjoint(const tp__region *a, const tp__region *b) {
    return a->lo + (uintptr_t)a->span <= b->lo || b->lo + (uintptr_t)b->span <= a->lo;
}

static int64_t inner_span(const tp__region *region, int64_t s) {
    int64_t span = region->row;
    for (int i = 0; i < region->dims; i++)
        if (region->stride[i] % s != 0) span += (region->extent[i] - 1) * region->stride[i];
    return span;
}

static int disjoint_modulo(const tp__region *a, const tp__region *b, int64_t s) {
    uintptr_t modulus = (uintptr_t)s, a_span = (uintptr_t)inner_span(a, s),
              b_span = (uintptr_t)inner_span(b, s);
    if (a_span >= modulus || b_span >= modulus) return 0;
    uintptr_t distance = (b->lo % modulus + modulus - a->lo % modulus) % modulus;
    return distance >= a_span && distance + b_span <= modulus;
}

static int interleave(const tp__region *a, const tp__region *b, const tp__region *strides) {
    for (int i = 0; i < strides->dims; i++)
        if (strides->stride[i] > 0 && disjoint_modulo(a, b, strides->stride[i])) return 1;
    return 0;
}

tp_status tp__region_check_disjoint(const tp__region *output, const tp__region *other,
                                 tp_error *error) {
    if (output->span == 0 || other->span == 0 || ranges_disjoint(output, other)) return TP_OK;
    TP_REQUIRE(interleave(output, other, output) || interleave(output, other, other), error,
               TP_INVALID,
               "%s (%lld bytes from %p) may overlap %s (%lld bytes from %p): an output must be "
               "apart from every input and other output, or interleave with it by one stride",
               output->name, (long long)output->span, (void *)output->lo, other->name,
               (long long)other->span, (void *)other->lo);
    return TP_OK;
}
