/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does packing keep sequences apart? For each sequence all others are filled with NaN, q and k and v; then the
 * packed call, and a call of that sequence alone in the same memory, must give it the bits it had among clean
 * neighbours. The neighbours' own rows must have become NaN, or the poison would prove nothing.
 */
#include "qualify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Copies of q, k and v, and of the scales of a quantised k and v. */
enum { INPUTS = 5 };

static char *input(const struct tensors *t, int i, size_t *bytes) {
    *bytes = i < 3 ? t->buffer[i].bytes : t->scales[i - 3].bytes;
    return i < 3 ? t->buffer[i].memory : t->scales[i - 3].memory;
}

static void restore(char *at, const char *base, const char *copy, size_t bytes) {
    if (bytes) memcpy(at, copy + (at - base), bytes);
}

/* Fills q, k and v of a sequence with NaN, or takes them from copies. */
static void set_sequence(struct tensors *t, int64_t seq, char *const copy[INPUTS]) {
    for (int i = TENSOR_Q; i <= TENSOR_V; i++) {
        enum tensor_id id = (enum tensor_id)i;
        if (!t->buffer[i].memory) continue; /* v of a latent cache is part of k */
        size_t scales = tensors_scales_bytes(t, id);
        for (int64_t token = 0; token < tensors_len(t, id, seq); token++)
            for (int64_t head = 0; head < tensors_heads(t, id); head++) {
                if (!copy) {
                    tensors_poison_row(t, id, seq, token, head);
                    continue;
                }
                restore(tensors_at(t, id, seq, token, head, 0), t->buffer[i].memory, copy[i], tensors_row_bytes(t, id));
                if (scales)
                    restore(tensors_scales_at(t, id, seq, token, head), t->scales[i - 1].memory, copy[i + 2], scales);
            }
    }
}

static const void *move(const void *array, int64_t by, size_t unit) {
    return array ? (const char *)array + by * (int64_t)unit : NULL;
}

/* The call of one sequence: what is indexed by sequence starts at it. */
static void cut_out(int64_t seq, tp_tensors *call) {
    size_t unit = call->index_type == TP_I64 ? 8 : 4;
    const void **by_sequence[] = {&call->cu_seqlens_q, &call->cu_seqlens_kv, &call->q_lens,
                                  &call->kv_lens,      &call->prefix_lens,   &call->span_offsets};
    for (size_t i = 0; i < sizeof by_sequence / sizeof *by_sequence; i++)
        *by_sequence[i] = move(*by_sequence[i], seq, unit);
    call->k_pages = move(call->k_pages, seq * call->page_slots, unit);
    call->v_pages = move(call->v_pages, seq * call->page_slots, unit);
    if (call->alibi_slopes) call->alibi_slopes += seq * call->alibi_stride;
    call->batch = 1;
}

static int row_differs(const struct tensors *t, enum tensor_id id, const char *clean, int64_t seq,
                       int64_t row, int64_t head) {
    const char *at = tensors_at(t, id, seq, row, head, 0);
    size_t bytes = (size_t)tensors_dim(t, id) * tp_dtype_bytes(tensors_dtype(t, id));
    return memcmp(at, clean + (at - (const char *)t->buffer[id].memory), bytes) != 0;
}

static int compare_sequence(tp__trial *s, char *const clean[2], int64_t seq, const char *how) {
    const struct tensors *t = &s->tensors;
    for (int i = 0; i < 2; i++)
        for (int64_t row = 0; row < t->q_lens[seq]; row++)
            for (int64_t head = 0; head < t->problem.q_heads; head++)
                if (row_differs(t, i ? TENSOR_LSE : TENSOR_O, clean[i], seq, row, head))
                    return tp__trial_fail(s, TP_CELL_NUMERIC_FAIL,
                                        "packing is seen: %s of sequence %lld row %lld head %lld has other "
                                        "bits %s",
                                        i ? "lse" : "o", (long long)seq, (long long)row, (long long)head,
                                        how);
    return 0;
}

/* The last row of every other sequence sees at least its own key, which is NaN. */
static int poison_arrived(const struct tensors *t, int64_t kept) {
    for (int64_t seq = 0; seq < t->sequences; seq++)
        if (seq != kept && t->q_lens[seq] &&
            !isnan(tensors_get(t, TENSOR_O, seq, t->q_lens[seq] - 1, 0, 0)))
            return 0;
    return 1;
}

static int check_sequence(tp__trial *s, char *const clean[2], int64_t seq) {
    tp_receipt receipt;
    tp_tensors all = s->tensors.call;
    if (tp__trial_run(s, tp_context_threads(s->context), &receipt) ||
        compare_sequence(s, clean, seq, "with NaN in the other sequences"))
        return 1;
    if (!poison_arrived(&s->tensors, seq))
        return tp__trial_fail(s, TP_CELL_MISTRUSTED, "NaN in a sequence did not reach its own rows");
    cut_out(seq, &s->tensors.call);
    int failed = tp__trial_run(s, 1, &receipt);
    s->tensors.call = all;
    return failed || compare_sequence(s, clean, seq, "alone");
}

int tp__trial_isolated(tp__trial *s) {
    struct tensors *t = &s->tensors;
    char *clean[2] = {NULL, NULL}, *inputs[INPUTS] = {NULL}, *from;
    size_t bytes;
    int short_of = 0, failed = 0;
    for (int i = 0; i < 2; i++)
        if ((clean[i] = malloc(t->buffer[TENSOR_O + i].bytes)))
            memcpy(clean[i], t->buffer[TENSOR_O + i].memory, t->buffer[TENSOR_O + i].bytes);
    for (int i = 0; i < INPUTS; i++) {
        if (!(from = input(t, i, &bytes))) continue; /* v of a latent cache, scales of floats */
        if ((inputs[i] = malloc(bytes)))
            memcpy(inputs[i], from, bytes);
        else
            short_of = 1;
    }
    if (!clean[0] || !clean[1] || short_of)
        failed = tp__trial_break(s, TP_NO_MEMORY, "no memory to poison neighbours in a cell: %s", s->cell.problem);
    for (int64_t seq = 0; seq < t->sequences && !failed; seq++) set_sequence(t, seq, NULL);
    for (int64_t seq = 0; seq < t->sequences && !failed; seq++) {
        if (!t->q_lens[seq]) continue;
        set_sequence(t, seq, inputs);
        failed = check_sequence(s, clean, seq);
        set_sequence(t, seq, NULL);
    }
    for (int i = 0; i < INPUTS; i++)
        if ((from = input(t, i, &bytes)) && inputs[i]) memcpy(from, inputs[i], bytes);
    for (int i = 0; i < 2 && !failed; i++)
        memcpy(t->buffer[TENSOR_O + i].memory, clean[i], t->buffer[TENSOR_O + i].bytes);
    for (int i = 0; i < 2; i++) free(clean[i]);
    for (int i = 0; i < INPUTS; i++) free(inputs[i]);
    return failed;
}
