/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <jansson.h>
#include <stdatomic.h>

struct block {
    uint64_t owner; /* who may free it */
    uint64_t lead;  /* bytes before the caller's, this among them */
};
enum { LIBRARY = 0x11B4A4, JANSSON = 0x1A550 };
/* Blocks in use; allocations until one fails, 0: none does. Threads of the library allocate, too. */
static _Atomic long live, left;
static _Atomic int onwards, failed;

void *__real_malloc(size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *memory);

static int refuses(void) {
    long now = left;
    while (now > 0 && !atomic_compare_exchange_weak(&left, &now, now > 1 ? now - 1 : (long)onwards)) continue;
    if (now != 1) return 0;
    failed = 1;
    return 1;
}

static void *take(size_t size, uint64_t owner) {
    if (refuses()) return NULL;
    struct block *block = __real_malloc(sizeof *block + size);
    assert_non_null(block);
    *block = (struct block){owner, sizeof *block};
    live++;
    return block + 1;
}

static void give(void *memory, uint64_t owner) {
    if (!memory) return;
    struct block *block = (struct block *)memory - 1;
    assert_true(block->owner == owner);
    block->owner = 0;
    live--;
    __real_free((char *)memory - block->lead);
}

void *__wrap_malloc(size_t size) { return take(size, LIBRARY); }
void __wrap_free(void *memory) { give(memory, LIBRARY); }

void *__wrap_calloc(size_t count, size_t size) {
    void *memory = take(count * size, LIBRARY);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

void *__real_realloc(void *memory, size_t size);
void *__wrap_realloc(void *memory, size_t size) {
    if (refuses()) return NULL;
    struct block *old = memory ? (struct block *)memory - 1 : NULL;
    if (old) assert_true(old->owner == LIBRARY);
    struct block *block = __real_realloc(old, sizeof *block + size);
    assert_non_null(block);
    *block = (struct block){LIBRARY, sizeof *block};
    live += !old;
    return block + 1;
}

int __real_posix_memalign(void **memory, size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    char *base;
    if (refuses()) return 12; /* ENOMEM */
    assert_int_equal(__real_posix_memalign((void **)&base, alignment, alignment + size), 0);
    ((struct block *)(void *)(base + alignment))[-1] = (struct block){LIBRARY, alignment};
    live++;
    *memory = base + alignment;
    return 0;
}

char *__wrap_strdup(const char *text) {
    char *copy = take(strlen(text) + 1, LIBRARY);
    return copy ? strcpy(copy, text) : NULL;
}

static void *jansson_malloc(size_t size) { return take(size, JANSSON); }
static void jansson_free(void *memory) { give(memory, JANSSON); }

/* ---- what is asked of a call ---- */

char memory_out[MEMORY_OUT];
size_t memory_used;
static int writes;

int memory_collect(void *cookie, const char *bytes, size_t size) {
    (void)cookie;
    assert_true(memory_used + size < MEMORY_OUT);
    memcpy(memory_out + memory_used, bytes, size);
    memory_used += size;
    memory_out[memory_used] = 0;
    writes++;
    return 0;
}

static tp_status once(const struct walk *walk, const void *about, long n, int all, tp_error *error, char *seen) {
    long before = live;
    memory_used = 0, writes = 0, memory_out[0] = 0;
    void *subject = walk->open ? walk->open(about) : NULL;
    *error = (tp_error)TP_ERROR_INIT;
    failed = 0;
    onwards = all;
    left = n;
    tp_status status = walk->call(subject, about, error);
    left = 0;
    if (status == TP_NO_MEMORY) assert_int_equal(writes, 0);
    if (walk->show) walk->show(subject, about, status);
    if (walk->close) walk->close(subject);
    if (live != before) fail_msg("%s: %ld blocks lost at allocation %ld", walk->name, live - before, n);
    memcpy(seen, memory_out, memory_used + 1);
    return status;
}

long exhaust(const struct walk *walk, const void *about, tp_status expected) {
    static char good[MEMORY_OUT], seen[MEMORY_OUT], unchanged[MEMORY_OUT];
    tp_error error;
    long n = 1;
    tp_status status = once(walk, about, 0, 0, &error, good);
    if (status != expected) fail_msg("%s: %s", walk->name, error.text);
    unchanged[0] = 0;
    if (walk->show) { /* as if the call had not been made */
        void *subject = walk->open ? walk->open(about) : NULL;
        memory_used = 0, memory_out[0] = 0;
        walk->show(subject, about, TP_NO_MEMORY);
        memcpy(unchanged, memory_out, memory_used + 1);
        if (walk->close) walk->close(subject);
    }
    for (int all = 0; all < 2; all++)
        for (n = 1;; n++) {
            status = once(walk, about, n, all, &error, seen);
            if (!failed) break;
            if (status != TP_NO_MEMORY && status != expected)
                fail_msg("%s: allocation %ld fails, and the status is %s: %s", walk->name, n, tp_status_name(status),
                         error.text);
            if (status == TP_NO_MEMORY && !walk->no_text)
                assert_true(error.status == TP_NO_MEMORY && strstr(error.text, "memory"));
            if (strcmp(seen, status == TP_NO_MEMORY ? unchanged : good))
                fail_msg("%s: allocation %ld fails with %s, and there is another result:\n%s\ninstead of\n%s", walk->name,
                         n, tp_status_name(status), seen, status == TP_NO_MEMORY ? unchanged : good);
        }
    assert_true(status == expected && !strcmp(seen, good));
    return n - 1;
}

void memory_begin(void) { json_set_alloc_funcs(jansson_malloc, jansson_free); }

void memory_fail(long n) {
    failed = onwards = 0;
    left = n;
}
