/* SPDX-License-Identifier: Apache-2.0 */
/* One sequence of a call: its actual lengths and where its tokens start. */
#ifndef TP_PROBLEM_SEQUENCE_H
#define TP_PROBLEM_SEQUENCE_H

#include "base/codes.h"
#include "masks/mask.h"
#include "tileproof.h"

/* Takes a caller's tensors in, as TP_STRUCT_IN does, and the structs that they point to: tags, and gradients where
   op is TP_BACKWARD. NULL stays NULL: what needs tensors refuses it. */
typedef struct tp__tensors_here {
    tp_tensors tensors;
    tp_gradients gradients;
    tp_tags tags;
} tp__tensors_here;
tp_status tp__tensors_in(const tp_tensors **tensors, int32_t op, tp__tensors_here *here, tp_error *error);

typedef struct tp__sequence {
    int64_t q_len, kv_len;
    const tp_tensors *tensors;
    int64_t index;
    int64_t q_token, kv_token; /* where arrays by row, sparse indices among them, and by key hold it */
    /* element offset of token 0, head 0, of each tensor; of k and v only where they are not paged */
    int64_t q, k, v, o, lse;
    int64_t k_scales, v_scales; /* likewise, in scales */
} tp__sequence;

/* Entry i of an array of the tensors' index_type. */
static inline int64_t tp__index_at(const tp_tensors *tensors, const void *array, int64_t i) {
    return tensors->index_type == TP_I64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}
static inline int64_t tp__index_size(const tp_tensors *tensors) {
    return tensors->index_type == TP_I64 ? 8 : 4;
}

/* May the host read the arrays of index_type, and everything else that the tensors point to? */
static inline int tp__reads_indices(const tp_tensors *tensors) { return tensors->index_device == TP_CPU; }
static inline int tp__reads_data(const tp_tensors *tensors) { return tensors->device == TP_CPU; }

/* Valid only for tensors that passed tp__tensors_check, and whose index arrays the host may read. */
tp__sequence tp__sequence_at(const tp_problem *problem, const tp_tensors *tensors, int64_t index);

/* Element offset of its token 0, head 0 in a tensor that is laid out like q, or like k: with strides of its own. */
int64_t tp__sequence_start(const tp_problem *problem, const tp_tensors *tensors, const tp_tensor *tensor,
                           int of_q, int64_t index);

/* The sequence as masks see it. */
tp__mask_view tp__sequence_view(const tp_problem *problem, const tp__sequence *sequence);

/* Offsets of head 0 of a key, in k and in v, and in their scales: in what their strides count. */
typedef struct tp__key_place {
    int64_t k, v, k_scales, v_scales;
} tp__key_place;
tp__key_place tp__key_place_of(const tp_problem *problem, const tp_tensors *tensors, int64_t index,
                               const tp__sequence *seq, int64_t key);

/* Keys that one row can meet: those of its sequence, or its sparse indices, which unless sorted may name a key twice. */
int64_t tp__row_keys_max(const tp_problem *problem);

/* Do the tables name pages of the pools for this key? 1 where nothing is paged. */
int tp__key_has_page(const tp_problem *problem, const tp_tensors *tensors, int64_t index, int64_t key);

/* Rows of sparse indices that a call has: one for each token of q. */
int64_t tp__sparse_rows(const tp_problem *problem, const tp_tensors *tensors);
/* How many sparse indices a token has, and which key stands in a slot. */
int64_t tp__sparse_count(const tp_problem *problem, const tp_tensors *tensors, const tp__sequence *seq, int64_t token);
int64_t tp__sparse_key(const tp_tensors *tensors, const tp__sequence *seq, int64_t token, int64_t slot);

/* The rules of page tables, sparse indices and a latent cache, once everything else has been found right: in time
   proportional to the pages and to the entries of sparse indices, and where a table holds numbers of no page, to what
   it takes to find out that no row sees them. */
tp_status tp__cache_check(const tp_problem *problem, const tp_tensors *tensors, tp_error *error);

/* Codes of k and v lie at whole bytes, and scales are given where the problem has them beside the codes. extent: rows along
   each stride. Whether they can be read is another matter. */
tp_status tp__stored_check(const tp_problem *problem, const tp_tensors *tensors, const int64_t extent[3], tp_error *error);

/* The entries of page tables under a mask by callback, which the check above leaves to this one: with its answers; it
   is asked where there are none. */
tp_status tp__called_pages_check(const tp_problem *problem, const tp_tensors *tensors, const tp__answers *answers,
                                 tp_error *error);

/* A page stands twice only where sequences share the beginning: at the same place of their tables. */
tp_status tp__pages_check_owners(const tp_problem *problem, const tp_tensors *tensors, tp_error *error);

/* Everything a run checks of its tensors, in time proportional to the batch, its pages and sparse indices, and the
   arrays that masks read. */
tp_status tp__tensors_check(const tp_problem *problem, const tp_tensors *tensors, tp_error *error);
/* The same for tensors on a device; what the host cannot read there is not looked at: slopes and bits, and where index arrays
   lie on the device, every entry of them. */
tp_status tp__tensors_check_on(const tp_problem *problem, const tp_tensors *tensors, int device, tp_error *error);

/* Whose call it is: tags.c, part of the above. */
tp_status tp__tags_check(const tp_tags *tags, tp_error *error);
/* One of its texts, or another that is to be a label; NULL is none. */
tp_status tp__tag_check(const char *what, const char *text, tp_error *error);

/* What masks and scores read of the tensors: mask_data.c, part of the above. */
tp_status tp__mask_data_check(const tp_problem *problem, const tp_tensors *tensors, tp_error *error);

/* The array at this place among those that masks and scores read: its bytes; name NULL: no more. One that
   the problem does not ask for has no data. */
typedef struct tp__mask_array {
    const char *name;
    const void *data;
    int64_t bytes;
    int64_t unit; /* bytes of an element, to which data is aligned */
} tp__mask_array;
tp__mask_array tp__mask_array_at(const tp_problem *problem, const tp_tensors *tensors, int index);
/* The same of a backward call's outputs that are no tensors: gradients of bias, slopes and sinks. */
tp__mask_array tp__gradient_array_at(const tp_problem *problem, const tp_tensors *tensors, int index);
/* Is it aligned, and does it end within the address space? */
tp_status tp__mask_array_check(const tp__mask_array *array, tp_error *error);

/* Bytes from the first to behind the last element of so many dims; saturates. */
int64_t tp__span_bytes(const int64_t *stride, const int64_t *extent, int dims, int64_t unit, int64_t row_bytes);
/* Rows and keys of a sequence of the call, at most. */
int64_t tp__rows_max(const tp_problem *problem, const tp_tensors *tensors);
int64_t tp__keys_max(const tp_problem *problem, const tp_tensors *tensors);

/* The factor of a row's scores: 1 + beta*log(1 + floor(max(q_pos + offset, 0) / length)). */
double tp__row_scale(const tp_problem *problem, int64_t q_pos);
/* Does anything but mask and scale change scores? A sink does not: it is one more. */
int tp__modifies_scores(const tp_problem *problem);

/* The scale itself: the one given or 1/sqrt(head_dim_qk). */
float tp__scale(const tp_problem *problem);

/* The phase word of lengths: "prefill" or "decode". Up to 16 rows against more keys than rows, or
   one row, is decode. */
const char *tp__phase(int64_t q_len, int64_t kv_len);

/* The text of tp_problem_class, for the bucket given. */
tp_status tp__class_print(const tp_problem *problem, const char *bucket, char *text, size_t size);

#endif
