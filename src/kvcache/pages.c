/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which page a sequence gets. Attention on pages that lie behind one another reads memory in order, so a sequence goes on in the
 * page behind its last one. Where that is taken it begins anew in the middle of the longest run of free pages: whoever ends in
 * front of the run has room to grow, and so does the newcomer.
 */
#include "kvcache/kvcache.h"

/* From page `at` on, the first that is taken or free; the number of pages where there is none. */
static int64_t next_page(const tp_cache *cache, int64_t at, int taken) {
    const int64_t pages = cache->capacity.pages;
    while (at < pages) {
        uint64_t word = cache->taken[at / 64];
        word = (taken ? word : ~word) >> (at % 64);
        if (word != 0) return tp__min(at + __builtin_ctzll(word), pages);
        at = (at / 64 + 1) * 64;
    }
    return pages;
}

static int64_t start_run(const tp_cache *cache, int64_t more) {
    int64_t first = 0, count = 0;
    for (int64_t at = next_page(cache, 0, 0); at < cache->capacity.pages;) {
        int64_t end = next_page(cache, at, 1);
        if (end - at > count) first = at, count = end - at;
        at = next_page(cache, end, 0);
    }
    return first > 0 && more < count ? first + (count - more) / 2 : first;
}

int64_t tp__kv_take_page(tp_cache *cache, int64_t after, int64_t more) {
    int64_t page = after + 1;
    if (after < 0 || page >= cache->capacity.pages || cache->holders[page] > 0) page = start_run(cache, more);
    cache->holders[page] = 1;
    cache->taken[page / 64] |= (uint64_t)1 << (page % 64);
    cache->free_pages--;
    return page;
}

void tp__kv_drop_page(tp_cache *cache, int64_t page) {
    if (--cache->holders[page] > 0) return;
    cache->taken[page / 64] &= ~((uint64_t)1 << (page % 64));
    cache->free_pages++;
}
