/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capacity against what calls really take. Pools of exactly the bytes that were said, from an allocator that counts and ends each
 * block at a page without access, serve real calls; their last bytes are read; and what the allocator gave out in all is what
 * capacity says.
 */
#include <math.h>
#include <sys/mman.h>

#include "capacity.h"

/* ---- an allocator that counts ---- */

static int64_t live_bytes;

static size_t mapped(size_t bytes) {
    return (bytes + 4095) / 4096 * 4096 + 4096;
}

static void *allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    assert_true(bytes % alignment == 0);
    char *map = mmap(NULL, mapped(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + mapped(bytes) - 4096, 4096, PROT_NONE)) return NULL;
    live_bytes += (int64_t)bytes;
    return map + mapped(bytes) - 4096 - bytes;
}

static void release(void *user, void *memory, size_t bytes) {
    (void)user;
    live_bytes -= (int64_t)bytes;
    munmap((char *)memory + bytes + 4096 - mapped(bytes), mapped(bytes));
}

static tp_context *counting_context(int threads) {
    tp_allocator allocator = TP_ALLOCATOR_INIT;
    tp_context_options options = TP_CONTEXT_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_context *context;
    allocator.allocate = allocate, allocator.release = release;
    options.threads = threads, options.allocator = &allocator;
    if (tp_context_create(&options, &context, &error) != TP_OK) fail_msg("%s", error.text);
    return context;
}

/* ---- calls ---- */

/* k, v and the scales that they have beside their codes; v of latents is part of k. */
enum { K, V, K_SCALES, V_SCALES, PARTS };
struct pool {
    void *part[PARTS];
    size_t bytes[PARTS];
};

static size_t pool_bytes(const tp_tensor *tensor, int64_t places, int32_t dtype) {
    size_t units = (size_t)(tensor->stride[0] * places);
    return dtype == TP_I4 ? units / 2 : units * tp_dtype_bytes((tp_dtype)dtype);
}

static size_t scales_bytes(const tp_tensor *tensor, int64_t places, int32_t kind) {
    size_t unit = kind == TP_SCALES_TOKEN ? sizeof(float) : kind == TP_SCALES_GROUP ? sizeof(uint16_t) : 0;
    return (size_t)(tensor->stride[0] * places) * unit;
}

static void *take(tp_context *context, size_t bytes) {
    tp_error error = TP_ERROR_INIT;
    void *memory;
    if (tp_memory_allocate(context, TP_CPU, bytes, &memory, &error) != TP_OK) fail_msg("%s", error.text);
    memset(memory, 0, bytes);
    return memory;
}

/* One call of a layer by the text that capacity gives; its pools come from the context, as the problem lays them out. Where all
   of them is in use, their last value is read: a NaN there reaches the output. */
static struct pool run_layer(tp_context *context, const char *text, const char *kernel) {
    tp_error error = TP_ERROR_INIT;
    tp_lengths lengths = {.struct_size = sizeof lengths};
    tp_receipt receipt;
    tp_problem problem;
    tp_tensors tensors;
    if (tp_problem_parse(text, &problem, &lengths, &error) != TP_OK) fail_msg("%s: %s", text, error.text);
    int64_t page = problem.page_size, slots = page ? (problem.kv_len + page - 1) / page : 1, places = problem.batch * slots;
    int64_t rows = problem.batch * problem.q_len * problem.q_heads, outputs = rows * problem.head_dim_v;
    size_t o_bytes = tp_dtype_bytes((tp_dtype)problem.o_dtype);
    size_t last_bytes = problem.v_scales == TP_SCALES_TOKEN   ? sizeof(float)
                        : problem.v_scales == TP_SCALES_GROUP ? sizeof(uint16_t)
                                                              : tp_dtype_bytes((tp_dtype)problem.v_dtype);
    static float one = 1;
    float *q = calloc((size_t)(rows * problem.head_dim_qk), sizeof *q);
    char *o = calloc((size_t)outputs, sizeof(float));
    int32_t *table = calloc((size_t)places, sizeof *table);
    assert_true(q && o && table);
    tp_tensors_init(&tensors, &problem, q, NULL, NULL, o);
    struct pool pool = {.bytes = {pool_bytes(&tensors.k, places, problem.k_dtype),
                                  pool_bytes(&tensors.v, places, problem.v_dtype),
                                  scales_bytes(&tensors.k_scales, places, problem.k_scales),
                                  scales_bytes(&tensors.v_scales, places, problem.v_scales)}};
    if (problem.latent) pool.bytes[V] = pool.bytes[V_SCALES] = 0;
    for (int i = 0; i < PARTS; i++)
        if (pool.bytes[i]) pool.part[i] = take(context, pool.bytes[i]);
    tensors.k.data = pool.part[K], tensors.v.data = pool.part[problem.latent ? K : V];
    tensors.k_scales.data = pool.part[K_SCALES], tensors.v_scales.data = pool.part[problem.latent ? K_SCALES : V_SCALES];
    if (problem.latent) memcpy(tensors.v.stride, tensors.k.stride, sizeof tensors.v.stride);
    if (problem.latent) memcpy(tensors.v_scales.stride, tensors.k_scales.stride, sizeof tensors.v_scales.stride);
    if (problem.k_scales == TP_SCALES_TENSOR) tensors.k_scales.data = tensors.v_scales.data = &one;
    for (int64_t i = 0; i < places; i++) table[i] = (int32_t)(places - 1 - i); /* the first sequence's page is the last one */
    if (page) tensors.k_pages = table, tensors.page_slots = slots, tensors.pages = places;
    int full = !problem.latent && (!page || problem.kv_len % page == 0),
        windowed = strstr(text, "window=") || strstr(text, "chunk=");
    int last = pool.part[V_SCALES] ? V_SCALES : V; /* a NaN there is one of v's last element */
    if (full) memset((char *)pool.part[last] + pool.bytes[last] - last_bytes, 0xFF, last_bytes);
    tp_receipt_init(&receipt);
    if (tp_attention(context, &problem, NULL, &tensors, &receipt, &error) != TP_OK) fail_msg("%s: %s", text, error.text);
    assert_string_equal(receipt.kernel, kernel);
    int nan = 0;
    for (int64_t i = 0; i < outputs; i++) nan |= isnan(tp_to_float((tp_dtype)problem.o_dtype, o + (size_t)i * o_bytes));
    /* rows of decode with a window do not see the first sequence's first page, which lies last */
    if (!(windowed && page && problem.q_len == 1)) assert_int_equal(nan, full);
    free(q), free(o), free(table);
    return pool;
}

static void give(tp_context *context, struct pool *pool) {
    for (int i = 0; i < PARTS; i++)
        if (pool->bytes[i]) tp_memory_free(context, TP_CPU, pool->part[i], pool->bytes[i], NULL);
}

/* A library without a pool has one thread, however many are asked for. */
static int threads_had(int threads) {
    tp_context *context = counting_context(threads);
    int had = tp_context_threads(context);
    tp_context_destroy(context);
    return had;
}

/* Each call on a context that has made no other takes the workspace that was said. */
static void serve_alone(const tp_capacity *capacity, int group, int threads) {
    for (int decode = 0; decode < 2; decode++) {
        tp_capacity_work work = work_of(capacity, group, decode);
        tp_context *context = counting_context(threads);
        int64_t before = live_bytes;
        struct pool pool = run_layer(context, work.problem, work.kernel);
        give(context, &pool);
        assert_int_equal(live_bytes - before, work.workspace_bytes);
        tp_context_destroy(context);
    }
}

/* The phase and group whose workspace is the largest. */
static tp_capacity_work largest(const tp_capacity *capacity, int groups) {
    tp_capacity_work heaviest = work_of(capacity, 0, 0);
    for (int i = 0; i < 2 * groups; i++)
        if (work_of(capacity, i / 2, i % 2).workspace_bytes > heaviest.workspace_bytes)
            heaviest = work_of(capacity, i / 2, i % 2);
    return heaviest;
}

/* Every layer that keeps keys has its pool, all at once, and one context serves them. */
static void serve_all(const tp_model *model, const tp_capacity *capacity, int threads) {
    tp_context *context = counting_context(threads);
    tp_capacity_work heaviest = largest(capacity, model->group_count);
    struct pool pools[64];
    int64_t count = 0, peak;
    /* the largest workspace first: it grows in steps otherwise */
    struct pool first = run_layer(context, heaviest.problem, heaviest.kernel);
    give(context, &first);
    for (int i = 0; i < model->group_count; i++) {
        tp_capacity_cache cache = cache_of(capacity, i, 0);
        tp_capacity_work work = work_of(capacity, i, 1);
        int64_t before = live_bytes;
        for (int64_t layer = 0; layer < cache.layers; layer++) pools[count++] = run_layer(context, work.problem, work.kernel);
        assert_int_equal(live_bytes - before, cache.bytes);
    }
    peak = live_bytes;
    assert_int_equal(peak, total_of(capacity, 0)); /* pools and workspace: all that there is */
    while (count > 0) give(context, &pools[--count]);
    tp_context_destroy(context);
    assert_int_equal(live_bytes, 0);
}

static void what_is_said_is_what_calls_take(void **state) {
    (void)state;
    tp_model *models[] = {declared(mixed_groups), support_model(latent_config), support_model(support_config)};
    static const tp_capacity_options kinds[] = {{.context = 64},
                                                {.context = 70, .page_size = 16},
                                                {.context = 96, .page_size = 32, .cache_dtype = TP_F32},
                                                {.context = 70, .page_size = 16, .cache = "i8"},
                                                {.context = 64, .page_size = 16, .cache = "i4"},
                                                {.context = 64, .cache = "e4m3"}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    for (int i = 0; i < 3 * 2 * KINDS; i++) {
        tp_model *model = models[i / (2 * KINDS)];
        tp_capacity_options options = kinds[i % KINDS];
        options.struct_size = sizeof options, options.concurrency = 3, options.threads = threads_had(1 + i / KINDS % 2);
        tp_capacity *capacity = ask(model, planner, &options);
        for (int group = 0; group < model->group_count; group++)
            if (cache_of(capacity, group, 0).layers) serve_alone(capacity, group, options.threads);
        serve_all(model, capacity, options.threads);
        tp_capacity_destroy(capacity);
    }
    for (int m = 0; m < 3; m++) tp_model_destroy(models[m]);
}

int main(void) {
    planner = one_thread();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_said_is_what_calls_take),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tp_context_destroy(planner);
    return failed;
}
