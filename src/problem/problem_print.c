/* SPDX-License-Identifier: Apache-2.0 */
/* Printing the text form of tileproof.h section 3, of a problem or of one call. */
#include "problem/sequence.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/control.h"
#include "base/structs.h"
#include "problem/number_text.h"
#include "problem/mask_text.h"
#include "quant/quant.h"

/* Longer than any text of a problem that passed tp_problem_check. */
typedef struct printer {
    char text[2048];
    size_t used;
} printer;

static void put(printer *p, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(p->text + p->used, sizeof p->text - p->used, format, arguments);
    va_end(arguments);
    if (written > 0) p->used += (size_t)written;
    if (p->used >= sizeof p->text) p->used = sizeof p->text - 1;
}

/* What one walk over the sequences of a call finds out. */
typedef struct summary {
    int64_t batch;
    const char *phase;
    uint64_t hash;
    int64_t runs; /* of equal consecutive lengths; those beyond the first 16 are only counted */
    struct {
        int64_t repeat, q_len, kv_len;
    } run[TP__MAX_RUNS];
} summary;

/* FNV-1a over the eight bytes of a value, lowest first on every host. */
static uint64_t hash_value(uint64_t hash, int64_t value) {
    for (int i = 0; i < 8; i++) {
        hash ^= ((uint64_t)value >> (8 * i)) & 0xff;
        hash *= 0x100000001b3u;
    }
    return hash;
}

static void add_sequence(summary *s, int64_t q_len, int64_t kv_len, int64_t *last_q,
                         int64_t *last_kv) {
    const char *phase = tp__phase(q_len, kv_len);
    s->hash = hash_value(hash_value(s->hash, q_len), kv_len);
    if (s->phase == NULL) s->phase = phase;
    if (strcmp(s->phase, phase) != 0) s->phase = "mixed";
    if (s->runs > 0 && q_len == *last_q && kv_len == *last_kv) {
        if (s->runs <= TP__MAX_RUNS) s->run[s->runs - 1].repeat++;
        return;
    }
    if (s->runs < TP__MAX_RUNS) {
        s->run[s->runs].repeat = 1;
        s->run[s->runs].q_len = q_len;
        s->run[s->runs].kv_len = kv_len;
    }
    *last_q = q_len;
    *last_kv = kv_len;
    s->runs++;
}

static void set_bounds(summary *s, int64_t batch, int64_t q_len, int64_t kv_len) {
    s->batch = s->run[0].repeat = batch;
    s->phase = tp__phase(q_len, kv_len);
    s->runs = 1;
    s->run[0].q_len = q_len;
    s->run[0].kv_len = kv_len;
}

static void summarise(summary *s, const tp_problem *problem, const tp_tensors *tensors) {
    memset(s, 0, sizeof *s);
    s->hash = 0xcbf29ce484222325u;
    if (tensors == NULL) {
        set_bounds(s, problem->batch, problem->q_len, problem->kv_len);
        return;
    }
    if (problem->q_layout != TP_PACKED && problem->kv_layout != TP_PACKED && tensors->q_lens == NULL &&
        tensors->kv_lens == NULL) { /* all alike, however many */
        set_bounds(s, tensors->batch, tensors->q_len, tensors->kv_len);
        return;
    }
    if (!tp__reads_indices(tensors)) {
        set_bounds(s, tensors->batch, tp__rows_max(problem, tensors), tp__keys_max(problem, tensors));
        return;
    }
    int64_t last_q = 0, last_kv = 0;
    s->batch = tensors->batch;
    for (int64_t i = 0; i < tensors->batch; i++) {
        tp__sequence one = tp__sequence_at(problem, tensors, i);
        add_sequence(s, one.q_len, one.kv_len, &last_q, &last_kv);
    }
    if (tensors->batch == 0)
        set_bounds(s, 0, problem->q_layout == TP_PACKED ? problem->q_len : tensors->q_len,
                   problem->kv_layout == TP_PACKED ? problem->kv_len : tensors->kv_len);
}

static void put_sequences(printer *p, const summary *s) {
    if (s->runs == 1) {
        put(p, " q%lld k%lld", (long long)s->run[0].q_len, (long long)s->run[0].kv_len);
        return;
    }
    if (s->runs > TP__MAX_RUNS) {
        put(p, " seqs=#%lld:%016llx", (long long)s->batch, (unsigned long long)s->hash);
        return;
    }
    for (int64_t i = 0; i < s->runs; i++)
        put(p, "%s%lldx%lld/%lld", i == 0 ? " seqs=" : ",", (long long)s->run[i].repeat,
            (long long)s->run[i].q_len, (long long)s->run[i].kv_len);
}

static void put_dtypes(printer *p, const tp_problem *problem) {
    int32_t q = problem->q_dtype, k = problem->k_dtype, v = problem->v_dtype, o = problem->o_dtype;
    int same = q == k && q == v;
    put(p, " %s", tp_dtype_name(q));
    if (!same) put(p, ":%s:%s", tp_dtype_name(k), tp_dtype_name(v));
    if (!same || o != q) put(p, "->%s", tp_dtype_name(o));
}

/* Only what a reader could not guess. */
static void put_scales(printer *p, const tp_problem *problem) {
    int32_t k = problem->k_scales, v = problem->v_scales;
    if (k == (int32_t)tp__scales_default(problem->k_dtype) && v == (int32_t)tp__scales_default(problem->v_dtype)) return;
    put(p, " scales=%s", tp_scales_name((tp_scales)(k != 0 ? k : v)));
    if (k != 0 && v != 0 && k != v) put(p, ":%s", tp_scales_name((tp_scales)v));
}

static void put_layout(printer *p, const tp_problem *problem, const tp_tensors *tensors) {
    int q = problem->q_layout == TP_PACKED, kv = problem->kv_layout == TP_PACKED;
    if (q || kv) put(p, " %s", q && kv ? "packed" : q ? "packed-q" : "packed-kv");
    int batch = problem->kv_layout == TP_BATCH;
    if (tensors != NULL && ((!q && tensors->q_lens != NULL) || (batch && tensors->kv_lens != NULL)))
        put(p, " padded");
    if (problem->kv_layout == TP_PAGED) put(p, " paged=%lld", (long long)problem->page_size);
    if (problem->sparse_len > 0)
        put(p, " sparse%s=%lld", problem->sparse_sorted ? "-sorted" : "", (long long)problem->sparse_len);
    if (problem->latent) put(p, " latent");
}

static void put_number(printer *p, const char *name, float value) {
    char number[TP__FLOAT_TEXT];
    tp__write_float(value, number);
    put(p, " %s=%s", name, number);
}

static void put_scores(printer *p, const tp_problem *problem) {
    if (problem->scale_set) put_number(p, "scale", problem->scale);
    if (problem->qscale_length > 0) {
        put_number(p, "qscale", problem->qscale_beta);
        put(p, ",%lld,%lld", (long long)problem->qscale_length, (long long)problem->qscale_offset);
    }
    if (problem->softcap > 0) put_number(p, "softcap", problem->softcap);
    if (problem->alibi) put(p, " alibi");
    if (problem->bias_dtype != 0) put(p, " bias=%s", tp_dtype_name((tp_dtype)problem->bias_dtype));
    if (problem->sinks) put(p, " sinks");
    if (problem->dropout > 0) put_number(p, "dropout", problem->dropout);
    if (problem->p_dtype != 0) put(p, " p=%s", tp_dtype_name((tp_dtype)problem->p_dtype));
}

static const char *phase_word(const tp_problem *problem, const char *forward) {
    return problem->op == TP_BACKWARD ? "backward" : forward;
}

/* What does not depend on batch and lengths, but for the heads; of a class, not on the length of shared prefixes either. */
static void put_rest(printer *p, const tp_problem *problem, const tp_tensors *tensors, int of_class) {
    put(p, " d%lld", (long long)problem->head_dim_qk);
    if (problem->head_dim_v != problem->head_dim_qk)
        put(p, "/%lld", (long long)problem->head_dim_v);
    put_dtypes(p, problem);
    put_scales(p, problem);
    put_layout(p, problem, tensors);
    if (problem->align == TP_TOP_LEFT) put(p, " top-left");
    if (problem->mask_nodes > 0)
        p->used += tp__mask_print(problem, p->text + p->used, sizeof p->text - p->used);
    if (problem->positions) put(p, " positions");
    put_scores(p, problem);
    if (problem->cascade > 0) put(p, " cascade");
    if (problem->cascade > 0 && !of_class) put(p, "=%lld", (long long)problem->cascade);
    if (problem->invariant) put(p, " invariant");
}

static void put_problem(printer *p, const tp_problem *problem, const tp_tensors *tensors) {
    summary s;
    summarise(&s, problem, tensors);
    put(p, "%s b%lld h%lld/%lld", phase_word(problem, s.phase), (long long)s.batch, (long long)problem->q_heads,
        (long long)problem->kv_heads);
    put_sequences(p, &s);
    put_rest(p, problem, tensors, 0);
}

/* The arrays that the walk over the sequences reads must be there, and lie as their elements must. */
static int can_walk(const tp_problem *problem, const tp_tensors *tensors) {
    if (tensors->batch < 0) return 0;
    if (tensors->index_type != TP_I32 && tensors->index_type != TP_I64) return 0;
    const void *const arrays[] = {tensors->cu_seqlens_q, tensors->cu_seqlens_kv, tensors->q_lens, tensors->kv_lens};
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)arrays[i] % (uintptr_t)tp__index_size(tensors) != 0) return 0;
    return tensors->batch == 0 || ((problem->q_layout != TP_PACKED || tensors->cu_seqlens_q) &&
                                   (problem->kv_layout != TP_PACKED || tensors->cu_seqlens_kv));
}

tp_status tp_problem_print(const tp_problem *problem, const tp_tensors *tensors, char *text,
                           size_t size) {
    TP__IN_DEFAULT_CONTROL;
    tp__tensors_here here;
    TP_STRUCT_IN(tp_problem, problem, NULL);
    TP_TRY(tp__tensors_in(&tensors, TP_FORWARD, &here, NULL)); /* gradients are not printed */
    if (text == NULL || size == 0) return TP_INVALID;
    text[0] = 0;
    if (problem->mask_nodes < 0 || problem->mask_nodes > TP_MAX_MASK_NODES) return TP_INVALID;
    if (tensors != NULL && !can_walk(problem, tensors)) return TP_INVALID;
    printer p = {.used = 0};
    put_problem(&p, problem, tensors);
    if (p.used >= size) return TP_INVALID;
    memcpy(text, p.text, p.used + 1);
    return TP_OK;
}

tp_status tp__class_print(const tp_problem *problem, const char *bucket, char *text, size_t size) {
    printer p = {.used = 0};
    put(&p, "%s %s h%lld/%lld", phase_word(problem, tp__phase(problem->q_len, problem->kv_len)), bucket,
        (long long)problem->q_heads, (long long)problem->kv_heads);
    put_rest(&p, problem, NULL, 1);
    if (p.used >= size) return TP_INVALID;
    memcpy(text, p.text, p.used + 1);
    return TP_OK;
}
