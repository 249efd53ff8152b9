/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's floating-point environment (rounding mode, flush to zero, exceptions that trap) changes nothing at any
   entry point, and is given back as it was. */
#define _GNU_SOURCE /* feenableexcept */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/back.h"
#include "support/environment.h"
#include "support/parallel.h"
#include "tileproof_cache.h"

/* What every entry point gave, byte by byte. */
typedef struct answers {
    size_t used;
    unsigned char bytes[1 << 17];
} answers;

static void note(answers *to, const void *bytes, size_t size) {
    assert_true(to->used + size <= sizeof to->bytes);
    memcpy(to->bytes + to->used, bytes, size);
    to->used += size;
}

static void ask_conversions(answers *to) {
    for (uint32_t i = 0; i < 4000; i++) {
        uint32_t pattern = i * 2654435761u;
        uint16_t out;
        float value;
        if (i % 2) pattern = 0x33000000u + i * 2999u; /* what f16 keeps as a subnormal */
        memcpy(&value, &pattern, sizeof value);
        tp_from_float(i % 4 < 2 ? TP_F16 : TP_BF16, value, &out);
        note(to, &out, sizeof out);
        value = tp_to_float(TP_F16, &out);
        note(to, &value, sizeof value); /* a NaN, too, by its bits */
    }
}

static void ask_texts(answers *to) {
    static const char *const texts[] = {"q4 k4 d8 scale=0.1",
                                        "q4 k4 d8 scale=3e-42",
                                        "q4 k4 d8 softcap=33.3333333 dropout=0.7",
                                        "q4 k4 d8 scale=-1.000000119 qscale=0.3,4,1",
                                        "q4 k4 d8 scale=3e38",
                                        "q4 k4 d8 scale=1e99"};
    for (int i = 0; i < COUNT(texts); i++) {
        tp_problem p;
        char text[256] = "";
        tp_status status = tp_problem_parse(texts[i], &p, NULL, NULL);
        note(to, &status, sizeof status);
        if (status == TP_OK) tp_problem_print(&p, NULL, text, sizeof text);
        note(to, text, sizeof text);
        if (status == TP_OK) note(to, &p.scale, sizeof p.scale);
    }
    tp_problem p; /* scale * log2(e) overflows */
    tp_problem_init(&p);
    p.q_len = p.kv_len = p.head_dim_qk = p.head_dim_v = 4;
    p.scale_set = 1, p.scale = 3e38f;
    tp_status status = tp_problem_check(&p, NULL);
    note(to, &status, sizeof status);
    tp_error error = TP_ERROR_INIT; /* of more digits than are printed */
    p.scale_set = 0, p.softcap = 1.23456789e30f;
    assert_int_equal(tp_problem_check(&p, &error), TP_INVALID);
    note(to, error.text, strlen(error.text));
}

static void ask_merge(answers *to) {
    float o[3][12], lse[3][3], merged[12], merged_lse[3];
    const float *o_parts[] = {o[0], o[1], o[2]}, *lse_parts[] = {lse[0], lse[1], lse[2]};
    /* all exact: the test itself computes in the caller's environment */
    for (int i = 0; i < 36; i++) o[i / 12][i % 12] = i % 5 ? (float)(i * 37 % 101) / 8 : 0x1p-140f;
    for (int i = 0; i < 9; i++) lse[i / 3][i % 3] = (float)(i * 13 % 17) / 4;
    tp_status status = tp_merge(3, 3, 4, o_parts, lse_parts, merged, merged_lse, NULL);
    note(to, &status, sizeof status);
    note(to, merged, sizeof merged);
    note(to, merged_lse, sizeof merged_lse);
}

static void ask_reference(answers *to, const call *c) {
    double o[2 * 8], lse[2], bound[2], lse_bound[2];
    const tp_row rows[] = {{0, 1, 2}, {1, 0, 7}};
    for (int precision = TP_DOUBLE; precision <= TP_NAIVE; precision++) {
        memset(bound, 0, sizeof bound), memset(lse_bound, 0, sizeof lse_bound);
        tp_status status = tp_reference(&c->problem, &c->tensors, (tp_precision)precision, TP_ARITHMETIC_F32, 2, rows, o, lse,
                                        bound, lse_bound, NULL);
        note(to, &status, sizeof status);
        note(to, o, sizeof o);
        note(to, lse, sizeof lse);
        note(to, bound, sizeof bound);
        note(to, lse_bound, sizeof lse_bound);
    }
    double d_q[9 * 2 * 8];
    tp_tensors t = c->tensors;
    tp_gradients g = TP_GRADIENTS_INIT;
    g.d_o = t.o, g.d_o.data = t.q.data;
    t.gradients = &g;
    tp_reference_gradients out = {.struct_size = sizeof out, .d_q = d_q};
    tp_status status = tp_reference_backward(&c->problem, &t, TP_DOUBLE, 0, 0, &out, NULL);
    assert_int_equal(status, TP_OK);
    note(to, d_q, sizeof d_q);
}

/* The gradients, with those that are summed when all tasks are done. */
static void ask_backward(answers *to, back *b) {
    for (int threads = 1; threads <= 2; threads++) {
        parallel p = {.threads = 2};
        tp_status status =
            back_try(b, &(call_how){.threads = threads, .parallel_for = parallel_threads, .user = &p}, NULL, NULL);
        note(to, &status, sizeof status);
        for (int i = BACK_DQ; i <= BACK_DV; i++) note(to, b->rows.buffer[i].memory, b->rows.buffer[i].bytes);
        note(to, b->d_slopes, (size_t)b->slope_count * sizeof(float));
        note(to, b->d_sinks, (size_t)b->problem.q_heads * sizeof(float));
    }
}

static int note_text(void *cookie, const char *text, size_t size) {
    note(cookie, text, size);
    return 0;
}

static void ask_rope(answers *to) {
    tp_rope_options options = TP_ROPE_OPTIONS_INIT;
    tp_rope_rows rows = TP_ROPE_ROWS_INIT;
    options.head_dim = 32, options.kind = TP_ROPE_LLAMA3, options.factor = 8, options.original_length = 8192;
    options.low_freq_factor = 1, options.high_freq_factor = 4;
    rows.dtype = TP_F32, rows.tokens = rows.heads = 1;
    for (int64_t i = 0; i < 40; i++) {
        tp_rotary *rotary = NULL;
        float row[32], weight[32];
        int64_t position = i * i * 1009;
        options.theta = (double)(10007 + i), options.angle = (int32_t)i % 2; /* exact: nothing traps here */
        for (int x = 0; x < 32; x++) row[x] = x % 5 ? (float)(x - 7) : 3e-42f, weight[x] = x % 2 ? 0.3f : -1.7f;
        rows.in.data = rows.out.data = row, rows.positions = &position, rows.norm_weight = i % 3 ? weight : NULL;
        rows.norm_eps = 1e-6f;
        tp_status made = tp_rope_create(&options, &rotary, NULL), turned = tp_rope_apply(rotary, &rows, NULL);
        note(to, &made, sizeof made);
        note(to, &turned, sizeof turned);
        note(to, row, sizeof row);
        tp_rope_destroy(rotary);
    }
}

static float bits_of(uint32_t pattern) {
    float value;
    memcpy(&value, &pattern, sizeof value);
    return value;
}

#define QUIET_NAN     0x7fc00000u
#define SIGNALING_NAN 0x7fa00000u

static void note_error(answers *to, tp_status status, const tp_error *error) {
    note(to, &status, sizeof status);
    if (status != TP_OK) note(to, error->text, strlen(error->text));
}

/* Rules are comparisons: they trap at a NaN, and take a subnormal for 0. */
static void ask_rules(answers *to) {
    static const uint32_t patterns[] = {QUIET_NAN, SIGNALING_NAN, 3000 /* 4.2e-42 */, 0x80000bb8u};
    for (int i = 0; i < COUNT(patterns); i++) {
        tp_error error = TP_ERROR_INIT;
        tp_problem p;
        char text[256] = "";
        tp_problem_init(&p);
        p.q_len = p.kv_len = p.head_dim_qk = p.head_dim_v = 4;
        p.softcap = p.dropout = bits_of(patterns[i]);
        note_error(to, tp_problem_check(&p, &error), &error);
        tp_problem_print(&p, NULL, text, sizeof text); /* of what nobody has checked */
        note(to, text, strlen(text));
        tp_rope_options options = TP_ROPE_OPTIONS_INIT;
        tp_rotary *rotary = NULL;
        uint64_t wide = (uint64_t)patterns[i] << 32;
        options.head_dim = 8, options.kind = TP_ROPE_DEFAULT;
        memcpy(&options.theta, &wide, sizeof wide);
        note_error(to, tp_rope_create(&options, &rotary, &error), &error);
        tp_cache_layer layer = TP_CACHE_LAYER_INIT;
        tp_cache_options pool = TP_CACHE_OPTIONS_INIT;
        tp_cache_capacity capacity = {.struct_size = sizeof capacity};
        layer.kv_heads = 1, layer.head_dim_qk = layer.head_dim_v = 8;
        layer.k_dtype = TP_E4M3, layer.k_scales = TP_SCALES_TENSOR, layer.k_scale = bits_of(patterns[i]);
        pool.bytes = 1 << 20, pool.sequences = 2, pool.sequence_tokens = 64;
        pool.layers = &layer, pool.layer_count = pool.same = 1;
        note_error(to, tp_cache_plan(&pool, &capacity, &error), &error);
        note(to, &capacity.pages, sizeof capacity.pages);
    }
}

/* A call whose slope is a NaN. */
static void ask_slopes(answers *to, call *c) {
    tp_error error = TP_ERROR_INIT;
    float slopes[2] = {bits_of(0x3e000000u), bits_of(SIGNALING_NAN)};
    tp_tensors t = c->tensors;
    t.alibi_slopes = slopes, t.alibi_stride = 0;
    note_error(to, tp_check_deep(&c->problem, &t, &error), &error);
}

static void ask_codes(answers *to, tp_dtype dtype, tp_scales kind, uint32_t scale) {
    float values[2 * 64], tensor = bits_of(scale), apart[2] = {0, 0};
    uint16_t groups[4] = {0, 0, 0, 0};
    unsigned char codes[2 * 68] = {0};
    double loss = 0;
    tp_error error = TP_ERROR_INIT;
    tp_quantised q = TP_QUANTISED_INIT;
    for (int i = 0; i < 128; i++) values[i] = i % 7 ? (float)(i * 37 % 101 - 50) / 8 : bits_of(3000);
    q.dtype = dtype, q.kind = kind, q.rows = 2, q.dim = 64, q.values = values, q.values_stride = 64;
    q.codes = codes, q.codes_stride = kind == TP_SCALES_Q8_0 ? 68 : 64;
    q.scales = kind == TP_SCALES_TENSOR ? (void *)&tensor : kind == TP_SCALES_TOKEN ? (void *)apart : (void *)groups;
    q.scales_stride = kind == TP_SCALES_TOKEN ? 1 : 2;
    note_error(to, tp_quantise(&q, &loss, &error), &error);
    note(to, &loss, sizeof loss);
    note(to, codes, sizeof codes);
    note(to, apart, sizeof apart);
    note(to, groups, sizeof groups);
    note_error(to, tp_dequantise(&q, &error), &error);
    note(to, values, sizeof values);
    q.values_dtype = TP_F16; /* into the same memory */
    note_error(to, tp_dequantise(&q, &error), &error);
    note(to, values, sizeof values);
}

static void ask_quantised(answers *to) {
    ask_codes(to, TP_I8, TP_SCALES_TOKEN, 0);
    ask_codes(to, TP_I8, TP_SCALES_Q8_0, 0);
    ask_codes(to, TP_I4, TP_SCALES_GROUP, 0);
    ask_codes(to, TP_E4M3, TP_SCALES_TOKEN, 0);
    ask_codes(to, TP_E4M3, TP_SCALES_TENSOR, 0x3d19999au);
    ask_codes(to, TP_E4M3, TP_SCALES_TENSOR, SIGNALING_NAN);
    ask_codes(to, TP_E4M3, TP_SCALES_TENSOR, QUIET_NAN);
    ask_codes(to, TP_E4M3, TP_SCALES_TENSOR, 3000);
}

/* Rows that lose something, and the metrics that say how much; an epsilon that is a NaN. */
static void ask_cache(answers *to) {
    static const int64_t tokens = 3;
    tp_cache_layer layer = TP_CACHE_LAYER_INIT;
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_cache_rows rows = TP_CACHE_ROWS_INIT;
    tp_rope_rows plain = TP_ROPE_ROWS_INIT;
    tp_rope_options turn = TP_ROPE_OPTIONS_INIT;
    tp_cache_stats stats = {.struct_size = sizeof stats};
    tp_error error = TP_ERROR_INIT;
    tp_cache *cache;
    tp_rotary *rotary = NULL;
    int64_t sequence, position = 5;
    float k[3 * 8], norm[8];
    for (int i = 0; i < 24; i++) k[i] = (float)(i * 37 % 101 - 50) / 8, norm[i % 8] = bits_of(0x3e99999au);
    layer.kv_heads = 1, layer.head_dim_qk = layer.head_dim_v = 8;
    layer.k_dtype = layer.v_dtype = TP_I8, layer.k_scales = layer.v_scales = TP_SCALES_TOKEN;
    options.bytes = 1 << 20, options.sequences = 2, options.sequence_tokens = 64;
    options.layers = &layer, options.layer_count = options.same = 1, options.name = "pool";
    assert_int_equal(tp_cache_create(&options, &cache, NULL), TP_OK);
    assert_int_equal(tp_cache_open(cache, &sequence, NULL), TP_OK);
    assert_int_equal(tp_cache_extend(cache, 1, &sequence, &tokens, NULL), TP_OK);
    rows.dtype = TP_F32, rows.count = 1, rows.sequences = &sequence, rows.tokens = &tokens;
    rows.k.data = rows.v.data = k, rows.k.stride[1] = rows.v.stride[1] = rows.k.stride[2] = rows.v.stride[2] = 8;
    rows.k_norm = norm, rows.norm_eps = bits_of(SIGNALING_NAN);
    note_error(to, tp_cache_append(cache, 0, &rows, &error), &error);
    rows.norm_eps = bits_of(0x358637bdu);
    note_error(to, tp_cache_append(cache, 0, &rows, &error), &error);
    assert_int_equal(tp_cache_stats_read(cache, &stats, NULL), TP_OK);
    note(to, &stats.loss, sizeof stats.loss);
    assert_int_equal(tp_cache_metrics_write(cache, note_text, to), TP_OK);
    char kept[256];
    int64_t bytes = tp_cache_copy_bytes(cache, sequence, 0);
    assert_in_range(bytes, 1, sizeof kept);
    assert_int_equal(tp_cache_copy_out(cache, sequence, 0, kept, bytes, NULL), TP_OK);
    note(to, kept, (size_t)bytes);
    tp_cache_destroy(cache);

    turn.head_dim = turn.dims = 8, turn.kind = TP_ROPE_DEFAULT, turn.theta = 10000;
    assert_int_equal(tp_rope_create(&turn, &rotary, NULL), TP_OK);
    plain.dtype = TP_F32, plain.tokens = plain.heads = 1, plain.in.data = plain.out.data = k, plain.positions = &position;
    plain.norm_weight = norm, plain.norm_eps = bits_of(SIGNALING_NAN);
    note_error(to, tp_rope_apply(rotary, &plain, &error), &error);
    tp_rope_destroy(rotary);
}

/* What a context that has run nothing says of itself, and a receipt without the time it took. */
static void ask_telemetry(answers *to, call *c) {
    tp_context *context = call_context_new(1);
    assert_int_equal(tp_metrics_write(context, note_text, to), TP_OK);
    assert_int_equal(tp_recorder_write(context, note_text, to), TP_OK);
    tp_context_destroy(context);
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    assert_int_equal(call_try(c, &(call_how){0}, &receipt, NULL), TP_OK);
    receipt.time_ns = 123456789, receipt.decision = NULL; /* the plan's, which is gone */
    for (int format = TP_TEXT; format <= TP_JSON; format++)
        assert_int_equal(tp_receipt_write(&receipt, (tp_format)format, note_text, to), TP_OK);
}

/* How fast it is differs from call to call; that it is a number does not. */
static void ask_measure(answers *to, const char *kernel) {
    double speed = -1;
    tp_status status = tp_measure_fma(call_context(), kernel, 1, &speed, NULL);
    int fast = speed > 0;
    note(to, &status, sizeof status);
    note(to, &fast, sizeof fast);
}

/* A plan, a decision and a run that is cut into tasks. */
static void ask_runs(answers *to, call *c) {
    for (int threads = 1; threads <= 2; threads++) {
        parallel p = {.threads = 2};
        tp_status status =
            call_try(c, &(call_how){.threads = threads, .parallel_for = parallel_threads, .user = &p}, NULL, NULL);
        note(to, &status, sizeof status);
        note(to, c->held.buffer[CALL_O].memory, c->held.buffer[CALL_O].bytes);
        note(to, c->held.buffer[CALL_LSE].memory, c->held.buffer[CALL_LSE].bytes);
    }
    tp_decision *decision;
    tp_status status = tp_explain(call_context(), &c->problem, NULL, &decision, NULL);
    note(to, &status, sizeof status);
    note(to, &decision->flops, sizeof decision->flops);
    note(to, &decision->flops_usual, sizeof decision->flops_usual);
    decision->flops = 123456789012345.67; /* of more digits than are printed */
    for (int format = TP_TEXT; format <= TP_JSON; format++)
        tp_decision_write(decision, (tp_format)format, note_text, to);
    ask_measure(to, tp_decision_candidate(decision, decision->chosen)->kernel);
    tp_decision_destroy(decision);
}

static answers *ask(call *c, call *alibi, back *b) {
    answers *a = calloc(1, sizeof *a);
    ask_conversions(a);
    ask_texts(a);
    ask_merge(a);
    ask_rope(a);
    ask_rules(a);
    ask_quantised(a);
    ask_cache(a);
    ask_reference(a, c);
    ask_runs(a, c);
    ask_telemetry(a, c);
    ask_slopes(a, alibi);
    ask_backward(a, b);
    return a;
}

static void every_entry_point_gives_the_same(void **state) {
    (void)state;
    call *c = call_new("b2 h4/2 q9 k70 d8 f32 scale=0.3 softcap=5 sinks", NULL);
    call_set(c, CALL_V, 0, 3, 0, 0, 3e-42f);
    call *alibi = call_new("b1 h2 q3 k3 d8 f32 alibi", NULL);
    call_context();
    back *b = back_new("b2 h4/2 q9 k70 d8 f32 scale=0.3 alibi sinks", BACK_D_LSE);
    back_run(b, &(call_how){0}, NULL);
    answers *plain = ask(c, alibi, b);
    for (int n = 0; n < ENVIRONMENTS; n++) {
        fenv_t before = environment_enter(&environments[n]);
        answers *got = ask(c, alibi, b);
        if (!environment_leave(&environments[n], before)) fail_msg("%s: it was not given back", environments[n].name);
        assert_int_equal(got->used, plain->used);
        for (size_t i = 0; i < plain->used; i++)
            if (got->bytes[i] != plain->bytes[i])
                fail_msg("%s: byte %zu of %zu differs", environments[n].name, i, plain->used);
        free(got);
    }
    free(plain);
    back_free(b);
    call_free(c);
    call_free(alibi);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_entry_point_gives_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
