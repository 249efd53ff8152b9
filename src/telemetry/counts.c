/* SPDX-License-Identifier: Apache-2.0 */
#include "telemetry/counts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CELLS 1024 /* a power of two */
#define MODEL_SIZE 64

typedef struct cell {
    _Alignas(64) atomic_ullong key; /* 0: free */
    atomic_llong count, time_ns, bytes, workspace;
} cell;

struct tp__counts {
    const tp__kernel_names *names;
    cell cell[CELLS + 3]; /* behind the table, by kind: what found no room */
    atomic_int models;
    char model[TP__MODELS + 1][MODEL_SIZE]; /* from 1 */
    pthread_mutex_t lock;                   /* for adding a model */
};

tp__counts *tp__counts_create(const tp__kernel_names *names) {
    tp__counts *counts = NULL;
    if (posix_memalign((void **)&counts, 64, sizeof *counts) != 0) return NULL;
    memset(counts, 0, sizeof *counts);
    counts->names = names;
    pthread_mutex_init(&counts->lock, NULL);
    return counts;
}

void tp__counts_destroy(tp__counts *counts) {
    if (counts == NULL) return;
    /* held where a thread of a forked child's parent was at work */
    if (pthread_mutex_trylock(&counts->lock) == 0) {
        pthread_mutex_unlock(&counts->lock);
        pthread_mutex_destroy(&counts->lock);
    }
    free(counts);
}

int tp__counts_models(const tp__counts *counts) { return atomic_load_explicit(&counts->models, memory_order_acquire); }

static int find_model(const tp__counts *counts, const char *name) {
    int known = tp__counts_models(counts);
    for (int i = 1; i <= known; i++)
        if (strcmp(counts->model[i], name) == 0) return i;
    return 0;
}

int tp__counts_model(tp__counts *counts, const char *name) {
    if (name == NULL) return 0;
    int found = find_model(counts, name);
    if (found > 0) return found;
    if (strcmp(name, "other") == 0) return TP__OTHER; /* one series of that name */
    pthread_mutex_lock(&counts->lock);
    found = find_model(counts, name);
    int known = atomic_load(&counts->models);
    if (found == 0 && known < TP__MODELS && strlen(name) < MODEL_SIZE) {
        strcpy(counts->model[known + 1], name);
        found = known + 1;
        atomic_store_explicit(&counts->models, found, memory_order_release);
    }
    pthread_mutex_unlock(&counts->lock);
    return found > 0 ? found : TP__OTHER;
}

const char *tp__counts_model_name(const tp__counts *counts, int model) {
    return model == 0 ? "" : model == TP__OTHER ? "other" : counts->model[model];
}

/* Never 0, because kind is not. */
static uint64_t key_of(tp__labels l) {
    return (uint64_t)l.kind | (uint64_t)l.kernel << 8 | (uint64_t)l.phase << 16 | (uint64_t)l.bucket << 24 |
           (uint64_t)l.dtype << 32 | (uint64_t)l.reason << 40 | (uint64_t)l.model << 48 |
           (uint64_t)l.device << 56;
}

/* Open addressing: the cell of the key, claimed if need be. */
static cell *find_cell(tp__counts *counts, tp__labels labels) {
    uint64_t key = key_of(labels);
    uint64_t place = key * 0x9e3779b97f4a7c15u >> 54; /* the top ten bits */
    for (int tries = 0; tries < CELLS; tries++, place = (place + 1) % CELLS) {
        cell *c = &counts->cell[place];
        unsigned long long found = atomic_load_explicit(&c->key, memory_order_relaxed);
        if (found == 0 && atomic_compare_exchange_strong(&c->key, &found, key)) return c;
        if (found == key) return c;
    }
    cell *rest = &counts->cell[CELLS + labels.kind - 1];
    atomic_store(&rest->key,
                 key_of((tp__labels){labels.kind, TP__OTHER, TP__OTHER, TP__OTHER, TP__OTHER, TP__OTHER, TP__OTHER, TP__OTHER}));
    return rest;
}

void tp__counts_add(tp__counts *counts, tp__labels labels, const tp__amounts *amounts) {
    cell *c = find_cell(counts, labels);
    atomic_fetch_add_explicit(&c->count, 1, memory_order_relaxed);
    if (amounts == NULL) return;
    atomic_fetch_add_explicit(&c->time_ns, amounts->time_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->bytes, amounts->bytes, memory_order_relaxed);
    long long max = atomic_load_explicit(&c->workspace, memory_order_relaxed);
    while (amounts->workspace > max &&
           !atomic_compare_exchange_weak_explicit(&c->workspace, &max, amounts->workspace,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

static void fill(const tp__counts *counts, const cell *c, uint64_t key, tp_count *count) {
    int dtype = key >> 32 & 0xff, reason = key >> 40 & 0xff;
    *count = (tp_count){
        .struct_size = sizeof *count,
        .kind = (int32_t)(key & 0xff),
        .kernel = tp__kernel_name(counts->names, key >> 8 & 0xff),
        .device = tp__kernel_device(counts->names, (int)(key >> 56)),
        .phase = tp__phase_name(key >> 16 & 0xff),
        .bucket = tp__bucket_name(key >> 24 & 0xff),
        .dtype = dtype == TP__OTHER ? "other" : tp_dtype_name((tp_dtype)dtype),
        .reason = reason == 0 ? "" : reason == TP__OTHER ? "other" : tp_reason_name((tp_reason_code)reason),
        .model = tp__counts_model_name(counts, key >> 48 & 0xff),
        .count = atomic_load(&c->count),
        .time_ns = atomic_load(&c->time_ns),
        .bytes_model = atomic_load(&c->bytes),
        .workspace_max = atomic_load(&c->workspace),
    };
}

int tp__counts_next(const tp__counts *counts, int64_t *at, tp_count *count) {
    while (*at >= 0 && *at < CELLS + 3) {
        const cell *c = &counts->cell[(*at)++];
        uint64_t key = atomic_load(&c->key);
        if (key == 0 || atomic_load(&c->count) == 0) continue;
        fill(counts, c, key, count);
        return 1;
    }
    return 0;
}
