/* SPDX-License-Identifier: Apache-2.0 */
#include "support/guard.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t page(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

guard guard_new(size_t bytes) {
    guard g;
    g.bytes = (bytes + page() - 1) / page() * page();
    g.map_bytes = g.bytes + 2 * page();
    g.map = mmap(NULL, g.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED) abort();
    guard_protect(&g, 1);
    return g;
}

void guard_free(guard *g) {
    munmap(g->map, g->map_bytes);
}

void *guard_begin(const guard *g) {
    return g->map + page();
}

void *guard_end(const guard *g, size_t bytes) {
    return g->map + page() + g->bytes - bytes;
}

void guard_protect(const guard *g, int writable) {
    if (mprotect(g->map + page(), g->bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0)
        abort();
}

char *reserve(size_t bytes) {
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

void reserve_open(char *at, size_t bytes) {
    uintptr_t lo = (uintptr_t)at / page() * page(), hi = (uintptr_t)at + bytes;
    if (mprotect((void *)lo, hi - lo, PROT_READ | PROT_WRITE) != 0) abort();
}

void reserve_free(char *base, size_t bytes) {
    munmap(base, bytes);
}
