/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat functions for the comparison with transformers (python/tests/test_torch_models.py), which calls them from Python
 * by ctypes: a config becomes groups and problem texts, and a problem text with the caller's float32 tensors a
 * result. Only pointers, numbers and texts cross the border, so that no struct is written down a second time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tileproof_proof.h>

#define MODELS_API __attribute__((visibility("default")))

typedef struct sink {
    char *text;
    size_t size, used;
} sink;

MODELS_API tp_model *models_read(const char *text, size_t size, int *status, char *why, size_t room);
MODELS_API void models_close(tp_model *model);
MODELS_API size_t models_json(const tp_model *model, char *text, size_t size);
MODELS_API int models_problem(const tp_model *model, int group, int64_t batch, int64_t q_len, int64_t kv_len, char *text,
                              size_t size);
MODELS_API int models_attention(const char *text, const float *const *inputs, const int64_t *const *indices,
                                int64_t segments, int64_t width, float *o, char *why, size_t room);

MODELS_API int models_rotate(const tp_model *model, int layer, int angle, int dtype, const int64_t *shape,
                             const int64_t *positions, const float *norm_weight, float norm_eps, int norm_one_plus, void *rows,
                             char *why, size_t room);

/* NULL, a tp_status and the reason when it is refused. */
tp_model *models_read(const char *text, size_t size, int *status, char *why, size_t room) {
    tp_error error = TP_ERROR_INIT;
    tp_model *model = NULL;
    *status = tp_model_parse(text, size, "config.json", &model, &error);
    if (*status != TP_OK) snprintf(why, room, "%s", error.text);
    return model;
}

void models_close(tp_model *model) {
    tp_model_destroy(model);
}

static int collect(void *cookie, const char *text, size_t size) {
    sink *out = cookie;
    if (out->used + size < out->size) memcpy(out->text + out->used, text, size);
    out->used += size;
    return 0;
}

/* Bytes of the model as JSON; they are all there when that is below size. */
size_t models_json(const tp_model *model, char *text, size_t size) {
    sink out = {text, size, 0};
    if (tp_model_write(model, TP_JSON, collect, &out) != TP_OK) return 0;
    if (out.used < size) text[out.used] = 0;
    return out.used;
}

int models_problem(const tp_model *model, int group, int64_t batch, int64_t q_len, int64_t kv_len, char *text, size_t size) {
    return tp_layer_group_problem(model->groups[group], batch, q_len, kv_len, text, size);
}

/* inputs: q, k, v contiguous as the text says, sinks, slopes; indices: spans of rows, spans of keys, where the text says
   "packed" the borders of its segments, one more than there are, and sparse indices, each row of width entries. What a text does
   not ask for may be NULL. */
int models_attention(const char *text, const float *const *inputs, const int64_t *const *indices, int64_t segments,
                     int64_t width, float *o, char *why, size_t room) {
    tp_problem problem;
    tp_lengths lengths;
    tp_tensors tensors;
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_context *context = NULL;
    tp_error error = TP_ERROR_INIT;
    options.threads = 1;
    tp_status status = tp_problem_parse(text, &problem, &lengths, &error);
    if (status == TP_OK) status = tp_context_create(&options, &context, &error);
    if (status == TP_OK) {
        if (problem.q_layout == TP_PACKED) problem.batch = segments;
        tp_tensors_init(&tensors, &problem, inputs[0], inputs[1], inputs[2], o);
        tensors.index_type = TP_I64;
        tensors.sinks = inputs[3];
        tensors.alibi_slopes = inputs[4];
        tensors.q_spans = indices[0];
        tensors.k_spans = indices[1];
        tensors.sparse_indices = indices[3];
        tensors.sparse_stride = width;
        if (problem.q_layout == TP_PACKED) {
            tensors.cu_seqlens_q = tensors.cu_seqlens_kv = indices[2];
            tensors.q_tokens = tensors.kv_tokens = indices[2][segments];
        }
        status = tp_attention(context, &problem, NULL, &tensors, NULL, &error);
    }
    if (status != TP_OK) snprintf(why, room, "%s", error.text);
    tp_context_destroy(context);
    return status;
}

/* Rows [batch][tokens][heads][dim] of these sizes are rotated in place, as the layer does it. */
int models_rotate(const tp_model *model, int layer, int angle, int dtype, const int64_t *shape, const int64_t *positions,
                  const float *norm_weight, float norm_eps, int norm_one_plus, void *rows, char *why, size_t room) {
    tp_rope_options options = TP_ROPE_OPTIONS_INIT;
    tp_rope_rows r = TP_ROPE_ROWS_INIT;
    tp_rotary *rotary = NULL;
    tp_error error = TP_ERROR_INIT;
    tp_status status = tp_rope_from_model(model, layer, &options, &error);
    options.angle = angle;
    if (status == TP_OK && options.head_dim != shape[3]) { /* latents: the rotated part alone */
        options.head_dim = shape[3];
        options.first = 0;
    }
    if (status == TP_OK) status = tp_rope_create(&options, &rotary, &error);
    if (status == TP_OK) {
        r.dtype = dtype, r.batch = shape[0], r.tokens = shape[1], r.heads = shape[2];
        r.in.data = rows, r.in.stride[2] = shape[3];
        r.in.stride[1] = shape[2] * r.in.stride[2], r.in.stride[0] = shape[1] * r.in.stride[1];
        r.out = r.in, r.positions = positions;
        r.norm_weight = norm_weight, r.norm_eps = norm_eps, r.norm_one_plus = norm_one_plus;
        status = tp_rope_apply(rotary, &r, &error);
    }
    if (status != TP_OK) snprintf(why, room, "%s", error.text);
    tp_rope_destroy(rotary);
    return status;
}
