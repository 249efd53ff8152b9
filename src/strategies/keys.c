/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/keys.h"

#include "base/arena.h"

tp__keys tp__keys_of(const tp_problem *problem, const tp_tensors *tensors, int64_t index, int64_t token) {
    tp__keys keys = {problem, tensors, tp__sequence_at(problem, tensors, index), index, token, 0, 0};
    keys.count = problem->sparse_len > 0 ? tp__sparse_count(problem, tensors, &keys.seq, token) : keys.seq.kv_len;
    return keys;
}

/* Where rows of one tensor lie. */
static const char *row_at(const tp_tensor *tensor, int32_t dtype, int64_t place) {
    return (const char *)tensor->data + tp__units_bytes(dtype, place);
}

static const char *scales_at(const tp_tensor *tensor, int32_t kind, int64_t place) {
    int64_t size = kind == TP_SCALES_GROUP ? (int64_t)sizeof(uint16_t) : (int64_t)sizeof(float);
    return (const char *)tensor->data + (kind == TP_SCALES_TENSOR ? 0 : place * size);
}

/* Bytes from one of `count` to the next. A stride that is never taken may be any number. */
static int64_t step(int32_t dtype, int64_t stride, int64_t count) { return count > 1 ? tp__units_bytes(dtype, stride) : 0; }

/* `count` keys that lie a stride apart, from this place on. */
static void put_run(const tp__keys *keys, tp__key_place at, int64_t count, const char **k, const char **v) {
    const tp_problem *p = keys->problem;
    const tp_tensors *t = keys->tensors;
    const char *k0 = row_at(&t->k, p->k_dtype, at.k), *v0 = row_at(&t->v, p->v_dtype, at.v);
    int64_t k_step = step(p->k_dtype, t->k.stride[1], count), v_step = step(p->v_dtype, t->v.stride[1], count);
    for (int64_t i = 0; i < count; i++) {
        k[i] = k0 + i * k_step;
        v[i] = v0 + i * v_step;
    }
    if (keys->scales == 0) return;
    for (int64_t i = 0; i < count && p->k_scales != 0 && p->k_scales != TP_SCALES_Q8_0; i++)
        k[keys->scales + i] = scales_at(&t->k_scales, p->k_scales, at.k_scales + i * t->k_scales.stride[1]);
    for (int64_t i = 0; i < count && p->v_scales != 0 && p->v_scales != TP_SCALES_Q8_0; i++)
        v[keys->scales + i] = scales_at(&t->v_scales, p->v_scales, at.v_scales + i * t->v_scales.stride[1]);
}

static tp__key_place place_of(const tp__keys *keys, int64_t key) {
    return tp__key_place_of(keys->problem, keys->tensors, keys->index, &keys->seq, key);
}

/* Whole pages at a time: one look into the tables for each. */
static void paged_rows(const tp__keys *keys, int64_t key, int64_t count, const char **k, const char **v) {
    int64_t page = keys->problem->page_size, run;
    for (int64_t i = 0; i < count; i += run) {
        run = tp__min(page - (key + i) % page, count - i);
        put_run(keys, place_of(keys, key + i), run, k + i, v + i);
    }
}

static void sparse_rows(const tp__keys *keys, int64_t slot, int64_t count, const char **k, const char **v) {
    for (int64_t i = 0; i < count; i++)
        put_run(keys, place_of(keys, tp__sparse_key(keys->tensors, &keys->seq, keys->token, slot + i)), 1, k + i, v + i);
}

/* A place of keys, and that of their scales. */
static void copy_place(const tp__keys *keys, const char **rows, int64_t to, int64_t from) {
    rows[to] = rows[from];
    if (keys->scales > 0) rows[keys->scales + to] = rows[keys->scales + from];
}

void tp__keys_repeat(const tp__keys *keys, const char **k, const char **v, int64_t first, int64_t end, int64_t place) {
    for (int64_t i = first; i < end; i++) {
        copy_place(keys, k, i, place);
        copy_place(keys, v, i, place);
    }
}

int64_t tp__head_step(const tp_problem *problem, const tp_tensors *tensors, int of_v) {
    return of_v ? step(problem->v_dtype, tensors->v.stride[2], problem->kv_heads)
                : step(problem->k_dtype, tensors->k.stride[2], problem->kv_heads);
}

void tp__keys_head(const tp__keys *keys, int of_v, int64_t head, tp__keys_in *in) {
    const tp_tensors *t = keys->tensors;
    int32_t kind = of_v ? keys->problem->v_scales : keys->problem->k_scales;
    const tp_tensor *scales = of_v ? &t->v_scales : &t->k_scales;
    in->offset = head * tp__head_step(keys->problem, t, of_v);
    in->scales = kind != 0 && kind != TP_SCALES_Q8_0 ? keys->scales : 0;
    in->scales_offset = in->scales > 0 && kind != TP_SCALES_TENSOR
                            ? head * scales->stride[2] * (int64_t)tp_dtype_bytes((tp_dtype)tp__scale_dtype(kind))
                            : 0;
}

void tp__keys_rows(const tp__keys *keys, int64_t key, int64_t count, int64_t end, const char **k,
                   const char **v) {
    int64_t there = tp__max(tp__min(count, end - key), 0);
    if (keys->problem->sparse_len > 0)
        sparse_rows(keys, key, there, k, v);
    else if (keys->problem->kv_layout == TP_PAGED)
        paged_rows(keys, key, there, k, v);
    else
        put_run(keys, place_of(keys, key), there, k, v);
    if (there > 0) tp__keys_repeat(keys, k, v, there, count, there - 1);
}

static int any_bit(const uint64_t *words, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++)
        if (tp__word_bit(words, i)) return 1;
    return 0;
}

void tp__keys_seen(const tp__keys *keys, int64_t key, int64_t first, int64_t last, const uint64_t *seen,
                   const char **k, const char **v) {
    int64_t page = keys->problem->page_size, run;
    for (int64_t i = first; i < last; i += run) {
        run = tp__min(page - (key + i) % page, last - i);
        if (any_bit(seen, i, i + run)) {
            paged_rows(keys, key + i, run, k + i, v + i);
        } else {
            tp__keys_repeat(keys, k, v, i, i + run, first);
        }
    }
}

void tp__keys_ahead(const tp__keys *keys, int64_t key, int64_t count, int64_t end, const char **k,
                    const char **v) {
    int64_t page = keys->problem->page_size, run;
    for (int64_t i = 0; i < count; i += run) {
        run = tp__min(page - (key + i) % page, count - i);
        if (key + i < end && tp__key_has_page(keys->problem, keys->tensors, keys->index, key + i)) {
            paged_rows(keys, key + i, run, k + i, v + i);
        } else {
            tp__keys_repeat(keys, k, v, i, i + run, -1);
        }
    }
}
