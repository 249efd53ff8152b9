/* SPDX-License-Identifier: Apache-2.0 */
/* What rows see, and what lies in a trial's tensors. All of it goes by logical indices, never by the layout. */
#include "check/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mask_words.h"

enum { STREAM_VALUES = 500, STREAM_NAN = 520 };

void visibility_destroy(struct visibility *visibility) {
    free(visibility->start);
    free(visibility->times);
    *visibility = (struct visibility){0};
}

int64_t visibility_of(const struct visibility *visibility, const struct tensors *t, tp_row at, int64_t key) {
    int64_t head = visibility->heads > 1 ? at.head : 0;
    return visibility->times[visibility->start[at.seq] + (head * t->q_lens[at.seq] + at.row) * t->kv_lens[at.seq] + key];
}

int visibility_create(struct visibility *visibility, const struct tensors *t) {
    int64_t sum = 0, key;
    *visibility = (struct visibility){.heads = mask_has_trait(&t->problem, TP_MASK_BY_HEAD) ? t->problem.q_heads : 1};
    visibility->start = calloc((size_t)t->sequences + 1, sizeof *visibility->start);
    for (int64_t s = 0; visibility->start && s < t->sequences; s++) {
        visibility->start[s] = sum;
        sum += visibility->heads * t->q_lens[s] * t->kv_lens[s];
    }
    visibility->times = calloc((size_t)sum + 1, sizeof *visibility->times);
    if (!visibility->start || !visibility->times) return 1;
    for (int64_t s = 0; s < t->sequences; s++)
        for (int64_t h = 0; h < visibility->heads; h++)
            for (int64_t r = 0; r < t->q_lens[s]; r++) {
                uint32_t *row = visibility->times + visibility->start[s] + (h * t->q_lens[s] + r) * t->kv_lens[s];
                for (int64_t i = 0; (key = tensors_key(t, s, r, i)) >= 0; i++)
                    if (check_visible(t, (tp_row){s, h, r}, key)) row[key]++;
            }
    return 0;
}

static float largest(tp_dtype dtype) { return dtype == TP_F16 ? 65504.0f : 0x1.FEp127f; }
static float smallest(tp_dtype dtype) { return dtype == TP_F16 || dtype == TP_I4 ? 0x1p-24f : 0x1p-133f; }

/* Another size for each value of q, k and v. */
static float resize(const struct trial *trial, enum tensor_id id, tp_dtype dtype, uint64_t bits, float value) {
    if (trial->values == VALUES_TINY) return value * 64 * smallest(dtype);
    /* scores stay below a thousand or so: beyond, no float knows them well enough to be held to a naive kernel */
    if (trial->values == VALUES_WIDE) return value * exp2f(id == TENSOR_V ? (float)(bits % 41) - 20 : (float)(bits % 6) - 3);
    int share = id == TENSOR_V ? 4 : 40; /* one in so many */
    return bits % (uint64_t)share ? value : copysignf(largest(dtype) * (1 - 0.5f * (float)(bits >> 40) * 0x1p-24f), value);
}

static void resize_all(const struct trial *trial, struct tensors *t, enum tensor_id id) {
    uint64_t index = 0;
    for (int64_t s = 0; s < t->sequences; s++)
        for (int64_t token = 0; token < tensors_len(t, id, s); token++)
            for (int64_t h = 0; h < tensors_heads(t, id); h++) {
                float *row = tensors_take_row(t, id, s, token, h);
                for (int64_t x = 0; x < tensors_dim(t, id); x++, index++)
                    row[x] = resize(trial, id, tensors_dtype(t, id),
                                    random_bits(trial->seed, STREAM_VALUES + (uint64_t)id, index), row[x]);
                if (id == TENSOR_Q || id > TENSOR_V || cache_source(t, s, token) == s) /* once, where it is shared */
                    tensors_set_row(t, id, s, token, h, row);
                free(row);
            }
}

/* Whether another sequence has this key, too. */
static int is_shared(const struct tensors *t, int64_t seq, int64_t key) {
    for (int64_t s = 0; t->shared_with && s < t->sequences; s++)
        if (s != seq && key < t->kv_lens[s] && cache_source(t, s, key) == cache_source(t, seq, key)) return 1;
    return 0;
}

/* One to four places hold what is not finite. */
static void put_nan(const struct trial *trial, uint64_t seed, struct tensors *t, enum tensor_id first, enum tensor_id last) {
    const float bad[] = {trial->nan == NAN_GRADIENTS ? INFINITY : NAN, INFINITY, -INFINITY, NAN};
    /* where scale * q underflows, an infinite k is not promised to score as one */
    int tiny = t->problem.scale_set && fabsf(t->problem.scale) < (trial->values == VALUES_TINY ? 0.5f : 0x1p-100f);
    uint64_t count = 1 + random_bits(seed, STREAM_NAN, 0) % 4;
    for (uint64_t i = 1; i <= count; i++) {
        uint64_t bits = random_bits(seed, STREAM_NAN, i);
        enum tensor_id id = first + (enum tensor_id)(bits % (uint64_t)(last - first + 1));
        if (id == TENSOR_V && t->problem.latent) id = TENSOR_K;
        if (t->sequences == 0) return;
        int64_t s = (int64_t)(bits >> 2 & 0xFF) % t->sequences, tokens = tensors_len(t, id, s);
        if (tokens == 0) continue;
        tensors_set(t, id, s, (int64_t)(bits >> 10 & 0xFFFF) % tokens, (int64_t)(bits >> 26 & 0xFF) % tensors_heads(t, id),
                    (int64_t)(bits >> 34 & 0xFFFF) % tensors_dim(t, id), tiny ? NAN : bad[bits >> 60 & 3]);
    }
}

static void fill_row(struct tensors *t, enum tensor_id id, int64_t seq, int64_t token, int64_t head, float value) {
    float *row = tensors_take_row(t, id, seq, token, head);
    for (int64_t x = 0; x < tensors_dim(t, id); x++) row[x] = value;
    tensors_set_row(t, id, seq, token, head, row);
    free(row);
}

static int seen(const struct visibility *visibility, const struct tensors *t, tp_row at, int64_t key) {
    return visibility_of(visibility, t, at, key) > 0 && !check_bias_hides(t, at.seq, at.head, at.row, key);
}

static int row_sees(const struct visibility *visibility, const struct tensors *t, tp_row at) {
    for (int64_t j = 0; j < t->kv_lens[at.seq]; j++)
        if (seen(visibility, t, at, j)) return 1;
    return 0;
}

/* Keys that no row sees, and rows that see nothing. */
static void spoil_hidden(struct tensors *t, const struct visibility *visibility) {
    int64_t group = t->problem.q_heads / t->problem.kv_heads;
    for (int64_t s = 0; s < t->sequences; s++) {
        for (int64_t i = 0; i < t->kv_lens[s] * t->problem.kv_heads; i++) {
            int64_t key = i / t->problem.kv_heads, head = i % t->problem.kv_heads;
            int found = is_shared(t, s, key);
            for (int64_t r = 0; !found && r < t->q_lens[s] * group; r++)
                found = seen(visibility, t, (tp_row){s, head * group + r % group, r / group}, key);
            if (found) continue;
            fill_row(t, TENSOR_K, s, key, head, NAN);
            if (!t->problem.latent) fill_row(t, TENSOR_V, s, key, head, key % 2 ? INFINITY : NAN);
        }
        for (int64_t i = 0; i < t->q_lens[s] * t->problem.q_heads; i++) {
            tp_row at = {s, i % t->problem.q_heads, i / t->problem.q_heads};
            if (!row_sees(visibility, t, at)) fill_row(t, TENSOR_Q, s, at.row, at.head, at.row % 2 ? INFINITY : NAN);
        }
    }
}

int trial_make(const struct trial *trial, const tp_problem *problem, const tp_lengths *lengths,
               const struct tensors_style *style, struct tensors *tensors) {
    struct visibility visibility = {0};
    if (tensors_create(tensors, problem, lengths, style) || tensors_fill(tensors, trial->seed)) return 1;
    for (int id = TENSOR_Q; trial->values && id <= TENSOR_V; id++)
        if (style->form != FORM_BROADCAST && !(id == TENSOR_V && problem->latent)) resize_all(trial, tensors, (enum tensor_id)id);
    if (style->form == FORM_BROADCAST) return 0; /* its values are shared */
    if (trial->nan == NAN_ANYWHERE) put_nan(trial, trial->seed, tensors, TENSOR_Q, TENSOR_V);
    if (!trial->hidden) return 0;
    int failed = visibility_create(&visibility, tensors);
    if (!failed) spoil_hidden(tensors, &visibility);
    visibility_destroy(&visibility);
    return failed;
}

void trial_spoil_gradients(const struct trial *trial, const struct tensors *t, const struct visibility *visibility,
                           struct gradients *gradients) {
    struct tensors *held = &gradients->held;
    if (trial->values) resize_all(trial, held, TENSOR_O);
    enum tensor_id last = trial->nan == NAN_GRADIENTS && gradients->call.d_lse.data ? TENSOR_LSE : TENSOR_O;
    if (trial->nan) put_nan(trial, trial->seed ^ 0xD0D0, held, TENSOR_O, last);
    for (int64_t s = 0; trial->hidden && s < t->sequences; s++)
        for (int64_t i = 0; i < t->q_lens[s] * t->problem.q_heads; i++) {
            tp_row at = {s, i % t->problem.q_heads, i / t->problem.q_heads};
            if (!row_sees(visibility, t, at)) fill_row(held, TENSOR_O, s, at.row, at.head, NAN);
        }
}
