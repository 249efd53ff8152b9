/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of tileproof_cache.h that takes or gives a struct, by a program of another version than the library's. */
#include "growth/growth.h"

#include "tileproof_cache.h"

static void a_cache(void **state) {
    (void)state;
    tp_error *error = PLACE_INIT(tp_error, TP_ERROR_INIT);
    tp_cache_options *options = PLACE_INIT(tp_cache_options, TP_CACHE_OPTIONS_INIT);
    tp_cache_layer layer = TP_CACHE_LAYER_INIT;
    tp_cache_capacity *capacity = PLACE(tp_cache_capacity);
    tp_cache *cache = NULL;
    layer.kv_heads = 1, layer.head_dim_qk = layer.head_dim_v = 2, layer.k_dtype = layer.v_dtype = TP_F32;
    options->layers = &layer, options->layer_count = 3, options->same = 1;
    options->bytes = 1 << 16, options->sequences = 2, options->sequence_tokens = 40;
#define PLAN tp_cache_plan(options, capacity, error)
    REFUSES(options, tp_cache_options, PLAN);
    REFUSES_SIZE(options, tp_cache_options, PLAN);
    GOOD(PLAN);
    assert_true(capacity->struct_size == sizeof *capacity && GROWN(capacity) == 0 && capacity->pages == 6);
    assert_int_equal(tp_cache_plan_sized(options, capacity, 8, error), TP_INVALID);
    assert_non_null(strstr(error->text, "tp_cache_capacity.struct_size is 8: it must be in "));
#define CREATE tp_cache_create(options, &cache, error)
    REFUSES(options, tp_cache_options, CREATE);
    REFUSES_SIZE(options, tp_cache_options, CREATE);
    GOOD(CREATE);
    int64_t sequence, one = 1;
    GOOD(tp_cache_open(cache, &sequence, error));
    GOOD(tp_cache_extend(cache, 1, &sequence, &one, error));
    tp_cache_rows *rows = PLACE_INIT(tp_cache_rows, TP_CACHE_ROWS_INIT);
    float numbers[2] = {3, 4};
    rows->dtype = TP_F32, rows->count = 1, rows->sequences = &sequence, rows->tokens = &one;
    rows->k.data = rows->v.data = numbers;
#define APPEND tp_cache_append(cache, 2, rows, error)
    REFUSES(rows, tp_cache_rows, APPEND);
    REFUSES_SIZE(rows, tp_cache_rows, APPEND);
    GOOD(APPEND);
    tp_problem *problem = PLACE(tp_problem);
    tp_tensors *tensors = PLACE(tp_tensors);
    tp_problem_init(problem);
    tp_tensors_init(tensors, problem, NULL, NULL, NULL, NULL);
    REFUSES(problem, tp_problem, tp_cache_problem(cache, 2, problem, error));
    REFUSES_SIZE(problem, tp_problem, tp_cache_problem(cache, 2, problem, error));
    REFUSES(tensors, tp_tensors, tp_cache_tensors(cache, 2, 0, 1, tensors, error));
    REFUSES_SIZE(tensors, tp_tensors, tp_cache_tensors(cache, 2, 0, 1, tensors, error));
    GOOD(tp_cache_problem(cache, 2, problem, error));
    GOOD(tp_cache_tensors(cache, 2, 0, 1, tensors, error));
    assert_true(problem->page_size == 16 && ((const float *)tensors->v.data)[1] == 4 && *(const int32_t *)tensors->kv_lens == 1);
    tp_cache_stats *stats = PLACE(tp_cache_stats);
    GOOD(tp_cache_stats_read(cache, stats, error));
    assert_true(stats->struct_size == sizeof *stats && GROWN(stats) == 0 && stats->tail_tokens == 15);
    assert_int_equal(tp_cache_stats_read_sized(cache, stats, 8, error), TP_INVALID);
    assert_non_null(strstr(error->text, "tp_cache_stats.struct_size is 8: it must be in "));
    tp_cache_destroy(cache);
    growth_free();
}

/* No struct of the header is missing above. */
static void every_struct_is_met(void **state) {
    (void)state;
#ifdef TILEPROOF_CACHE_GROWN
#define MET(type)                                                                                                                \
    if (!growth_knows(#type)) fail_msg("%s", #type " has a struct_size and is in no test of growth");
    TILEPROOF_CACHE_GROWN(MET)
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_cache), cmocka_unit_test(every_struct_is_met)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
