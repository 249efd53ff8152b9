/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations on caches, each beside its model: one client at first, then four threads on one cache, which share a prefix
 * and pages, while a fifth reads the figures. Tokens are rotated in every way, copied to another cache, and attended to; what
 * some have in common is found. Refused calls, bad ones among them, change nothing. A cache allocates once, and what the process
 * holds after a fifth of the operations is about all that it ever holds.
 *     test_kv_soak [OPERATIONS]     10,000 unless told; ctest kv_soak_whole and the builds with sanitizers: 100,000
 */
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "support/kv.h"

enum { CLIENT_SEQUENCES = 7, CLIENTS = 4, PREFIX = 37 };

typedef struct client {
    tp_cache *cache, *other; /* other: of other pages, to which sequences are copied */
    tp_context *context;
    uint64_t random, stamp;
    int64_t page_size, operations;
    int alone; /* nobody else uses the cache: what is refused can be foretold */
    kv_model models[CLIENT_SEQUENCES];
    kv_model *prefix; /* of all clients; NULL: none */
    pthread_mutex_t *prefix_lock;
    int64_t refused, swapped, moved, backwards, attended, shared;
} client;

static uint64_t next(client *c, uint64_t below) {
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (c->random >> 33) % below;
}

/* One that is open, or NULL. */
static kv_model *any_open(client *c) {
    int at = (int)next(c, CLIENT_SEQUENCES);
    for (int i = 0; i < CLIENT_SEQUENCES; i++, at = (at + 1) % CLIENT_SEQUENCES)
        if (c->models[at].sequence != 0) return &c->models[at];
    return NULL;
}

static kv_model *any_closed(client *c) {
    for (int i = 0; i < CLIENT_SEQUENCES; i++)
        if (c->models[i].sequence == 0) return &c->models[i];
    return NULL;
}

/* A call that must succeed, or say that the cache is full. */
static int went_well(client *c, tp_status status, const tp_error *error) {
    KV_CHECK(status == TP_OK || status == TP_CACHE_FULL, "%s", error->text);
    c->refused += status != TP_OK;
    return status == TP_OK;
}

static int dtype_of(client *c) {
    return (int)(const int[]){TP_F32, TP_F16, TP_BF16}[next(c, 3)];
}

static void open_one(client *c) {
    tp_error error = TP_ERROR_INIT;
    kv_model *model = any_closed(c);
    if (model == NULL) return;
    int64_t sequence = -7;
    if (went_well(c, tp_cache_open(c->cache, &sequence, &error), &error))
        *model = (kv_model){.sequence = sequence};
    else
        KV_CHECK(sequence == -7, "a refused call wrote");
}

static void close_one(client *c) {
    tp_error error = TP_ERROR_INIT;
    kv_model *model = any_open(c);
    if (model == NULL) return;
    KV_CHECK(tp_cache_close(c->cache, model->sequence, &error) == TP_OK, "%s", error.text);
    int64_t gone = model->sequence, more = 1;
    model->sequence = 0;
    KV_CHECK(tp_cache_length(c->cache, gone) == -1 && tp_cache_slot(c->cache, gone) == -1, "still there");
    KV_CHECK(tp_cache_extend(c->cache, 1, &gone, &more, &error) == TP_INVALID, "extended a closed sequence");
    KV_CHECK(tp_cache_fork(c->cache, gone, &more, &error) == TP_INVALID, "forked a closed sequence");
}

static void share_one(client *c) {
    tp_error error = TP_ERROR_INIT;
    kv_model *model = any_closed(c), *from = any_open(c);
    int of_prefix = c->prefix != NULL && next(c, 3) == 0;
    if (of_prefix) from = c->prefix;
    if (model == NULL || from == NULL) return;
    int64_t tokens = next(c, 2) ? from->length : (int64_t)next(c, (uint64_t)from->length + 1), sequence = 0;
    if (of_prefix) pthread_mutex_lock(c->prefix_lock);
    tp_status status = tokens == from->length && next(c, 2) ? tp_cache_fork(c->cache, from->sequence, &sequence, &error)
                                                            : tp_cache_share(c->cache, from->sequence, tokens, &sequence, &error);
    if (of_prefix) pthread_mutex_unlock(c->prefix_lock);
    if (!went_well(c, status, &error)) return;
    *model = *from;
    model->sequence = sequence;
    model->length = tokens;
}

/* Where so many new tokens of a sequence are, in one of the ways that are permitted, and whether one of them may be refused. */
static void place_new(client *c, kv_model *m, int64_t from, int64_t tokens, int way) {
    int64_t position = kv_last_position(m, from);
    for (int64_t n = from; n < from + tokens; n++) {
        position += (int64_t)next(c, 3);
        m->ways[n] = (uint8_t)way;
        m->positions[n] = (int16_t)(way == KV_INDEX ? n : position);
        if (way == KV_ANGLES) m->positions[n] = (int16_t)next(c, 200); /* nobody looks at them */
    }
}

/* In front of a position that is known: refused in whichever layer it comes to next, and taken where it belongs. */
static void go_back(client *c, kv_model *m, int layer, int64_t at) {
    tp_error error = TP_ERROR_INIT;
    const int64_t last = kv_last_position(m, at), one = 1;
    if (last == 0 || at >= m->length) return;
    const int16_t position = m->positions[at];
    const uint8_t way = m->ways[at];
    m->positions[at] = (int16_t)(last - 1 - (int64_t)next(c, (uint64_t)last));
    m->ways[at] = KV_POSITION;
    KV_CHECK(kv_append(c->cache, layer, 1, &m, &at, &one, TP_F32, &error) == TP_INVALID && strstr(error.text, "run backwards"),
             "layer %d took position %d behind %d: %s", layer, (int)m->positions[at], (int)last, error.text);
    m->positions[at] = position;
    m->ways[at] = way;
    c->backwards++;
}

/* Some sequences at once, all of them or none; rows come layer by layer, in one call or two. */
static void grow_some(client *c) {
    tp_error error = TP_ERROR_INIT;
    kv_model *models[CLIENT_SEQUENCES];
    int64_t sequences[CLIENT_SEQUENCES], tokens[CLIENT_SEQUENCES], from[CLIENT_SEQUENCES], count = 0;
    for (int i = 0; i < CLIENT_SEQUENCES; i++) {
        kv_model *m = &c->models[i];
        if (m->sequence == 0 || next(c, 2)) continue;
        int64_t want = next(c, 8) ? (int64_t)next(c, 3) : (int64_t)next(c, KV_STEP);
        if (want > KV_TOKENS - m->length) want = KV_TOKENS - m->length;
        models[count] = m, sequences[count] = m->sequence, from[count] = m->length, tokens[count++] = want;
    }
    if (!went_well(c, tp_cache_extend(c->cache, count, sequences, tokens, &error), &error)) return;
    int dtype = dtype_of(c), way = (int)next(c, KV_WAYS);
    for (int64_t i = 0; i < count; i++) /* an index may lie in front of where the sequence is */
        if (way == KV_INDEX && kv_last_position(models[i], from[i]) > from[i]) way = KV_POSITION;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t n = 0; n < tokens[i]; n++) models[i]->stamps[from[i] + n] = c->stamp++;
        place_new(c, models[i], from[i], tokens[i], way);
        models[i]->length += tokens[i];
    }
    for (int layer = KV_LAYERS - 1; layer >= 0; layer--) {
        int64_t at[CLIENT_SEQUENCES], part[CLIENT_SEQUENCES];
        if (kv_layers[layer].kv_heads == 0) continue;
        memcpy(at, from, sizeof at);
        for (int turn = 0; turn < 2; turn++) {
            for (int64_t i = 0; i < count; i++)
                part[i] = turn ? from[i] + tokens[i] - at[i] : (int64_t)next(c, (uint64_t)tokens[i] + 1);
            if (count > 0 && next(c, 8) == 0) {
                const int64_t i = (int64_t)next(c, (uint64_t)count);
                go_back(c, models[i], layer, at[i]);
            }
            tp_status status = kv_append(c->cache, layer, count, models, at, part, dtype, &error);
            KV_CHECK(status == TP_OK, "%s", error.text);
            for (int64_t i = 0; i < count; i++) at[i] += part[i];
        }
    }
}

static void cut_one(client *c) {
    tp_error error = TP_ERROR_INIT;
    kv_model *model = any_open(c);
    if (model == NULL) return;
    int64_t tokens =
        model->length - (int64_t)next(c, (uint64_t)(next(c, 4) ? (model->length < 5 ? model->length : 5) : model->length) + 1);
    KV_CHECK(tp_cache_truncate(c->cache, model->sequence, tokens, &error) == TP_OK, "%s", error.text);
    model->length = tokens;
}

/* Out to a buffer at an odd address, closed, and in again, whole or behind a prefix that is shared anew. */
static void swap_one(client *c) {
    tp_error error = TP_ERROR_INIT;
    kv_model *model = any_open(c), old;
    if (model == NULL) return;
    old = *model;
    int64_t keep = next(c, 2) ? 0 : (int64_t)next(c, (uint64_t)old.length + 1), shared = 0;
    if (keep > 0 && !went_well(c, tp_cache_share(c->cache, old.sequence, keep, &shared, &error), &error)) return;
    int64_t bytes = tp_cache_copy_bytes(c->cache, old.sequence, keep);
    char *buffer = malloc((size_t)bytes + 1);
    KV_CHECK(bytes > 0 && buffer != NULL, "%lld bytes", (long long)bytes);
    KV_CHECK(tp_cache_copy_out(c->cache, old.sequence, keep, buffer + 1, bytes - 1, &error) == TP_INVALID, "a short buffer");
    KV_CHECK(tp_cache_copy_out(c->cache, old.sequence, keep, buffer + 1, bytes, &error) == TP_OK, "%s", error.text);
    KV_CHECK(tp_cache_close(c->cache, old.sequence, &error) == TP_OK, "%s", error.text);
    model->sequence = shared;
    model->length = keep;
    if (shared == 0 && !went_well(c, tp_cache_open(c->cache, &model->sequence, &error), &error)) {
        free(buffer); /* another thread was quicker */
        return;
    }
    if (went_well(c, tp_cache_copy_in(c->cache, model->sequence, buffer + 1, bytes, &error), &error)) {
        model->length = old.length;
        c->swapped++;
    }
    free(buffer);
}

/* Out to a sequence of the other cache, which goes on there, from where it was. */
static void move_one(client *c) {
    tp_error error = TP_ERROR_INIT;
    kv_model *model = any_open(c), there;
    if (model == NULL) return;
    there = *model;
    int64_t bytes = tp_cache_copy_bytes(c->cache, model->sequence, 0), one = 1;
    char *buffer = malloc((size_t)bytes);
    KV_CHECK(buffer != NULL, "no memory");
    KV_CHECK(tp_cache_copy_out(c->cache, model->sequence, 0, buffer, bytes, &error) == TP_OK, "%s", error.text);
    if (went_well(c, tp_cache_open(c->other, &there.sequence, &error), &error)) {
        if (went_well(c, tp_cache_copy_in(c->other, there.sequence, buffer, bytes, &error), &error)) {
            c->moved++;
            if (there.length < KV_TOKENS && went_well(c, tp_cache_extend(c->other, 1, &there.sequence, &one, &error), &error)) {
                client elsewhere = {.cache = c->other, .random = c->random};
                there.stamps[there.length] = c->stamp++;
                place_new(c, &there, there.length++, 1, KV_POSITION);
                go_back(&elsewhere, &there, 0, there.length - 1);
                kv_append_all(c->other, &there, there.length - 1, 1, TP_F32);
                c->backwards += elsewhere.backwards;
            }
            kv_verify(c->other, &there);
        }
        KV_CHECK(tp_cache_close(c->other, there.sequence, &error) == TP_OK, "%s", error.text);
    }
    free(buffer);
}

/* Some in one batch: tables, what they have in common, and attention of one layer to them. */
static void attend_some(client *c) {
    kv_model *models[CLIENT_SEQUENCES] = {NULL};
    int64_t count = 0;
    for (int i = 0; i < CLIENT_SEQUENCES; i++) {
        kv_model *m = &c->models[i];
        if (m->sequence == 0 || next(c, 3) == 0) continue;
        const int64_t at = (int64_t)next(c, (uint64_t)count + 1); /* in any order */
        models[count++] = models[at];
        models[at] = m;
    }
    c->shared += kv_verify_batch(c->cache, models, count) > 0;
    if (count == 0) return;
    const int layer = (int[]){0, 1, 3, 4, 5}[next(c, 5)];
    kv_attend(c->context, c->cache, models, count, layer, next(c, 2) == 0);
    c->attended++;
}

/* Each is refused with a text, and nothing has changed. */
static void abuse_one(client *c) {
    tp_error error = TP_ERROR_INIT;
    kv_model *model = any_open(c);
    int64_t more = KV_TOKENS, one = 1, twice[2], tokens[2] = {0, 0};
    if (model == NULL) return;
    twice[0] = twice[1] = model->sequence;
    more += 1 - model->length;
    KV_CHECK(tp_cache_extend(c->cache, 1, &model->sequence, &more, &error) == TP_INVALID && error.text[0], "too long");
    KV_CHECK(tp_cache_extend(c->cache, 2, twice, tokens, &error) == TP_INVALID && error.text[0], "twice");
    KV_CHECK(tp_cache_truncate(c->cache, model->sequence, model->length + 1, &error) == TP_INVALID && error.text[0],
             "cut longer");
    KV_CHECK(tp_cache_share(c->cache, model->sequence, model->length + 1, &more, &error) == TP_INVALID && error.text[0],
             "too many");
    int64_t none = 0;
    KV_CHECK(kv_append(c->cache, 0, 1, &model, &none, &one, TP_F32, &error) == TP_INVALID && error.text[0], "no room");
}

static void run(client *c) {
    static void (*const operations[])(client *) = {open_one,  close_one, share_one, share_one, grow_some, grow_some, grow_some,
                                                   grow_some, grow_some, cut_one,   swap_one,  abuse_one, move_one,  attend_some};
    for (int64_t n = 0; n < c->operations; n++) {
        operations[next(c, sizeof operations / sizeof operations[0])](c);
        kv_model *model = any_open(c);
        if (model != NULL) kv_verify(c->cache, model);
        if (c->alone && n % 16 == 0) kv_verify_pages(c->cache, c->page_size);
    }
    for (int i = 0; i < CLIENT_SEQUENCES; i++)
        if (c->models[i].sequence != 0) kv_verify(c->cache, &c->models[i]);
    if (c->alone) kv_verify_pages(c->cache, c->page_size);
}

static atomic_int allocations, releases;
static void *allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    allocations++;
    return aligned_alloc(alignment, bytes);
}
static void release(void *user, void *memory, size_t bytes) {
    (void)user, (void)bytes;
    releases++;
    free(memory);
}

/* ---- memory of the process ---- */

/* Sanitizers keep what was freed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif
#else
enum { SANITIZED = 0 };
#endif

typedef struct memory {
    int64_t allocated, resident;
} memory;

static memory memory_now(void) {
    memory now = {0, 0};
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 all = mallinfo2();
    now.allocated = (int64_t)(all.uordblks + all.hblkhd);
#endif
#endif
    FILE *file = fopen("/proc/self/statm", "r");
    long long pages = 0;
    if (file == NULL) return now;
    if (fscanf(file, "%*s %lld", &pages) == 1) now.resident = pages * sysconf(_SC_PAGESIZE);
    fclose(file);
    return now;
}

/* The workspace of a context may still grow a little, and so may what the allocator keeps. */
static void memory_is_flat(const char *when, memory before, int64_t resident) {
    const memory now = memory_now();
    KV_CHECK(SANITIZED || now.allocated <= before.allocated + (128 << 10), "%s: %lld bytes were allocated, and now %lld", when,
             (long long)before.allocated, (long long)now.allocated);
    KV_CHECK(SANITIZED || now.resident <= before.resident + resident, "%s: %lld bytes were resident, and now %lld", when,
             (long long)before.resident, (long long)now.resident);
}

static tp_context *new_context(void) {
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_context *context;
    options.threads = 1, options.policy = TP_SERVE;
    KV_CHECK(tp_context_create(&options, &context, NULL) == TP_OK, "a context");
    return context;
}

static tp_cache *make(int64_t page_size, int layout, int index_type, int64_t sequences, int64_t pages) {
    tp_error error = TP_ERROR_INIT;
    tp_allocator allocator = TP_ALLOCATOR_INIT;
    tp_cache_options options = kv_options(page_size, layout, index_type, sequences, pages);
    tp_cache *cache;
    allocator.allocate = allocate;
    allocator.release = release;
    options.allocator = &allocator;
    KV_CHECK(tp_cache_create(&options, &cache, &error) == TP_OK, "%s", error.text);
    return cache;
}

static void close_all(client *c) {
    for (int i = 0; i < CLIENT_SEQUENCES; i++)
        if (c->models[i].sequence != 0) KV_CHECK(tp_cache_close(c->cache, c->models[i].sequence, NULL) == TP_OK, "close");
}

/* Every page is free again, and each cache has been allocated once. */
static void finish(tp_cache *cache, tp_cache *other) {
    tp_cache_stats stats;
    KV_CHECK(tp_cache_stats_read(other, &stats, NULL) == TP_OK && stats.pages_used == 0 && stats.sequences == 0, "left there");
    KV_CHECK(tp_cache_stats_read(cache, &stats, NULL) == TP_OK, "stats");
    KV_CHECK(stats.pages_used == 0 && stats.sequences == 0 && stats.tail_tokens == 0 && tp_cache_slots(cache) == 0, "pages left");
    KV_CHECK(allocations == releases + 2, "%d allocations", allocations);
    tp_cache_destroy(cache);
    tp_cache_destroy(other);
    KV_CHECK(allocations == releases, "memory is left");
}

static void soak_alone(int64_t page_size, int layout, int index_type, int64_t operations) {
    tp_cache *cache = make(page_size, layout, index_type, CLIENT_SEQUENCES - 1, 480 / page_size);
    tp_cache_stats stats;
    tp_cache *other = make(page_size * 2 + 1, !layout, index_type, 2, 300 / (page_size * 2 + 1));
    client c = {.cache = cache, .other = other, .random = (uint64_t)page_size, .stamp = 1, .page_size = page_size, .alone = 1};
    c.context = new_context();
    c.operations = operations / 5; /* by then everything has happened once */
    run(&c);
    const memory warm = memory_now();
    c.operations = operations - operations / 5;
    run(&c);
    memory_is_flat("alone", warm, 2 << 20);
    tp_cache_stats_read(cache, &stats, NULL);
    int64_t copies = page_size > 1 ? operations / 200 : 0; /* a page of one token is never shared in part */
    char did[256];
    snprintf(did, sizeof did,
             "%lld refused, %lld swapped, %lld pages copied, %lld moved, %lld backwards, %lld attended, %lld "
             "shared",
             (long long)c.refused, (long long)c.swapped, (long long)stats.pages_copied, (long long)c.moved,
             (long long)c.backwards, (long long)c.attended, (long long)c.shared);
    const int64_t few = operations / 100;
    KV_CHECK(operations < 1000 || (c.refused > few && c.swapped > few && c.moved > few && c.backwards > few && c.attended > few &&
                                   c.shared > few && stats.pages_copied >= copies),
             "%s: this soak tries too little", did);
    printf("pages of %lld, %s: %lld operations, %s\n", (long long)page_size, layout == TP_CACHE_NHD ? "NHD" : "HND",
           (long long)operations, did);
    close_all(&c);
    tp_context_destroy(c.context);
    finish(cache, other);
}

static void *on_thread(void *user) {
    run(user);
    return NULL;
}

typedef struct watcher {
    tp_cache *cache;
    atomic_int stop;
    int64_t looks;
} watcher;

static int discard(void *cookie, const char *bytes, size_t size) {
    (void)cookie, (void)bytes, (void)size;
    return 0;
}

static void *watch(void *user) {
    watcher *w = user;
    do {
        tp_cache_stats stats;
        KV_CHECK(tp_cache_stats_read(w->cache, &stats, NULL) == TP_OK && stats.pages_used <= stats.pages, "stats");
        KV_CHECK(tp_cache_metrics_write(w->cache, discard, NULL) == TP_OK, "metrics");
        w->looks++;
    } while (!w->stop);
    return NULL;
}

static void soak_together(int64_t page_size, int64_t operations) {
    tp_cache *cache = make(page_size, TP_CACHE_NHD, TP_I32, CLIENTS * 5, 1200 / page_size);
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[CLIENTS], other;
    static client clients[CLIENTS];
    watcher w = {.cache = cache};
    tp_cache *moved_to = make(page_size + 3, TP_CACHE_HND, TP_I64, CLIENTS, 400 / (page_size + 3));
    kv_model prefix = {.sequence = 0, .length = PREFIX};
    int64_t length = PREFIX;
    tp_error error = TP_ERROR_INIT;
    KV_CHECK(tp_cache_open(cache, &prefix.sequence, &error) == TP_OK, "%s", error.text);
    KV_CHECK(tp_cache_extend(cache, 1, &prefix.sequence, &length, &error) == TP_OK, "%s", error.text);
    for (int n = 0; n < PREFIX; n++) prefix.stamps[n] = (1u << 30) + n, prefix.positions[n] = n + 9, prefix.ways[n] = KV_POSITION;
    kv_append_all(cache, &prefix, 0, PREFIX, TP_F32);
    KV_CHECK(pthread_create(&other, NULL, watch, &w) == 0, "thread");
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.cache = cache, .random = (uint64_t)i + 1, .stamp = (uint64_t)i << 32, .page_size = page_size};
        clients[i].operations = operations / CLIENTS;
        clients[i].prefix = &prefix;
        clients[i].prefix_lock = &lock;
        clients[i].other = moved_to;
        clients[i].context = new_context();
        KV_CHECK(pthread_create(&threads[i], NULL, on_thread, &clients[i]) == 0, "thread");
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    w.stop = 1;
    pthread_join(other, NULL);
    kv_verify(cache, &prefix);
    kv_verify_pages(cache, page_size);
    for (int i = 0; i < CLIENTS; i++) {
        close_all(&clients[i]);
        tp_context_destroy(clients[i].context);
    }
    KV_CHECK(tp_cache_close(cache, prefix.sequence, NULL) == TP_OK, "close");
    printf("pages of %lld, %d threads: %lld operations\n", (long long)page_size, CLIENTS, (long long)operations);
    finish(cache, moved_to);
}

int main(int count, char **words) {
    int64_t operations = count > 1 ? atoll(words[1]) : 10000;
    if (operations < 8) return fprintf(stderr, "OPERATIONS is '%s': it must be a number from 8 on\n", words[1]), 2;
    soak_alone(16, TP_CACHE_NHD, TP_I32, operations / 8);
    const memory warm = memory_now();
    soak_alone(16, TP_CACHE_HND, TP_I64, operations / 8);
    soak_alone(5, TP_CACHE_HND, TP_I32, operations / 8);
    soak_alone(1, TP_CACHE_NHD, TP_I64, operations / 8);
    soak_together(16, operations / 4);
    soak_together(3, operations / 4);
    memory_is_flat("all is gone", warm, 16 << 20); /* arenas and stacks of threads stay */
    return 0;
}
