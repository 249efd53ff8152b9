/* SPDX-License-Identifier: Apache-2.0 */
/* Positions do not run backwards: in any layer, behind what was cut, shared, forked or copied; and what is not known of them. */
#include <stdio.h>
#include <string.h>

#include "support/call.h"
#include "tileproof_cache.h"

enum { DIM = 8, LAYERS = 3, PAGE = 4, SEQUENCES = 8, MAX = 64 };

typedef struct bench {
    tp_cache *cache;
    tp_rotary *rotary, *sections;
    int64_t sequence; /* tokens 0..3 of every layer at 100, 101, 101, 103 */
} bench;
static const int64_t first_four[4] = {100, 101, 101, 103};

static tp_cache *cache_of(int64_t page_size, int layout) {
    tp_cache_layer layer = {1, DIM, DIM, TP_F32, TP_F32, 0, 0, 0, 0, 0, 0};
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_cache *cache;
    options.layers = &layer, options.layer_count = LAYERS, options.same = 1, options.layout = layout;
    options.bytes = 1 << 20, options.sequences = SEQUENCES, options.sequence_tokens = MAX, options.page_size = page_size;
    assert_int_equal(tp_cache_create(&options, &cache, NULL), TP_OK);
    return cache;
}

static tp_status append(tp_cache *cache, int layer, int64_t sequence, const tp_rotary *rotary, const int64_t *positions,
                        int64_t tokens, const float *angles, tp_error *error) {
    static float kv[MAX * DIM];
    tp_cache_rows rows = TP_CACHE_ROWS_INIT;
    rows.dtype = TP_F32, rows.count = 1, rows.sequences = &sequence, rows.tokens = &tokens;
    rows.k = rows.v = (tp_tensor){kv, {0, DIM, DIM}};
    rows.rotary = rotary, rows.positions = positions, rows.cosines = rows.sines = angles;
    return tp_cache_append(cache, layer, &rows, error);
}

static void extend(tp_cache *cache, int64_t sequence, int64_t tokens) {
    tp_error error = TP_ERROR_INIT;
    if (tp_cache_extend(cache, 1, &sequence, &tokens, &error) != TP_OK) fail_msg("%s", error.text);
}

static void takes(const bench *b, tp_cache *cache, int layer, int64_t sequence, int64_t position) {
    tp_error error = TP_ERROR_INIT;
    if (append(cache, layer, sequence, b->rotary, &position, 1, NULL, &error) != TP_OK) fail_msg("%d: %s", layer, error.text);
}

/* And says so. */
static void refuses(const bench *b, tp_cache *cache, int layer, int64_t sequence, int64_t position, int64_t behind) {
    tp_error error = TP_ERROR_INIT;
    char text[80];
    snprintf(text, sizeof text, "is at position %lld, behind one at %lld: positions must not run backwards", (long long)position,
             (long long)behind);
    if (append(cache, layer, sequence, b->rotary, &position, 1, NULL, &error) != TP_INVALID)
        fail_msg("layer %d took position %lld behind %lld", layer, (long long)position, (long long)behind);
    if (strstr(error.text, text) == NULL) fail_msg("%s, not %s", error.text, text);
}

/* One more token: lower positions are refused in every layer, also where others have theirs, and equal ones are taken. */
static void next_is_behind(const bench *b, tp_cache *cache, int64_t sequence, int64_t last) {
    extend(cache, sequence, 1);
    for (int layer = 0; layer < LAYERS; layer++) {
        refuses(b, cache, layer, sequence, 5, last);
        refuses(b, cache, layer, sequence, last - 1, last);
        takes(b, cache, layer, sequence, layer == 1 ? last : last + 1);
    }
    extend(cache, sequence, 1);
    for (int layer = LAYERS - 1; layer >= 0; layer--) refuses(b, cache, layer, sequence, last - 1, last); /* the least of them */
    for (int layer = LAYERS - 1; layer >= 0; layer--) takes(b, cache, layer, sequence, last + 7);
}

static bench begin(void) {
    tp_error error = TP_ERROR_INIT;
    tp_rope_options rope = TP_ROPE_OPTIONS_INIT;
    bench b = {.cache = cache_of(PAGE, TP_CACHE_NHD)};
    rope.head_dim = DIM;
    assert_int_equal(tp_rope_create(&rope, &b.rotary, NULL), TP_OK);
    rope.sections[0] = 2, rope.sections[1] = rope.sections[2] = 1;
    assert_int_equal(tp_rope_create(&rope, &b.sections, NULL), TP_OK);
    assert_int_equal(tp_cache_open(b.cache, &b.sequence, NULL), TP_OK);
    extend(b.cache, b.sequence, 4);
    for (int layer = 0; layer < LAYERS; layer++)
        if (append(b.cache, layer, b.sequence, b.rotary, first_four, 4, NULL, &error) != TP_OK) fail_msg("%s", error.text);
    return b;
}

static void end(bench *b) {
    tp_cache_destroy(b->cache);
    tp_rope_destroy(b->rotary);
    tp_rope_destroy(b->sections);
}

static void in_every_layer(void **state) {
    (void)state;
    bench b = begin();
    next_is_behind(&b, b.cache, b.sequence, 103);
    end(&b);
}

/* What remains is what counts: the positions that were cut are forgotten, those in front of them are not. */
static void behind_a_truncation(void **state) {
    (void)state;
    for (int64_t rest = 3; rest >= 1; rest--) {
        bench b = begin();
        assert_int_equal(tp_cache_truncate(b.cache, b.sequence, rest, NULL), TP_OK);
        next_is_behind(&b, b.cache, b.sequence, first_four[rest - 1]);
        end(&b);
    }
    bench b = begin(); /* all of them */
    assert_int_equal(tp_cache_truncate(b.cache, b.sequence, 0, NULL), TP_OK);
    extend(b.cache, b.sequence, 1);
    for (int layer = 0; layer < LAYERS; layer++) takes(&b, b.cache, layer, b.sequence, 5);
    assert_int_equal(tp_cache_truncate(b.cache, b.sequence, 0, NULL), TP_OK);
    extend(b.cache, b.sequence, 1);
    for (int layer = 0; layer < LAYERS; layer++) takes(&b, b.cache, layer, b.sequence, 200);
    next_is_behind(&b, b.cache, b.sequence, 200); /* no trace of the 5 */
    end(&b);
}

/* The beginning of another sequence, which goes on by itself, in the page that both have and behind it. */
static void behind_what_is_shared(void **state) {
    (void)state;
    for (int64_t tokens = 1; tokens <= 4; tokens++) {
        bench b = begin();
        int64_t shared;
        assert_int_equal(tp_cache_share(b.cache, b.sequence, tokens, &shared, NULL), TP_OK);
        next_is_behind(&b, b.cache, shared, first_four[tokens - 1]);
        next_is_behind(&b, b.cache, b.sequence, 103);
        assert_int_equal(tp_cache_close(b.cache, b.sequence, NULL), TP_OK); /* its pages go to somebody else */
        assert_int_equal(tp_cache_open(b.cache, &b.sequence, NULL), TP_OK);
        extend(b.cache, b.sequence, 6);
        for (int layer = 0; layer < LAYERS; layer++) takes(&b, b.cache, layer, b.sequence, 2);
        end(&b);
    }
    bench b = begin();
    int64_t forked;
    assert_int_equal(tp_cache_fork(b.cache, b.sequence, &forked, NULL), TP_OK);
    next_is_behind(&b, b.cache, forked, 103);
    end(&b);
}

/* Whole, or behind a prefix; to this cache, or to one with other pages. */
static void behind_what_was_copied(void **state) {
    (void)state;
    for (int trial = 0; trial < 4; trial++) {
        bench b = begin();
        static char buffer[4096];
        tp_cache *other = trial % 2 ? cache_of(3, TP_CACHE_HND) : b.cache;
        const int64_t first = trial < 2 ? 0 : 2, bytes = tp_cache_copy_bytes(b.cache, b.sequence, first);
        int64_t to;
        assert_true(bytes > 0 && bytes < (int64_t)sizeof buffer);
        assert_int_equal(tp_cache_copy_out(b.cache, b.sequence, first, buffer, bytes, NULL), TP_OK);
        assert_int_equal(tp_cache_open(other, &to, NULL), TP_OK);
        if (first > 0) {
            extend(other, to, first);
            for (int layer = 0; layer < LAYERS; layer++)
                assert_int_equal(append(other, layer, to, b.rotary, first_four, first, NULL, NULL), TP_OK);
        }
        assert_int_equal(tp_cache_copy_in(other, to, buffer, bytes, NULL), TP_OK);
        next_is_behind(&b, other, to, 103);
        if (trial % 2) tp_cache_destroy(other);
        end(&b);
    }
}

static void put(char *buffer, int64_t at, int64_t value) {
    memcpy(buffer + at, &value, sizeof value);
}

/* A buffer's positions are a stranger's, and may be missing. */
static void buffers(void **state) {
    (void)state;
    bench b = begin();
    static char buffer[4096], old[4096];
    const int64_t bytes = tp_cache_copy_bytes(b.cache, b.sequence, 2);
    const int64_t rows = 40 + LAYERS * (int64_t)sizeof(tp_cache_layer) + LAYERS * 2 * 2 * DIM * 4, positions[2] = {104, 104};
    int64_t to, last;
    assert_int_equal(tp_cache_copy_out(b.cache, b.sequence, 2, buffer, bytes, NULL), TP_OK);
    memcpy(&last, buffer + rows + 8, sizeof last);
    assert_int_equal(last, 103);
    assert_int_equal(tp_cache_share(b.cache, b.sequence, 2, &to, NULL), TP_OK);
    const struct {
        int64_t position;
        const char *says;
    } wrong[] = {{-2, "buffer's token 2 is at position -2: it must be in 0..2^40-1, or -1 where it is not known"},
                 {(int64_t)1 << 40, "buffer's token 2 is at position 1099511627776: it must be in "},
                 {100, "buffer's token 2 is at position 100, behind one at 101: positions must not run backwards; copy it "}};
    for (int i = 0; i < COUNT(wrong); i++) {
        tp_error error = TP_ERROR_INIT;
        put(buffer, rows, wrong[i].position);
        assert_int_equal(tp_cache_copy_in(b.cache, to, buffer, bytes, &error), TP_INVALID);
        if (strstr(error.text, wrong[i].says) == NULL) fail_msg("%s, not %s", error.text, wrong[i].says);
        assert_int_equal(tp_cache_length(b.cache, to), 2);
    }
    put(buffer, rows, -1); /* one that is not known: the other is */
    assert_int_equal(tp_cache_copy_in(b.cache, to, buffer, bytes, NULL), TP_OK);
    next_is_behind(&b, b.cache, to, 103);
    assert_int_equal(tp_cache_truncate(b.cache, to, 3, NULL), TP_OK);
    next_is_behind(&b, b.cache, to, 101);
    /* without positions: nothing is known of its tokens, and all of those in front */
    assert_int_equal(tp_cache_close(b.cache, to, NULL), TP_OK);
    assert_int_equal(tp_cache_share(b.cache, b.sequence, 2, &to, NULL), TP_OK);
    memcpy(old, buffer, (size_t)rows);
    memcpy(old, "tpcache1", 8);
    put(old, 32, rows);
    assert_int_equal(tp_cache_copy_in(b.cache, to, old, rows - 1, NULL), TP_INVALID);
    assert_int_equal(tp_cache_copy_in(b.cache, to, old, rows, NULL), TP_OK);
    assert_int_equal(tp_cache_length(b.cache, to), 4);
    next_is_behind(&b, b.cache, to, 101);
    put(old, 32, bytes); /* it says which of the two it is */
    assert_int_equal(tp_cache_copy_in(b.cache, to, old, bytes, NULL), TP_INVALID);
    assert_int_equal(append(b.cache, 0, to, b.rotary, positions, 2, NULL, NULL), TP_INVALID); /* no such tokens */
    end(&b);
}

/* Tokens that came with angles, or without a rotation, are passed over; with sections, times count. */
static void what_is_not_known(void **state) {
    (void)state;
    static const float angles[2 * DIM];
    bench b = begin();
    extend(b.cache, b.sequence, 2);
    for (int layer = 0; layer < LAYERS; layer++) {
        assert_int_equal(append(b.cache, layer, b.sequence, b.rotary, NULL, 1, angles, NULL), TP_OK);
        assert_int_equal(append(b.cache, layer, b.sequence, NULL, NULL, 1, NULL, NULL), TP_OK);
    }
    next_is_behind(&b, b.cache, b.sequence, 103);
    int64_t empty;
    assert_int_equal(tp_cache_open(b.cache, &empty, NULL), TP_OK);
    extend(b.cache, empty, 2);
    assert_int_equal(append(b.cache, 0, empty, b.rotary, NULL, 1, angles, NULL), TP_OK);
    takes(&b, b.cache, 0, empty, 0); /* behind nothing that is known */
    const int64_t backwards[6] = {7, 8, 50, 3, 50, 3}, times[6] = {9, 8, 1, 2, 1, 2};
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(append(b.cache, 1, empty, b.sections, times, 2, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "is at position 8, behind one at 9"));
    assert_int_equal(append(b.cache, 1, empty, b.sections, backwards, 2, NULL, NULL), TP_OK);
    extend(b.cache, empty, 1); /* layer 0 gave its token 1 position 0, layer 1 position 8: the least counts */
    assert_int_equal(append(b.cache, 0, empty, b.rotary, NULL, 1, NULL, NULL), TP_OK);
    assert_int_equal(append(b.cache, 1, empty, b.rotary, NULL, 1, NULL, NULL), TP_OK); /* at their index, 2 */
    end(&b);
}

/* Eight bytes of a token, within the bytes of the options. */
static void its_memory_is_counted(void **state) {
    (void)state;
    tp_cache_layer layer = {1, DIM, DIM, TP_F32, TP_F32, 0, 0, 0, 0, 0, 0};
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_cache_capacity capacity;
    options.layers = &layer, options.layer_count = 1, options.bytes = 1 << 20, options.sequences = 1000;
    options.sequence_tokens = 1000, options.page_size = 100;
    assert_int_equal(tp_cache_plan(&options, &capacity, NULL), TP_OK);
    assert_int_equal(capacity.token_bytes, 64);
    assert_true(capacity.bytes <= options.bytes && capacity.bytes > capacity.tokens * (64 + 8));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_every_layer),
                                       cmocka_unit_test(behind_a_truncation),
                                       cmocka_unit_test(behind_what_is_shared),
                                       cmocka_unit_test(behind_what_was_copied),
                                       cmocka_unit_test(buffers),
                                       cmocka_unit_test(what_is_not_known),
                                       cmocka_unit_test(its_memory_is_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
