/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of one call: their defaults, where a sequence lies, and what every run checks. */
#include "problem/sequence.h"

#include <math.h>
#include <string.h>

#include "base/structs.h"
#include "problem/side.h"

/* They wrap instead of overflowing: tp_tensors_init and the printer see values nobody has checked.
 */
static int64_t times(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a * (uint64_t)b);
}
static int64_t minus(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

static tp_tensor contiguous(const void *data, int64_t tokens, int64_t heads, int64_t dim) {
    int64_t token = times(heads, dim);
    return (tp_tensor){(void *)(uintptr_t)data, {times(tokens, token), token, dim}};
}

static void fill(tp_tensors *tensors, const tp_problem *p, const void *q, const void *k, const void *v, void *o) {
    tensors->batch = p->batch;
    tensors->q_len = p->q_len;
    tensors->kv_len = p->kv_len;
    tensors->q_tokens = times(p->batch, p->q_len);
    tensors->kv_tokens = times(p->batch, p->kv_len);
    tensors->q = contiguous(q, p->q_len, p->q_heads, p->head_dim_qk);
    int64_t held = p->kv_layout == TP_PAGED ? p->page_size : p->kv_len; /* tokens of a page, or of a sequence */
    tensors->k = contiguous(k, held, p->kv_heads, tp__row_units(p->k_scales, p->head_dim_qk));
    tensors->v = contiguous(v, held, p->kv_heads, tp__row_units(p->v_scales, p->head_dim_v));
    if (p->k_scales != 0) tensors->k_scales = contiguous(NULL, held, p->kv_heads, tp__row_scales(p->k_scales, p->head_dim_qk));
    if (p->v_scales != 0) tensors->v_scales = contiguous(NULL, held, p->kv_heads, tp__row_scales(p->v_scales, p->head_dim_v));
    tensors->o = contiguous(o, p->q_len, p->q_heads, p->head_dim_v);
    tensors->lse = contiguous(NULL, p->q_len, p->q_heads, 1);
}

void tp_tensors_init_sized(tp_tensors *tensors, size_t size, const tp_problem *problem, const void *q, const void *k,
                           const void *v, void *o) {
    tp_problem here;
    tp_tensors filled = {0};
    problem = TP_IN(tp_problem, problem, &here, NULL);
    if (problem != NULL) fill(&filled, problem, q, k, v, o);
    TP_STRUCT_INIT(tp_tensors, tensors, size, &filled);
}

static int64_t offset(const tp_tensor *tensor, int packed, int64_t start) {
    return times(start, tensor->stride[packed ? 1 : 0]);
}

tp__sequence tp__sequence_at(const tp_problem *problem, const tp_tensors *tensors, int64_t index) {
    const tp_tensors *t = tensors;
    int q_packed = problem->q_layout == TP_PACKED, kv_packed = problem->kv_layout == TP_PACKED;
    int paged = problem->kv_layout == TP_PAGED;
    int64_t q_start = index, kv_start = index;
    tp__sequence s = {.q_len = t->q_len, .kv_len = t->kv_len};
    if (q_packed) {
        q_start = tp__index_at(t, t->cu_seqlens_q, index);
        s.q_len = minus(tp__index_at(t, t->cu_seqlens_q, index + 1), q_start);
    }
    if (kv_packed) {
        kv_start = tp__index_at(t, t->cu_seqlens_kv, index);
        s.kv_len = minus(tp__index_at(t, t->cu_seqlens_kv, index + 1), kv_start);
    }
    if (t->q_lens != NULL) s.q_len = tp__index_at(t, t->q_lens, index);
    if (t->kv_lens != NULL) s.kv_len = tp__index_at(t, t->kv_lens, index);
    s.q = offset(&t->q, q_packed, q_start);
    s.o = offset(&t->o, q_packed, q_start);
    s.lse = offset(&t->lse, q_packed, q_start);
    s.k = paged ? 0 : offset(&t->k, kv_packed, kv_start);
    s.v = paged ? 0 : offset(&t->v, kv_packed, kv_start);
    s.k_scales = paged ? 0 : offset(&t->k_scales, kv_packed, kv_start);
    s.v_scales = paged ? 0 : offset(&t->v_scales, kv_packed, kv_start);
    s.tensors = t;
    s.index = index;
    s.q_token = q_packed ? q_start : times(index, t->q_len);
    s.kv_token = kv_packed ? kv_start : times(index, t->kv_len);
    return s;
}

int64_t tp__sequence_start(const tp_problem *problem, const tp_tensors *tensors, const tp_tensor *tensor,
                           int of_q, int64_t index) {
    int packed = (of_q ? problem->q_layout : problem->kv_layout) == TP_PACKED;
    const void *cu = of_q ? tensors->cu_seqlens_q : tensors->cu_seqlens_kv;
    return offset(tensor, packed, packed ? tp__index_at(tensors, cu, index) : index);
}

tp__mask_view tp__sequence_view(const tp_problem *problem, const tp__sequence *sequence) {
    const tp_tensors *t = sequence->tensors;
    tp__mask_view view = tp__mask_view_plain(problem, sequence->q_len, sequence->kv_len);
    view.tensors = t;
    view.seq = sequence->index;
    view.q_token = sequence->q_token;
    view.kv_token = sequence->kv_token;
    if (problem->positions) {
        view.q_pos = t->q_positions;
        view.k_pos = t->k_positions;
    }
    view.documents = (tp__mask_ids){.q = t->q_documents, .k = t->k_documents, .id = -1};
    view.spans = (tp__mask_ids){.q = t->q_spans, .k = t->k_spans, .id = -1};
    if (!tp__mask_has(problem, TP_MASK_DOCUMENTS)) view.documents.k = NULL;
    if (!tp__mask_has(problem, TP_MASK_SPANS)) view.spans.k = NULL;
    return view;
}

tp__key_place tp__key_place_of(const tp_problem *problem, const tp_tensors *tensors, int64_t index,
                               const tp__sequence *seq, int64_t key) {
    const tp_tensors *t = tensors;
    if (problem->kv_layout != TP_PAGED)
        return (tp__key_place){seq->k + key * t->k.stride[1], seq->v + key * t->v.stride[1],
                               seq->k_scales + key * t->k_scales.stride[1], seq->v_scales + key * t->v_scales.stride[1]};
    int64_t slot = index * t->page_slots + key / problem->page_size, token = key % problem->page_size;
    int64_t k_page = tp__index_at(t, t->k_pages, slot);
    int64_t v_page = t->v_pages != NULL ? tp__index_at(t, t->v_pages, slot) : k_page;
    return (tp__key_place){k_page * t->k.stride[0] + token * t->k.stride[1], v_page * t->v.stride[0] + token * t->v.stride[1],
                           k_page * t->k_scales.stride[0] + token * t->k_scales.stride[1],
                           v_page * t->v_scales.stride[0] + token * t->v_scales.stride[1]};
}

int tp__key_has_page(const tp_problem *problem, const tp_tensors *tensors, int64_t index, int64_t key) {
    const tp_tensors *t = tensors;
    if (problem->kv_layout != TP_PAGED) return 1;
    int64_t slot = index * t->page_slots + key / problem->page_size;
    int64_t k = tp__index_at(t, t->k_pages, slot), v = t->v_pages != NULL ? tp__index_at(t, t->v_pages, slot) : k;
    return k >= 0 && k < t->pages && v >= 0 && v < t->pages;
}

int64_t tp__sparse_key(const tp_tensors *tensors, const tp__sequence *seq, int64_t token, int64_t slot) {
    return tp__index_at(tensors, tensors->sparse_indices, (seq->q_token + token) * tensors->sparse_stride + slot);
}

int64_t tp__sparse_count(const tp_problem *problem, const tp_tensors *tensors, const tp__sequence *seq, int64_t token) {
    int64_t n = 0;
    while (n < problem->sparse_len && tp__sparse_key(tensors, seq, token, n) != -1) n++;
    return n;
}

static tp_status check_alignment(const tp__side *s, size_t size, tp_error *error) {
    TP_REQUIRE((uintptr_t)s->cu % size == 0, error, TP_INVALID,
               "cu_seqlens_%s is %p: it must be aligned to its elements of %zu bytes", s->name,
               s->cu, size);
    TP_REQUIRE((uintptr_t)s->lens % size == 0, error, TP_INVALID,
               "%s_lens is %p: it must be aligned to its elements of %zu bytes", s->name, s->lens,
               size);
    return TP_OK;
}

static tp_status check_packed(const tp_tensors *t, const tp__side *s, tp_error *error) {
    TP_REQUIRE(s->tokens >= 0, error, TP_INVALID, "%s_tokens is %lld: it must be at least 0",
               s->name, (long long)s->tokens);
    TP_REQUIRE(s->cu != NULL || t->batch == 0, error, TP_INVALID,
               "cu_seqlens_%s is NULL with batch %lld: TP_PACKED needs its batch + 1 starts",
               s->name, (long long)t->batch);
    if (s->cu == NULL || !tp__reads_indices(t)) return TP_OK;
    int64_t last = tp__index_at(t, s->cu, 0);
    TP_REQUIRE(last >= 0, error, TP_INVALID, "cu_seqlens_%s[0] is %lld: it must be at least 0",
               s->name, (long long)last);
    for (int64_t i = 1; i <= t->batch; i++) {
        int64_t next = tp__index_at(t, s->cu, i);
        TP_REQUIRE(next >= last, error, TP_INVALID,
                   "cu_seqlens_%s[%lld] is %lld, below cu_seqlens_%s[%lld] = %lld: it must not "
                   "decrease",
                   s->name, (long long)i, (long long)next, s->name, (long long)i - 1,
                   (long long)last);
        TP_REQUIRE(next - last <= s->bound, error, TP_INVALID,
                   "cu_seqlens_%s[%lld..%lld] is %lld..%lld, a length of %lld: it must be at most "
                   "the problem's %s_len = %lld",
                   s->name, (long long)i - 1, (long long)i, (long long)last, (long long)next,
                   (long long)(next - last), s->name, (long long)s->bound);
        last = next;
    }
    TP_REQUIRE(last <= s->tokens, error, TP_INVALID,
               "cu_seqlens_%s[%lld] is %lld: it must be at most %s_tokens = %lld", s->name,
               (long long)t->batch, (long long)last, s->name, (long long)s->tokens);
    return TP_OK;
}

static tp_status check_batch(const tp__side *s, tp_error *error) {
    TP_REQUIRE(s->cu == NULL, error, TP_INVALID,
               "cu_seqlens_%s is %p though %s_layout is TP_BATCH: it must be NULL", s->name, s->cu,
               s->name);
    TP_REQUIRE(s->len >= 0 && s->len <= s->bound, error, TP_INVALID,
               "%s_len is %lld: it must be in 0..%lld, the problem's %s_len", s->name,
               (long long)s->len, (long long)s->bound, s->name);
    return TP_OK;
}

/* Also finds out whether any token is used. */
static tp_status check_lens(const tp_tensors *t, tp__side *s, tp_error *error) {
    if (!tp__reads_indices(t)) { /* they may all be used */
        s->used = t->batch > 0 && (s->packed ? s->tokens : s->len) > 0;
        return TP_OK;
    }
    for (int64_t i = 0; i < t->batch; i++) {
        int64_t holds = s->packed ? tp__index_at(t, s->cu, i + 1) - tp__index_at(t, s->cu, i) : s->len;
        int64_t uses = s->lens != NULL ? tp__index_at(t, s->lens, i) : holds;
        TP_REQUIRE(uses >= 0 && uses <= holds, error, TP_INVALID,
                   "%s_lens[%lld] is %lld: it must be in 0..%lld, what the sequence holds", s->name,
                   (long long)i, (long long)uses, (long long)holds);
        s->used |= uses > 0;
        if (s->lens == NULL && (s->used || !s->packed)) break;
    }
    return TP_OK;
}

static tp_status check_side(const tp_tensors *t, tp__side *s, tp_error *error) {
    TP_TRY(check_alignment(s, (size_t)tp__index_size(t), error));
    TP_TRY(s->packed ? check_packed(t, s, error) : check_batch(s, error));
    return check_lens(t, s, error);
}

static tp_status check_places(const tp_tensors *t, int device, tp_error *error) {
    TP_REQUIRE(t->device == device, error, TP_UNSUPPORTED,
               "device is %d, and device %d is to compute%s: tp_choice.device names it when a plan is made, and "
               "tp_memory_copy moves memory",
               t->device, device, device == TP_CPU ? " (TP_CPU)" : "");
    TP_REQUIRE(t->index_device == TP_CPU || t->index_device == device, error, TP_UNSUPPORTED,
               "index_device is %d: it must be TP_CPU (0)%s", t->index_device, device == TP_CPU ? "" : " or the tensors' device");
    return TP_OK;
}

/* Other threads may raise it. */
static tp_status check_loss(const tp_tensors *t, tp_error *error) {
    double loss = 0;
    TP_REQUIRE((uintptr_t)t->kv_loss % sizeof loss == 0, error, TP_INVALID,
               "kv_loss is %p: it must be aligned to a double of 8 bytes", (const void *)t->kv_loss);
    if (t->kv_loss != NULL) __atomic_load(t->kv_loss, &loss, __ATOMIC_RELAXED);
    TP_REQUIRE(loss >= 0 && isfinite(loss), error, TP_INVALID,
               "*kv_loss is %g: it must be finite and not negative; kv_loss NULL says nothing", loss);
    return TP_OK;
}

tp_status tp__tensors_check(const tp_problem *problem, const tp_tensors *tensors, tp_error *error) {
    return tp__tensors_check_on(problem, tensors, TP_CPU, error);
}

tp_status tp__tensors_check_on(const tp_problem *problem, const tp_tensors *tensors, int device, tp_error *error) {
    const tp_tensors *t = tensors;
    TP_REQUIRE(tensors != NULL, error, TP_INVALID, "tp_tensors is NULL");
    TP_TRY(check_places(t, device, error));
    TP_REQUIRE(t->index_type == TP_I32 || t->index_type == TP_I64, error, TP_INVALID,
               "index_type is %d: it must be TP_I32 (0) or TP_I64 (1)", t->index_type);
    TP_TRY(tp__tags_check(t->tags, error));
    TP_TRY(check_loss(t, error));
    TP_REQUIRE(t->batch >= 0 && t->batch <= problem->batch, error, TP_INVALID,
               "batch is %lld: it must be in 0..%lld, the problem's batch", (long long)t->batch,
               (long long)problem->batch);
    tp__side q = {"q",
              problem->q_layout == TP_PACKED,
              problem->q_len,
              t->q_len,
              t->q_tokens,
              problem->q_heads,
              t->cu_seqlens_q,
              t->q_lens,
              0,
              0,
              0};
    tp__side kv = {"kv",
               problem->kv_layout == TP_PACKED,
               problem->kv_len,
               t->kv_len,
               t->kv_tokens,
               problem->kv_heads,
               t->cu_seqlens_kv,
               t->kv_lens,
               0,
               t->pages,
               problem->kv_layout == TP_PAGED ? problem->page_size : 0};
    TP_TRY(check_side(t, &q, error));
    TP_TRY(check_side(t, &kv, error));
    TP_TRY(tp__mask_data_check(problem, t, error));
    TP_TRY(tp__cache_check(problem, t, error));
    if (problem->op == TP_BACKWARD) TP_TRY(tp__gradients_check(problem, t, error));
    return tp__regions_check(problem, t, &q, &kv, error);
}
