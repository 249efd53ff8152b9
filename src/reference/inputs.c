/* SPDX-License-Identifier: Apache-2.0 */
/* What a run would check of its inputs, for tensors that come without an output. */
#include "reference/reference.h"

#include "base/error.h"
#include "masks/mask.h"

#define OFFSET_MAX ((int64_t)1 << 58) /* elements: the byte offset fits in int64 */

/* The tokens of q, or of k and v: what the tensors say and the most the problem allows. */
typedef struct side {
    const char *name;
    int32_t packed;
    const void *cu, *lens;
    int64_t len, tokens, max;
} side;

static tp_status check_side(const tp_tensors *tensors, const side *s, tp_error *error) {
    int64_t start = 0, size = tp__index_size(tensors);
    TP_REQUIRE((uintptr_t)s->cu % (uintptr_t)size == 0 && (uintptr_t)s->lens % (uintptr_t)size == 0, error, TP_INVALID,
               "cu_seqlens_%s is %p and %s_lens %p: they must be aligned to their elements of %lld bytes", s->name, s->cu,
               s->name, s->lens, (long long)size);
    if (s->packed) {
        TP_REQUIRE(s->cu != NULL, error, TP_INVALID,
                   "cu_seqlens_%s is NULL: a packed layout needs it", s->name);
        start = tp__index_at(tensors, s->cu, 0);
        TP_REQUIRE(start >= 0, error, TP_INVALID, "cu_seqlens_%s[0] is %lld: it must be >= 0",
                   s->name, (long long)start);
    } else {
        TP_REQUIRE(s->len >= 0 && s->len <= s->max, error, TP_INVALID,
                   "tensors %s_len is %lld: it must be in 0..%lld, the problem's", s->name,
                   (long long)s->len, (long long)s->max);
    }
    for (int64_t i = 0; i < tensors->batch; i++) {
        int64_t len = s->len;
        if (s->packed) {
            int64_t end = tp__index_at(tensors, s->cu, i + 1);
            TP_REQUIRE(end >= start && end - start <= s->max && end <= s->tokens, error,
                       TP_INVALID,
                       "cu_seqlens_%s[%lld] is %lld after %lld: it must not fall, not rise by more "
                       "than %lld, and not exceed %s_tokens, %lld",
                       s->name, (long long)(i + 1), (long long)end, (long long)start,
                       (long long)s->max, s->name, (long long)s->tokens);
            len = end - start;
            start = end;
        }
        int64_t used = s->lens != NULL ? tp__index_at(tensors, s->lens, i) : len;
        TP_REQUIRE(used >= 0 && used <= len, error, TP_INVALID,
                   "%s_lens[%lld] is %lld: it must be in 0..%lld, the tokens the sequence holds",
                   s->name, (long long)i, (long long)used, (long long)len);
    }
    return TP_OK;
}

static tp_status check_strides(const char *name, const tp_tensor *tensor, const int64_t extent[3],
                               tp_error *error) {
    int64_t offset = 0;
    for (int i = 0; i < 3; i++) {
        int64_t max = extent[i] > 0 ? extent[i] - 1 : 0, step;
        TP_REQUIRE(tensor->stride[i] >= 0 || max == 0, error, TP_INVALID,
                   "%s.stride[%d] is %lld: it must be >= 0", name, i, (long long)tensor->stride[i]);
        TP_REQUIRE(!__builtin_mul_overflow(tensor->stride[i], max, &step) && step <= OFFSET_MAX,
                   error, TP_INVALID,
                   "%s.stride[%d] is %lld over %lld steps: offsets must stay within 2^58 elements",
                   name, i, (long long)tensor->stride[i], (long long)max);
        offset += step;
    }
    TP_REQUIRE(offset <= OFFSET_MAX, error, TP_INVALID,
               "%s reaches element %lld: offsets must stay within 2^58 elements", name,
               (long long)offset);
    return TP_OK;
}

static tp_status check_inputs(const tp_problem *problem, const tp_tensors *tensors,
                              tp_error *error) {
    int q_packed = problem->q_layout == TP_PACKED, kv_packed = problem->kv_layout == TP_PACKED;
    TP_REQUIRE(tensors->device == TP_CPU && tensors->index_device == TP_CPU, error, TP_UNSUPPORTED,
               "device is %d and index_device %d: only TP_CPU (0) can be read", tensors->device, tensors->index_device);
    TP_REQUIRE(tensors->index_type == TP_I32 || tensors->index_type == TP_I64, error, TP_INVALID,
               "index_type is %d: it must be TP_I32 (0) or TP_I64 (1)", tensors->index_type);
    TP_REQUIRE(tensors->batch >= 0 && tensors->batch <= problem->batch, error, TP_INVALID,
               "tensors batch is %lld: it must be in 0..%lld, the problem's",
               (long long)tensors->batch, (long long)problem->batch);
    const side q = {"q",
                    q_packed,
                    tensors->cu_seqlens_q,
                    tensors->q_lens,
                    tensors->q_len,
                    tensors->q_tokens,
                    problem->q_len};
    const side kv = {"kv",
                     kv_packed,
                     tensors->cu_seqlens_kv,
                     tensors->kv_lens,
                     tensors->kv_len,
                     tensors->kv_tokens,
                     problem->kv_len};
    TP_TRY(check_side(tensors, &q, error));
    TP_TRY(check_side(tensors, &kv, error));
    const int64_t q_extent[3] = {q_packed ? 1 : tensors->batch,
                                 q_packed ? tensors->q_tokens : tensors->q_len, problem->q_heads};
    int paged = problem->kv_layout == TP_PAGED;
    const int64_t kv_extent[3] = {kv_packed ? 1 : paged ? tensors->pages : tensors->batch,
                                  kv_packed ? tensors->kv_tokens
                                  : paged   ? problem->page_size
                                            : tensors->kv_len,
                                  problem->kv_heads};
    TP_TRY(check_strides("q", &tensors->q, q_extent, error));
    TP_TRY(check_strides("k", &tensors->k, kv_extent, error));
    TP_TRY(check_strides("v", &tensors->v, kv_extent, error));
    TP_TRY(tp__stored_check(problem, tensors, kv_extent, error));
    if (tp__row_scales(problem->k_scales, 1) > 0) TP_TRY(check_strides("k_scales", &tensors->k_scales, kv_extent, error));
    if (tp__row_scales(problem->v_scales, 1) > 0) TP_TRY(check_strides("v_scales", &tensors->v_scales, kv_extent, error));
    TP_TRY(tp__mask_data_check(problem, tensors, error));
    TP_TRY(tp__cache_check(problem, tensors, error));
    return tp__called_pages_check(problem, tensors, &(tp__answers){NULL, 0, 0}, error);
}

tp_status tp__reference_inputs(const tp_problem *problem, const tp_tensors *tensors, tp_tensors *inputs,
                               tp_error *error) {
    TP_REQUIRE(tensors != NULL, error, TP_INVALID, "tp_tensors is NULL");
    *inputs = *tensors;
    if (tensors->o.data != NULL) TP_TRY(tp__tensors_check(problem, tensors, error));
    inputs->o = inputs->lse = (tp_tensor){0};
    return check_inputs(problem, inputs, error);
}

tp_status tp__reference_data(const tp_problem *problem, const tp_tensors *inputs, int64_t seq, const tp__sequence *sequence,
                             tp_error *error) {
    int k = problem->k_scales != 0 && problem->k_scales != TP_SCALES_Q8_0;
    int v = problem->v_scales != 0 && problem->v_scales != TP_SCALES_Q8_0;
    const struct {
        const char *name;
        const void *data;
    } found[] = {{"q", inputs->q.data},
                 {"k", inputs->k.data},
                 {"v", inputs->v.data},
                 {"k_scales", k ? inputs->k_scales.data : inputs->k.data},
                 {"v_scales", v ? inputs->v_scales.data : inputs->v.data}};
    for (int t = 0; t < 5; t++)
        TP_REQUIRE(found[t].data != NULL || sequence->kv_len == 0, error, TP_INVALID,
                   "%s.data is NULL: sequence %lld has %lld keys to read", found[t].name, (long long)seq,
                   (long long)sequence->kv_len);
    return TP_OK;
}

tp_status tp__reference_d_o(const tp_problem *problem, const tp_tensors *tensors, tp_error *error) {
    const tp_gradients *given = tensors->gradients;
    TP_REQUIRE(given != NULL, error, TP_INVALID, "tp_gradients is NULL");
    int packed = problem->q_layout == TP_PACKED;
    const int64_t extent[3] = {packed ? 1 : tensors->batch, packed ? tensors->q_tokens : tensors->q_len,
                               problem->q_heads};
    TP_REQUIRE(given->d_o.data != NULL, error, TP_INVALID, "gradients d_o.data is NULL: it must be given");
    TP_TRY(check_strides("d_o", &given->d_o, extent, error));
    return given->d_lse.data == NULL ? TP_OK : check_strides("d_lse", &given->d_lse, extent, error);
}
