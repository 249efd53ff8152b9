/* SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"

#define TAG ((uintptr_t)1 << 60) /* no address of a 64-bit processor's user space has this bit */

enum { QUEUE = 64, KERNELS = 3 };

typedef struct job {
    tp_problem problem;
    tp_tensors tensors;
    tp_gradients gradients;
    void *copies[32]; /* of index arrays on the host */
    int copied, kernel;
    int64_t tiles;
    tp_submission s;
} job;

struct device {
    tp_backend backend;
    tp_context *cpu;
    pthread_t worker;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job *queue[QUEUE];
    int first, count, held, ends, at_once, unplugged, begun;
    int fail[DEVICE_FAULTS];
    int memory, prepared, events; /* that are out */
};

void *device_address(const void *host) { return host != NULL ? (void *)((uintptr_t)host | TAG) : NULL; }
void *device_host(const void *address) { return (void *)((uintptr_t)address & ~TAG); }

/* ---- the pointers of a call */

typedef enum extent { DATA, BATCH, STARTS, TABLE, SPARSE, ROWS, KEYS, SPANS } extent;
#define FIELD(name, of) {#name, offsetof(tp_tensors, name), of}
static const struct field {
    const char *name;
    size_t offset;
    extent of;
} fields[] = {
    FIELD(q.data, DATA),        FIELD(k.data, DATA),        FIELD(v.data, DATA),          FIELD(o.data, DATA),
    FIELD(lse.data, DATA),      FIELD(bits, DATA),          FIELD(bias, DATA),            FIELD(alibi_slopes, DATA),
    FIELD(sinks, DATA),         FIELD(cu_seqlens_q, STARTS), FIELD(cu_seqlens_kv, STARTS), FIELD(q_lens, BATCH),
    FIELD(kv_lens, BATCH),      FIELD(k_pages, TABLE),      FIELD(v_pages, TABLE),        FIELD(sparse_indices, SPARSE),
    FIELD(q_positions, ROWS),   FIELD(k_positions, KEYS),   FIELD(prefix_lens, BATCH),    FIELD(q_documents, ROWS),
    FIELD(k_documents, KEYS),   FIELD(q_spans, ROWS),       FIELD(k_spans, KEYS),         FIELD(span_offsets, STARTS),
    FIELD(spans, SPANS),        FIELD(parents, ROWS),
};
#define GRADIENT(name) {#name, offsetof(tp_gradients, name), DATA}
static const struct field gradient_fields[] = {
    GRADIENT(d_o.data), GRADIENT(d_lse.data), GRADIENT(d_q.data), GRADIENT(d_k.data),
    GRADIENT(d_v.data), GRADIENT(d_bias),     GRADIENT(d_alibi_slopes), GRADIENT(d_sinks),
};

static void **pointer_at(void *base, const struct field *f) { return (void **)((char *)base + f->offset); }

tp_tensors device_tensors(const tp_tensors *host, int index_on_device, tp_gradients *gradients) {
    tp_tensors t = *host;
    t.device = DEVICE_NUMBER;
    t.index_device = index_on_device ? DEVICE_NUMBER : TP_CPU;
    for (int i = 0; i < COUNT(fields); i++) {
        void **at = pointer_at(&t, &fields[i]);
        if (fields[i].of == DATA || index_on_device) *at = device_address(*at);
    }
    if (gradients == NULL) return t;
    *gradients = *host->gradients;
    for (int i = 0; i < COUNT(gradient_fields); i++) {
        void **at = pointer_at(gradients, &gradient_fields[i]);
        *at = device_address(*at);
    }
    t.gradients = gradients;
    return t;
}

static int64_t index_at(const tp_tensors *t, const void *array, int64_t i) {
    return t->index_type == TP_I64 ? ((const int64_t *)array)[i] : ((const int32_t *)array)[i];
}

static int64_t entries(const job *j, extent of) {
    const tp_problem *p = &j->problem;
    const tp_tensors *t = &j->tensors;
    int64_t rows = p->q_layout == TP_PACKED ? t->q_tokens : t->batch * t->q_len;
    switch (of) {
    case BATCH: return t->batch;
    case STARTS: return t->batch + 1;
    case TABLE: return t->batch * t->page_slots;
    case SPARSE: return rows > 0 && p->sparse_len > 0 ? (rows - 1) * t->sparse_stride + p->sparse_len : 0;
    case ROWS: return rows;
    case KEYS: return p->kv_layout == TP_PACKED ? t->kv_tokens : t->batch * t->kv_len;
    case SPANS: return t->span_offsets != NULL ? 2 * index_at(t, t->span_offsets, t->batch) : 0;
    default: return 0;
    }
}

/* Index arrays on the host may be gone when submit has returned. */
static void copy_indices(job *j) {
    for (int i = 0; i < COUNT(fields); i++) {
        void **at = pointer_at(&j->tensors, &fields[i]);
        size_t bytes = (size_t)entries(j, fields[i].of) * (j->tensors.index_type == TP_I64 ? 8 : 4);
        if (fields[i].of == DATA || *at == NULL || bytes == 0) continue;
        void *copy = malloc(bytes);
        memcpy(copy, *at, bytes);
        *at = j->copies[j->copied++] = copy;
    }
}

/* The device's own addresses become host ones; one that is not the device's is a fault of it. */
static const char *take_addresses(job *j) {
    tp_tensors *t = &j->tensors;
    for (int i = 0; i < COUNT(fields); i++) {
        void **at = pointer_at(t, &fields[i]);
        if (*at == NULL || (fields[i].of != DATA && t->index_device == TP_CPU)) continue;
        if (!((uintptr_t)*at & TAG)) return fields[i].name;
        *at = device_host(*at);
    }
    t->device = t->index_device = TP_CPU;
    for (int i = 0; j->problem.op == TP_BACKWARD && i < COUNT(gradient_fields); i++) {
        void **at = pointer_at(&j->gradients, &gradient_fields[i]);
        if (*at == NULL) continue;
        if (!((uintptr_t)*at & TAG)) return gradient_fields[i].name;
        *at = device_host(*at);
    }
    return NULL;
}

/* A tile is a sequence with rows, on one query head. */
static int64_t count_tiles(const tp_problem *p, const tp_tensors *t) {
    int64_t tiles = 0;
    for (int64_t s = 0; s < t->batch; s++) {
        int64_t rows = t->q_lens != NULL              ? index_at(t, t->q_lens, s)
                       : p->q_layout == TP_PACKED ? index_at(t, t->cu_seqlens_q, s + 1) - index_at(t, t->cu_seqlens_q, s)
                                                  : t->q_len;
        tiles += rows > 0 ? p->q_heads : 0;
    }
    return tiles;
}

/* ---- faults */

static int goes_wrong(device *d, device_fault fault) {
    pthread_mutex_lock(&d->lock);
    int now = d->fail[fault] > 0 && --d->fail[fault] == 0;
    pthread_mutex_unlock(&d->lock);
    return now;
}

static void count(device *d, int *what, int change) {
    pthread_mutex_lock(&d->lock);
    *what += change;
    pthread_mutex_unlock(&d->lock);
}

static tp_status say(tp_error *error, tp_status status, const char *text) {
    error->status = status;
    snprintf(error->text, sizeof error->text, "%s", text);
    return status;
}

/* ---- the worker */

static void compute(device *d, job *j) {
    static const tp_launch launches[] = {{"test_attend", 2}, {"test_merge", 1}};
    tp_outcome out = TP_OUTCOME_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_receipt receipt;
    tp_choice choice = TP_CHOICE_INIT;
    char text[128];
    int host_indices = j->tensors.index_device == TP_CPU, idle = goes_wrong(d, DEVICE_IDLE);
    const char *wrong = take_addresses(j);
    choice.policy = TP_PERMIT;
    if (j->kernel == 2) choice.kernel = "math";
    tp_receipt_init(&receipt);
    out.tiles_planned = host_indices ? j->tiles : -1;
    if (wrong != NULL) {
        snprintf(text, sizeof text, "%s is no address of the device", wrong);
        out.status = TP_DEVICE_FAILED;
        out.text = text;
    } else if (goes_wrong(d, DEVICE_LATE)) {
        out.status = TP_DEVICE_FAILED;
        out.text = "the device was lost";
    } else if (goes_wrong(d, DEVICE_STRANGE)) {
        out.status = 4711;
    } else if (!idle) {
        out.status = tp_attention(d->cpu, &j->problem, &choice, &j->tensors, &receipt, &error);
        out.text = error.text;
    }
    if (out.status == TP_OK && !idle) {
        out.tiles_counted = count_tiles(&j->problem, &j->tensors);
        out.kernel = out.tiles_counted > 0 ? j->kernel : -1;
        out.launch_count = 2;
        out.launches = launches;
        out.pairs_visible = receipt.pairs_visible;
        out.pairs_computed = receipt.pairs_computed;
        out.panels_full = receipt.panels_full;
        out.bytes_model = receipt.bytes_model;
        out.device_ns = 1234;
        if (goes_wrong(d, DEVICE_MARK)) out.kernel = (out.kernel + 1) % KERNELS;
        if (goes_wrong(d, DEVICE_OUTPUT)) *(unsigned char *)j->tensors.o.data ^= 0x40;
    }
    for (int i = 0; i < j->copied; i++) free(j->copies[i]);
    tp_submission s = j->s;
    free(j);
    s.done(s.completion, &out); /* the last thing: nothing of the call is touched any more */
}

static void *work(void *user) {
    device *d = user;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->ends && (d->held || d->count == 0)) pthread_cond_wait(&d->changed, &d->lock);
        if (d->ends && d->count == 0) break;
        job *j = d->queue[d->first];
        d->first = (d->first + 1) % QUEUE;
        d->count--;
        d->begun++;
        pthread_mutex_unlock(&d->lock);
        compute(d, j);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the table */

static const tp_kernel_info infos[KERNELS] = {
    {.struct_size = sizeof infos[0], .name = "test-fast", .strategy = "fused"},
    {.struct_size = sizeof infos[0], .name = "test-slow", .strategy = "fused"},
    {.struct_size = sizeof infos[0], .name = "test-math", .strategy = "math"},
};

static const tp_kernel_info *kernel_at(void *user, int index) {
    (void)user;
    return index >= 0 && index < KERNELS ? &infos[index] : NULL;
}

static void serves(void *user, int kernel, const tp_problem *p, tp_add_reason add, void *reasons) {
    device *d = user;
    int64_t dim = p->head_dim_qk > p->head_dim_v ? p->head_dim_qk : p->head_dim_v;
    if (d->unplugged) add(reasons, TP_WHY_ABSENT, 0, 0, "libtest.so.1 not found");
    if (kernel == 0 && dim > 64)
        add(reasons, TP_WHY_MEMORY, 16384, 28672, "needs 28672 bytes of local memory, device gives 16384");
    if (p->dropout > 0) add(reasons, TP_WHY_FEATURE, 0, 0, "dropout, need none");
    for (int i = 0; i < p->mask_nodes; i++)
        if (p->mask[i].kind == TP_MASK_CALLBACK) add(reasons, TP_WHY_FEATURE, 0, 0, "mask callback, need one without");
}

static void figures(void *user, int kernel, const tp_problem *p, tp_backend_figures *f) {
    (void)user;
    f->workspace_bytes = 64 * p->batch;
    f->chunk_keys = 128;
    snprintf(f->numerics_id, sizeof f->numerics_id, "test/%s-1", infos[kernel].name);
}

static tp_status prepare(void *user, int kernel, const tp_problem *p, void **prepared, tp_error *error) {
    device *d = user;
    (void)p;
    if (goes_wrong(d, DEVICE_PREPARE)) return say(error, TP_DEVICE_FAILED, "line 3: error: undeclared identifier 'tile'");
    *prepared = malloc(sizeof(int));
    *(int *)*prepared = kernel;
    count(d, &d->prepared, 1);
    return TP_OK;
}

static void release_prepared(void *user, void *prepared) {
    device *d = user;
    count(d, &d->prepared, -1);
    free(prepared);
}

static tp_status allocate(void *user, size_t bytes, void **memory, tp_error *error) {
    device *d = user;
    void *host = NULL;
    if (goes_wrong(d, DEVICE_ALLOCATE) || posix_memalign(&host, 64, bytes)) return say(error, TP_NO_MEMORY, "out of memory");
    *memory = device_address(host);
    count(d, &d->memory, 1);
    return TP_OK;
}

static void release(void *user, void *memory) {
    device *d = user;
    assert_true((uintptr_t)memory & TAG);
    count(d, &d->memory, -1);
    free(device_host(memory));
}

static tp_status copy(void *user, tp_copy kind, void *to, const void *from, size_t bytes, tp_error *error) {
    device *d = user;
    int to_device = ((uintptr_t)to & TAG) != 0, from_device = ((uintptr_t)from & TAG) != 0;
    if (goes_wrong(d, DEVICE_COPY)) return say(error, TP_DEVICE_FAILED, "the bus is gone");
    if (to_device != (kind != TP_COPY_TO_HOST) || from_device != (kind != TP_COPY_TO_DEVICE))
        return say(error, TP_INVALID, "an address of the other side");
    memmove(device_host(to), device_host(from), bytes);
    return TP_OK;
}

static tp_status submit(void *user, const tp_submission *s, void **event, tp_error *error) {
    device *d = user;
    if (goes_wrong(d, DEVICE_SUBMIT)) return say(error, TP_DEVICE_FAILED, "the queue does not take it");
    if (s->prepared == NULL || *(int *)s->prepared != s->kernel || !((uintptr_t)s->workspace & TAG) ||
        s->workspace_bytes < (size_t)(64 * s->problem->batch))
        return say(error, TP_INVALID, "a submission that breaks the contract");
    memset(device_host(s->workspace), 0xff, s->workspace_bytes);
    job *j = calloc(1, sizeof *j);
    j->problem = *s->problem;
    j->tensors = *s->tensors;
    j->tensors.tags = NULL;
    j->kernel = s->kernel;
    j->s = *s;
    if (s->problem->op == TP_BACKWARD) {
        j->gradients = *s->tensors->gradients;
        j->tensors.gradients = &j->gradients;
    }
    if (s->tensors->index_device == TP_CPU) {
        j->tiles = count_tiles(s->problem, s->tensors);
        copy_indices(j);
    }
    *event = malloc(1);
    count(d, &d->events, 1);
    if (d->at_once) {
        compute(d, j);
        return TP_OK;
    }
    pthread_mutex_lock(&d->lock);
    int full = d->count == QUEUE;
    if (!full) d->queue[(d->first + d->count++) % QUEUE] = j;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    assert_false(full);
    return TP_OK;
}

static void release_event(void *user, void *event) {
    device *d = user;
    count(d, &d->events, -1);
    free(event);
}

/* ---- for tests */

device *device_new(void) {
    device *d = calloc(1, sizeof *d);
    d->backend = (tp_backend)TP_BACKEND_INIT;
    d->backend.device = DEVICE_NUMBER;
    d->backend.name = "test";
    d->backend.flags = TP_BACKEND_INDEX_ON_DEVICE;
    d->backend.user = d;
    d->backend.kernel_at = kernel_at;
    d->backend.serves = serves;
    d->backend.figures = figures;
    d->backend.prepare = prepare;
    d->backend.release_prepared = release_prepared;
    d->backend.allocate = allocate;
    d->backend.release = release;
    d->backend.copy = copy;
    d->backend.submit = submit;
    d->backend.release_event = release_event;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    d->cpu = call_context_new(1);
    assert_int_equal(pthread_create(&d->worker, NULL, work, d), 0);
    return d;
}

void device_free(device *d) {
    pthread_mutex_lock(&d->lock);
    d->ends = 1;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->worker, NULL);
    int left = d->count, memory = d->memory, prepared = d->prepared, events = d->events;
    tp_context_destroy(d->cpu);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
    free(d);
    assert_int_equal(left, 0);
    assert_int_equal(memory, 0);
    assert_int_equal(prepared, 0);
    assert_int_equal(events, 0);
}

tp_backend *device_backend(device *d) { return &d->backend; }

static void set(device *d, int *what, int value) {
    pthread_mutex_lock(&d->lock);
    *what = value;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}
static int get(device *d, const int *what) {
    pthread_mutex_lock(&d->lock);
    int value = *what;
    pthread_mutex_unlock(&d->lock);
    return value;
}

void device_fail(device *d, device_fault fault, int n) { set(d, &d->fail[fault], n); }
void device_unplug(device *d) { set(d, &d->unplugged, 1); }
void device_hold(device *d) { set(d, &d->held, 1); }
void device_resume(device *d) { set(d, &d->held, 0); }
void device_at_once(device *d) { set(d, &d->at_once, 1); }
int device_begun(device *d) { return get(d, &d->begun); }
int device_events(device *d) { return get(d, &d->events); }
