/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes a tensor touches, and whether two tensors can touch the same ones. */
#ifndef TP_PROBLEM_OVERLAP_H
#define TP_PROBLEM_OVERLAP_H

#include "tileproof.h"

/* Rows of `row` bytes at lo + sum of index * stride; dims of extent 1 are left out. */
typedef struct tp__region {
    const char *name;
    uintptr_t lo;
    int64_t span; /* lo + span is the byte behind the last; 0: nothing is touched */
    int64_t row, element;
    int dims;
    int dim[3];                   /* which stride of the tensor this one is */
    int64_t stride[3], extent[3]; /* strides in bytes */
} tp__region;

/* One contiguous row; no data or no bytes: nothing is touched. Fields that a region without dims
   never reads stay unset, because every call of the library makes nine of these. */
void tp__region_array(tp__region *region, const char *name, const void *data, int64_t bytes);

/* A tensor of extent[0] x extent[1] x extent[2] rows, each extent at least 1 and each stride at
   least 0. Refuses misaligned data and elements beyond the address space. */
tp_status tp__region_tensor(tp__region *region, const char *name, const tp_tensor *tensor,
                            const int64_t extent[3], int64_t row_elements, tp_dtype dtype,
                            tp_error *error);

/* No two rows of an output may share a byte. */
tp_status tp__region_check_output(const tp__region *region, tp_error *error);

/* TP_OK when the two provably share no byte: their ranges are apart, or they interleave. */
tp_status tp__region_check_disjoint(const tp__region *output, const tp__region *other,
                                 tp_error *error);

/* tp_check_deep of tensors that passed tp__tensors_check or tp__tensors_check_on. */
tp_status tp__check_deep(const tp_problem *problem, const tp_tensors *tensors, tp_error *error);

/* Of it, the rows alone: every row that is written against every other
   and against every row that is read. */
tp_status tp__check_rows(const tp_problem *problem, const tp_tensors *tensors, tp_error *error);

#endif
