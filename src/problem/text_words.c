/* SPDX-License-Identifier: Apache-2.0 */
#include "problem/text_words.h"

#include <math.h>
#include <string.h>

#include "problem/limits.h"
#include "problem/number_text.h"
#include "quant/quant.h"

static int take_char(tp__words *w, char c) {
    if (w->at == w->end || *w->at != c) return 0;
    w->at++;
    return 1;
}

static int take_number(tp__words *w, int64_t min, int64_t max, int64_t *value) {
    return tp__read_integer(&w->at, w->end, value) && *value >= min && *value <= max;
}

static tp_status take_length(tp__words *w, int64_t *value) {
    if (!take_number(w, 0, TP__LENGTH_MAX, value) || w->at != w->end)
        return TP__REFUSE_WORD(w, "it takes one whole number in 0..2^40");
    return TP_OK;
}

/* "32/8", or "8" for both. */
static tp_status take_pair(tp__words *w, int64_t max, int64_t *first, int64_t *second) {
    int good = take_number(w, 1, max, first);
    *second = *first;
    if (good && take_char(w, '/')) good = take_number(w, 1, max, second);
    if (!good || w->at != w->end)
        return TP__REFUSE_WORD(w, "it takes N or N/N, whole numbers in 1..%lld", (long long)max);
    return TP_OK;
}

tp_status tp__take_scale(tp__words *w) {
    if (!tp__read_float(&w->at, w->end, &w->problem.scale) || w->at != w->end ||
        !isfinite(w->problem.scale))
        return TP__REFUSE_WORD(w, "it takes one finite decimal number of at most 64 characters");
    w->problem.scale_set = 1;
    return TP_OK;
}

/* 0 when the text at hand begins with no dtype's name. */
static int32_t take_dtype(tp__words *w) {
    int32_t found = 0;
    size_t longest = 0, left = (size_t)(w->end - w->at);
    for (int32_t dtype = TP_F32; dtype <= TP_I4; dtype++) {
        size_t size = strlen(tp_dtype_name(dtype));
        if (size > longest && size <= left && memcmp(w->at, tp_dtype_name(dtype), size) == 0)
            found = dtype, longest = size;
    }
    w->at += longest;
    return found;
}

/* q | q->o | q:k:v->o */
tp_status tp__take_dtypes(tp__words *w) {
    int32_t q = take_dtype(w), k = q, v = q, o = q, good = 1;
    if (take_char(w, ':')) {
        k = take_dtype(w);
        good = take_char(w, ':');
        v = take_dtype(w);
    }
    if (take_char(w, '-')) {
        good &= take_char(w, '>');
        o = take_dtype(w);
    }
    if (!good || !q || !k || !v || !o || w->at != w->end)
        return TP__REFUSE_WORD(
            w, "dtypes are written q, q->o or q:k:v->o, each one of f32, f16, bf16, "
               "e4m3, e5m2, i8, i4");
    w->problem.q_dtype = q;
    w->problem.k_dtype = k;
    w->problem.v_dtype = v;
    w->problem.o_dtype = o;
    return TP_OK;
}

static void add_run(tp_lengths *lengths, int64_t repeat, int64_t q_len, int64_t kv_len) {
    int64_t n = lengths->count;
    if (n > 0 && lengths->seq[n - 1].q_len == q_len && lengths->seq[n - 1].kv_len == kv_len) {
        lengths->seq[n - 1].repeat += repeat;
        return;
    }
    if (n < TP__MAX_RUNS) {
        lengths->seq[n].repeat = repeat;
        lengths->seq[n].q_len = q_len;
        lengths->seq[n].kv_len = kv_len;
    }
    lengths->count = n + 1;
}

tp_status tp__take_sequences(tp__words *w) {
    tp_problem *problem = &w->problem;
    int64_t total = 0;
    if (take_char(w, '#'))
        return TP__REFUSE_WORD(
            w, "this is a count and a hash of more than %d lengths: it cannot be replayed",
            TP__MAX_RUNS);
    do {
        int64_t repeat, q_len, kv_len;
        if (!take_number(w, 1, TP__LENGTH_MAX, &repeat) || !take_char(w, 'x') ||
            !take_number(w, 0, TP__LENGTH_MAX, &q_len) || !take_char(w, '/') ||
            !take_number(w, 0, TP__LENGTH_MAX, &kv_len))
            return TP__REFUSE_WORD(
                w, "it takes COUNTxQ/K,COUNTxQ/K,...: counts in 1..2^40, lengths in "
                   "0..2^40");
        total += repeat;
        if (total > TP__LENGTH_MAX) return TP__REFUSE_WORD(w, "its counts add up beyond 2^40");
        add_run(&w->lengths, repeat, q_len, kv_len);
        if (w->lengths.count > TP__MAX_RUNS)
            return TP__REFUSE_WORD(w, "it holds more than %d entries", TP__MAX_RUNS);
        if (q_len > problem->q_len) problem->q_len = q_len;
        if (kv_len > problem->kv_len) problem->kv_len = kv_len;
    } while (take_char(w, ','));
    if (w->at != w->end)
        return TP__REFUSE_WORD(w, "'%.*s' is left over behind its entries",
                               (int)(w->end - w->at < 40 ? w->end - w->at : 40), w->at);
    return TP_OK;
}

tp_status tp__take_phase(tp__words *w) {
    w->phase = w->word;
    w->phase_size = (int)(w->end - w->word);
    return TP_OK;
}

tp_status tp__take_batch(tp__words *w) {
    return take_length(w, &w->problem.batch);
}

tp_status tp__take_rows(tp__words *w) {
    return take_length(w, &w->problem.q_len);
}

tp_status tp__take_keys(tp__words *w) {
    return take_length(w, &w->problem.kv_len);
}

tp_status tp__take_heads(tp__words *w) {
    return take_pair(w, TP__HEADS_MAX, &w->problem.q_heads, &w->problem.kv_heads);
}

tp_status tp__take_dims(tp__words *w) {
    return take_pair(w, TP__DIM_MAX, &w->problem.head_dim_qk, &w->problem.head_dim_v);
}

tp_status tp__take_packed(tp__words *w) {
    w->problem.q_layout = w->problem.kv_layout = TP_PACKED;
    return TP_OK;
}

tp_status tp__take_packed_q(tp__words *w) {
    w->problem.q_layout = TP_PACKED;
    return TP_OK;
}

tp_status tp__take_packed_kv(tp__words *w) {
    w->problem.kv_layout = TP_PACKED;
    return TP_OK;
}

tp_status tp__take_padded(tp__words *w) {
    w->lengths.padded = 1;
    return TP_OK;
}

tp_status tp__take_top_left(tp__words *w) {
    w->problem.align = TP_TOP_LEFT;
    return TP_OK;
}

static tp_status take_count(tp__words *w, int64_t *value) {
    if (!take_number(w, 1, TP__LENGTH_MAX, value) || w->at != w->end)
        return TP__REFUSE_WORD(w, "it takes one whole number in 1..2^40");
    return TP_OK;
}

tp_status tp__take_paged(tp__words *w) {
    return take_count(w, &w->problem.page_size);
}

tp_status tp__take_sparse(tp__words *w) {
    return take_count(w, &w->problem.sparse_len);
}

tp_status tp__take_cascade(tp__words *w) {
    return take_count(w, &w->problem.cascade);
}

tp_status tp__take_sparse_sorted(tp__words *w) {
    w->problem.sparse_sorted = 1;
    return take_count(w, &w->problem.sparse_len);
}

tp_status tp__take_bias(tp__words *w) {
    w->problem.bias_dtype = take_dtype(w);
    if (w->problem.bias_dtype < TP_F32 || w->problem.bias_dtype > TP_BF16 || w->at != w->end)
        return TP__REFUSE_WORD(w, "it takes f32, f16 or bf16");
    return TP_OK;
}

/* p=f32 says what is so without it. */
tp_status tp__take_p(tp__words *w) {
    tp_dtype dtype = take_dtype(w);
    if ((dtype != TP_F32 && dtype != TP_BF16) || w->at != w->end) return TP__REFUSE_WORD(w, "it takes bf16 or f32");
    w->problem.p_dtype = dtype == TP_BF16 ? TP_BF16 : 0;
    return TP_OK;
}

tp_status tp__take_softcap(tp__words *w) {
    float *cap = &w->problem.softcap;
    if (!tp__read_float(&w->at, w->end, cap) || w->at != w->end || !(*cap >= 0x1p-60f && *cap <= 0x1p60f))
        return TP__REFUSE_WORD(w, "it takes one decimal number in 2^-60..2^60");
    return TP_OK;
}

tp_status tp__take_dropout(tp__words *w) {
    float *p = &w->problem.dropout;
    if (!tp__read_float(&w->at, w->end, p) || w->at != w->end || !(*p >= 0 && *p < 1))
        return TP__REFUSE_WORD(w, "it takes one decimal number, at least 0 and below 1");
    return TP_OK;
}

/* beta,length,offset */
tp_status tp__take_qscale(tp__words *w) {
    tp_problem *p = &w->problem;
    if (!tp__read_float(&w->at, w->end, &p->qscale_beta) || !isfinite(p->qscale_beta) ||
        !take_char(w, ',') || !take_number(w, 1, TP__LENGTH_MAX, &p->qscale_length) ||
        !take_char(w, ',') || !take_number(w, 0, TP__LENGTH_MAX, &p->qscale_offset) || w->at != w->end)
        return TP__REFUSE_WORD(w, "it takes beta,length,offset: a finite decimal number, a whole number in "
                                  "1..2^40 and one in 0..2^40");
    return TP_OK;
}

/* 0 when the text at hand begins with no name of scales. */
static int32_t take_kind(tp__words *w) {
    for (int32_t kind = TP_SCALES_TENSOR; kind <= TP_SCALES_Q8_0; kind++) {
        size_t size = strlen(tp_scales_name((tp_scales)kind));
        if (size > (size_t)(w->end - w->at) || memcmp(w->at, tp_scales_name((tp_scales)kind), size) != 0) continue;
        w->at += size;
        return kind;
    }
    return TP_SCALES_NONE;
}

/* both | k:v */
tp_status tp__take_scales(tp__words *w) {
    w->scales[0] = w->scales[1] = take_kind(w);
    if (take_char(w, ':')) w->scales[1] = take_kind(w);
    if (!w->scales[0] || !w->scales[1] || w->at != w->end)
        return TP__REFUSE_WORD(w, "it takes one of tensor, token, group and q8_0, or two of them as K:V");
    return TP_OK;
}

tp_status tp__finish_scales(tp__words *w) {
    tp_problem *p = &w->problem;
    int k = tp__is_code(p->k_dtype), v = tp__is_code(p->v_dtype);
    TP_REQUIRE(!w->scales[0] || k || v, w->error, TP_INVALID,
               "word 'scales=%s': k is %s and v %s, and only i8, i4 and e4m3 have scales",
               tp_scales_name((tp_scales)w->scales[0]), tp_dtype_name((tp_dtype)p->k_dtype), tp_dtype_name((tp_dtype)p->v_dtype));
    TP_REQUIRE(w->scales[0] == w->scales[1] || (k && v), w->error, TP_INVALID,
               "word 'scales=%s:%s': only %s is quantised, so name its scales alone", tp_scales_name((tp_scales)w->scales[0]),
               tp_scales_name((tp_scales)w->scales[1]), k ? "k" : "v");
    p->k_scales = !k ? TP_SCALES_NONE : w->scales[0] ? w->scales[0] : (int32_t)tp__scales_default(p->k_dtype);
    p->v_scales = !v ? TP_SCALES_NONE : w->scales[1] ? w->scales[1] : (int32_t)tp__scales_default(p->v_dtype);
    return TP_OK;
}

int tp__word_is_dtypes(const tp__words *w) {
    tp__words copy = *w;
    copy.at = copy.word;
    return take_dtype(&copy) != 0;
}
