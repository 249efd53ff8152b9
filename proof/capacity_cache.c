/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes and pages of keys and values, by arithmetic alone. */
#include "capacity.h"

int tp__group_caches(const tp_layer_group *group) {
    int64_t q_len, kv_len;
    tp_layer_group_lengths(group, 1, &q_len, &kv_len);
    return q_len > 0; /* it generates */
}

/* Of one token in one layer: of keys and values, or of the latents, of which v's rows are parts; scales beside codes, too. */
static int64_t token_bytes_of(const tp_capacity *capacity, const tp_layer_group *group) {
    const tp__format *format = &capacity->format;
    int32_t dtype = capacity->options.cache_dtype;
    if (group->decode_dim_qk) return group->decode_kv_heads * tp__side_bytes(&format->k, dtype, group->decode_dim_qk);
    return group->kv_heads *
           (tp__side_bytes(&format->k, dtype, group->head_dim_qk) + tp__side_bytes(&format->v, dtype, group->head_dim_v));
}

/* Which keys of a sequence later rows can still see: some at its beginning, and some that slide along with the row. */
typedef struct seen {
    int64_t fixed, sliding; /* tokens */
    int64_t step;           /* those that slide begin at its multiples; 1: anywhere */
} seen;

static seen seen_of(const tp_layer_group *group, int64_t context) {
    seen s = {0, context, 1};
    int window = (group->all_of & TP_TERM_WINDOW) && group->window_left >= 0, chunk = (group->all_of & TP_TERM_CHUNK) != 0;
    /* how long a prefix is the data says. A row that is generated is in no span. */
    if (group->or_of & TP_TERM_PREFIX) return s;
    if (chunk && group->chunk < s.sliding) s.sliding = s.step = group->chunk;
    if (window && group->window_left < s.sliding) {
        s.sliding = group->window_left + 1;
        s.step = 1;
    }
    if (s.sliding < context && group->or_of & TP_TERM_FIRST) s.fixed = group->first;
    return s;
}

static int64_t min(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t pages_for(int64_t tokens, int64_t page) {
    return tokens / page + (tokens % page > 0);
}

static int64_t divisor(int64_t a, int64_t b) {
    return b ? divisor(b, a % b) : a;
} /* the greatest of both */

/* Pages that are touched at most: the first of those that slide may begin as far into its page as the steps allow. */
static int64_t pages_at_worst(const seen *s, int64_t page) {
    return pages_for(s->fixed, page) + pages_for(page - divisor(s->step, page) + s->sliding, page);
}

int tp__cache_count(const tp_capacity *capacity, const tp_layer_group *group, const tp__load *load, int evicts,
                    tp_capacity_cache *cache) {
    const tp_capacity_options *options = &capacity->options;
    int64_t page = options->page_size, unit = page ? page : 1, units;
    int64_t context = group->part == TP_PART_CROSS ? group->kv_max : load->context;
    int beyond = 0;
    *cache = (tp_capacity_cache)TP_CAPACITY_CACHE_INIT;
    cache->dtype = options->cache_dtype;
    if (!tp__group_caches(group)) return 0;
    seen s = seen_of(group, context);
    if (!evicts) s = (seen){0, context, 1};
    cache->layers = group->layer_count - group->kv_shared;
    cache->tokens = min(context, s.fixed + s.sliding);
    /* of one layer */
    int64_t token_bytes = token_bytes_of(capacity, group);
    units = pages_for(context, unit);
    if (cache->tokens < context) units = min(units, pages_at_worst(&s, unit));
    beyond |= __builtin_mul_overflow(unit * token_bytes, units, &cache->sequence_bytes);
    /* of all */
    beyond |= __builtin_mul_overflow(cache->sequence_bytes, cache->layers, &cache->sequence_bytes);
    beyond |= __builtin_mul_overflow(cache->sequence_bytes, load->concurrency, &cache->bytes);
    if (cache->tokens == context && group->part != TP_PART_CROSS) cache->token_bytes = token_bytes * cache->layers;
    if (page && !beyond) {
        cache->pages = units * cache->layers * load->concurrency; /* fewer than bytes */
        cache->page_bytes = page * token_bytes;
    }
    return beyond;
}
