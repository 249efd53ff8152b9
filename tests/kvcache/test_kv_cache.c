/* SPDX-License-Identifier: Apache-2.0 */
/* tp_cache by hand: what fits, which pages, copies on write, attention from its tables, figures. The soak has the rest. */
#include <math.h>

#include "base/allocator.h"
#include "support/call.h"
#include "support/kv.h"
#include "support/sink.h"

#define GOOD(call)                                                                                                               \
    do {                                                                                                                         \
        if ((call) != TP_OK) fail_msg("%s: %s", #call, error.text);                                                              \
    } while (0)

static tp_cache *make(const tp_cache_options *options) {
    tp_error error = TP_ERROR_INIT;
    tp_cache *cache;
    GOOD(tp_cache_create(options, &cache, &error));
    return cache;
}

static tp_cache_stats stats_of(const tp_cache *cache) {
    tp_error error = TP_ERROR_INIT;
    tp_cache_stats stats;
    GOOD(tp_cache_stats_read(cache, &stats, &error));
    return stats;
}

static kv_model open_one(tp_cache *cache) {
    tp_error error = TP_ERROR_INIT;
    kv_model model = {.sequence = 0};
    GOOD(tp_cache_open(cache, &model.sequence, &error));
    return model;
}

static int64_t page_at(const tp_cache *cache, int64_t sequence, int64_t at) {
    int32_t table[KV_TOKENS], length;
    assert_int_equal(tp_cache_gather(cache, 1, &sequence, table, &length, NULL), TP_OK);
    return table[at];
}

static size_t asked;
static void *allocate(void *user, size_t bytes, size_t alignment) {
    asked = bytes;
    return user != NULL ? NULL : aligned_alloc(alignment, bytes);
}
static void *allocate_crooked(void *user, size_t bytes, size_t alignment) {
    return (char *)allocate(user, bytes + alignment, alignment) + 8;
}
static void release(void *user, void *memory, size_t bytes) {
    (void)user;
    assert_int_equal(bytes, asked);
    free(memory);
}
static void release_crooked(void *user, void *memory, size_t bytes) {
    (void)user, (void)bytes;
    free((char *)memory - 8);
}

/* What is said beforehand is what is allocated, never more than the limit, and one page more would not fit. */
static void the_capacity_is_said_first(void **state) {
    (void)state;
    tp_cache_layer layer = TP_CACHE_LAYER_INIT;
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_allocator allocator = TP_ALLOCATOR_INIT;
    tp_cache_capacity capacity, less;
    tp_error error = TP_ERROR_INIT;
    tp_cache *cache;
    layer.kv_heads = 8, layer.head_dim_qk = layer.head_dim_v = 128;
    options.layers = &layer, options.layer_count = 32, options.same = 1;
    options.bytes = (int64_t)1 << 30, options.sequences = 64, options.sequence_tokens = 8192;
    GOOD(tp_cache_plan(&options, &capacity, &error));
    assert_int_equal(capacity.token_bytes, 2 * 32 * 8 * 128 * 2); /* 128 KiB, as docs/capacity.md has it */
    assert_int_equal(capacity.page_bytes, 16 * capacity.token_bytes);
    assert_int_equal(capacity.page_slots, 512);
    assert_int_equal(capacity.tokens, 16 * capacity.pages);
    assert_true(capacity.pages == 511 && capacity.bytes <= options.bytes);
    assert_true(capacity.bytes >= capacity.pages * capacity.page_bytes && capacity.bytes + capacity.page_bytes > options.bytes);
    allocator.allocate = allocate, allocator.release = release;
    options.allocator = &allocator;
    for (int64_t bytes = 40000000; bytes < 44000000; bytes += 999999) {
        options.bytes = bytes;
        GOOD(tp_cache_plan(&options, &capacity, &error));
        GOOD(tp_cache_create(&options, &cache, &error));
        assert_int_equal(asked, capacity.bytes);
        assert_int_equal(stats_of(cache).pages, capacity.pages);
        tp_cache_destroy(cache);
        options.bytes = capacity.bytes - 1;
        GOOD(tp_cache_plan(&options, &less, &error));
        assert_int_equal(less.pages, capacity.pages - 1);
    }
    /* no more pages than all sequences together can hold */
    options.bytes = (int64_t)1 << 40, options.sequences = 3, options.sequence_tokens = 33;
    GOOD(tp_cache_plan(&options, &capacity, &error));
    assert_int_equal(capacity.pages, 3 * 3);
    options.bytes = 3000000;
    assert_int_equal(tp_cache_plan(&options, &capacity, &error), TP_OK);
    allocator.user = &allocator; /* no memory */
    assert_int_equal(tp_cache_create(&options, &cache, &error), TP_NO_MEMORY);
    assert_true(cache == NULL && strstr(error.text, "no memory for a cache of 1 pages, 21") != NULL);
    allocator.user = NULL, allocator.allocate = allocate_crooked, allocator.release = release_crooked;
    assert_int_equal(tp_cache_create(&options, &cache, &error), TP_NO_MEMORY);
    assert_true(cache == NULL && strstr(error.text, "it must be 64-byte aligned") != NULL);
}

/* A prompt lies in one run, and two sequences that grow in turns each go on behind themselves. */
static void pages_are_neighbours(void **state) {
    (void)state;
    tp_error error = TP_ERROR_INIT;
    tp_cache_options options = kv_options(4, TP_CACHE_NHD, TP_I32, 4, 60);
    tp_cache *cache = make(&options);
    kv_model a = open_one(cache), b = open_one(cache);
    GOOD(kv_grow(cache, &a, 22, 1, &error));
    GOOD(kv_grow(cache, &b, 10, 100, &error));
    for (int i = 0; i < 50; i++) GOOD(kv_grow(cache, i % 2 ? &a : &b, 1, 1000u + (uint64_t)i, &error));
    kv_verify(cache, &a);
    kv_verify(cache, &b);
    tp_cache_stats stats = stats_of(cache);
    assert_int_equal(stats.breaks, 0);
    assert_int_equal(stats.neighbours, 12 - 1 + 9 - 1);
    /* where nothing lies together any more, every page is still found */
    kv_model c = open_one(cache);
    GOOD(kv_grow(cache, &c, 4 * (60 - 21), 5000, &error));
    kv_verify(cache, &c);
    assert_int_equal(stats_of(cache).pages_used, 60);
    assert_int_equal(stats_of(cache).breaks, 1);
    assert_int_equal(kv_grow(cache, &a, 1, 1, &error), TP_OK);
    assert_int_equal(kv_grow(cache, &b, 4, 1, &error), TP_CACHE_FULL);
    assert_string_equal(error.text,
                        "the cache is full: 1 sequences need 1 more pages of 4 tokens, and of 60 pages 0 are free: close, "
                        "truncate or copy out others first");
    kv_verify(cache, &b);
    tp_cache_destroy(cache);
}

/* A server whose pool is nearly full: prompts of 50 to 1,500 tokens, answers of up to 400, one token of each sequence a step,
   and whoever ends makes room for the next. How many pages lie behind the one before? */
static void pages_stay_together(void **state) {
    (void)state;
    enum { SEQUENCES = 48, PAGES = 3000, STEPS = 6000 };
    tp_cache_layer layer = {1, 1, 1, TP_F16, TP_F16, 1, 0, 0, 0, 0, 0};
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    uint64_t random = 1;
    int64_t sequences[SEQUENCES] = {0}, ends[SEQUENCES], tokens[SEQUENCES], open[SEQUENCES], neighbours = 0, breaks = 0, used = 0;
    options.layers = &layer, options.layer_count = 1, options.sequences = SEQUENCES, options.sequence_tokens = 2000;
    options.bytes = 564000; /* most of them positions: a token is two bytes */
    tp_cache *cache = make(&options);
    assert_true(stats_of(cache).pages > PAGES);
    for (int step = 0; step < STEPS; step++) {
        int64_t count = 0;
        for (int i = 0; i < SEQUENCES; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            if (sequences[i] != 0 && tp_cache_length(cache, sequences[i]) < ends[i]) {
                open[count] = sequences[i], tokens[count++] = 1;
                continue;
            }
            if (sequences[i] != 0) GOOD(tp_cache_close(cache, sequences[i], &error));
            int64_t prompt = 50 + (int64_t)(random >> 33) % 1450;
            GOOD(tp_cache_open(cache, &sequences[i], &error));
            ends[i] = prompt + (int64_t)(random >> 50) % 400;
            if (tp_cache_extend(cache, 1, &sequences[i], &prompt, &error) == TP_OK) continue;
            GOOD(tp_cache_close(cache, sequences[i], &error));
            sequences[i] = 0;
        }
        if (tp_cache_extend(cache, count, open, tokens, &error) != TP_OK) { /* full: the last one has to go */
            assert_string_equal(tp_status_name((tp_status)error.status), "TP_CACHE_FULL");
            for (int i = 0; i < SEQUENCES; i++)
                if (sequences[i] == open[count - 1]) sequences[i] = 0;
            GOOD(tp_cache_close(cache, open[count - 1], &error));
        }
        tp_cache_stats stats = stats_of(cache);
        if (step < STEPS / 4 || step % 50 > 0) continue;
        neighbours += stats.neighbours, breaks += stats.breaks;
        used += 100 * stats.pages_used / stats.pages;
    }
    int64_t share = 1000 * neighbours / (neighbours + breaks), full = used / (STEPS * 3 / 4 / 50);
    print_message("pages behind the one before: %.1f %%, with %d %% of them in use\n", (double)share / 10, (int)full);
    assert_true(full >= 80 && share >= 900);
    tp_cache_destroy(cache);
}

/* Pages are shared until somebody goes on in one; the last holder needs no copy. */
static void copies_on_write(void **state) {
    (void)state;
    for (int layout = TP_CACHE_NHD; layout <= TP_CACHE_HND; layout++) {
        tp_error error = TP_ERROR_INIT;
        tp_cache_options options = kv_options(8, layout, TP_I32, 5, 12);
        tp_cache *cache = make(&options);
        kv_model a = open_one(cache), b, c;
        GOOD(kv_grow(cache, &a, 20, 1, &error));
        b = c = a;
        GOOD(tp_cache_fork(cache, a.sequence, &b.sequence, &error));
        GOOD(tp_cache_share(cache, a.sequence, 17, &c.sequence, &error));
        c.length = 17;
        tp_cache_stats stats = stats_of(cache);
        assert_true(stats.pages_used == 3 && stats.pages_shared == 3 && stats.tail_tokens == 4 && stats.tokens == 57);
        const int64_t named[3] = {c.sequence, a.sequence, b.sequence};
        int32_t with[3], lens[3];
        GOOD(tp_cache_prefixes(cache, 0, 3, NULL, with, lens, &error));
        assert_true(with[0] == -1 && lens[0] == 0 && with[1] == 0 && lens[1] == 20 && with[2] == 0 && lens[2] == 17);
        GOOD(tp_cache_prefixes(cache, 0, 3, named, with, lens, &error));
        assert_true(with[0] == -1 && with[1] == 0 && lens[1] == 17 && with[2] == 1 && lens[2] == 20);
        GOOD(tp_cache_prefixes(cache, 1, 2, NULL, with, lens, &error)); /* numbers are those of the run */
        assert_true(with[0] == -1 && with[1] == 0 && lens[1] == 17);
        int64_t shared = page_at(cache, a.sequence, 2);
        GOOD(kv_grow(cache, &b, 1, 100, &error));
        assert_true(page_at(cache, b.sequence, 2) != shared && page_at(cache, c.sequence, 2) == shared);
        /* both that are left at once: one copy */
        int64_t both[2] = {a.sequence, c.sequence}, tokens[2] = {1, 1};
        GOOD(tp_cache_extend(cache, 2, both, tokens, &error));
        assert_int_equal(stats_of(cache).pages_copied, 2);
        assert_true((page_at(cache, a.sequence, 2) == shared) != (page_at(cache, c.sequence, 2) == shared));
        a.stamps[a.length++] = 200, c.stamps[c.length++] = 300;
        kv_append_all(cache, &a, 20, 1, TP_BF16);
        kv_append_all(cache, &c, 17, 1, TP_F16);
        kv_verify(cache, &a), kv_verify(cache, &b), kv_verify(cache, &c);
        kv_verify_pages(cache, 8);
        stats = stats_of(cache);
        assert_true(stats.pages_used == 5 && stats.pages_shared == 2 && stats.tail_tokens == 3 + 3 + 6);
        /* cut inside a shared page, then go on: the others keep theirs */
        GOOD(tp_cache_truncate(cache, b.sequence, 11, &error));
        b.length = 11;
        GOOD(kv_grow(cache, &b, 3, 400, &error));
        kv_verify(cache, &a), kv_verify(cache, &b), kv_verify(cache, &c);
        GOOD(tp_cache_close(cache, a.sequence, &error));
        kv_verify(cache, &b), kv_verify(cache, &c);
        kv_verify_pages(cache, 8);
        /* the lowest slot is given again, with another number */
        kv_model d = open_one(cache);
        assert_true(tp_cache_slot(cache, d.sequence) == 0 && d.sequence != a.sequence);
        assert_int_equal(tp_cache_length(cache, a.sequence), -1);
        tp_cache_destroy(cache);
    }
}

enum { ROWS = 3, HEADS = 6 };

/* The run of slots 1..3, of which the second has no rows, and a gathered batch in another order: the bits of plain tensors. */
static void attention_reads_it(void **state) {
    (void)state;
    enum { DIM = 34 };
    static float q[3 * ROWS * HEADS * DIM], o[3 * ROWS * HEADS * DIM];
    static float gathered[3 * ROWS * HEADS * DIM], plain[ROWS * HEADS * DIM];
    static float keys[KV_TOKENS * 3 * DIM], values[KV_TOKENS * 3 * DIM];
    tp_error error = TP_ERROR_INIT;
    tp_context *context = call_context_new(1);
    for (int i = 0; i < COUNT(q); i++) q[i] = sinf((float)i);
    for (int trial = 0; trial < 4; trial++) {
        tp_cache_options options = kv_options(trial < 2 ? 5 : 1, trial % 2, TP_I32, 5, 300 / (trial < 2 ? 5 : 1));
        tp_cache *cache = make(&options);
        kv_model models[4];
        for (int i = 0; i < 4; i++) {
            models[i] = open_one(cache);
            GOOD(kv_grow(cache, &models[i], 11 + 17 * i, (uint64_t)i << 20, &error));
        }
        for (int layer = 0; layer < KV_LAYERS; layer++) {
            const tp_cache_layer *is = &kv_layers[layer];
            if (is->kv_heads == 0) continue;
            tp_problem problem;
            tp_tensors t;
            tp_problem_init(&problem);
            problem.q_heads = HEADS, problem.q_len = ROWS, problem.q_layout = TP_PACKED;
            problem.q_dtype = problem.o_dtype = TP_F32;
            tp_problem_causal(&problem);
            GOOD(tp_cache_problem(cache, layer, &problem, &error));
            tp_tensors_init(&t, &problem, q, NULL, NULL, o);
            GOOD(tp_cache_tensors(cache, layer, 1, 3, &t, &error));
            int32_t cu[4] = {0, ROWS, ROWS, 2 * ROWS}, table[2 * KV_TOKENS], lens[2];
            t.cu_seqlens_q = cu;
            t.q_tokens = 2 * ROWS;
            GOOD(tp_attention(context, &problem, NULL, &t, NULL, &error));
            int64_t order[2] = {models[3].sequence, models[1].sequence};
            GOOD(tp_cache_gather(cache, 2, order, table, lens, &error));
            t.k_pages = table, t.kv_lens = lens, t.batch = 2;
            int32_t two[3] = {0, ROWS, 2 * ROWS};
            t.cu_seqlens_q = two;
            t.o.data = gathered;
            GOOD(tp_attention(context, &problem, NULL, &t, NULL, &error));
            const int64_t size = ROWS * HEADS * is->head_dim_v, q_size = ROWS * HEADS * is->head_dim_qk;
            for (int which = 0; which < 2; which++) {
                const kv_model *m = &models[which ? 3 : 1];
                tp_problem alone;
                tp_problem_init(&alone);
                alone.q_heads = HEADS, alone.kv_heads = is->kv_heads, alone.q_len = ROWS, alone.kv_len = m->length;
                alone.head_dim_qk = is->head_dim_qk, alone.head_dim_v = is->head_dim_v;
                tp_problem_causal(&alone);
                for (int64_t n = 0; n < m->length; n++)
                    for (int64_t h = 0; h < is->kv_heads; h++) {
                        float row[KV_ROW];
                        kv_stored(layer, 0, m, n, h, row);
                        memcpy(keys + (n * is->kv_heads + h) * is->head_dim_qk, row, (size_t)is->head_dim_qk * sizeof *row);
                        kv_stored(layer, !is->latent, m, n, h, row);
                        memcpy(values + (n * is->kv_heads + h) * is->head_dim_v, row, (size_t)is->head_dim_v * sizeof *row);
                    }
                tp_tensors p;
                tp_tensors_init(&p, &alone, q + which * q_size, keys, values, plain);
                GOOD(tp_attention(context, &alone, NULL, &p, NULL, &error));
                for (int64_t i = 0; i < size; i++)
                    assert_true(fabsf(plain[i] - o[which * size + i]) <= 1e-4f * (1 + fabsf(plain[i])));
                p.q.data = q + (1 - which) * q_size; /* the other way round in the gathered batch */
                GOOD(tp_attention(context, &alone, NULL, &p, NULL, &error));
                for (int64_t i = 0; i < size; i++)
                    assert_true(fabsf(plain[i] - gathered[(1 - which) * size + i]) <= 1e-4f * (1 + fabsf(plain[i])));
            }
        }
        tp_cache_destroy(cache);
    }
    tp_context_destroy(context);
}

/* To a cache with other pages, behind a prefix that is there already. */
static void copies_move_between_caches(void **state) {
    (void)state;
    tp_error error = TP_ERROR_INIT;
    tp_cache_options small = kv_options(1, TP_CACHE_HND, TP_I64, 2, 100), large = kv_options(16, TP_CACHE_NHD, TP_I32, 2, 9);
    tp_cache *from = make(&small), *to = make(&large);
    kv_model a = open_one(from), b = open_one(to);
    GOOD(kv_grow(from, &a, 45, 1, &error));
    GOOD(kv_grow(to, &b, 13, 1, &error));
    int64_t bytes = tp_cache_copy_bytes(from, a.sequence, 13);
    char *buffer = malloc((size_t)bytes);
    GOOD(tp_cache_copy_out(from, a.sequence, 13, buffer, bytes, &error));
    GOOD(tp_cache_copy_in(to, b.sequence, buffer, bytes, &error));
    int64_t sequence = b.sequence;
    b = a, b.sequence = sequence;
    kv_verify(to, &b);
    /* nothing at all is a copy, too */
    kv_model c = open_one(from), d = open_one(to);
    GOOD(tp_cache_copy_out(from, c.sequence, 0, buffer, tp_cache_copy_bytes(from, c.sequence, 0), &error));
    GOOD(tp_cache_copy_in(to, d.sequence, buffer, bytes, &error));
    kv_verify(to, &d);
    free(buffer);
    tp_cache_destroy(from);
    tp_cache_destroy(to);
}

static void metrics_are_prometheus_text(void **state) {
    (void)state;
    tp_error error = TP_ERROR_INIT;
    tp_cache_options options = kv_options(8, TP_CACHE_NHD, TP_I32, 2, 3);
    options.name = "a \"main\" one";
    tp_cache *cache = make(&options);
    kv_model a = open_one(cache), b = a;
    GOOD(kv_grow(cache, &a, 12, 1, &error));
    GOOD(tp_cache_fork(cache, a.sequence, &b.sequence, &error));
    GOOD(kv_grow(cache, &b, 1, 1, &error));
    assert_int_equal(kv_grow(cache, &b, 8, 1, &error), TP_CACHE_FULL);
    assert_int_equal(tp_cache_open(cache, &b.sequence, &error), TP_CACHE_FULL);
    assert_string_equal(error.text, "all 2 sequences of the cache are open: close one, or make it for more");
    sink *out = sink_new();
    assert_int_equal(tp_cache_metrics_write(cache, collect, out), TP_OK);
    static const char *const lines[] = {
        "# TYPE tileproof_cache_pages_used gauge\ntileproof_cache_pages_used{cache=\"a \\\"main\\\" one\"} 3\n",
        "\ntileproof_cache_pages{cache=\"a \\\"main\\\" one\"} 3\n",
        "_pages_shared{cache=\"a \\\"main\\\" one\"} 1\n",
        "_tail_tokens{cache=\"a \\\"main\\\" one\"} 7\n",
        "_sequences{cache=\"a \\\"main\\\" one\"} 2\n",
        "_cache_tokens{cache=\"a \\\"main\\\" one\"} 25\n",
        "_pages_copied_total{cache=\"a \\\"main\\\" one\"} 1\n",
        "# TYPE tileproof_cache_refusals_total counter\n",
        "_refusals_total{cache=\"a \\\"main\\\" one\"} 2\n",
        "# TYPE tileproof_cache_loss gauge\ntileproof_cache_loss{cache=\"a \\\"main\\\" one\"} 0.0",
        "# TYPE tileproof_cache_finite_loss gauge\ntileproof_cache_finite_loss{cache=\"a \\\"main\\\" one\"} 0.0",
        "# TYPE tileproof_cache_rows_not_finite_total counter\n",
        "tileproof_cache_rows_not_finite_total{cache=\"a \\\"main\\\" one\"} 0\n",
    };
    for (int i = 0; i < COUNT(lines); i++)
        if (times_in(out->text, lines[i]) != 1) fail_msg("not there once: %s in %s", lines[i], out->text);
    assert_int_equal(lines_of(out->text), 3 * 15);
    *out = (sink){.stop_at = 3};
    assert_int_equal(tp_cache_metrics_write(cache, collect, out), TP_INVALID);
    assert_int_equal(out->pieces, 3);
    tp_cache_destroy(cache);
    options.name = NULL;
    cache = make(&options);
    *out = (sink){.stop_at = 0};
    assert_int_equal(tp_cache_metrics_write(cache, collect, out), TP_OK);
    assert_int_equal(times_in(out->text, "\ntileproof_cache_pages 3\n"), 1);
    tp_cache_destroy(cache);
    free(out);
}

/* Several caches are one text: each family has one head, and a line for each of them. */
static void metrics_of_several_caches(void **state) {
    (void)state;
    enum { CACHES = 65 };
    tp_error error = TP_ERROR_INIT;
    tp_cache_options options = kv_options(8, TP_CACHE_NHD, TP_I32, 2, 3);
    const tp_cache *caches[CACHES];
    tp_cache *made[3];
    static const char *const names[3] = {"self", NULL, "cross"};
    for (int i = 0; i < 3; i++) {
        options.name = names[i];
        caches[i] = made[i] = make(&options);
    }
    kv_model a = open_one(made[2]);
    GOOD(kv_grow(made[2], &a, 12, 1, &error));
    sink *out = sink_new();
    GOOD(tp_cache_metrics_write_all(caches, 3, collect, out, &error));
    static const char *const lines[] = {
        "# TYPE tileproof_cache_tokens gauge\ntileproof_cache_tokens{cache=\"self\"} 0\ntileproof_cache_tokens 0\n"
        "tileproof_cache_tokens{cache=\"cross\"} 12\n",
        "\ntileproof_cache_loss{cache=\"self\"} 0\ntileproof_cache_loss 0\ntileproof_cache_loss{cache=\"cross\"} 0.0",
        "\ntileproof_cache_finite_loss{cache=\"self\"} 0\ntileproof_cache_finite_loss "
        "0\ntileproof_cache_finite_loss{cache=\"cross\"} 0.0",
    };
    for (int i = 0; i < COUNT(lines); i++)
        if (times_in(out->text, lines[i]) != 1) fail_msg("not there once: %s in %s", lines[i], out->text);
    assert_int_equal(lines_of(out->text), 5 * 15);
    *out = (sink){.stop_at = 40};
    assert_int_equal(tp_cache_metrics_write_all(caches, 3, collect, out, &error), TP_INVALID);
    assert_string_equal(error.text, "write said stop: the text is not whole");
    *out = (sink){.stop_at = 0};
    for (int i = 3; i < CACHES; i++) caches[i] = caches[0];
    const struct {
        const tp_cache *const *caches;
        int64_t count;
        tp_write write;
        const char *says;
    } wrong[] = {{NULL, 1, collect, "caches is NULL"},
                 {caches, 1, NULL, "write is NULL"},
                 {caches, 0, collect, "count is 0: it must be in 1..64"},
                 {caches, 65, collect, "count is 65: it must be in 1..64"},
                 {caches, 4, collect,
                  "caches[0] and caches[3] are both named \"self\": their series would be the same; "
                  "tp_cache_options.name tells them apart"}};
    for (int i = 0; i < COUNT(wrong); i++) {
        assert_int_equal(tp_cache_metrics_write_all(wrong[i].caches, wrong[i].count, wrong[i].write, out, &error), TP_INVALID);
        assert_string_equal(error.text, wrong[i].says);
    }
    caches[1] = NULL;
    assert_int_equal(tp_cache_metrics_write_all(caches, 2, collect, out, &error), TP_INVALID);
    assert_string_equal(error.text, "caches[1] is NULL");
    assert_int_equal(out->pieces, 0); /* refused before anything was written */
    for (int i = 0; i < 3; i++) tp_cache_destroy(made[i]);
    free(out);
}

/* Flags of the mapping that an address lies in, as the system writes them; "" where it does not say. */
static void flags_of(const void *address, char *flags, size_t size) {
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long long from, to;
    int inside = 0;
    flags[0] = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) inside = (uintptr_t)address >= from && (uintptr_t)address < to;
        if (inside && strncmp(line, "VmFlags:", 8) == 0) strncat(flags, line + 8, size - 1);
    }
    if (file != NULL) fclose(file);
}

/* Of its own memory; a caller's allocator is asked for nothing. */
static void huge_pages_are_asked_for(void **state) {
    (void)state;
    const size_t bytes = 64 << 20;
    char flags[512], *own = NULL;
    tp_allocator given = {sizeof given, 0, allocate, release, NULL};
    tp_cache_layer layer = {8, 128, 128, TP_BF16, TP_BF16, 0, 0, 0, 0, 0, 0};
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    options.layers = &layer, options.layer_count = 1, options.bytes = (int64_t)bytes;
    options.sequences = 1, options.sequence_tokens = 4096;
    assert_int_equal(posix_memalign((void **)&own, 4096, bytes), 0);
    tp__ask_huge_pages(own, bytes);
    flags_of(own + bytes / 2, flags, sizeof flags);
    free(own);
    if (strstr(flags, " hg") == NULL) {
        print_message("not run here: huge_pages_are_asked_for (the system knows no such advice, or does not tell)\n");
        return;
    }
    for (int i = 0; i < 2; i++) {
        options.allocator = i ? &given : NULL;
        tp_cache *cache = make(&options);
        tp_cache_capacity capacity;
        assert_int_equal(tp_cache_plan(&options, &capacity, NULL), TP_OK);
        flags_of((char *)cache + capacity.bytes / 2, flags, sizeof flags);
        assert_int_equal(strstr(flags, " hg") != NULL, i == 0);
        tp_cache_destroy(cache);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_capacity_is_said_first),  cmocka_unit_test(pages_are_neighbours),
        cmocka_unit_test(pages_stay_together),         cmocka_unit_test(copies_on_write),
        cmocka_unit_test(attention_reads_it),          cmocka_unit_test(copies_move_between_caches),
        cmocka_unit_test(metrics_are_prometheus_text), cmocka_unit_test(metrics_of_several_caches),
        cmocka_unit_test(huge_pages_are_asked_for)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
