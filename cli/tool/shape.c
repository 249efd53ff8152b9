/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/shape.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <tileproof.h>

enum { MAX_SEGMENTS = 16 }; /* of tp_lengths */

struct segment {
    int64_t count, q_len, kv_len;
};

/* Digits with k or m behind; -1 when there are none or they overflow. */
static int64_t read_length(const char **at) {
    int64_t value = 0;
    if (!isdigit((unsigned char)**at)) return -1;
    for (; isdigit((unsigned char)**at); (*at)++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, **at - '0', &value))
            return -1;
    int64_t factor = **at == 'k' ? 1024 : **at == 'm' ? 1024 * 1024 : 1;
    if (factor > 1) (*at)++;
    return __builtin_mul_overflow(value, factor, &value) ? -1 : value;
}

/* The segment at *at, which ends at '_' or the end of the word. */
static int read_segment(const char **at, struct segment *segment) {
    segment->count = 1;
    if (**at != 'q') {
        segment->count = read_length(at);
        if (segment->count < 1 || (*at)[-1] == 'k' || (*at)[-1] == 'm') return 1;
    }
    if (*(*at)++ != 'q') return 1;
    segment->q_len = segment->kv_len = read_length(at);
    if (segment->q_len < 0) return 1;
    if (**at == 's') {
        (*at)++;
        segment->kv_len = read_length(at);
        if (segment->kv_len < 0) return 1;
    }
    return **at != '_' && **at != 0;
}

static int fail(char *reason, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, size, format, arguments);
    va_end(arguments);
    return 1;
}

/* Digits first, which no word of the text form has; or q with anything behind its digits; or q
   with digits alone when no k word follows. */
static int looks_like_shape(const char *word, const char *rest) {
    if (isdigit((unsigned char)word[0])) return 1;
    if (word[0] != 'q' || !isdigit((unsigned char)word[1])) return 0;
    if (word[1 + strspn(word + 1, "0123456789")]) return 1;
    for (const char *k = rest; (k = strstr(k, " k")); k += 2)
        if (isdigit((unsigned char)k[2])) return 0;
    return 1;
}

/* Any that the library names, alone or before the others: bf16, bf16->f32, i8:i8:i8. Whether it may stand there is the
   library's to say. */
static int is_dtype(const char *word) {
    for (int dtype = 1; strcmp(tp_dtype_name((tp_dtype)dtype), "dtype?") != 0; dtype++) {
        const char *name = tp_dtype_name((tp_dtype)dtype);
        if (!strncmp(word, name, strlen(name))) return 1;
    }
    return 0;
}

static int starts(const char *word, const char *letters) {
    return strchr(letters, word[0]) && isdigit((unsigned char)word[1]);
}

static int read_shape(const char *word, struct segment *segments, char *reason, size_t size) {
    int count = 0;
    const char *at = word;
    for (;; at++) {
        if (count == MAX_SEGMENTS)
            return fail(reason, size, "shape '%s' has more than %d segments", word, MAX_SEGMENTS),
                   0;
        if (read_segment(&at, &segments[count]))
            return fail(reason, size,
                        "shape '%s' is not understood near '%s': segments are [COUNT]qROWS[sKEYS], "
                        "joined by _, numbers may end in k or m",
                        word, at),
                   0;
        count++;
        if (!*at) return count;
    }
}

int shape_expand(const char *words, char *text, size_t size, char *reason, size_t reason_size) {
    char word[256];
    words += strspn(words, " ");
    size_t first = strcspn(words, " ");
    const char *rest = words + first;
    if (first >= sizeof word) return fail(reason, reason_size, "the first word is too long");
    snprintf(word, sizeof word, "%.*s", (int)first, words);
    if (!looks_like_shape(word, rest)) {
        if (strlen(words) >= size) return fail(reason, reason_size, "the problem is too long");
        strcpy(text, words);
        return 0;
    }
    struct segment segments[MAX_SEGMENTS];
    int count = read_shape(word, segments, reason, reason_size);
    if (!count) return 1;

    int has_heads = 0, has_dim = 0, has_dtype = 0, has_layout = 0, has_pages = 0;
    for (const char *at = rest; *(at += strspn(at, " ")); at += strcspn(at, " ")) {
        if (starts(at, "bqk") || !strncmp(at, "seqs=", 5))
            return fail(reason, reason_size,
                        "the shape '%s' already gives the lengths: '%.*s' is one too many", word,
                        (int)strcspn(at, " "), at);
        has_heads |= starts(at, "h");
        has_dim |= starts(at, "d");
        has_dtype |= is_dtype(at);
        has_layout |= !strncmp(at, "packed", 6) || !strncmp(at, "padded", 6);
        has_pages |= !strncmp(at, "paged=", 6);
    }

    char lengths[MAX_SEGMENTS * 64 + 32];
    int used = 0;
    if (count == 1) {
        snprintf(lengths, sizeof lengths, "b%lld q%lld k%lld", (long long)segments[0].count,
                 (long long)segments[0].q_len, (long long)segments[0].kv_len);
    } else {
        int64_t sequences = 0;
        for (int i = 0; i < count; i++)
            if (__builtin_add_overflow(sequences, segments[i].count, &sequences))
                return fail(reason, reason_size, "shape '%s' has too many sequences", word);
        used = snprintf(lengths, sizeof lengths, "b%lld seqs=", (long long)sequences);
        for (int i = 0; i < count; i++)
            used += snprintf(lengths + used, sizeof lengths - (size_t)used, "%s%lldx%lld/%lld",
                             i ? "," : "", (long long)segments[i].count,
                             (long long)segments[i].q_len, (long long)segments[i].kv_len);
    }
    /* Sequences of different lengths: keys in pages have room for each, so that rows alone are packed. */
    const char *layout = count == 1 || has_layout ? "" : has_pages ? " packed-q" : " packed";
    int wanted = snprintf(text, size, "%s%s%s%s%s%s", lengths, has_heads ? "" : " h1/1", has_dim ? "" : " d128",
                          has_dtype ? "" : " f32", layout, rest);
    if (wanted < 0 || (size_t)wanted >= size)
        return fail(reason, reason_size, "the problem is too long");
    return 0;
}
