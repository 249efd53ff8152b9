/* SPDX-License-Identifier: Apache-2.0 */
/* What append loses in a quantised layer, element by element; rows of zeros, infinities and NaN; the greatest loss in stats. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/call.h"
#include "tileproof_cache.h"

enum { HEADS = 2, DIM = 64, PAGE = 3, TOKENS = 24, GROUP = 32 };

static const tp_cache_layer layers[] = {
    {HEADS, DIM, DIM, TP_I8, TP_I8, 0, 0, TP_SCALES_TOKEN, TP_SCALES_Q8_0, 0, 0},
    {HEADS, DIM, DIM, TP_I4, TP_E4M3, 0, 0, TP_SCALES_GROUP, TP_SCALES_TOKEN, 0, 0},
    {HEADS, DIM, DIM, TP_E4M3, TP_E4M3, 0, 0, TP_SCALES_TENSOR, TP_SCALES_TENSOR, 1.0f / 64, 1.0f / 256},
    {1, DIM, GROUP, TP_I8, TP_I8, 1, 0, TP_SCALES_TOKEN, TP_SCALES_TOKEN, 0, 0}, /* latent */
};
enum { LAYERS = sizeof layers / sizeof *layers };

/* A row as it lies in the cache, read by its definition: values, and the scale of each element. */
static void read_row(const tp_cache *cache, int layer, int part, int64_t token, int64_t head, double *values, double *scales) {
    tp_problem problem;
    tp_tensors t;
    tp_problem_init(&problem);
    assert_int_equal(tp_cache_problem(cache, layer, &problem, NULL), TP_OK);
    problem.q_heads = problem.kv_heads, problem.q_len = 1;
    tp_tensors_init(&t, &problem, NULL, NULL, NULL, NULL);
    assert_int_equal(tp_cache_tensors(cache, layer, 0, 1, &t, NULL), TP_OK);
    const tp_tensor *pool = part ? &t.v : &t.k, *beside = part ? &t.v_scales : &t.k_scales;
    int32_t dtype = part ? problem.v_dtype : problem.k_dtype, kind = part ? problem.v_scales : problem.k_scales;
    int64_t page = ((const int32_t *)t.k_pages)[token / PAGE];
    int64_t at = page * pool->stride[0] + token % PAGE * pool->stride[1] + head * pool->stride[2];
    int64_t scale_at = page * beside->stride[0] + token % PAGE * beside->stride[1] + head * beside->stride[2];
    const unsigned char *codes = (const unsigned char *)pool->data + (dtype == TP_I4 ? at / 2 : at);
    for (int64_t x = 0; x < DIM; x++) {
        const unsigned char *code = kind == TP_SCALES_Q8_0 ? codes + x / GROUP * 34 + 2 + x % GROUP
                                    : dtype == TP_I4       ? codes + x / 2
                                                           : codes + x;
        int bits = dtype == TP_I4 ? *code >> (x % 2 * 4) & 15 : *code, exponent = bits >> 3 & 15;
        const void *scale = kind == TP_SCALES_Q8_0    ? (const void *)(codes + x / GROUP * 34)
                            : kind == TP_SCALES_GROUP ? (const void *)((const uint16_t *)beside->data + scale_at + x / GROUP)
                            : kind == TP_SCALES_TOKEN ? (const void *)((const float *)beside->data + scale_at)
                                                      : beside->data;
        double s = (double)tp_to_float(kind == TP_SCALES_Q8_0 || kind == TP_SCALES_GROUP ? TP_F16 : TP_F32, scale);
        double whole = dtype == TP_I8 ? (signed char)bits : (bits ^ 8) - 8;
        double part_of = exponent ? ldexp(8 + (bits & 7), exponent - 10) : ldexp(bits & 7, -9);
        if ((bits & 0x7F) == 0x7F) part_of = NAN;
        values[x] = s * (dtype == TP_E4M3 ? bits & 0x80 ? -part_of : part_of : whole);
        scales[x] = s;
    }
}

static void append(tp_cache *cache, int64_t sequence, int layer, int dtype, const float *k, const float *v, int64_t tokens) {
    tp_error error = TP_ERROR_INIT;
    tp_cache_rows rows = TP_CACHE_ROWS_INIT;
    static char given[2][TOKENS * HEADS * DIM * sizeof(float)];
    const size_t unit = tp_dtype_bytes((tp_dtype)dtype);
    const int64_t heads = layers[layer].kv_heads;
    for (int64_t i = 0; i < tokens * heads * DIM; i++) {
        tp_from_float((tp_dtype)dtype, k[i], given[0] + (size_t)i * unit);
        tp_from_float((tp_dtype)dtype, v[i], given[1] + (size_t)i * unit);
    }
    rows.dtype = dtype, rows.count = 1, rows.sequences = &sequence, rows.tokens = &tokens;
    rows.k = (tp_tensor){given[0], {0, heads * DIM, DIM}};
    if (!layers[layer].latent) rows.v = (tp_tensor){given[1], {0, heads * DIM, DIM}};
    if (tp_cache_append(cache, layer, &rows, &error) != TP_OK) fail_msg("%s", error.text);
}

static tp_cache *make(int layout, int64_t *sequence, int64_t tokens) {
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    tp_error error = TP_ERROR_INIT;
    tp_cache *cache;
    options.layers = layers, options.layer_count = LAYERS, options.layout = layout, options.page_size = PAGE;
    options.bytes = 1 << 20, options.sequences = 1, options.sequence_tokens = TOKENS;
    if (tp_cache_create(&options, &cache, &error) != TP_OK) fail_msg("%s", error.text);
    assert_int_equal(tp_cache_open(cache, sequence, NULL), TP_OK);
    assert_int_equal(tp_cache_extend(cache, 1, sequence, &tokens, NULL), TP_OK);
    return cache;
}

static tp_cache_stats stats_of(const tp_cache *cache) {
    tp_cache_stats stats;
    assert_int_equal(tp_cache_stats_read(cache, &stats, NULL), TP_OK);
    return stats;
}

static double loss_of(const tp_cache *cache) {
    return stats_of(cache).loss;
}

/* A layer's own, as calls find it. */
static const double *kv_loss(const tp_cache *cache, int layer, tp_tensors *t) {
    tp_problem problem;
    tp_problem_init(&problem);
    tp_tensors_init(t, &problem, NULL, NULL, NULL, NULL);
    assert_int_equal(tp_cache_tensors(cache, layer, 0, 1, t, NULL), TP_OK);
    return t->kv_loss;
}

static int gather(void *cookie, const char *bytes, size_t size) {
    strncat(cookie, bytes, size);
    return 0;
}

static void write_to(const tp_receipt *receipt, tp_format format, char *text) {
    text[0] = '\0';
    assert_int_equal(tp_receipt_write(receipt, format, gather, text), TP_OK);
}

static float number(int64_t i, int64_t token) {
    return sinf((float)i) * ldexpf(1, (int)(token % 9) - 6) * (i % 11 == 5 ? 0 : i % 7 == 3 ? 1e-3f : 1);
}

/* Every element of every kind of layer, in both layouts, from every dtype that rows come in. */
static void elements_keep_their_bounds(void **state) {
    (void)state;
    for (int run = 0; run < 6; run++) {
        const int dtype = (int[]){TP_F32, TP_F16, TP_BF16}[run % 3];
        int64_t sequence;
        double greatest_loss = 0, loss_of_layers[LAYERS] = {0};
        tp_tensors t;
        tp_cache *cache = make(run / 3, &sequence, TOKENS);
        assert_true(loss_of(cache) == 0);
        for (int layer = 0; layer < LAYERS; layer++) {
            static float rows[2][TOKENS * HEADS * DIM];
            const int64_t heads = layers[layer].kv_heads;
            for (int64_t i = 0; i < TOKENS * heads * DIM; i++) {
                int64_t token = i / (heads * DIM);
                rows[0][i] = number(i, token), rows[1][i] = number(i + 999, token);
            }
            append(cache, sequence, layer, dtype, rows[0], rows[1], TOKENS);
            for (int part = 0; part < 2 - layers[layer].latent; part++)
                for (int64_t row = 0; row < TOKENS * heads; row++) {
                    double values[DIM], scales[DIM], most = 0, off = 0;
                    int codes = part ? layers[layer].v_dtype : layers[layer].k_dtype;
                    read_row(cache, layer, part, row / heads, row % heads, values, scales);
                    for (int64_t x = 0; x < DIM; x++) {
                        char one[4];
                        tp_from_float((tp_dtype)dtype, rows[part][row * DIM + x], one);
                        double given = (double)tp_to_float((tp_dtype)dtype, one), wanted = given;
                        if (codes == TP_E4M3) wanted = fmin(fmax(given, -448 * scales[x]), 448 * scales[x]);
                        double bound = codes == TP_E4M3 ? fmax(fabs(given) / 16, scales[x] / 1024) : scales[x] / 2;
                        if (!(fabs(wanted - values[x]) <= bound * (1 + 0x1p-40)))
                            fail_msg("layer %d, part %d: %a became %a with a scale of %a", layer, part, given, values[x],
                                     scales[x]);
                        most = fmax(most, fabs(given)), off = fmax(off, fabs(given - values[x]));
                    }
                    loss_of_layers[layer] = fmax(loss_of_layers[layer], most > 0 ? off / most : 0);
                }
            greatest_loss = fmax(greatest_loss, loss_of_layers[layer]);
        }
        for (int layer = 0; layer < LAYERS; layer++)
            if (*kv_loss(cache, layer, &t) != loss_of_layers[layer])
                fail_msg("layer %d: a loss of %g, not %g", layer, *t.kv_loss, loss_of_layers[layer]);
        /* the greatest is of values beyond what the tensor's scale of v holds, 1.75, whose greatest is 4 at most */
        if (loss_of(cache) != greatest_loss || !(greatest_loss > 0.5 && greatest_loss <= 1 - 1.75 / 4))
            fail_msg("a loss of %g, not %g", loss_of(cache), greatest_loss);
        assert_true(stats_of(cache).finite_loss == greatest_loss && stats_of(cache).rows_not_finite == 0);
        tp_cache_destroy(cache);
    }
}

/* Zeros stay zeros, with no loss; what is not finite stays visible, in its row or element and in no other, and in the stats. */
static void special_rows(void **state) {
    (void)state;
    for (int layer = 0; layer < LAYERS; layer++)
        for (int special = 0; special < 4; special++) {
            static float rows[2][2 * HEADS * DIM];
            const float value = (float[]){0, NAN, INFINITY, -INFINITY}[special];
            const int64_t heads = layers[layer].kv_heads;
            int64_t sequence;
            double others = 0;
            tp_tensors t;
            tp_cache *cache = make(TP_CACHE_HND, &sequence, 2);
            memset(rows, 0, sizeof rows);
            for (int part = 0; part < 2 && special; part++) {
                for (int64_t i = 0; i < 2 * heads * DIM; i++) rows[part][i] = number(i, 5);
                rows[part][heads * DIM + 40] = value; /* token 1, head 0, second group */
            }
            append(cache, sequence, layer, TP_F32, rows[0], rows[1], 2);
            assert_true(special ? isinf(loss_of(cache)) : loss_of(cache) == 0);
            for (int part = 0; part < 2 - layers[layer].latent; part++)
                for (int64_t row = 0; row < 2 * heads; row++) {
                    double values[DIM], scales[DIM];
                    int codes = part ? layers[layer].v_dtype : layers[layer].k_dtype;
                    int kind = part ? layers[layer].v_scales : layers[layer].k_scales;
                    read_row(cache, layer, part, row / heads, row % heads, values, scales);
                    for (int64_t x = 0; x < DIM; x++) {
                        int blocks = kind == TP_SCALES_GROUP || kind == TP_SCALES_Q8_0;
                        int spoilt = special && row == heads && (codes == TP_E4M3 ? x == 40 : blocks ? x >= GROUP : 1);
                        if (!special || row != heads)
                            others = fmax(others, special ? fabs((double)rows[part][row * DIM + x] - values[x]) : 0);
                        if (spoilt != !!isnan(values[x]) || (!special && values[x] != 0))
                            fail_msg("layer %d, part %d, special %d, row %d, element %d: %g", layer, part, special, (int)row,
                                     (int)x, values[x]);
                    }
                }
            /* rows beside it are still measured, and such rows are counted */
            tp_cache_stats stats = stats_of(cache);
            assert_int_equal(stats.rows_not_finite, special ? 2 - layers[layer].latent : 0);
            assert_true(stats.finite_loss == *kv_loss(cache, layer, &t) && stats.finite_loss < 1);
            assert_true((stats.finite_loss > 0) == (others > 0));
            tp_cache_destroy(cache);
        }
}

/* The loss of the layer that a call reads is on its receipt, as it is then: in the struct, in its text and in its JSON. */
static void receipts_say_it(void **state) {
    (void)state;
    enum { Q_HEADS = 4 };
    static float rows[2][TOKENS * HEADS * DIM], q[Q_HEADS * DIM], o[Q_HEADS * DIM];
    static char text[1 << 14];
    int64_t sequence, more = 1;
    double before = 0;
    tp_problem problem;
    tp_tensors t;
    tp_error error = TP_ERROR_INIT;
    tp_cache *cache = make(TP_CACHE_NHD, &sequence, 3);
    for (int64_t i = 0; i < 3 * HEADS * DIM; i++) rows[0][i] = rows[1][i] = i % DIM == 0 ? 127 : i % DIM == 9 ? 0.25f : 1;
    append(cache, sequence, 0, TP_F32, rows[0], rows[1], 3);
    append(cache, sequence, 1, TP_F32, rows[0], rows[1], 3);
    tp_problem_init(&problem);
    problem.q_heads = Q_HEADS, problem.q_len = 1, problem.q_dtype = problem.o_dtype = TP_F32;
    for (int step = 0; step < 3; step++) {
        tp_receipt receipt;
        tp_receipt_init(&receipt);
        if (step == 1) { /* a greater one, after the tensors were asked for */
            for (int64_t i = 0; i < HEADS * DIM; i++) rows[0][i] = 127.5f * (float)(i % DIM == 0 ? 2 : 1);
            assert_int_equal(tp_cache_extend(cache, 1, &sequence, &more, NULL), TP_OK);
            append(cache, sequence, 0, TP_F32, rows[0], rows[1], 1);
        } else {
            if (step == 2) append(cache, sequence, 1, TP_F32, rows[1], rows[1], 1);
            assert_int_equal(tp_cache_problem(cache, step / 2, &problem, NULL), TP_OK);
            problem.q_heads = Q_HEADS, problem.q_len = 1;
            tp_tensors_init(&t, &problem, q, NULL, NULL, o);
            assert_int_equal(tp_cache_tensors(cache, step / 2, 0, 1, &t, NULL), TP_OK);
        }
        if (tp_attention(call_context(), &problem, NULL, &t, &receipt, &error) != TP_OK) fail_msg("%s", error.text);
        assert_true(receipt.kv_loss == *t.kv_loss && receipt.lossy != 0 && receipt.kv_loss != before);
        assert_true(step != 1 || receipt.kv_loss > before);
        before = receipt.kv_loss;
        char expected[64];
        write_to(&receipt, TP_TEXT, text);
        snprintf(expected, sizeof expected, ", lossy:%s, loss %.3g\n", step < 2 ? "i8" : "e4m3,i4", receipt.kv_loss);
        if (strstr(text, expected) == NULL) fail_msg("%s is not in\n%s", expected, text);
        write_to(&receipt, TP_JSON, text);
        snprintf(expected, sizeof expected, "\"kv_loss\":%.17g,", receipt.kv_loss);
        if (strstr(text, expected) == NULL) fail_msg("%s is not in\n%s", expected, text);
    }
    /* not said; of an older program; said wrongly */
    const double said = 0.25, wrong[] = {-1, NAN, INFINITY};
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    t.kv_loss = NULL;
    assert_int_equal(tp_attention(call_context(), &problem, NULL, &t, &receipt, &error), TP_OK);
    assert_true(receipt.kv_loss == 0);
    write_to(&receipt, TP_TEXT, text);
    assert_null(strstr(text, "loss "));
    write_to(&receipt, TP_JSON, text);
    assert_null(strstr(text, "kv_loss"));
    t.kv_loss = &said;
    assert_int_equal(tp_attention(call_context(), &problem, NULL, &t, &receipt, &error), TP_OK);
    assert_true(receipt.kv_loss == 0.25);
    t.struct_size = offsetof(tp_tensors, kv_loss);
    assert_int_equal(tp_attention(call_context(), &problem, NULL, &t, &receipt, &error), TP_OK);
    assert_true(receipt.kv_loss == 0);
    assert_int_equal(tp_cache_tensors(cache, 1, 0, 1, &t, NULL), TP_OK);
    assert_ptr_equal(t.kv_loss, &said); /* not written */
    t.struct_size = sizeof t;
    for (int i = 0; i < COUNT(wrong); i++) {
        t.kv_loss = &wrong[i];
        assert_int_equal(tp_attention(call_context(), &problem, NULL, &t, &receipt, &error), TP_INVALID);
        assert_non_null(strstr(error.text, ": it must be finite and not negative; kv_loss NULL says nothing"));
    }
    t.kv_loss = (const double *)(const void *)((const char *)wrong + 4);
    assert_int_equal(tp_attention(call_context(), &problem, NULL, &t, &receipt, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "it must be aligned to a double of 8 bytes"));
    tp_cache_destroy(cache);
}

/* Losses go with what is copied, and layers that lose nothing have none to tell. */
static void copies_have_it(void **state) {
    (void)state;
    static float rows[2][TOKENS * HEADS * DIM];
    static char buffer[1 << 15];
    int64_t from, to, bytes;
    tp_tensors t;
    tp_error error = TP_ERROR_INIT;
    tp_cache *cache = make(TP_CACHE_NHD, &from, 5), *other = make(TP_CACHE_HND, &to, 0);
    for (int64_t i = 0; i < 5 * HEADS * DIM; i++) rows[0][i] = number(i, 5), rows[1][i] = number(i + 999, 5);
    for (int layer = 0; layer < LAYERS; layer++) append(cache, from, layer, TP_F32, rows[0], rows[1], 5);
    bytes = tp_cache_copy_bytes(cache, from, 0);
    assert_true(bytes > 0 && bytes < (int64_t)sizeof buffer);
    assert_int_equal(tp_cache_copy_out(cache, from, 0, buffer, bytes, NULL), TP_OK);
    for (int i = 0; i < 3; i++) { /* a stranger's */
        const double wrong = (double[]){-1, NAN, INFINITY}[i];
        double sound;
        memcpy(&sound, buffer + bytes - 8, 8);
        memcpy(buffer + bytes - 8, &wrong, 8);
        assert_int_equal(tp_cache_copy_in(other, to, buffer, bytes, &error), TP_INVALID);
        assert_non_null(strstr(error.text, "buffer's layer 3 has a loss of "));
        memcpy(buffer + bytes - 8, &sound, 8);
    }
    assert_true(loss_of(other) == 0);
    assert_int_equal(tp_cache_copy_in(other, to, buffer, bytes, NULL), TP_OK);
    assert_true(loss_of(other) == loss_of(cache) && loss_of(cache) > 0);
    for (int layer = 0; layer < LAYERS; layer++) {
        double own = *kv_loss(cache, layer, &t);
        assert_true(*kv_loss(other, layer, &t) == own && own > 0);
    }
    tp_cache_destroy(cache);
    tp_cache_destroy(other);
    tp_cache_layer plain = {1, DIM, DIM, TP_BF16, TP_BF16, 0, 0, 0, 0, 0, 0};
    tp_cache_options options = TP_CACHE_OPTIONS_INIT;
    options.layers = &plain, options.layer_count = 1, options.bytes = 1 << 20, options.sequences = 1, options.sequence_tokens = 9;
    assert_int_equal(tp_cache_create(&options, &cache, NULL), TP_OK);
    assert_int_equal(tp_cache_open(cache, &from, NULL), TP_OK);
    assert_null(kv_loss(cache, 0, &t));
    tp_cache_destroy(cache);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(elements_keep_their_bounds), cmocka_unit_test(special_rows),
                                       cmocka_unit_test(receipts_say_it), cmocka_unit_test(copies_have_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
