/* SPDX-License-Identifier: Apache-2.0 */
/* How full a cache is, by looking: nothing is counted on the way but copies and refusals. */
#include "kvcache/kvcache.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/control.h"
#include "base/structs.h"
#include "telemetry/emit.h"

/* Tokens that a slot has in the page at this place of its table. */
static int64_t used_in(const tp_cache *cache, const tp__kv_slot *slot, int64_t at) {
    return tp__min(tp__max(slot->length - at * cache->options.page_size, 0), cache->options.page_size);
}

/* Of the slot's last page, tokens that no sequence uses. A page is shared only at the same place of tables; the first
   of those that use the most of it counts. */
static int64_t tail_of(const tp_cache *cache, const tp__kv_slot *slot) {
    const int64_t size = cache->options.page_size;
    if (slot->length % size == 0) return 0;
    const int64_t at = slot->length / size, page = tp__kv_page(cache, slot, at), used = used_in(cache, slot, at);
    for (int64_t i = 0; cache->holders[page] > 1 && i < cache->options.sequences; i++) {
        const tp__kv_slot *other = &cache->slots[i];
        int64_t theirs = used_in(cache, other, at);
        if (other == slot || theirs == 0 || tp__kv_page(cache, other, at) != page) continue;
        if (theirs > used || (theirs == used && other < slot)) return 0;
    }
    return size - used;
}

static void look(const tp_cache *cache, tp_cache_stats *s) {
    for (int64_t i = 0; i < cache->capacity.pages; i++) s->pages_shared += cache->holders[i] > 1;
    for (int64_t i = 0; i < cache->options.sequences; i++) {
        const tp__kv_slot *slot = &cache->slots[i];
        s->tokens += slot->length;
        s->tail_tokens += tail_of(cache, slot);
        for (int64_t at = 1; at < tp__kv_pages(cache, slot->length); at++) {
            if (tp__kv_page(cache, slot, at) == tp__kv_page(cache, slot, at - 1) + 1)
                s->neighbours++;
            else
                s->breaks++;
        }
    }
}

static tp_cache_stats stats_of(const tp_cache *cache) {
    tp_cache_stats s = {.struct_size = sizeof s,
                        .pages = cache->capacity.pages,
                        .page_bytes = cache->capacity.page_bytes,
                        .token_bytes = cache->capacity.token_bytes};
    pthread_mutex_lock(cache->lock);
    s.pages_used = cache->capacity.pages - cache->free_pages;
    s.sequences = cache->counts[TP__KV_OPEN];
    s.pages_copied = cache->counts[TP__KV_COPIED];
    s.refusals = cache->counts[TP__KV_REFUSALS];
    for (int64_t i = 0; i < cache->options.layer_count; i++) s.finite_loss = fmax(s.finite_loss, tp__kv_loss(cache, i));
    s.rows_not_finite = __atomic_load_n(cache->infinite, __ATOMIC_RELAXED);
    s.loss = s.rows_not_finite > 0 ? INFINITY : s.finite_loss;
    look(cache, &s);
    pthread_mutex_unlock(cache->lock);
    return s;
}

tp_status tp_cache_stats_read_sized(const tp_cache *cache, tp_cache_stats *stats, size_t size, tp_error *error) {
    TP_REQUIRE(cache != NULL && stats != NULL, error, TP_INVALID, "%s is NULL", cache == NULL ? "cache" : "stats");
    TP_REQUIRE_SIZE(tp_cache_stats, size, error);
    tp_cache_stats now = stats_of(cache);
    tp__struct_out(stats, size, &now, sizeof now);
    return TP_OK;
}

enum { CACHES = 64 }; /* whose figures lie on the stack */

#define FIGURE(field) offsetof(tp_cache_stats, field)
static const struct {
    const char *name, *type, *help;
    size_t offset;
} families[] = {
    {"tileproof_cache_pages", "gauge", "Pages of the cache.", FIGURE(pages)},
    {"tileproof_cache_pages_used", "gauge", "Pages that sequences hold.", FIGURE(pages_used)},
    {"tileproof_cache_pages_shared", "gauge", "Pages that two sequences or more hold.", FIGURE(pages_shared)},
    {"tileproof_cache_page_bytes", "gauge", "Bytes of a page, of all layers.", FIGURE(page_bytes)},
    {"tileproof_cache_tail_tokens", "gauge", "Tokens at the ends of last pages that no sequence uses.", FIGURE(tail_tokens)},
    {"tileproof_cache_token_bytes", "gauge", "Bytes of a token, of all layers.", FIGURE(token_bytes)},
    {"tileproof_cache_sequences", "gauge", "Open sequences.", FIGURE(sequences)},
    {"tileproof_cache_tokens", "gauge", "Tokens of all sequences, shared ones as often as they are held.", FIGURE(tokens)},
    {"tileproof_cache_neighbours", "gauge", "Pages that lie right behind the one before of their sequence.", FIGURE(neighbours)},
    {"tileproof_cache_breaks", "gauge", "Pages that do not.", FIGURE(breaks)},
    {"tileproof_cache_pages_copied_total", "counter", "Pages copied because a sequence went on in a shared one.",
     FIGURE(pages_copied)},
    {"tileproof_cache_refusals_total", "counter", "Calls refused because too few pages or slots were free.", FIGURE(refusals)},
    {"tileproof_cache_rows_not_finite_total", "counter", "Rows of quantised layers appended with a value that is not finite.",
     FIGURE(rows_not_finite)},
};

static void put_name(tp__emit *e, const tp_cache *cache, const char *name) {
    tp__emit_text(e, "%s", name);
    e->comma = 0;
    if (cache->name[0] == '\0') return;
    tp__emit_text(e, "{");
    tp__emit_label(e, "cache", cache->name);
    tp__emit_text(e, "}");
}

static void put_loss(tp__emit *e, const tp_cache *cache, const char *name, double loss) {
    put_name(e, cache, name);
    if (loss < INFINITY)
        tp__emit_text(e, " %.9g\n", loss);
    else
        tp__emit_text(e, " +Inf\n");
}

/* A family's samples stand together under one head. */
static void put_families(tp__emit *e, const tp_cache *const *caches, const tp_cache_stats *now, int64_t count) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        tp__emit_head(e, families[i].name, families[i].type, families[i].help);
        for (int64_t c = 0; c < count; c++) {
            int64_t figure;
            memcpy(&figure, (const char *)&now[c] + families[i].offset, sizeof figure);
            put_name(e, caches[c], families[i].name);
            tp__emit_text(e, " %lld\n", (long long)figure);
        }
    }
    tp__emit_head(e, "tileproof_cache_loss", "gauge",
                  "Of quantised layers, the greatest error of an appended element, relative "
                  "to the greatest of its row.");
    for (int64_t c = 0; c < count; c++) put_loss(e, caches[c], "tileproof_cache_loss", now[c].loss);
    tp__emit_head(e, "tileproof_cache_finite_loss", "gauge", "The same without rows in which a value is not finite.");
    for (int64_t c = 0; c < count; c++) put_loss(e, caches[c], "tileproof_cache_finite_loss", now[c].finite_loss);
}

tp_status tp_cache_metrics_write_all(const tp_cache *const *caches, int64_t count, tp_write write, void *cookie,
                                     tp_error *error) {
    TP__IN_DEFAULT_FENV; /* numbers are printed by the rounding mode */
    tp_cache_stats now[CACHES];
    TP_REQUIRE(caches != NULL && write != NULL, error, TP_INVALID, "%s is NULL", caches == NULL ? "caches" : "write");
    TP_REQUIRE(count >= 1 && count <= CACHES, error, TP_INVALID, "count is %lld: it must be in 1..%d", (long long)count, CACHES);
    for (int64_t i = 0; i < count; i++) {
        TP_REQUIRE(caches[i] != NULL, error, TP_INVALID, "caches[%lld] is NULL", (long long)i);
        for (int64_t j = 0; j < i; j++)
            TP_REQUIRE(strcmp(caches[i]->name, caches[j]->name) != 0, error, TP_INVALID,
                       "caches[%lld] and caches[%lld] are both named \"%s\": their series would be the same; "
                       "tp_cache_options.name tells them apart",
                       (long long)j, (long long)i, caches[i]->name);
    }
    tp__emit e = {write, cookie, 0, 0};
    for (int64_t i = 0; i < count; i++) now[i] = stats_of(caches[i]);
    put_families(&e, caches, now, count);
    TP_REQUIRE(!e.failed, error, TP_INVALID, "write said stop: the text is not whole");
    return TP_OK;
}

tp_status tp_cache_metrics_write(const tp_cache *cache, tp_write write, void *cookie) {
    return tp_cache_metrics_write_all(&cache, 1, write, cookie, NULL);
}
