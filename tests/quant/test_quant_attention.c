/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on quantised k and v: what a problem may ask for, its words, its tensors, and what comes out. */
#include "support/call.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 300, ROWS = 40, HEADS = 4, KV = 2, DIM = 64, VALUES = 96 };

static const struct {
    tp_dtype dtype;
    tp_scales kind;
    const char *words; /* of k and v alike, as printed */
} formats[] = {
    {TP_I8, TP_SCALES_TOKEN, "f32:i8:i8->f32"},          {TP_I8, TP_SCALES_Q8_0, "f32:i8:i8->f32 scales=q8_0"},
    {TP_I4, TP_SCALES_GROUP, "f32:i4:i4->f32"},          {TP_E4M3, TP_SCALES_TENSOR, "f32:e4m3:e4m3->f32"},
    {TP_E4M3, TP_SCALES_TOKEN, "f32:e4m3:e4m3->f32 scales=token"},
};

static tp_problem problem_of(int format, int64_t rows) {
    tp_problem p;
    tp_problem_init(&p);
    p.q_heads = HEADS, p.kv_heads = KV, p.q_len = rows, p.kv_len = KEYS, p.head_dim_qk = DIM, p.head_dim_v = VALUES;
    if (format < 0) return p;
    p.k_dtype = p.v_dtype = formats[format].dtype;
    p.k_scales = p.v_scales = formats[format].kind;
    return p;
}

static void words(void **state) {
    (void)state;
    static const struct {
        const char *text, *printed; /* NULL: as it stands */
    } good[] = {
        {"decode b1 h1/1 q1 k9 d32 bf16:i8:i8->bf16", NULL},
        {"decode b1 h1/1 q1 k9 d32 bf16:i8:i8->bf16 scales=token", "decode b1 h1/1 q1 k9 d32 bf16:i8:i8->bf16"},
        {"decode b1 h1/1 q1 k9 d32 bf16:i8:i8->bf16 scales=q8_0", NULL},
        {"decode b1 h1/1 q1 k9 d32 bf16:i8:i8->bf16 scales=token:q8_0", NULL},
        {"decode b1 h1/1 q1 k9 d32 bf16:e4m3:i4->bf16", NULL},
        {"decode b1 h1/1 q1 k9 d32 bf16:e4m3:i4->bf16 scales=token:group", NULL},
        {"decode b1 h1/1 q1 k9 d32 f32:f16:e4m3->f32 scales=token", NULL},
        {"decode b1 h1/1 q1 k9 d32 f32:i8:f16->f32 scales=q8_0", NULL},
    };
    static const struct {
        const char *text, *error;
    } bad[] = {
        {"q1 k9 d32 bf16 scales=token", "word 'scales=token': k is bf16 and v bf16, and only i8, i4 and e4m3 have scales"},
        {"q1 k9 d32 bf16:i8:i8 scales=row", "word 'scales=row': it takes one of tensor, token, group and q8_0, or two"},
        {"q1 k9 d32 bf16:i8:i8 scales=token:", "word 'scales=token:': it takes one of"},
        {"q1 k9 d32 bf16:i8:bf16 scales=token:q8_0", "word 'scales=token:q8_0': only k is quantised, so name its scales alone"},
        {"q1 k9 d32 bf16:bf16:i8 scales=token:q8_0", "word 'scales=token:q8_0': only v is quantised"},
        {"q1 k9 d32 bf16:i8:i4 scales=token", "v_scales is token (2) with v_dtype i4: its scales are group"},
        {"q1 k9 d32 bf16:e4m3:i8 scales=q8_0", "k_scales is q8_0 (4) with k_dtype e4m3: its scales are tensor or token"},
        {"q1 k9 d31/32 bf16:i4:i4", "k_dtype is i4 with head dim 31: it must be even, because two elements share a byte"},
        {"q1 k9 d32/40 bf16:i8:i8 scales=q8_0", "v_scales is q8_0 with head dim 40: it must be a multiple of 32"},
        {"q1 k9 d32 i8", "q_dtype is i8 (6): only f32, f16 and bf16 have kernels; k and v alone may be quantised"},
        {"q1 k9 d32 bf16:i8:i8->i8", "o_dtype is i8 (6): only f32, f16 and bf16 have kernels"},
        {"q1 k9 d32 bf16:e5m2:i8", "k_dtype is e5m2 (5): only f32, f16 and bf16 have kernels"},
        {"q9 k9 d32 backward bf16:i8:i8", "a quantised k or v with op TP_BACKWARD: gradients go through k and v of f32"},
        {"q1 k9 d32 latent bf16:e4m3:e4m3 scales=tensor:token",
         "latent with k_scales tensor and v_scales token: v is part of k's rows, so they must be equal"},
    };
    tp_error error = TP_ERROR_INIT;
    tp_problem p;
    tp_lengths lengths;
    char text[512];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (tp_problem_parse(good[i].text, &p, &lengths, &error) != TP_OK) fail_msg("%s: %s", good[i].text, error.text);
        assert_int_equal(tp_problem_print(&p, NULL, text, sizeof text), TP_OK);
        assert_string_equal(text, good[i].printed ? good[i].printed : good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_not_equal(tp_problem_parse(bad[i].text, &p, &lengths, &error), TP_OK);
        if (!strstr(error.text, bad[i].error)) fail_msg("%s: '%s', expected '%s'", bad[i].text, error.text, bad[i].error);
    }
    p = problem_of(-1, 1);
    p.k_scales = TP_SCALES_TOKEN;
    assert_int_equal(tp_problem_check(&p, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "k_scales is token (2) with k_dtype f32: only i8, i4 and e4m3 have scales"));
}

/* k and v as floats, as codes, and as the floats that the codes stand for. */
typedef struct subject {
    tp_problem problem;
    tp_tensors tensors;
    float q[ROWS * HEADS * DIM], o[ROWS * HEADS * VALUES], lse[ROWS * HEADS];
    float k[KEYS * KV * DIM], v[KEYS * KV * VALUES];
    uint8_t k_codes[KEYS * KV * DIM * 2], v_codes[KEYS * KV * VALUES * 2];
    float k_scales[KEYS * KV * DIM], v_scales[KEYS * KV * DIM];
} subject;

static void quantise(int format, int64_t dim, float *values, void *codes, void *scales) {
    tp_quantised q = TP_QUANTISED_INIT;
    tp_error error = TP_ERROR_INIT;
    q.dtype = formats[format].dtype, q.kind = formats[format].kind;
    q.rows = KEYS * KV, q.dim = q.values_stride = dim;
    q.codes_stride = q.kind == TP_SCALES_Q8_0 ? dim / 32 * 34 : dim;
    q.scales_stride = q.kind == TP_SCALES_GROUP ? dim / 32 : 1;
    q.values = values, q.codes = codes, q.scales = scales;
    if (q.kind == TP_SCALES_TENSOR) *(float *)scales = 1.0f / 300;
    if (tp_quantise(&q, NULL, &error) != TP_OK || tp_dequantise(&q, &error) != TP_OK) fail_msg("%s", error.text);
}

static subject *subject_of(int format, int64_t rows) {
    subject *c = calloc(1, sizeof *c);
    uint64_t random = 12345;
    float *const all[] = {c->q, c->k, c->v};
    const int64_t sizes[] = {ROWS * HEADS * DIM, KEYS * KV * DIM, KEYS * KV * VALUES};
    for (int i = 0; i < 3; i++)
        for (int64_t x = 0; x < sizes[i]; x++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            all[i][x] = (float)(int32_t)(random >> 32) * 0x1p-30f;
        }
    quantise(format, DIM, c->k, c->k_codes, c->k_scales);
    quantise(format, VALUES, c->v, c->v_codes, c->v_scales);
    c->problem = problem_of(format, rows);
    tp_tensors_init(&c->tensors, &c->problem, c->q, c->k_codes, c->v_codes, c->o);
    int beside = formats[format].kind != TP_SCALES_Q8_0;
    c->tensors.k_scales.data = beside ? c->k_scales : NULL;
    c->tensors.v_scales.data = beside ? c->v_scales : NULL;
    c->tensors.lse.data = c->lse;
    return c;
}

static void run(tp_context *context, subject *c, const tp_choice *choice, tp_receipt *receipt) {
    tp_error error = TP_ERROR_INIT;
    if (tp_attention(context, &c->problem, choice, &c->tensors, receipt, &error) != TP_OK) fail_msg("%s", error.text);
}

/* Of two causal rows the first does not see the last key, and values are packed; alone on the keys that it sees it takes them as
   they lie. */
static void rows_that_see_less_keep_their_bits(void **state) {
    (void)state;
    tp_context *context = call_context_new(1);
    for (int format = 0; format < 5; format++) {
        subject *both = subject_of(format, 2), *one = subject_of(format, 1);
        assert_int_equal(tp_problem_causal(&both->problem), TP_OK);
        one->problem.kv_len = one->tensors.kv_len = KEYS - 1;
        run(context, both, NULL, NULL);
        run(context, one, NULL, NULL);
        for (int64_t i = 0; i < HEADS * VALUES; i++)
            if (memcmp(&both->o[i], &one->o[i], sizeof(float)))
                fail_msg("%s: o[%lld] is %.9g, alone %.9g", formats[format].words, (long long)i, (double)both->o[i],
                         (double)one->o[i]);
        assert_memory_equal(both->lse, one->lse, HEADS * sizeof(float));
        free(both);
        free(one);
    }
    tp_context_destroy(context);
}

/* The same tensors as floats. Scales of 16 bits make exact floats: then prefill has the same bits. */
static void it_is_attention_on_what_is_stored(void **state) {
    (void)state;
    tp_context *context = call_context_new(1);
    for (int format = 0; format < 5; format++)
        for (int64_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
            subject *c = subject_of(format, rows), *plain = subject_of(format, rows);
            tp_receipt receipt;
            char class[256], expected[128];
            tp_receipt_init(&receipt);
            run(context, c, NULL, &receipt);
            plain->problem = problem_of(-1, rows);
            tp_tensors_init(&plain->tensors, &plain->problem, plain->q, plain->k, plain->v, plain->o);
            run(context, plain, NULL, NULL);
            int exact = rows > 1 && (formats[format].kind == TP_SCALES_GROUP || formats[format].kind == TP_SCALES_Q8_0);
            for (int64_t i = 0; i < rows * HEADS * VALUES; i++)
                if (exact ? c->o[i] != plain->o[i] : fabsf(c->o[i] - plain->o[i]) > 2e-6f)
                    fail_msg("%s, %lld rows: o[%lld] is %.9g, of floats %.9g", formats[format].words, (long long)rows,
                             (long long)i, (double)c->o[i], (double)plain->o[i]);
            assert_int_equal(receipt.lossy, 1 << formats[format].dtype);
            snprintf(expected, sizeof expected, " k=%s/%s-2 v=%s/%s-2", tp_dtype_name(formats[format].dtype),
                     tp_scales_name(formats[format].kind), tp_dtype_name(formats[format].dtype),
                     tp_scales_name(formats[format].kind));
            assert_non_null(strstr(receipt.numerics_id, expected));
            int64_t key = tp_codes_bytes(formats[format].dtype, formats[format].kind, DIM) +
                          tp_codes_bytes(formats[format].dtype, formats[format].kind, VALUES) +
                          tp_scales_bytes(formats[format].kind, DIM) + tp_scales_bytes(formats[format].kind, VALUES);
            assert_int_equal(receipt.bytes_compulsory, KEYS * KV * key + rows * HEADS * ((DIM + VALUES) * 4 + 4));
            assert_int_equal(tp_problem_class(&c->problem, class, sizeof class), TP_OK);
            assert_non_null(strstr(class, formats[format].words));
            free(c);
            free(plain);
        }
    tp_context_destroy(context);
}

/* A scale that is not finite makes its own elements NaN, and those alone; of a key that no row sees it is not felt. */
static void scales_that_are_not_finite(void **state) {
    (void)state;
    tp_context *context = call_context_new(1);
    for (int bad = 0; bad < 3; bad++)
        for (int64_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
            const float value = bad == 0 ? NAN : bad == 1 ? INFINITY : -INFINITY;
            subject *c = subject_of(0, rows);
            c->v_scales[7 * KV + 1] = value;
            run(context, c, NULL, NULL);
            for (int64_t i = 0; i < rows * HEADS; i++)
                for (int64_t x = 0; x < VALUES; x++)
                    assert_true(isnan(c->o[i * VALUES + x]) == (i % HEADS / (HEADS / KV) == 1));
            c->v_scales[7 * KV + 1] = 1;
            c->k_scales[7 * KV] = value;
            run(context, c, NULL, NULL);
            for (int64_t i = 0; i < rows * HEADS; i++) assert_true(isnan(c->lse[i]) == (i % HEADS / (HEADS / KV) == 0));
            tp_problem_window(&c->problem, KEYS - 8 - rows, 0); /* key 7 is out of every row's sight */
            run(context, c, NULL, NULL);
            for (int64_t i = 0; i < rows * HEADS; i++) assert_true(isfinite(c->lse[i]) && isfinite(c->o[i * VALUES]));
            free(c);
        }
    tp_context_destroy(context);
}

/* One key of one head: no stride of k, v and their scales is ever taken, so each may be any number, and nothing may be
   computed with it. */
static void strides_that_are_never_taken(void **state) {
    (void)state;
    tp_context *context = call_context_new(1);
    for (int format = 0; format < 5; format++)
        for (int n = 0; call_kernel(n) != NULL; n++) {
            subject *near = subject_of(format, 1), *far = subject_of(format, 1);
            tp_choice choice = TP_CHOICE_INIT;
            choice.kernel = call_kernel(n), choice.policy = TP_PERMIT;
            near->problem.q_heads = near->problem.kv_heads = near->problem.kv_len = 1;
            far->problem = near->problem;
            near->tensors.kv_len = far->tensors.kv_len = 1;
            tp_tensor *const of[] = {&far->tensors.k, &far->tensors.v, &far->tensors.k_scales, &far->tensors.v_scales};
            for (int i = 0; i < 12; i++) of[i / 3]->stride[i % 3] = INT64_MAX;
            run(context, near, &choice, NULL);
            run(context, far, &choice, NULL);
            assert_memory_equal(near->o, far->o, sizeof near->o);
            assert_memory_equal(near->lse, far->lse, sizeof near->lse);
            free(near);
            free(far);
        }
    tp_context_destroy(context);
}

static void tensors_that_break_a_rule(void **state) {
    (void)state;
    tp_context *context = call_context_new(1);
    tp_error error = TP_ERROR_INIT;
    subject *c = NULL;
#define BAD(format, change, reason)                                                                                              \
    do {                                                                                                                         \
        c = subject_of(format, 1);                                                                                               \
        tp_tensors *t = &c->tensors;                                                                                             \
        change;                                                                                                                  \
        assert_int_equal(tp_attention(context, &c->problem, NULL, t, NULL, &error), TP_INVALID);                                 \
        if (!strstr(error.text, reason)) fail_msg("'%s', expected '%s'", error.text, reason);                                    \
        assert_int_equal(tp_check_deep(&c->problem, t, &error), TP_INVALID);                                                     \
        assert_true(c->o[0] == 0);                                                                                               \
        free(c);                                                                                                                 \
    } while (0)
    BAD(0, t->k_scales.data = NULL, "k_scales.data is NULL: it must point to 1 x 300 tokens x 2 heads");
    BAD(3, t->v_scales.data = NULL, "v_scales.data is NULL");
    BAD(1, t->v_scales.data = c->v_scales, "with v in i8 and q8_0: it must be NULL, the scales lie inside the blocks");
    BAD(0, t->k_scales.stride[1] = -1, "k_scales.stride[1] is -1: it must be at least 0");
    BAD(0, t->k_scales.data = (char *)c->k_scales + 1, "it must be aligned to its element, 4 bytes of f32");
    BAD(2, t->v_scales.data = (char *)c->v_scales + 1, "it must be aligned to its element, 2 bytes of f16");
    BAD(2, t->k.stride[1] = 129, "k.stride[1] is 129 with i4: it must be even, because two elements share a byte");
    BAD(0, t->o.data = c->k_scales, "o (1536 bytes from");
    BAD(0, t->o.data = c->v_codes, "may overlap v");
    c = subject_of(0, 1);
    tp_reference_gradients gradients = {.struct_size = sizeof gradients};
    assert_int_equal(tp_reference_backward(&c->problem, &c->tensors, TP_DOUBLE, 0, 0, &gradients, &error), TP_UNSUPPORTED);
    assert_non_null(strstr(error.text, "a quantised k or v has no gradients"));
    double o[VALUES];
    tp_row row = {0, 0, 0};
    c->tensors.v_scales.data = NULL;
    assert_int_equal(tp_reference(&c->problem, &c->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, o, NULL, NULL, NULL, &error),
                     TP_INVALID);
    assert_non_null(strstr(error.text, "v_scales.data is NULL"));
    c->problem = problem_of(-1, 1);
    tp_tensors_init(&c->tensors, &c->problem, c->q, c->k, c->v, c->o);
    c->tensors.k_scales.data = c->k_scales;
    assert_int_equal(tp_attention(context, &c->problem, NULL, &c->tensors, NULL, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "with k in f32: it must be NULL, only i8, i4 and e4m3 have scales"));
    free(c);
    tp_context_destroy(context);
}

/* v is part of k's rows: its scales are k's. */
static void latent_rows(void **state) {
    (void)state;
    tp_context *context = call_context_new(1);
    tp_error error = TP_ERROR_INIT;
    for (int format = 0; format < 5; format++)
        for (int64_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
            subject *c = subject_of(format, rows), *plain = subject_of(format, rows);
            const int64_t dv = 32, skip = formats[format].kind == TP_SCALES_Q8_0 ? 34 : formats[format].dtype == TP_I4 ? 16 : 32;
            c->problem.head_dim_v = plain->problem.head_dim_v = dv, c->problem.latent = 1;
            tp_tensors *t = &c->tensors;
            t->v = t->k, t->v_scales = t->k_scales;
            t->v.data = c->k_codes + skip;
            if (formats[format].kind == TP_SCALES_GROUP) t->v_scales.data = (uint16_t *)t->k_scales.data + 1;
            t->o.stride[0] = rows * HEADS * dv, t->o.stride[1] = HEADS * dv, t->o.stride[2] = dv;
            plain->tensors = *t; /* the same without the word */
            plain->tensors.o.data = plain->o;
            run(context, c, NULL, NULL);
            run(context, plain, NULL, NULL);
            assert_memory_equal(c->o, plain->o, (size_t)(rows * HEADS * dv) * sizeof(float));
            t->v_scales.data = (char *)t->v_scales.data + 4;
            tp_status status = tp_attention(context, &c->problem, NULL, t, NULL, &error);
            assert_int_equal(status, TP_INVALID);
            assert_non_null(strstr(error.text, "v_scales.data is"));
            t->v_scales.data = (char *)t->v_scales.data - 4;
            t->v.data = (char *)t->v.data - 1;
            status = tp_attention(context, &c->problem, NULL, t, NULL, &error);
            int grouped = formats[format].kind == TP_SCALES_GROUP || formats[format].kind == TP_SCALES_Q8_0;
            assert_int_equal(status, grouped ? TP_INVALID : TP_OK);
            if (grouped) assert_non_null(strstr(error.text, "so that v begins with a group of k"));
            free(c);
            free(plain);
        }
    tp_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(words), cmocka_unit_test(it_is_attention_on_what_is_stored),
                                       cmocka_unit_test(rows_that_see_less_keep_their_bits),
                                       cmocka_unit_test(scales_that_are_not_finite), cmocka_unit_test(tensors_that_break_a_rule),
                                       cmocka_unit_test(strides_that_are_never_taken), cmocka_unit_test(latent_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
