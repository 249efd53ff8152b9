/* SPDX-License-Identifier: Apache-2.0 */
/* Capacity: figures by hand, pages against brute force over positions, what fits, and what is refused. */
#include <math.h>

#include "capacity.h"

/* ---- by hand ---- */

static void figures_by_hand(void **state) {
    (void)state;
    tp_model *model = declared(mixed_groups);
    tp_capacity_options options = load(100, 3);
    tp_capacity *capacity = ask(model, planner, &options);
    /* layers, tokens, tokens where evicted, bytes of a token in one layer */
    static const int64_t expected[7][4] = {{2, 100, 100, 512}, {3, 100, 37, 128},  {1, 100, 48, 512}, {2, 100, 26, 512},
                                           {0, 0, 0, 0},       {3, 300, 300, 512}, {0, 0, 0, 0}};
    int64_t sums[2] = {0, 0};
    for (int i = 0; i < 7; i++)
        for (int evicts = 0; evicts < 2; evicts++) {
            tp_capacity_cache cache = cache_of(capacity, i, evicts);
            const int64_t *e = expected[i], tokens = e[1 + evicts], grows = tokens == 100;
            assert_int_equal(cache.layers, e[0]);
            assert_int_equal(cache.tokens, tokens);
            assert_int_equal(cache.token_bytes, grows ? e[0] * e[3] : 0);
            assert_int_equal(cache.sequence_bytes, e[0] * e[3] * tokens);
            assert_int_equal(cache.bytes, 3 * cache.sequence_bytes);
            assert_true(cache.pages == 0 && cache.page_bytes == 0 && cache.context_max == 0);
            sums[evicts] += cache.bytes;
        }
    for (int evicts = 0; evicts < 2; evicts++) {
        tp_capacity_cache all = cache_of(capacity, -1, evicts);
        assert_int_equal(all.bytes, sums[evicts]);
        assert_int_equal(all.layers, 11);
        assert_int_equal(all.tokens, 300);
        assert_int_equal(all.token_bytes, evicts ? 2 * 512 : 2 * 512 + 3 * 128 + 512 + 2 * 512);
        assert_true(all.context_max == 0 && all.concurrency_max == 0);
    }
    tp_capacity_destroy(capacity);
    options.cache_dtype = TP_F32;
    capacity = ask(model, planner, &options);
    assert_int_equal(cache_of(capacity, -1, 0).bytes, 2 * sums[0]);
    assert_int_equal(cache_of(capacity, 0, 0).dtype, TP_F32);
    assert_non_null(strstr(work_of(capacity, 0, 1).problem, "bf16:f32:f32"));
    tp_capacity_destroy(capacity);
    tp_model_destroy(model);
}

/* The longest context of a model that is served: 128 KiB a token. */
static void a_model_everybody_knows(void **state) {
    (void)state;
    tp_model *model = support_model("{\"model_type\": \"llama\", \"hidden_size\": 4096, \"num_hidden_layers\": 32, "
                                    "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"rope_theta\": 500000.0, "
                                    "\"max_position_embeddings\": 131072, \"torch_dtype\": \"bfloat16\"}");
    tp_capacity_options options = load(131072, 8);
    options.page_size = 16, options.limit = (int64_t)64 << 30;
    tp_capacity *capacity = ask(model, planner, &options);
    tp_capacity_cache cache = cache_of(capacity, -1, 0);
    assert_int_equal(cache.token_bytes, 128 << 10);
    assert_int_equal(cache.bytes, (int64_t)128 << 30);
    assert_int_equal(cache.pages, 8 * 8192 * 32);
    assert_int_equal(cache.page_bytes, 16 * 2 * 8 * 128 * 2);
    assert_int_equal(cache.concurrency_max, 3); /* 64 GiB would hold four, but for the workspace */
    assert_true(cache.context_max > 65400 && cache.context_max < 65536 && cache.context_max % 16 == 0);
    tp_capacity_destroy(capacity);
    tp_model_destroy(model);
}

static void latents_are_kept_once(void **state) {
    (void)state;
    tp_model *model = support_model(latent_config);
    tp_capacity_options options = load(64, 2);
    tp_capacity *capacity = ask(model, planner, &options);
    assert_int_equal(cache_of(capacity, 0, 0).token_bytes, 2 * 48 * 4);
    assert_non_null(strstr(work_of(capacity, 0, 1).problem, "h4/1 q1 k64 d48/32 f32 latent"));
    assert_non_null(strstr(work_of(capacity, 0, 0).problem, "h4/4 q64 k64 d48/32 f32"));
    tp_capacity_destroy(capacity);
    tp_model_destroy(model);
}

static void layers_that_share_keys(void **state) {
    (void)state;
    static const char text[] = "{\"model_type\": \"gemma3n_text\", \"torch_dtype\": \"bfloat16\"%s}";
    char whole[256];
    snprintf(whole, sizeof whole, text, "");
    tp_model *model = support_model(whole);
    tp_capacity_options options = load(100, 1);
    tp_capacity *capacity = ask(model, planner, &options);
    /* 35 layers, every fifth full; the last 15 keep nothing: 3 of 7 full ones, 12 of 28 that slide */
    assert_int_equal(model->group_count, 2);
    assert_int_equal(model->groups[0]->kv_shared, 12);
    assert_int_equal(model->groups[1]->kv_shared, 3);
    assert_int_equal(cache_of(capacity, 0, 0).layers, 16);
    assert_int_equal(cache_of(capacity, -1, 0).layers, 20);
    assert_int_equal(cache_of(capacity, -1, 0).token_bytes, 20 * 2 * 512 * 2);
    /* they compute all the same */
    assert_true(work_of(capacity, 0, 1).flops == 28 * 2.0 * 100 * 8 * 512);
    tp_capacity_destroy(capacity);
    tp_model_destroy(model);
    snprintf(whole, sizeof whole, text, ", \"num_kv_shared_layers\": 0");
    model = support_model(whole);
    assert_int_equal(model->groups[0]->kv_shared, 0);
    tp_model_destroy(model);
    /* layers 21 to 34, of which 24, 29 and 34 are full; of the first fourteen two would be */
    snprintf(whole, sizeof whole, text, ", \"num_kv_shared_layers\": 14");
    model = support_model(whole);
    assert_true(model->groups[0]->kv_shared == 11 && model->groups[1]->kv_shared == 3);
    tp_model_destroy(model);
    /* no more layers than that: nothing is shared */
    snprintf(whole, sizeof whole, text, ", \"num_hidden_layers\": 15");
    model = support_model(whole);
    assert_int_equal(model->groups[0]->kv_shared + model->groups[1]->kv_shared, 0);
    tp_model_destroy(model);
}

/* ---- against brute force ---- */

/* Pages of which the row that is generated as token `row` sees a key. What it does not see no later row does. */
static int64_t pages_needed(const tp_layer_group *group, int64_t row, int64_t page) {
    int64_t needed = 0, last = -1;
    for (int64_t key = 0; key <= row; key++) {
        int inside = !(group->all_of & TP_TERM_WINDOW) || key >= row - group->window_left;
        inside &= !(group->all_of & TP_TERM_CHUNK) || key / group->chunk == row / group->chunk;
        if ((inside || (group->or_of & TP_TERM_FIRST && key < group->first)) && key / page != last) {
            last = key / page;
            needed++;
        }
    }
    return needed;
}

static void pages_are_those_that_a_row_sees(void **state) {
    (void)state;
    static const int64_t pages[] = {1, 5, 16, 24, 32, 64}, contexts[] = {1, 20, 37, 38, 48, 49, 100, 160};
    tp_model *model = declared(mixed_groups);
    for (int p = 0; p < 6; p++)
        for (int c = 0; c < 8; c++) {
            tp_capacity_options options = load(contexts[c], 2);
            options.page_size = pages[p];
            tp_capacity *capacity = ask(model, planner, &options);
            for (int i = 0; i < 4; i++) {
                tp_capacity_cache kept = cache_of(capacity, i, 0), evicted = cache_of(capacity, i, 1);
                int64_t max = 0, all = (contexts[c] + pages[p] - 1) / pages[p];
                /* where a window begins within a page depends on how long the sequence has become */
                for (int64_t row = 0; i && row < 2000; row++) {
                    int64_t needed = pages_needed(model->groups[i], row, pages[p]);
                    if (needed > max) max = needed;
                }
                assert_int_equal(kept.pages, 2 * kept.layers * all);
                assert_int_equal(evicted.pages, 2 * kept.layers * (i && max < all ? max : all));
                assert_int_equal(evicted.bytes, evicted.pages * evicted.page_bytes);
                assert_int_equal(kept.bytes, kept.pages * kept.page_bytes);
            }
            tp_capacity_destroy(capacity);
        }
    tp_model_destroy(model);
}

/* ---- what fits ---- */

static int64_t total_at(const tp_model *model, tp_capacity_options options, int evicts) {
    options.limit = 0;
    tp_capacity *capacity = ask(model, planner, &options);
    int64_t total = total_of(capacity, evicts);
    tp_capacity_destroy(capacity);
    return total;
}

static void one_more_does_not_fit(void **state) {
    (void)state;
    tp_model *model = declared(mixed_groups);
    for (int64_t page = 0; page <= 16; page += 16)
        for (int64_t limit = 3 << 20; limit < (int64_t)1 << 32; limit = limit * 7 + 12345) {
            tp_capacity_options options = load(200, 5);
            options.limit = limit, options.page_size = page;
            tp_capacity *capacity = ask(model, planner, &options);
            for (int evicts = 0; evicts < 2; evicts++) {
                tp_capacity_cache cache = cache_of(capacity, -1, evicts);
                tp_capacity_options other = options;
                int fits = total_of(capacity, evicts) <= limit;
                assert_int_equal(fits, cache.context_max >= 200);
                assert_int_equal(fits, cache.concurrency_max >= 5);
                other.context = cache.context_max + 1;
                assert_true(other.context == 301 || total_at(model, other, evicts) > limit);
                other.context = cache.context_max;
                assert_true(!other.context || total_at(model, other, evicts) <= limit);
                other = options, other.concurrency = cache.concurrency_max + 1;
                assert_true(total_at(model, other, evicts) > limit);
                other.concurrency = cache.concurrency_max;
                assert_true(!other.concurrency || total_at(model, other, evicts) <= limit);
            }
            tp_capacity_destroy(capacity);
        }
    tp_model_destroy(model);
}

/* ---- a step at best ---- */

static void the_roof_is_the_hosts(void **state) {
    (void)state;
    tp_model *model = declared(mixed_groups);
    tp_capacity_options options = load(100, 3);
    options.gflops = 50, options.read_gbps = 10;
    tp_capacity *capacity = ask(model, planner, &options);
    tp_capacity_work prefill = work_of(capacity, 0, 0), decode = work_of(capacity, 1, 1), all = work_of(capacity, -1, 1);
    /* two layers, 4 heads, 100 causal rows, d64 */
    assert_true(prefill.flops == 2 * 4.0 * 5050 * 2 * 128);
    assert_true(prefill.bytes == 2 * 100.0 * (4 * 128 + 2 * 128) * 2);
    assert_true(prefill.exact && !prefill.reads_bound && fabs(prefill.seconds / (prefill.flops / 50e9) - 1) < 1e-12);
    /* three layers, three rows that see 37 keys of one head; q and o have four heads */
    assert_true(decode.flops == 3 * 3 * 4.0 * 37 * 2 * 64);
    assert_true(fabs(decode.bytes - 3 * 3.0 * (4 * 64 + 37 * 64) * 2) < 1e-6);
    assert_true(decode.reads_bound == (decode.bytes / 10 > decode.flops / 50));
    double seconds = 0, flops = 0;
    for (int i = 0; i < 7; i++) seconds += work_of(capacity, i, 1).seconds, flops += work_of(capacity, i, 1).flops;
    assert_true(fabs(all.seconds / seconds - 1) < 1e-12 && fabs(all.flops / flops - 1) < 1e-12);
    assert_true(all.seconds >= all.bytes / 10e9 && all.seconds >= all.flops / 50e9);
    assert_string_equal(all.problem, "");
    tp_capacity_destroy(capacity);
    options.read_gbps = 0;
    capacity = ask(model, planner, &options);
    assert_true(work_of(capacity, -1, 0).seconds == 0 && !work_of(capacity, -1, 1).reads_bound);
    assert_int_equal(work_of(capacity, 4, 0).workspace_bytes, 0);
    tp_capacity_destroy(capacity);
    tp_model_destroy(model);
}

/* ---- what is refused ---- */

static void refused(const tp_model *model, const tp_capacity_options *options, tp_status status, const char *text) {
    tp_error error = TP_ERROR_INIT;
    tp_capacity *capacity = (tp_capacity *)&error;
    assert_int_equal(tp_capacity_create(model, planner, options, &capacity, &error), status);
    assert_null(capacity);
    assert_int_equal(error.status, status);
    if (!strstr(error.text, text)) fail_msg("'%s' is not in '%s'", text, error.text);
}

static void impossible_capacity(void **state) {
    (void)state;
    tp_model *model = declared(mixed_groups), *still = declared("{\"layers\": \"0\", \"problem\": \"h4 d64 bf16\"}");
    tp_model *wide = declared("{\"layers\": \"0-3\", \"problem\": \"h2 d640 bf16 causal\"}");
    tp_model *lost = declared("{\"part\": \"cross\", \"layers\": \"0\", \"problem\": \"h4 d64 bf16\"}");
    tp_capacity_options good = load(100, 3), bad;
    const int64_t huge = (int64_t)1 << 40;
#define REFUSED(change, text) (bad = good, bad.change, refused(model, &bad, TP_INVALID, text))
    REFUSED(context = 0, "context is 0: it must be in 1..1099511627776");
    REFUSED(context = 301, "context is 301: model.json takes at most 300 tokens");
    REFUSED(concurrency = 0, "concurrency is 0: it must be in 1..");
    REFUSED(concurrency = huge + 1, "concurrency is 1099511627777: it must be in 1..1099511627776");
    REFUSED(page_size = 4097, "page_size is 4097: it must be in 0..4096");
    REFUSED(page_size = -1, "page_size is -1");
    REFUSED(limit = -1, "limit is -1");
    REFUSED(threads = 1025, "threads is 1025: it must be in 0..1024");
    REFUSED(reserved = 1, "reserved is 1");
    REFUSED(reserved_too = 1, "reserved_too is 1");
    REFUSED(device = -1, "device is -1");
    REFUSED(device = 256, "device is 256");
    REFUSED(cache_dtype = 99, "cache_dtype is 99: it must be in 0..7");
    REFUSED(gflops = NAN, "gflops is nan");
    REFUSED(read_gbps = -1, "read_gbps -1");
    REFUSED(limit = 1000, "limit is 1000 bytes: it must be at least ");
    bad = good, bad.cache_dtype = TP_E4M3;
    refused(model, &bad, TP_UNSUPPORTED, "cache_dtype is e4m3: it must be f32, f16 or bf16; codes and their scales");
    bad.cache_dtype = TP_I4;
    refused(model, &bad, TP_UNSUPPORTED, "cache_dtype is i4: it must be f32, f16 or bf16; codes and their scales");
    REFUSED(cache = "fp8", "cache is 'fp8': it must be plain, i8,");
    refused(still, &good, TP_UNSUPPORTED, "model.json: no layer of it generates");
    refused(lost, &good, TP_INVALID, "how many keys its cross layers have is not said");
    refused(wide, &good, TP_FALLBACK_REFUSED, "model.json, text layers 0-3, prefill: fallback refused");
    tp_model_destroy(model);
    model = declared("{\"layers\": \"0-9\", \"problem\": \"h4 d64 bf16 causal\"}");
    bad = load(huge, huge);
    refused(model, &bad, TP_INVALID, "1099511627776 sequences of 1099511627776 tokens: their bytes must be below 2^63");
    tp_error error = TP_ERROR_INIT;
    tp_capacity *capacity;
    assert_int_equal(tp_capacity_create(NULL, planner, &good, &capacity, &error), TP_INVALID);
    assert_int_equal(tp_capacity_create(model, NULL, &good, &capacity, &error), TP_INVALID);
    assert_int_equal(tp_capacity_create(model, planner, NULL, &capacity, &error), TP_INVALID);
    assert_int_equal(tp_capacity_create(model, planner, &good, NULL, &error), TP_INVALID);
    capacity = ask(model, planner, &good);
    tp_capacity_cache cache = TP_CAPACITY_CACHE_INIT;
    tp_capacity_work work = TP_CAPACITY_WORK_INIT;
    for (int group = -2; group < 3; group++)
        for (int kind = -1; kind < 3; kind++) {
            tp_status status = group >= -1 && group < 1 && (kind == 0 || kind == 1) ? TP_OK : TP_INVALID;
            assert_int_equal(tp_capacity_cache_at(capacity, group, kind, &cache), status);
            assert_int_equal(tp_capacity_work_at(capacity, group, kind, &work), status);
        }
    assert_int_equal(tp_capacity_cache_at(NULL, 0, 0, &cache), TP_INVALID);
    tp_capacity_destroy(capacity);
    tp_capacity_destroy(NULL);
    tp_model_destroy(model), tp_model_destroy(still), tp_model_destroy(wide), tp_model_destroy(lost);
}

/* A fallback that is permitted is counted with its own workspace. */
static void a_fallback_is_counted(void **state) {
    (void)state;
    tp_context *context = support_context(TP_PERMIT, "");
    tp_model *wide = declared("{\"layers\": \"0-3\", \"problem\": \"h2 d640 bf16 causal\"}");
    tp_capacity_options options = load(100, 3);
    tp_capacity *capacity = ask(wide, context, &options);
    assert_string_equal(work_of(capacity, -1, 0).kernel, "math");
    assert_true(work_of(capacity, -1, 0).workspace_bytes > 100 * 100 * 4);
    tp_capacity_destroy(capacity);
    tp_model_destroy(wide);
    tp_context_destroy(context);
}

int main(void) {
    planner = one_thread();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_by_hand),
        cmocka_unit_test(a_model_everybody_knows),
        cmocka_unit_test(latents_are_kept_once),
        cmocka_unit_test(layers_that_share_keys),
        cmocka_unit_test(pages_are_those_that_a_row_sees),
        cmocka_unit_test(one_more_does_not_fit),
        cmocka_unit_test(the_roof_is_the_hosts),
        cmocka_unit_test(impossible_capacity),
        cmocka_unit_test(a_fallback_is_counted),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tp_context_destroy(planner);
    return failed;
}
