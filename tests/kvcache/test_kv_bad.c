/* SPDX-License-Identifier: Apache-2.0 */
/* What tp_cache refuses: each with a status and a text that names value and rule, and nothing has changed. */
#include <math.h>

#include "support/call.h"
#include "support/kv.h"

static void refused(tp_status status, tp_status expected, const tp_error *error, const char *text) {
    if (status != expected || strstr(error->text, text) == NULL)
        fail_msg("%s: %s, expected %s: %s", tp_status_name(status), error->text, tp_status_name(expected), text);
}
#define REFUSED(call, text)                                                                                                      \
    do {                                                                                                                         \
        tp_error error = TP_ERROR_INIT;                                                                                          \
        refused((call), TP_INVALID, &error, (text));                                                                             \
    } while (0)

static void options_that_break_a_rule(void **state) {
    (void)state;
    tp_cache_layer layers[2], good = {2, 16, 16, TP_F16, TP_F16, 0, 0, 0, 0, 0, 0};
    tp_cache_options options = TP_CACHE_OPTIONS_INIT, sound;
    tp_cache_capacity capacity;
    tp_cache *cache = (tp_cache *)&options;
    options.layers = layers, options.layer_count = 2, options.bytes = 1 << 20, options.sequences = 2,
    options.sequence_tokens = 99;
    sound = options;
    layers[0] = layers[1] = good;
    assert_int_equal(tp_cache_plan(&options, &capacity, NULL), TP_OK);
#define BAD(assignment, text)                                                                                                    \
    do {                                                                                                                         \
        assignment;                                                                                                              \
        REFUSED(tp_cache_plan(&options, &capacity, &error), text);                                                               \
        REFUSED(tp_cache_create(&options, &cache, &error), text);                                                                \
        assert_null(cache);                                                                                                      \
        options = sound, layers[0] = layers[1] = good;                                                                           \
    } while (0)
    BAD(options.layout = 2, "layout is 2: it must be in 0..1");
    BAD(options.bytes = 0, "bytes is 0: it must be in 1..");
    BAD(options.bytes = 4999,
        "bytes is 4999: one page of 16 tokens takes 4096 bytes, and with the tables of 2 sequences of 99 tokens");
    BAD(options.page_size = 0, "page_size is 0: it must be in 1..65536");
    BAD(options.page_size = 65537, "page_size is 65537");
    BAD(options.sequences = 0, "sequences is 0");
    BAD(options.sequences = (1 << 20) + 1, "sequences is 1048577: it must be in 1..1048576");
    BAD(options.sequence_tokens = 0, "sequence_tokens is 0");
    BAD(options.layer_count = 0, "layer_count is 0");
    BAD(options.layer_count = 4097, "layer_count is 4097");
    BAD(options.same = 2, "same is 2");
    BAD(options.index_type = 2, "index_type is 2");
    BAD(options.layers = NULL, "layers is NULL: it must point to a row for each layer");
    BAD((options.layers = NULL, options.same = 1), "layers is NULL: it must point to the row of all layers");
    BAD(layers[1].kv_heads = -1, "layers[1].kv_heads is -1: it must be in 0..65536");
    BAD(layers[1].head_dim_qk = 0, "layers[1].head_dim_qk is 0: it must be in 1..4096");
    BAD(layers[0].head_dim_v = 4097, "layers[0].head_dim_v is 4097");
    BAD(layers[0].latent = 2, "layers[0].latent is 2");
    BAD((layers[0].latent = 1, layers[0].head_dim_v = 17), "layers[0].head_dim_v is 17: it must be in 1..16");
    BAD((layers[0].latent = 1, layers[0].v_dtype = TP_F32), "layers[0].v_dtype is f32 and k's f16: latent needs them equal");
    BAD(layers[1].reserved = 1, "layers[1].reserved is 1");
    BAD(layers[1].k_scales = TP_SCALES_TOKEN, "layers[1].k_scales is token (2) with f16: its scales are none");
    BAD(layers[1].v_dtype = TP_I8, "layers[1].v_scales is none (0) with i8: its scales are token or q8_0");
    BAD((layers[0].k_dtype = TP_I4, layers[0].k_scales = TP_SCALES_TOKEN),
        "layers[0].k_scales is token (2) with i4: its scales are group");
    BAD((layers[0].k_dtype = TP_E4M3, layers[0].k_scales = TP_SCALES_TENSOR),
        "layers[0].k_scale is 0 with scales tensor: it must be positive and finite; greatest |value| / 448");
    BAD((layers[0].k_dtype = TP_E4M3, layers[0].k_scales = TP_SCALES_TENSOR, layers[0].k_scale = INFINITY), "k_scale is inf");
    BAD(layers[1].v_scale = 1, "layers[1].v_scale is 1 with scales none: it must be 0");
    BAD((layers[1].v_dtype = TP_I4, layers[1].v_scales = TP_SCALES_GROUP, layers[1].head_dim_v = 15),
        "layers[1].v_dtype is i4 with head dim 15: it must be even");
    BAD((layers[0].k_dtype = TP_I8, layers[0].k_scales = TP_SCALES_Q8_0),
        "layers[0].k_scales is q8_0 with head dim 16: it must be a multiple of 32");
    BAD((layers[0].latent = 1, layers[0].k_dtype = layers[0].v_dtype = TP_E4M3, layers[0].k_scales = TP_SCALES_TOKEN,
         layers[0].v_scales = TP_SCALES_TENSOR, layers[0].v_scale = 1),
        "layers[0].v_scales is tensor (1) and k's token (0): latent needs them equal");
    BAD(layers[0].kv_heads = layers[1].kv_heads = 0, "kv_heads is 0 in all of them");
    BAD(options.name = "", "name has 0 characters: it must have 1..63");
    BAD(options.name = "0123456789012345678901234567890123456789012345678901234567890123", "name has 64 characters");
    BAD(options.name = "a\n", "name has the byte 10 at 1: it must be printable ASCII");
#undef BAD
    tp_error why = TP_ERROR_INIT;
    layers[1].v_dtype = TP_E5M2;
    refused(tp_cache_plan(&options, &capacity, &why), TP_UNSUPPORTED, &why,
            "layers[1].v_dtype is e5m2: a cache keeps f32, f16 or bf16, and with scales i8, i4 or e4m3");
    layers[1] = good;
    tp_allocator allocator = TP_ALLOCATOR_INIT;
    options.allocator = &allocator;
    REFUSED(tp_cache_create(&options, &cache, &error), "allocator.allocate is NULL: it needs both of its functions");
    REFUSED(tp_cache_create(NULL, &cache, &error), "tp_cache_options is NULL");
    REFUSED(tp_cache_create(&options, NULL, &error), "cache is NULL: it must point to a pointer");
    REFUSED(tp_cache_plan(&options, NULL, &error), "capacity is NULL");
    tp_cache_destroy(NULL);
}

typedef struct held {
    tp_cache *cache;
    kv_model a, b; /* 20 tokens, and a share of 9 */
} held;

static held begin(int64_t pages) {
    held h = {.a = {.sequence = 0}};
    tp_cache_options options = kv_options(8, TP_CACHE_NHD, TP_I32, 3, pages);
    assert_int_equal(tp_cache_create(&options, &h.cache, NULL), TP_OK);
    assert_int_equal(tp_cache_open(h.cache, &h.a.sequence, NULL), TP_OK);
    assert_int_equal(kv_grow(h.cache, &h.a, 20, 1, NULL), TP_OK);
    h.b = h.a, h.b.length = 9;
    assert_int_equal(tp_cache_share(h.cache, h.a.sequence, 9, &h.b.sequence, NULL), TP_OK);
    return h;
}

/* Nothing has changed: not an element, table, length or figure. */
static void same(const held *h, const tp_cache_stats *before) {
    tp_cache_stats now;
    assert_int_equal(tp_cache_stats_read(h->cache, &now, NULL), TP_OK);
    now.refusals = before->refusals;
    assert_memory_equal(&now, before, sizeof now);
    kv_verify(h->cache, &h->a);
    kv_verify(h->cache, &h->b);
    kv_verify_pages(h->cache, 8);
}

static void sequences_that_are_not_open(void **state) {
    (void)state;
    held h = begin(10);
    int64_t gone, made = -5, none = 0, one = 1, table[64];
    char buffer[64];
    kv_model closed = {.sequence = 0};
    assert_int_equal(tp_cache_open(h.cache, &gone, NULL), TP_OK);
    assert_int_equal(tp_cache_close(h.cache, gone, NULL), TP_OK);
    tp_cache_stats before;
    assert_int_equal(tp_cache_stats_read(h.cache, &before, NULL), TP_OK);
    const int64_t wrong[] = {gone, 0, -1, INT64_MIN, INT64_MAX, h.a.sequence + 3, h.a.sequence + (1 << 20), 1, 2};
    for (int i = 0; i < COUNT(wrong); i++) {
        char text[64];
        snprintf(text, sizeof text, "sequence %lld is not open: ", (long long)wrong[i]);
        closed.sequence = wrong[i];
        kv_model *models[1] = {&closed};
        REFUSED(tp_cache_fork(h.cache, wrong[i], &made, &error), text);
        REFUSED(tp_cache_share(h.cache, wrong[i], 0, &made, &error), text);
        REFUSED(tp_cache_extend(h.cache, 1, &wrong[i], &one, &error), text);
        REFUSED(tp_cache_truncate(h.cache, wrong[i], 0, &error), text);
        REFUSED(tp_cache_close(h.cache, wrong[i], &error), text);
        REFUSED(kv_append(h.cache, 0, 1, models, &none, &one, TP_F32, &error), text);
        REFUSED(tp_cache_gather(h.cache, 1, &wrong[i], table, table, &error), text);
        REFUSED(tp_cache_prefixes(h.cache, 0, 1, &wrong[i], table, table, &error), text);
        REFUSED(tp_cache_copy_out(h.cache, wrong[i], 0, buffer, 64, &error), text);
        REFUSED(tp_cache_copy_in(h.cache, wrong[i], buffer, 64, &error), text);
        assert_int_equal(tp_cache_length(h.cache, wrong[i]), -1);
        assert_int_equal(tp_cache_slot(h.cache, wrong[i]), -1);
        assert_int_equal(tp_cache_copy_bytes(h.cache, wrong[i], 0), -1);
    }
    assert_int_equal(made, -5);
    same(&h, &before);
    tp_cache_destroy(h.cache);
}

static void more_than_there_is(void **state) {
    (void)state;
    held h = begin(6);
    tp_error full = TP_ERROR_INIT;
    tp_cache_stats before;
    int64_t made = -5, both[2] = {h.b.sequence, h.a.sequence}, tokens[2];
    assert_int_equal(tp_cache_stats_read(h.cache, &before, NULL), TP_OK);
    /* of 6 pages 3 are held. b needs a copy of its last one, and three more; a, which alone holds its last page, one */
    tokens[0] = 30, tokens[1] = 0;
    refused(tp_cache_extend(h.cache, 2, both, tokens, &full), TP_CACHE_FULL, &full,
            "2 sequences need 4 more pages of 8 tokens, and of 6 pages 3 are free");
    tokens[0] = 15, tokens[1] = 13;
    refused(tp_cache_extend(h.cache, 2, both, tokens, &full), TP_CACHE_FULL, &full, "need 4 more pages");
    same(&h, &before);
    tokens[0] = 2, tokens[1] = -1;
    REFUSED(tp_cache_extend(h.cache, 2, both, tokens, &error), "-1 more tokens for sequence");
    tokens[1] = KV_TOKENS - 19;
    REFUSED(tp_cache_extend(h.cache, 2, both, tokens, &error), "which has 20: a sequence of this cache has at most 160");
    both[1] = h.b.sequence, tokens[1] = 1;
    REFUSED(tp_cache_extend(h.cache, 2, both, tokens, &error), "stands twice in the list");
    REFUSED(tp_cache_extend(h.cache, -1, both, tokens, &error), "count is -1");
    REFUSED(tp_cache_extend(h.cache, 1, NULL, tokens, &error), "sequences is NULL with a count of 1");
    REFUSED(tp_cache_extend(h.cache, 1, both, NULL, &error), "tokens is NULL with a count of 1");
    assert_int_equal(tp_cache_extend(h.cache, 0, NULL, NULL, NULL), TP_OK);
    REFUSED(tp_cache_truncate(h.cache, h.a.sequence, 21, &error), "can be cut to 0..20 tokens");
    REFUSED(tp_cache_truncate(h.cache, h.a.sequence, -1, &error), "tokens is -1");
    REFUSED(tp_cache_share(h.cache, h.a.sequence, 21, &made, &error), "tokens is 21: sequence ");
    REFUSED(tp_cache_share(h.cache, h.a.sequence, -1, &made, &error), "has 20 to share");
    REFUSED(tp_cache_share(h.cache, h.a.sequence, 1, NULL, &error), "sequence is NULL");
    REFUSED(tp_cache_open(h.cache, NULL, &error), "sequence is NULL");
    REFUSED(tp_cache_open(NULL, &made, &error), "cache is NULL");
    REFUSED(tp_cache_extend(NULL, 0, NULL, NULL, &error), "cache is NULL");
    REFUSED(tp_cache_fork(NULL, 1, &made, &error), "cache is NULL");
    assert_int_equal(made, -5);
    assert_true(tp_cache_slots(NULL) == 0 && tp_cache_length(NULL, 1) == -1 && tp_cache_slot(NULL, 1) == -1);
    same(&h, &before);
    tokens[0] = 30; /* it was only the two together */
    assert_int_equal(tp_cache_truncate(h.cache, h.a.sequence, 0, NULL), TP_OK);
    assert_int_equal(tp_cache_extend(h.cache, 1, both, tokens, NULL), TP_OK);
    tp_cache_destroy(h.cache);
}

/* Rows in the wrong layer, too many of them, tokens that a layer still lacks. */
static void rows_that_do_not_fit(void **state) {
    (void)state;
    held h = begin(10);
    tp_cache_stats before;
    kv_model *models[2] = {&h.a, &h.b};
    int64_t from[2] = {0, 0}, tokens[2] = {1, 0}, made = -5, sequence = h.a.sequence, one = 1;
    float numbers[64] = {0};
    assert_int_equal(tp_cache_stats_read(h.cache, &before, NULL), TP_OK);
    REFUSED(kv_append(h.cache, 0, 2, models, from, tokens, TP_F32, &error),
            "layer 0 has 20 of its 20 tokens, so 0..0 can be appended; tp_cache_extend makes room for more");
    tokens[0] = 0, tokens[1] = -1;
    models[1] = models[0];
    tokens[1] = 0;
    REFUSED(kv_append(h.cache, 0, 2, models, from, tokens, TP_F32, &error), "stands twice in the list");
    tp_cache_rows rows = TP_CACHE_ROWS_INIT, sound;
    rows.dtype = TP_F32, rows.count = 1, rows.sequences = &sequence, rows.tokens = &one;
    rows.k = (tp_tensor){numbers, {0, 12, 6}}, rows.v = (tp_tensor){numbers, {0, 10, 5}};
    sound = rows;
    assert_int_equal(tp_cache_extend(h.cache, 1, &sequence, &one, NULL), TP_OK);
#define BAD(assignment, layer, text)                                                                                             \
    do {                                                                                                                         \
        assignment;                                                                                                              \
        REFUSED(tp_cache_append(h.cache, (layer), &rows, &error), text);                                                         \
        rows = sound;                                                                                                            \
    } while (0)
    BAD((void)0, -1, "layer is -1: the cache has layers 0..5");
    BAD((void)0, 6, "layer is 6: the cache has layers 0..5");
    BAD((void)0, 2, "layer 2 keeps nothing: its kv_heads is 0");
    BAD((void)0, 1, "layer 1 is latent, and keeps k alone");
    BAD(rows.dtype = 0, 0, "rows.dtype is dtype?: it must be f32, f16 or bf16");
    BAD(rows.dtype = TP_I8, 0, "rows.dtype is i8");
    BAD(rows.count = -1, 0, "rows.count is -1");
    BAD(rows.sequences = NULL, 0, "rows.sequences is NULL with a count of 1");
    BAD(rows.tokens = NULL, 0, "rows.tokens is NULL");
    BAD(rows.k.data = NULL, 0, "rows.k.data is NULL with rows to append");
    BAD(rows.v.data = NULL, 0, "rows.v.data is NULL with rows to append");
    BAD(rows.k.data = (char *)numbers + 2, 0, "it must be aligned to its elements of 4 bytes");
    BAD(rows.v.stride[1] = -1, 0, "rows.v.stride[1] is -1: it must be in 0..2^40 elements");
    BAD(rows.k.stride[2] = ((int64_t)1 << 40) + 1, 0, "rows.k.stride[2] is 1099511627777");
    REFUSED(tp_cache_append(h.cache, 0, NULL, &error), "tp_cache_rows is NULL");
    REFUSED(tp_cache_append(NULL, 0, &rows, &error), "cache is NULL");
#undef BAD
    /* a token without rows yet */
    tp_tensors t;
    tp_problem problem;
    tp_problem_init(&problem);
    tp_tensors_init(&t, &problem, NULL, NULL, NULL, NULL);
    assert_int_equal(tp_cache_append(h.cache, 0, &rows, NULL), TP_OK);
    assert_int_equal(tp_cache_tensors(h.cache, 0, 0, 2, &t, NULL), TP_OK);
    REFUSED(tp_cache_tensors(h.cache, 1, 0, 2, &t, &error), "layer 1 has 20 of the 21 tokens of sequence");
    REFUSED(tp_cache_fork(h.cache, sequence, &made, &error), "layer 1 has 20 of the first 21 tokens of sequence");
    REFUSED(tp_cache_copy_out(h.cache, sequence, 0, numbers, 1 << 20, &error), "tp_cache_append the others first");
    REFUSED(tp_cache_copy_in(h.cache, sequence, numbers, sizeof numbers, &error), "tp_cache_append the others first");
    assert_int_equal(tp_cache_share(h.cache, sequence, 20, &made, NULL), TP_OK);
    assert_int_equal(tp_cache_close(h.cache, made, NULL), TP_OK);
    assert_int_equal(tp_cache_truncate(h.cache, sequence, 20, NULL), TP_OK);
    same(&h, &before);
    tp_cache_destroy(h.cache);
}

static void views_that_do_not_exist(void **state) {
    (void)state;
    held h = begin(10);
    tp_tensors t;
    tp_problem problem;
    int32_t table[64];
    int64_t sequence = h.a.sequence;
    tp_problem_init(&problem);
    tp_tensors_init(&t, &problem, NULL, NULL, NULL, NULL);
    REFUSED(tp_cache_tensors(h.cache, 0, -1, 1, &t, &error), "first is -1 and count 1: the cache has slots 0..2");
    REFUSED(tp_cache_tensors(h.cache, 0, 0, 4, &t, &error), "first is 0 and count 4");
    REFUSED(tp_cache_tensors(h.cache, 0, 4, 0, &t, &error), "first is 4");
    REFUSED(tp_cache_tensors(h.cache, 0, 1, INT64_MAX, &t, &error), "count 9223372036854775807");
    REFUSED(tp_cache_tensors(h.cache, 0, 0, -1, &t, &error), "count -1");
    REFUSED(tp_cache_tensors(h.cache, 9, 0, 1, &t, &error), "layer is 9");
    REFUSED(tp_cache_tensors(h.cache, 0, 0, 1, NULL, &error), "tp_tensors is NULL");
    REFUSED(tp_cache_problem(h.cache, 9, &problem, &error), "layer is 9");
    REFUSED(tp_cache_problem(h.cache, 0, NULL, &error), "tp_problem is NULL");
    REFUSED(tp_cache_problem(NULL, 0, &problem, &error), "cache is NULL");
    assert_true(t.batch == 1 && t.k.data == NULL && problem.kv_layout == TP_BATCH);
    REFUSED(tp_cache_prefixes(NULL, 0, 0, NULL, NULL, NULL, &error), "cache is NULL");
    REFUSED(tp_cache_prefixes(h.cache, 0, -1, NULL, table, table, &error), "count -1: the cache has slots 0..");
    REFUSED(tp_cache_prefixes(h.cache, 0, 1 << 20, NULL, table, table, &error), "count 1048576: the cache has slots 0..");
    REFUSED(tp_cache_prefixes(h.cache, 1, 1, &sequence, table, table, &error), "first is 1 with sequences");
    REFUSED(tp_cache_prefixes(h.cache, 0, -1, &sequence, table, table, &error), "count is -1");
    REFUSED(tp_cache_prefixes(h.cache, 0, 1, NULL, NULL, table, &error), "shared_with is NULL with a count of 1");
    REFUSED(tp_cache_prefixes(h.cache, 0, 1, NULL, table, NULL, &error), "shared_lens is NULL with a count of 1");
    REFUSED(tp_cache_prefixes(h.cache, 0, 1, NULL, table, (char *)table + 2, &error), "aligned to its elements of 4 bytes");
    REFUSED(tp_cache_gather(NULL, 0, NULL, NULL, NULL, &error), "cache is NULL");
    REFUSED(tp_cache_gather(h.cache, -1, NULL, NULL, NULL, &error), "count is -1");
    REFUSED(tp_cache_gather(h.cache, 1, NULL, table, table, &error), "sequences is NULL with a count of 1");
    REFUSED(tp_cache_gather(h.cache, 1, &sequence, NULL, table, &error), "table is NULL");
    REFUSED(tp_cache_gather(h.cache, 1, &sequence, table, NULL, &error), "lens is NULL");
    REFUSED(tp_cache_gather(h.cache, 1, &sequence, (char *)table + 2, table, &error), "aligned to its elements of 4 bytes");
    assert_int_equal(tp_cache_gather(h.cache, 0, NULL, NULL, NULL, NULL), TP_OK);
    REFUSED(tp_cache_stats_read(NULL, (tp_cache_stats *)table, &error), "cache is NULL");
    REFUSED(tp_cache_stats_read(h.cache, NULL, &error), "stats is NULL");
    assert_int_equal(tp_cache_metrics_write(h.cache, NULL, NULL), TP_INVALID);
    assert_int_equal(tp_cache_metrics_write(NULL, NULL, NULL), TP_INVALID);
    tp_cache_destroy(h.cache);
}

/* Buffers that copy_out did not write, or not for this: every byte before the rows changed once, every length cut. */
static void buffers_of_strangers(void **state) {
    (void)state;
    held h = begin(10);
    int64_t bytes = tp_cache_copy_bytes(h.cache, h.a.sequence, 9), to = h.b.sequence;
    char *buffer = malloc((size_t)bytes);
    tp_cache_stats before;
    assert_int_equal(tp_cache_copy_bytes(h.cache, h.a.sequence, 21), -1);
    assert_int_equal(tp_cache_copy_bytes(h.cache, h.a.sequence, -1), -1);
    REFUSED(tp_cache_copy_out(h.cache, h.a.sequence, 21, buffer, bytes, &error), "first is 21: sequence ");
    REFUSED(tp_cache_copy_out(h.cache, h.a.sequence, -1, buffer, bytes, &error), "first is -1: sequence ");
    REFUSED(tp_cache_copy_out(h.cache, h.a.sequence, 9, NULL, bytes, &error), "11 tokens of sequence ");
    REFUSED(tp_cache_copy_out(h.cache, h.a.sequence, 9, buffer, bytes - 1, &error), "(tp_cache_copy_bytes)");
    assert_int_equal(tp_cache_copy_out(h.cache, h.a.sequence, 9, buffer, bytes, NULL), TP_OK);
    assert_int_equal(tp_cache_stats_read(h.cache, &before, NULL), TP_OK);
    const int64_t rows = 40 + KV_LAYERS * (int64_t)sizeof(tp_cache_layer);
    for (int64_t i = 0; i < rows; i++) {
        buffer[i] ^= 0x11;
        tp_error error = TP_ERROR_INIT;
        tp_status status = tp_cache_copy_in(h.cache, to, buffer, bytes, &error);
        if (status != TP_INVALID || strncmp(error.text, "buffer", 6) != 0) fail_msg("byte %d: %s", (int)i, error.text);
        buffer[i] ^= 0x11;
    }
    for (int64_t i = 0; i < bytes; i++) {
        char *cut = malloc((size_t)i + 1);
        memcpy(cut, buffer, (size_t)i);
        REFUSED(tp_cache_copy_in(h.cache, to, cut, i, &error), "buffer");
        free(cut);
    }
    REFUSED(tp_cache_copy_in(h.cache, to, NULL, bytes, &error), "buffer is (nil)");
    REFUSED(tp_cache_copy_in(h.cache, h.a.sequence, buffer, bytes, &error),
            "buffer begins with token 9: the sequence must have as many tokens, and has 20");
    same(&h, &before);
    assert_int_equal(tp_cache_copy_in(h.cache, to, buffer, bytes, NULL), TP_OK);
    h.b.length = 20;
    kv_verify(h.cache, &h.b);
    /* behind the rows, positions and losses: any bits are taken or refused, and rows stay what they are */
    const int64_t behind = bytes - 11 * (int64_t)sizeof(int64_t) - KV_LAYERS * (int64_t)sizeof(double);
    int taken = 0, refused = 0;
    for (int64_t i = behind; i < bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            assert_int_equal(tp_cache_truncate(h.cache, to, 9, NULL), TP_OK);
            buffer[i] ^= (char)(1 << bit);
            tp_error error = TP_ERROR_INIT;
            tp_status status = tp_cache_copy_in(h.cache, to, buffer, bytes, &error);
            if (status == TP_OK)
                taken++, kv_verify(h.cache, &h.b);
            else if (status != TP_INVALID || strncmp(error.text, "buffer's ", 9) != 0)
                fail_msg("byte %d: %s", (int)i, error.text);
            else
                refused++;
            buffer[i] ^= (char)(1 << bit);
        }
    assert_true(taken > 0 && refused > 0);
    free(buffer);
    tp_cache_destroy(h.cache);
}

/* A buffer of a cache with other layers names what differs, whatever its size, its tokens and the sequence are. */
static void buffers_of_other_layers(void **state) {
    (void)state;
    static float rows[4 * 2 * 32];
    static char buffer[1 << 14];
    tp_cache_layer layers[2] = {{2, 32, 32, TP_F16, TP_F16, 0, 0, 0, 0, 0, 0}, {2, 32, 32, TP_I8, TP_I8, 0, 0, 0, 0, 0, 0}};
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_cache *from = NULL, *to = NULL;
    int64_t one, other, tokens = 4;
    layers[1].k_scales = layers[1].v_scales = TP_SCALES_TOKEN;
    options.layers = layers, options.layer_count = 2, options.bytes = 1 << 20;
    options.sequences = 2, options.sequence_tokens = 99;
    assert_int_equal(tp_cache_create(&options, &from, NULL), TP_OK);
    layers[1].k_dtype = layers[1].v_dtype = TP_I4, layers[1].k_scales = layers[1].v_scales = TP_SCALES_GROUP;
    options.sequence_tokens = 3; /* the buffer's tokens would not fit either */
    assert_int_equal(tp_cache_create(&options, &to, NULL), TP_OK);
    assert_int_equal(tp_cache_open(from, &one, NULL), TP_OK);
    assert_int_equal(tp_cache_open(to, &other, NULL), TP_OK);
    assert_int_equal(tp_cache_extend(from, 1, &one, &tokens, NULL), TP_OK);
    for (int64_t layer = 0; layer < 2; layer++) {
        tp_cache_rows r = TP_CACHE_ROWS_INIT;
        r.dtype = TP_F32, r.count = 1, r.sequences = &one, r.tokens = &tokens;
        r.k = r.v = (tp_tensor){rows, {0, 64, 32}};
        assert_int_equal(tp_cache_append(from, layer, &r, NULL), TP_OK);
    }
    int64_t bytes = tp_cache_copy_bytes(from, one, 0);
    assert_true(bytes > 0 && bytes <= (int64_t)sizeof buffer);
    assert_int_equal(tp_cache_copy_out(from, one, 0, buffer, bytes, NULL), TP_OK);
    REFUSED(tp_cache_copy_in(to, other, buffer, bytes, &error),
            "buffer's layer 1 keeps 2 heads of 32 and 32 in i8 and i8 (scales token and token), the cache's 2 of 32 and 32 in i4 "
            "and i4 (scales group and group): they must be the same");
    const int64_t rows_of_layers = 40 + 2 * (int64_t)sizeof(tp_cache_layer);
    REFUSED(tp_cache_copy_in(to, other, buffer, rows_of_layers, &error), "buffer's layer 1 keeps 2 heads");
    REFUSED(tp_cache_copy_in(to, other, buffer, rows_of_layers - 1, &error), "what its 2 layers keep is said in the first ");
    tp_cache_destroy(from);
    tp_cache_destroy(to);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(options_that_break_a_rule), cmocka_unit_test(sequences_that_are_not_open),
                                       cmocka_unit_test(more_than_there_is),        cmocka_unit_test(rows_that_do_not_fit),
                                       cmocka_unit_test(views_that_do_not_exist),   cmocka_unit_test(buffers_of_strangers),
                                       cmocka_unit_test(buffers_of_other_layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
