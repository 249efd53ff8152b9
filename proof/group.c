/* SPDX-License-Identifier: Apache-2.0 */
/* A group in words: its part, formula, layers and problem text. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cache_format.h"
#include "capacity.h"
#include "control.h"
#include "words.h"

const char *tp_part_name(tp_part part) {
    static const char *const names[] = {"text", "vision", "audio", "cross"};
    return (unsigned)part < sizeof names / sizeof *names ? names[part] : "part?";
}

const char *tp_rope_name(tp_rope rope) {
    static const char *const names[] = {"none", "default",  "linear", "dynamic",
                                        "yarn", "longrope", "llama3", "2d", "proportional"};
    return (unsigned)rope < sizeof names / sizeof *names ? names[rope] : "rope?";
}

/* Collects text and remembers whether it fitted. */
typedef struct printer {
    char *text;
    size_t size, used;
} printer;

static void put(printer *p, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    size_t capacity = p->used < p->size ? p->size - p->used : 0;
    int n = vsnprintf(capacity ? p->text + p->used : NULL, capacity, format, arguments);
    va_end(arguments);
    if (n > 0) p->used += (size_t)n;
}

static tp_status printed(const printer *p) {
    return p->used < p->size ? TP_OK : TP_INVALID;
}

static tp_status begin(printer *p, const tp_layer_group *given, tp_layer_group *group, char *text, size_t size) {
    if (!text || !size) return TP_INVALID;
    text[0] = 0;
    *p = (printer){text, size, 0};
    return tp__take(&tp__group_shape, given, group, NULL);
}

static void put_terms(printer *p, uint32_t terms, const char *const *names, const char *joint) {
    int first = 1;
    for (int bit = 0; bit < 4; bit++) {
        if (!(terms >> bit & 1) || !names[bit]) continue;
        put(p, "%s%s", first ? "" : joint, names[bit]);
        first = 0;
    }
}

tp_status tp_layer_group_formula(const tp_layer_group *given, char *text, size_t size) {
    tp_layer_group whole, *group = &whole;
    static const char *const all_names[] = {"causal", "window", "chunk", "same-segment"};
    static const char *const or_names[] = {"same-span", "prefix", "first", NULL};
    printer p;
    if (begin(&p, given, group, text, size) != TP_OK) return TP_INVALID;
    if (group->out_of_scope) {
        put(&p, "-");
        return printed(&p);
    }
    int brackets = group->or_of && (group->all_of & (group->all_of - 1));
    if (brackets) put(&p, "(");
    put_terms(&p, group->all_of, all_names, " & ");
    if (!group->all_of) put(&p, "full");
    if (brackets) put(&p, ")");
    if (group->or_of) put(&p, " | ");
    put_terms(&p, group->or_of, or_names, " | ");
    return printed(&p);
}

/* How many layers from the i-th on go up by the same step. */
static int run_length(const tp_layer_group *group, int i, int step) {
    int n = 1;
    while (i + n < group->layer_count && group->layers[i + n] - group->layers[i + n - 1] == step)
        n++;
    return n;
}

tp_status tp_layer_group_layers(const tp_layer_group *given, char *text, size_t size) {
    tp_layer_group whole, *group = &whole;
    printer p;
    if (begin(&p, given, group, text, size) != TP_OK) return TP_INVALID;
    for (int i = 0; i < group->layer_count;) {
        int step = i + 1 < group->layer_count ? group->layers[i + 1] - group->layers[i] : 1;
        int n = run_length(group, i, step);
        /* two layers apart are a list; the third may begin a range */
        if (n == 2 && step > 1) n = 1;
        put(&p, "%s%d", i ? "," : "", (int)group->layers[i]);
        if (n > 1) put(&p, "-%d", (int)group->layers[i + n - 1]);
        if (n > 1 && step > 1) put(&p, "/%d", step);
        i += n;
    }
    return printed(&p);
}

static void put_dims(printer *p, int64_t qk, int64_t v) {
    put(p, " d%lld", (long long)qk);
    if (v != qk) put(p, "/%lld", (long long)v);
}

static void put_scale(printer *p, double scale) {
    char text[32];
    tp__print_real((double)(float)scale, text);
    put(p, " scale=%s", text);
}

static tp_status print_problem(const tp_layer_group *given, const tp__format *cache, int64_t batch, int64_t q_len, int64_t kv_len,
                               char *text, size_t size) {
    tp_layer_group whole, *group = &whole;
    printer p;
    char extra[192] = "", dtypes[TP__FORMAT_TEXT] = "", scales[TP__FORMAT_TEXT] = "";
    if (begin(&p, given, group, text, size) != TP_OK) return TP_INVALID;
    if (group->out_of_scope) return TP_UNSUPPORTED;
    int one_row = q_len == 1, latent = one_row && group->decode_dim_qk;
    int reads = !tp__format_is_plain(cache) && tp__group_caches(group) && (latent || !group->decode_dim_qk);
    int64_t kv_heads = latent ? group->decode_kv_heads : group->kv_heads;
    int64_t qk = latent ? group->decode_dim_qk : group->head_dim_qk;
    int64_t v = latent ? group->decode_dim_v : group->head_dim_v;
    if (reads)
        tp__format_words(cache, group->dtype ? group->dtype : TP_BF16, dtypes, scales);
    else if (group->dtype)
        snprintf(dtypes, sizeof dtypes, "%s", tp_dtype_name((tp_dtype)group->dtype));
    /* the phase as tileproof.h derives it */
    put(&p, "%s", one_row || (q_len <= 16 && kv_len > q_len) ? "decode" : "prefill");
    put(&p, " b%lld h%lld/%lld q%lld k%lld", (long long)batch, (long long)group->q_heads,
        (long long)kv_heads, (long long)q_len, (long long)kv_len);
    put_dims(&p, qk, v);
    put(&p, "%s%s%s", *dtypes ? " " : "", dtypes, scales);
    if (group->all_of & TP_TERM_SEGMENT) put(&p, " packed");
    /* with so few keys every one is chosen */
    if (group->sparse && group->sparse < kv_len) put(&p, " sparse-sorted=%lld", (long long)group->sparse);
    if (group->all_of & TP_TERM_CAUSAL) put(&p, " causal");
    if (group->all_of & TP_TERM_WINDOW)
        put(&p, " window=%lld,%lld", (long long)group->window_left, (long long)group->window_right);
    /* a row that is generated is in no span and no prefix */
    tp__words_print(group, one_row ? TP_TERM_SPAN | TP_TERM_PREFIX : 0, extra, sizeof extra);
    put(&p, "%s", extra);
    if ((float)group->scale != (float)(1 / sqrt((double)qk))) put_scale(&p, group->scale);
    return printed(&p);
}

tp_status tp_layer_group_problem(const tp_layer_group *group, int64_t batch, int64_t q_len, int64_t kv_len, char *text,
                                 size_t size) {
    TP__IN_DEFAULT_FENV;
    static const tp__format plain = {{0, 0}, {0, 0}};
    return print_problem(group, &plain, batch, q_len, kv_len, text, size);
}

tp_status tp_layer_group_problem_in(const tp_layer_group *group, const char *cache, int64_t batch, int64_t q_len, int64_t kv_len,
                                    char *text, size_t size) {
    TP__IN_DEFAULT_FENV;
    tp__format format;
    if (text && size) text[0] = 0;
    TP_TRY(tp__format_read(cache, &format, NULL));
    return print_problem(group, &format, batch, q_len, kv_len, text, size);
}

void tp_layer_group_lengths(const tp_layer_group *given, int decode, int64_t *q_len,
                            int64_t *kv_len) {
    tp_layer_group whole, *group = &whole;
    *q_len = *kv_len = 0;
    if (tp__take(&tp__group_shape, given, group, NULL) != TP_OK || group->out_of_scope) return;
    int generates = group->part == TP_PART_CROSS || group->all_of & TP_TERM_CAUSAL;
    if (decode && !generates) return;
    *q_len = group->q_max && group->q_max < 4096 ? group->q_max : 4096;
    *kv_len = group->kv_max && group->kv_max < 4096 ? group->kv_max : 4096;
    if (decode) *q_len = 1;
}
