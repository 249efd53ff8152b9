/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine is given: dense tensors, and which keys each row sees. */
#include "qualify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t row_bytes(const struct tensors *t, enum tensor_id id) {
    return (size_t)tensors_dim(t, id) * tp_dtype_bytes(tensors_dtype(t, id));
}

static size_t bytes_of(const tp__dense *d, const struct tensors *t, enum tensor_id id) {
    int64_t tokens = id == TENSOR_K || id == TENSOR_V ? d->call.kv_tokens : d->call.q_tokens;
    return (size_t)tokens * (size_t)tensors_heads(t, id) * row_bytes(t, id);
}

enum direction { LOAD, STORE };

static void copy(const tp__dense *d, const struct tensors *t, enum tensor_id id, enum direction direction) {
    char *dense = d->bytes[id];
    size_t bytes = row_bytes(t, id);
    for (int64_t seq = 0; seq < t->sequences; seq++)
        for (int64_t token = 0; token < tensors_len(t, id, seq); token++)
            for (int64_t head = 0; head < tensors_heads(t, id); head++, dense += bytes) {
                void *at = tensors_at(t, id, seq, token, head, 0);
                memcpy(direction == LOAD ? dense : at, direction == LOAD ? at : dense, bytes);
            }
}

void tp__dense_load(tp__dense *d, const struct tensors *t) {
    for (int id = TENSOR_Q; id <= TENSOR_V; id++) copy(d, t, (enum tensor_id)id, LOAD);
    memset(d->bytes[TENSOR_O], 0xFF, bytes_of(d, t, TENSOR_O));
}

void tp__dense_store(const tp__dense *d, struct tensors *t) { copy(d, t, TENSOR_O, STORE); }

/* The row's keys by its list, if it has one, and by the mask. */
static void put_row(const struct tensors *t, int64_t seq, int64_t row, uint8_t *visible) {
    int64_t key;
    for (int64_t i = 0; (key = tensors_key(t, seq, row, i)) >= 0; i++)
        visible[key] = tp_mask_visible(&t->problem, &t->call, seq, 0, row, key) == 1;
}

/* Which of the masks with a name shows the same keys; a window is one that the problem names. */
static int32_t name_mask(const tp__dense *d, const struct tensors *t, int64_t *window) {
    int full = 1, causal = 1, windowed = 0;
    for (int32_t i = 0; i < t->problem.mask_nodes; i++)
        if (t->problem.mask[i].kind == TP_MASK_WINDOW && t->problem.mask[i].a >= 0) *window = t->problem.mask[i].a, windowed = 1;
    const uint8_t *seen = d->visible;
    for (int64_t seq = 0; seq < t->sequences; seq++) {
        int64_t shift = t->kv_lens[seq] - t->q_lens[seq];
        for (int64_t row = 0; row < t->q_lens[seq]; row++)
            for (int64_t key = 0; key < t->kv_lens[seq]; key++, seen++) {
                int before = key <= row + shift;
                full &= *seen;
                causal &= *seen == before;
                windowed &= *seen == (before && key >= row + shift - *window);
            }
    }
    if (full || causal || !windowed) *window = 0;
    return full ? TP_ENGINE_FULL : causal ? TP_ENGINE_CAUSAL : windowed ? TP_ENGINE_CAUSAL_WINDOW : TP_ENGINE_VISIBLE;
}

static void put_factors(tp__dense *d, const struct tensors *t) {
    const tp_problem *p = &t->problem;
    float *factor = d->factors;
    for (int64_t seq = 0; seq < t->sequences; seq++)
        for (int64_t row = 0; row < t->q_lens[seq]; row++) {
            double place = (double)(row + t->kv_lens[seq] - t->q_lens[seq] + p->qscale_offset);
            *factor++ = (float)(1 + (double)p->qscale_beta * log(1 + floor(fmax(place, 0) / (double)p->qscale_length)));
        }
}

static const char *untold(const tp_problem *p) {
    return p->op != TP_FORWARD           ? "gradients"
           : p->k_scales || p->v_scales  ? "a quantised cache"
           : p->positions                ? "positions"
           : p->bias_dtype               ? "a bias"
           : p->dropout > 0              ? "dropout"
           : p->align != TP_BOTTOM_RIGHT ? "top-left"
                                         : NULL;
}

static int allocate(tp__dense *d, const struct tensors *t) {
    const tp_problem *p = &t->problem;
    size_t pairs = 1, heads = (size_t)p->q_heads;
    if (!(d->lengths = calloc((size_t)(2 * t->sequences) + 1, sizeof *d->lengths))) return 1;
    for (int64_t i = 0; i < t->sequences; i++) {
        d->lengths[i] = t->q_lens[i], d->lengths[t->sequences + i] = t->kv_lens[i];
        d->call.q_tokens += t->q_lens[i], d->call.kv_tokens += t->kv_lens[i];
        pairs += (size_t)(t->q_lens[i] * t->kv_lens[i]);
    }
    int failed = !(d->visible = calloc(pairs, 1));
    for (int id = TENSOR_Q; id <= TENSOR_O; id++) failed |= !(d->bytes[id] = calloc(bytes_of(d, t, (enum tensor_id)id) + 1, 1));
    if (p->alibi) failed |= !(d->slopes = calloc((size_t)t->sequences * heads + 1, sizeof *d->slopes));
    if (p->qscale_length) failed |= !(d->factors = calloc((size_t)d->call.q_tokens + 1, sizeof *d->factors));
    return failed;
}

tp_status tp__dense_make(tp__dense *d, const struct tensors *t, const char *text, tp_error *error) {
    const tp_problem *p = &t->problem;
    *d = (tp__dense){.problem = *p};
    if (untold(p)) return tp__proof_fail(error, TP_UNSUPPORTED, "engines are not asked for %s: %.300s", untold(p), text);
    if (allocate(d, t)) return tp__proof_fail(error, TP_NO_MEMORY, "no memory for the tensors of an engine: %.300s", text);
    uint8_t *visible = d->visible;
    for (int64_t seq = 0; seq < t->sequences; seq++)
        for (int64_t row = 0; row < t->q_lens[seq]; row++, visible += t->kv_lens[seq]) put_row(t, seq, row, visible);
    for (int64_t i = 0; d->slopes && i < t->sequences; i++)
        memcpy(d->slopes + i * p->q_heads, t->call.alibi_slopes + i * t->call.alibi_stride, (size_t)p->q_heads * sizeof(float));
    if (d->factors) put_factors(d, t);
    snprintf(d->text, sizeof d->text, "%s", text);
    d->call = (tp_engine_call){.struct_size = sizeof d->call,
                               .text = d->text,
                               .problem = &d->problem,
                               .sequences = t->sequences,
                               .q_lens = d->lengths,
                               .kv_lens = d->lengths + t->sequences,
                               .q_tokens = d->call.q_tokens,
                               .kv_tokens = d->call.kv_tokens,
                               .q = d->bytes[TENSOR_Q],
                               .k = d->bytes[TENSOR_K],
                               .v = d->bytes[TENSOR_V],
                               .o = d->bytes[TENSOR_O],
                               .visible = d->visible,
                               .sinks = p->sinks ? t->call.sinks : NULL,
                               .slopes = d->slopes,
                               .q_factors = d->factors};
    d->call.mask = name_mask(d, t, &d->call.window);
    return TP_OK;
}

void tp__dense_free(tp__dense *d) {
    free(d->lengths);
    for (int i = 0; i < 4; i++) free(d->bytes[i]);
    free(d->visible);
    free(d->slopes);
    free(d->factors);
    *d = (tp__dense){.lengths = NULL};
}
