/* SPDX-License-Identifier: Apache-2.0 */
/* What masks read and how they are written: packed bits, refused data and problems, texts there and back. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/call.h"

static void bytes_become_bits(void **state) {
    (void)state;
    uint8_t bytes[3 * 20], bits[3 * 4];
    tp_error error = TP_ERROR_INIT;
    for (int i = 0; i < 60; i++) bytes[i] = i % 3 == 0 ? (uint8_t)(i + 1) : 0;
    memset(bits, 0xee, sizeof bits);
    assert_int_equal(tp_mask_pack(3, 19, bytes, 20, bits, 4, &error), TP_OK);
    for (int row = 0; row < 3; row++) {
        for (int key = 0; key < 19; key++)
            assert_int_equal(bits[row * 4 + key / 8] >> (key % 8) & 1, bytes[row * 20 + key] != 0);
        assert_int_equal(bits[row * 4 + 3], 0xee);
    }
    assert_int_equal(tp_mask_pack(3, 19, bytes, 20, bits, 2, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "bits_row_bytes is 2"));
    assert_int_equal(tp_mask_pack(3, 19, NULL, 20, bits, 3, &error), TP_INVALID);
    assert_int_equal(tp_mask_pack(-1, 19, bytes, 20, bits, 3, &error), TP_INVALID);
    assert_int_equal(tp_mask_pack(0, 0, NULL, 0, NULL, 0, NULL), TP_OK);
    assert_int_equal(tp_mask_pack(3, 19, bytes, INT64_MAX / 2, bits, 4, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "row_stride is 4611686018427387903"));
    assert_int_equal(tp_mask_pack(3, 19, bytes, 20, bits, INT64_MAX / 2, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "bits_row_bytes is 4611686018427387903"));
    assert_int_equal(tp_mask_pack(INT64_MAX, INT64_MAX, bytes, 20, bits, INT64_MAX, &error), TP_INVALID);
    assert_int_equal(tp_mask_pack(1, 19, bytes, INT64_MAX, bits, INT64_MAX, &error), TP_OK); /* of one row no step */
}

/* Refused with index and value, and nothing is written. */
static void refused(call *c, const char *names) {
    tp_error error = TP_ERROR_INIT;
    tp_receipt receipt;
    tp_receipt_init(&receipt);
    assert_int_equal(call_try(c, &(call_how){.kernel = call_kernel(0)}, &receipt, &error), TP_INVALID);
    if (strstr(error.text, names) == NULL) fail_msg("'%s' does not name '%s'", error.text, names);
    double o[64];
    tp_row row = {0, 0, 0};
    assert_int_equal(tp_reference(&c->problem, &c->tensors, TP_DOUBLE, TP_ARITHMETIC_F32, 1, &row, o, NULL, NULL, NULL, &error),
                     TP_INVALID);
}

static void bad_data(void **state) {
    (void)state;
    call *c = call_new("h2/1 q6 k9 d8 f32 spans", NULL);
    int32_t offsets[] = {0, 2}, overlap[] = {2, 5, 4, 7}, empty[] = {2, 2, 4, 7}, far[] = {2, 5, 6, 7};
    c->tensors.k_spans = c->tensors.q_spans = NULL;
    c->tensors.span_offsets = NULL;
    refused(c, "span_offsets is NULL");
    c->tensors.span_offsets = offsets;
    c->tensors.spans = NULL;
    refused(c, "spans is NULL");
    c->tensors.spans = overlap;
    refused(c, "spans[1] of sequence 0 is [4, 7) after one that ends at 5");
    c->tensors.spans = empty;
    refused(c, "spans[0] of sequence 0 is [2, 2)");
    c->tensors.spans = far;
    offsets[0] = 3;
    refused(c, "span_offsets[0..1] is 3..2");
    call_free(c);

    c = call_new("h2/1 q6 k9 d8 f32 spans", NULL);
    c->tensors.k_spans = c->tensors.q_spans = NULL;
    c->tensors.spans = far;
    c->tensors.span_offsets = (char *)offsets + 2;
    refused(c, "span_offsets is");
    refused(c, "aligned to its elements of 4 bytes");
    call_free(c);

    /* sizes that leave int64, and elements that stand where bytes may, too */
    c = call_new("h2/1 seqs=1x6/9 d8 f32 packed positions causal bits documents", &(call_shape){.index_type = TP_I64});
    tp_tensors kept = c->tensors;
    c->tensors.kv_tokens = (int64_t)1 << 61;
    c->tensors.k.stride[1] = c->tensors.v.stride[1] = 0;
    refused(c, "k_positions spans");
    c->tensors = kept;
    c->tensors.k_documents = c->tensors.bits = (const char *)c->tensors.k_documents + 1;
    refused(c, "k_documents is");
    call_free(c);
    /* a list of spans reaches as far as any sequence's do */
    c = call_new("h2/1 seqs=1x2/9,1x0/9 d8 f32 padded spans", NULL);
    int32_t fall[] = {0, 2, 0};
    int32_t *spans = c->tensors.o.data;
    spans[0] = 0, spans[1] = 4, spans[2] = 4, spans[3] = 9;
    c->tensors.k_spans = c->tensors.q_spans = NULL;
    c->tensors.span_offsets = fall;
    c->tensors.spans = spans;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_check_deep(&c->problem, &c->tensors, &error), TP_INVALID);
    assert_non_null(strstr(error.text, "may overlap spans"));
    call_free(c);

    c = call_new("h2/1 q4 k9 d8 f32 tree", NULL);
    int32_t parents[] = {-1, 0, 2, 1};
    c->tensors.parents = parents;
    refused(c, "parents[2], row 2 of sequence 0, is 2");
    parents[2] = -2;
    refused(c, "is -2");
    c->tensors.parents = NULL;
    refused(c, "parents is NULL");
    call_free(c);
    c = call_new("h2/1 q9 k4 d8 f32 tree", NULL);
    refused(c, "9 rows and 4 keys");
    call_free(c);

    c = call_new("q2 k3 d8 f32 positions causal", &(call_shape){.index_type = TP_I64});
    int64_t q_positions[] = {0, ((int64_t)1 << 40) + 1}, k_positions[] = {0, 1, 2};
    c->tensors.q_positions = q_positions;
    c->tensors.k_positions = k_positions;
    refused(c, "q_positions[1] is 1099511627777");
    q_positions[1] = 1;
    k_positions[2] = INT64_MIN;
    refused(c, "k_positions[2] is -9223372036854775808");
    c->tensors.k_positions = NULL;
    refused(c, "k_positions is NULL");
    call_free(c);

    c = call_new("h2/1 q6 k9 d8 f32 bias=f32 bits alibi sinks prefix callback documents", NULL);
    tp_tensors good = c->tensors;
    float slopes[] = {1, NAN};
#define BAD(field, value, names)   \
    c->tensors = good;             \
    c->tensors.field = (value);    \
    refused(c, names)
    BAD(bias, NULL, "bias is NULL");
    BAD(bias_stride[3], -1, "bias_stride[3] is -1");
    BAD(bias_stride[2], INT64_MAX / 2, "bias spans");
    BAD(bias, (const char *)good.bias + 1, "bias is");
    BAD(bias, good.o.data, "may overlap bias");
    BAD(bits, NULL, "bits is NULL");
    BAD(bits_stride[0], -8, "bits_stride[0] is -8");
    BAD(bits, good.o.data, "may overlap bits");
    BAD(alibi_slopes, NULL, "alibi_slopes is NULL");
    BAD(alibi_slopes, slopes, "head 1 is nan");
    BAD(alibi_stride, -1, "alibi_stride[0] is -1");
    BAD(sinks, NULL, "sinks is NULL");
    BAD(prefix_lens, NULL, "prefix_lens is NULL");
    BAD(callback, NULL, "callback is NULL");
    BAD(k_documents, NULL, "k_documents is NULL");
    BAD(k_documents, (const char *)good.k_documents + 1, "aligned");
#undef BAD
    c->tensors = good;
    call_run(c, &(call_how){.kernel = call_kernel(0)}, NULL);
    call_free(c);
}

static void bad_problems(void **state) {
    (void)state;
    tp_problem p;
    tp_error error = TP_ERROR_INIT;
    assert_int_equal(tp_problem_parse("q4 k4 d8 f32", &p, NULL, NULL), TP_OK);
    const tp_problem good = p;
#define BAD(field, value, names)                                 \
    p = good;                                                    \
    p.field = (value);                                           \
    assert_int_equal(tp_problem_check(&p, &error), TP_INVALID);  \
    assert_non_null(strstr(error.text, names))
    BAD(softcap, -1, "softcap is -1");
    BAD(softcap, NAN, "softcap is nan");
    BAD(qscale_beta, INFINITY, "qscale_beta is inf");
    BAD(qscale_length, -1, "qscale_length is -1");
    BAD(qscale_offset, -1, "qscale_offset is -1");
    BAD(positions, 2, "positions is 2");
    BAD(alibi, 7, "alibi is 7");
    BAD(sinks, -1, "sinks is -1");
    BAD(bias_dtype, 9, "bias_dtype is 9");
#undef BAD
    p = good;
    assert_int_equal(tp_problem_mask(&p, TP_MASK_AND, TP_MASK_CHUNK, 0, 0), TP_INVALID);
    assert_int_equal(tp_problem_mask(&p, TP_MASK_AND, TP_MASK_CHUNK, 4, 1), TP_INVALID);
    assert_int_equal(tp_problem_mask(&p, TP_MASK_CAUSAL, TP_MASK_CAUSAL, 0, 0), TP_INVALID);
    assert_int_equal(tp_problem_mask(&p, TP_MASK_OR, TP_MASK_PREFIX, -2, 0), TP_INVALID);
    assert_int_equal(tp_problem_mask(&p, TP_MASK_OR, TP_MASK_DOCUMENTS, 1, 0), TP_INVALID);
    assert_memory_equal(&p, &good, sizeof p);
}

static void texts_go_round(void **state) {
    (void)state;
    static const char *const texts[][2] = {
        {"chunk=64 causal", "chunk=64 causal"},
        {"prefix=5 causal", "causal prefix=5"},
        {"causal prefix", "causal prefix"},
        {"spans window=3,0 causal documents", "window=3,0 causal spans documents"},
        {"causal spans-and", "causal spans-and"},
        {"first=4 causal window=9,0", "window=9,0 first=4 causal"},
        {"spans", "spans"},
        {"mask=causal,window:3:0,and,spans,or", "causal window=3,0 spans"},
        {"mask=causal,prefix:5,and", "mask=causal,prefix:5,and"},
        {"mask=causal,prefix,and", "mask=causal,prefix,and"},
        {"mask=bits,callback,or,tree,and", "mask=bits,callback,or,tree,and"},
        {"tree bits callback documents", "tree bits callback documents"},
        {"sinks bias=bf16 alibi softcap=50 qscale=0.1,8192,1 positions scale=2",
         "positions scale=2 qscale=0.100000001,8192,1 softcap=50 alibi bias=bf16 sinks"},
    };
    for (int i = 0; i < COUNT(texts); i++) {
        char text[256], expected[256], printed[512];
        tp_problem p, again;
        tp_error error = TP_ERROR_INIT;
        snprintf(text, sizeof text, "q4 k4 d8 f32 %s", texts[i][0]);
        snprintf(expected, sizeof expected, "prefill b1 h1/1 q4 k4 d8 f32 %s", texts[i][1]);
        if (tp_problem_parse(text, &p, NULL, &error)) fail_msg("%s", error.text);
        assert_int_equal(tp_problem_print(&p, NULL, printed, sizeof printed), TP_OK);
        assert_string_equal(printed, expected);
        assert_int_equal(tp_problem_parse(printed, &again, NULL, NULL), TP_OK);
        assert_memory_equal(&p, &again, sizeof p);
    }
    static const char *const bad[] = {"chunk=0", "chunk=", "chunk", "prefix=-1", "first=x", "causal=3", "bits bits",
                                      "prefix=3 prefix", "spans spans-and", "mask=", "mask=and", "mask=causal,bits",
                                      "mask=causal,", "mask=window:3", "mask=causal causal", "bias=i8", "bias=",
                                      "softcap=0", "softcap=-1", "qscale=1", "qscale=1,0,0", "qscale=1,2,-1",
                                      "documents=2", "mask=or", "mask=causal,causal,xor"};
    for (int i = 0; i < COUNT(bad); i++) {
        char text[128];
        tp_problem p;
        tp_error error = TP_ERROR_INIT;
        snprintf(text, sizeof text, "q4 k4 d8 f32 %s", bad[i]);
        if (tp_problem_parse(text, &p, NULL, &error) != TP_INVALID) fail_msg("'%s' was taken", text);
        assert_non_null(strstr(error.text, "word '"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_become_bits),
        cmocka_unit_test(bad_data),
        cmocka_unit_test(bad_problems),
        cmocka_unit_test(texts_go_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
