/* SPDX-License-Identifier: Apache-2.0 */
/* A cache's format in words, as options, locks and reports have it; what becomes of it: rows of layers, words of a problem. */
#include "cache_format.h"

#include <stdio.h>
#include <string.h>

#include "json.h"

/* The first row of a dtype has the scales that it has where none are named. */
static const tp__side sides[] = {{0, TP_SCALES_NONE},        {TP_I8, TP_SCALES_TOKEN},    {TP_I8, TP_SCALES_Q8_0},
                                 {TP_I4, TP_SCALES_GROUP},   {TP_E4M3, TP_SCALES_TENSOR}, {TP_E4M3, TP_SCALES_TOKEN}};
enum { SIDES = sizeof sides / sizeof *sides };

static const char *dtype_name(const tp__side *side) {
    return side->dtype ? tp_dtype_name((tp_dtype)side->dtype) : "plain";
}

/* "plain", "i8/token". */
static int print_side(const tp__side *side, char *text, size_t size) {
    return side->dtype ? snprintf(text, size, "%s/%s", dtype_name(side), tp_scales_name((tp_scales)side->scales))
                       : snprintf(text, size, "plain");
}

static int same(const tp__side *a, const tp__side *b) {
    return a->dtype == b->dtype && a->scales == b->scales;
}

static int read_side(const char *word, size_t length, tp__side *side) {
    for (int i = 0; i < SIDES; i++) {
        char whole[TP__FORMAT_TEXT];
        size_t used = (size_t)print_side(&sides[i], whole, sizeof whole), name = strlen(dtype_name(&sides[i]));
        int usual = i == 0 || sides[i].dtype != sides[i - 1].dtype;
        if ((length != used && !(usual && length == name)) || memcmp(word, whole, length)) continue;
        *side = sides[i];
        return 0;
    }
    return 1;
}

tp_status tp__format_read(const char *words, tp__format *format, tp_error *error) {
    *format = (tp__format){{0, 0}, {0, 0}};
    if (!words || !*words) return TP_OK;
    size_t first = strcspn(words, ":");
    const char *second = words[first] ? words + first + 1 : words;
    if (!read_side(words, first, &format->k) && !read_side(second, strlen(second), &format->v)) return TP_OK;
    return tp__proof_fail(error, TP_INVALID,
                          "cache is '%.60s': it must be plain, i8, i8/q8_0, i4, e4m3 or e4m3/token, or two of these as K:V",
                          tp__is_utf8(words, strlen(words)) ? words : "?");
}

int tp__format_is_plain(const tp__format *format) {
    return !format->k.dtype && !format->v.dtype;
}

void tp__format_print(const tp__format *format, char text[TP__FORMAT_TEXT]) {
    int used = print_side(&format->k, text, TP__FORMAT_TEXT);
    if (same(&format->k, &format->v)) return;
    text[used++] = ':';
    print_side(&format->v, text + used, TP__FORMAT_TEXT - (size_t)used);
}

tp_status tp__format_for(const tp_model *model, const char *words, tp__format *format, tp_error *error) {
    TP_TRY(tp__format_read(words, format, error));
    if ((words && *words) || !*model->cache) return TP_OK;
    return tp__proof_fail(error, TP_INVALID,
                          "cache is not said, and the file of %.150s wants keys and values kept as %s "
                          "(quantization_config.kv_cache_scheme), which loses something: it must be that, or plain",
                          model->label, model->cache);
}

static int is_usual(const tp__side *side) {
    int i = 0;
    while (sides[i].dtype != side->dtype) i++;
    return same(&sides[i], side);
}

void tp__format_words(const tp__format *format, int32_t dtype, char dtypes[TP__FORMAT_TEXT], char scales[TP__FORMAT_TEXT]) {
    const tp__side *k = &format->k, *v = &format->v;
    const char *q = tp_dtype_name((tp_dtype)dtype), *k_scales = tp_scales_name((tp_scales)k->scales),
               *v_scales = tp_scales_name((tp_scales)v->scales);
    scales[0] = 0;
    snprintf(dtypes, TP__FORMAT_TEXT, "%s", q);
    if (tp__format_is_plain(format)) return;
    snprintf(dtypes, TP__FORMAT_TEXT, "%s:%s:%s->%s", q, k->dtype ? dtype_name(k) : q, v->dtype ? dtype_name(v) : q, q);
    if (is_usual(k) && is_usual(v)) return;
    if (k->dtype && v->dtype)
        snprintf(scales, TP__FORMAT_TEXT, " scales=%s:%s", k_scales, v_scales);
    else
        snprintf(scales, TP__FORMAT_TEXT, " scales=%s", k->dtype ? k_scales : v_scales);
}

int64_t tp__side_bytes(const tp__side *side, int32_t dtype, int64_t dim) {
    if (!side->dtype) return dim * (int64_t)tp_dtype_bytes((tp_dtype)dtype);
    return tp_codes_bytes((tp_dtype)side->dtype, (tp_scales)side->scales, dim) + tp_scales_bytes((tp_scales)side->scales, dim);
}

tp_status tp_cache_format_name(const char *cache, char *text, size_t size, tp_error *error) {
    tp__format format;
    char name[TP__FORMAT_TEXT];
    if (!text || !size)
        return tp__proof_fail(error, TP_INVALID, "text is NULL or has no room: it must have %d bytes", TP__FORMAT_TEXT);
    tp_status status = tp__format_read(cache, &format, error); /* before anything is written: text may be these words */
    text[0] = 0;
    TP_TRY(status);
    tp__format_print(&format, name);
    if (strlen(name) >= size)
        return tp__proof_fail(error, TP_INVALID, "size is %zu: '%s' needs %zu bytes", size, name, strlen(name) + 1);
    strcpy(text, name);
    return TP_OK;
}

/* What a layer keeps of one side; its scale is the caller's, and 1 until the caller says so. */
static void put_side(const tp__side *side, int32_t *dtype, int32_t *scales, float *scale) {
    if (side->dtype) *dtype = side->dtype;
    *scales = side->scales;
    *scale = side->scales == TP_SCALES_TENSOR ? 1 : 0;
}

tp_status tp_cache_format_layers(const char *cache, tp_cache_layer *layers, int64_t count, tp_error *error) {
    tp__format format;
    if (!layers || count < 0)
        return tp__proof_fail(error, TP_INVALID, "layers is %s and count %lld: rows of layers must be given",
                              layers ? "there" : "NULL", (long long)count);
    TP_TRY(tp__format_read(cache, &format, error));
    for (int64_t i = 0; i < count; i++) {
        tp_cache_layer *row = &layers[i];
        if (!row->kv_heads) continue; /* it keeps nothing */
        put_side(&format.k, &row->k_dtype, &row->k_scales, &row->k_scale);
        put_side(&format.v, &row->v_dtype, &row->v_scales, &row->v_scale);
    }
    return TP_OK;
}
