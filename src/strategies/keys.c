/* SPDX-License-Identifier: Apache-2.0 */
#include "strategies/keys.h"

#include "base/arena.h"

tp__keys tp__keys_of(const tp_problem *problem, const tp_tensors *tensors, int64_t index, int64_t token) {
    tp__keys keys = {problem, tensors, tp__sequence_at(problem, tensors, index), index, token, 0};
    keys.count = problem->sparse_len > 0 ? tp__list_count(problem, tensors, &keys.seq, token)
                                       : keys.seq.kv_len;
    return keys;
}

static void plain_rows(const tp__keys *keys, int64_t key, int64_t count, const char **k,
                       const char **v) {
    const tp_problem *p = keys->problem;
    const tp_tensors *t = keys->tensors;
    int64_t k_size = (int64_t)tp_dtype_bytes(p->k_dtype), v_size = (int64_t)tp_dtype_bytes(p->v_dtype);
    const char *k0 = (const char *)t->k.data + (keys->seq.k + key * t->k.stride[1]) * k_size;
    const char *v0 = (const char *)t->v.data + (keys->seq.v + key * t->v.stride[1]) * v_size;
    for (int64_t i = 0; i < count; i++) {
        k[i] = k0 + i * t->k.stride[1] * k_size;
        v[i] = v0 + i * t->v.stride[1] * v_size;
    }
}

/* Whole pages at a time: one look into the tables for each. */
static void paged_rows(const tp__keys *keys, int64_t key, int64_t count, const char **k,
                       const char **v) {
    const tp_problem *p = keys->problem;
    const tp_tensors *t = keys->tensors;
    int64_t k_size = (int64_t)tp_dtype_bytes(p->k_dtype), v_size = (int64_t)tp_dtype_bytes(p->v_dtype);
    for (int64_t i = 0; i < count;) {
        tp__key_place at = tp__key_place_of(p, t, keys->index, &keys->seq, key + i);
        int64_t run = tp__min(p->page_size - (key + i) % p->page_size, count - i);
        const char *k0 = (const char *)t->k.data + at.k * k_size;
        const char *v0 = (const char *)t->v.data + at.v * v_size;
        for (int64_t j = 0; j < run; j++) {
            k[i + j] = k0 + j * t->k.stride[1] * k_size;
            v[i + j] = v0 + j * t->v.stride[1] * v_size;
        }
        i += run;
    }
}

static void listed_rows(const tp__keys *keys, int64_t slot, int64_t count, const char **k,
                        const char **v) {
    const tp_problem *p = keys->problem;
    const tp_tensors *t = keys->tensors;
    int64_t k_size = (int64_t)tp_dtype_bytes(p->k_dtype), v_size = (int64_t)tp_dtype_bytes(p->v_dtype);
    for (int64_t i = 0; i < count; i++) {
        int64_t key = tp__list_key(t, &keys->seq, keys->token, slot + i);
        tp__key_place at = tp__key_place_of(p, t, keys->index, &keys->seq, key);
        k[i] = (const char *)t->k.data + at.k * k_size;
        v[i] = (const char *)t->v.data + at.v * v_size;
    }
}

/* Keys that may not be looked at get the place of one that may. */
static void repeat(const char **k, const char **v, int64_t count, const char *k_place, const char *v_place) {
    for (int64_t i = 0; i < count; i++) {
        k[i] = k_place;
        v[i] = v_place;
    }
}

void tp__keys_rows(const tp__keys *keys, int64_t key, int64_t count, int64_t end, const char **k,
                   const char **v) {
    int64_t there = tp__max(tp__min(count, end - key), 0);
    if (keys->problem->sparse_len > 0)
        listed_rows(keys, key, there, k, v);
    else if (keys->problem->kv_layout == TP_PAGED)
        paged_rows(keys, key, there, k, v);
    else
        plain_rows(keys, key, there, k, v);
    if (there > 0) repeat(k + there, v + there, count - there, k[there - 1], v[there - 1]);
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
            repeat(k + i, v + i, run, k[first], v[first]);
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
            repeat(k + i, v + i, run, k[-1], v[-1]);
        }
    }
}
