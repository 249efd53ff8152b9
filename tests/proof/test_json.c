/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of JSON texts against jansson's: the same texts are read, and give the same values. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../proof/json.h"

static int read_by_both(const char *text, size_t size) {
    tp__json_error error = {TP_OK, 0, 0, 0, ""};
    json_error_t unused;
    char *copy = malloc(size ? size : 1); /* exact, so that a sanitizer sees a read beyond it */
    assert_non_null(copy);
    memcpy(copy, text, size);
    json_t *mine = tp__json_read(copy, size, 2000, &error), *theirs = json_loadb(copy, size, JSON_REJECT_DUPLICATES, &unused);
    free(copy);
    if (theirs && !json_is_object(theirs)) { /* lists are no files of ours */
        json_decref(theirs);
        theirs = NULL;
        assert_true(mine || error.beyond);
    }
    if (!mine != !theirs)
        fail_msg("%s: here %s, jansson %s", text, mine ? "read" : error.text, theirs ? "reads it" : unused.text);
    if (mine && !json_equal(mine, theirs)) fail_msg("%s: another value", text);
    if (mine) {
        char *a = json_dumps(mine, JSON_COMPACT), *b = json_dumps(theirs, JSON_COMPACT);
        assert_string_equal(a, b); /* and keys in the same order */
        free(a);
        free(b);
    } else {
        assert_true(error.status == TP_INVALID && error.line > 0 && error.column > 0 && error.text[0]);
    }
    int read = mine != NULL;
    json_decref(mine);
    json_decref(theirs);
    return read;
}

static const char *const good[] = {
    "{}", " { } \n", "{\"a\":1}", "{\"a\":[]}", "{\"a\":[1,2,[3,{}]],\"b\":{\"c\":null,\"d\":true,\"e\":false}}",
    "{\"a\":-0,\"b\":0,\"c\":-0.0,\"d\":1e5,\"e\":1E+5,\"f\":1.5e-300,\"g\":1e-400,\"h\":123456789.125}",
    "{\"a\":9223372036854775807,\"b\":-9223372036854775808,\"c\":0.000000000000000000000000000000000001}",
    "{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\",\"b\":\"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\\uFFFF\",\"\\u0061b\":1}",
    "{\"a\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\",\"\":0}", "{\t\"a\"\r\n:\n1 , \"b\" : 2 }",
};
static const char *const bad[] = {
    "", " ", "{", "}", "{}}", "{}x", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}", "{\"a\":1 \"b\":2}", "{\"a\":1,\"a\":2}",
    "{\"a\":[1,]}", "{\"a\":[,1]}", "{\"a\":[1 2]}", "{\"a\":01}", "{\"a\":-}", "{\"a\":1.}", "{\"a\":.5}", "{\"a\":1e}",
    "{\"a\":+1}", "{\"a\":0x10}", "{\"a\":1e999}", "{\"a\":-1e999}", "{\"a\":9223372036854775808}", "{\"a\":tru}",
    "{\"a\":True}", "{\"a\":nul", "{\"a\":NaN}", "{\"a\":Infinity}", "{a:1}", "{'a':1}", "{\"a\":\"x}", "{\"a\":\"\\x\"}",
    "{\"a\":\"\\u12\"}", "{\"a\":\"\\u0000\"}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\\udc00\"}", "{\"a\":\"\\ud800\\u0041\"}",
    "{\"a\":\"\n\"}", "{\"a\":\"\x01\"}", "{\"a\":\"\xff\"}", "{\"a\":\"\xc0\x80\"}", "{\"a\":\"\xed\xa0\x80\"}",
    "{\"a\":\"\xf4\x90\x80\x80\"}", "{\"a\":\"\xe2\x82\"}", "{\"a\\u0000\":1}", "// x\n{}", "{}/**/", "\xef\xbb\xbf{}",
    "[1]", "7", "\"a\"", "null", "{\"a\":\"\\", "{\"a\":\"\\u", "{\"a\":\"\\ud83d\\u", "{\"a\":1e+", "{\"a\":tr",
};

static void the_same_texts_are_read(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!read_by_both(good[i], strlen(good[i]))) fail_msg("%s is not read", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (read_by_both(bad[i], strlen(bad[i]))) fail_msg("%s is read", bad[i]);
    assert_int_equal(read_by_both("{\"a\":\"\0\"}", 9), 0);
    assert_int_equal(read_by_both("{}\0", 3), 0);
    assert_int_equal(read_by_both("{\0}", 3), 0);
}

/* Cut, with a byte changed, taken out or doubled: 20,000 texts of one seed. */
static void damaged_texts_too(void **state) {
    static const char marks[] = "\"{}[]:,-+0123456789.eEulftr \n\\\xc3\xa9\xff\x01";
    uint64_t seed = 1;
    char text[512];
    int read = 0;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        const char *from = good[i % (int)(sizeof good / sizeof *good)];
        size_t size = strlen(from);
        memcpy(text, from, size + 1);
        for (int j = 0; j < 1 + i % 3 && size; j++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            size_t at = (size_t)(seed >> 33) % size;
            char mark = marks[(seed >> 20) % (sizeof marks - 1)];
            if (seed >> 60 < 10)
                text[at] = mark;
            else if (seed >> 60 < 13)
                memmove(text + at, text + at + 1, size-- - at);
            else
                memmove(text + at + 1, text + at, ++size - at), text[at] = mark;
        }
        text[size] = 0;
        read += read_by_both(text, size);
    }
    assert_true(read > 1000 && read < 15000);
}

static void line_and_column(void **state) {
    tp__json_error error;
    (void)state;
    assert_null(tp__json_read("{\"a\":1,\n \"b\" 2}", 16, 8, &error));
    assert_true(error.line == 2 && error.column == 6 && !error.beyond);
    assert_null(tp__json_read("{\"a\":[[[1]]]}", 13, 3, &error));
    assert_true(error.beyond && error.line == 1 && strstr(error.text, "deeper than 3"));
    json_t *value = tp__json_read("{\"a\":[[1]]}", 11, 3, &error);
    assert_non_null(value);
    json_decref(value);
}

/* What is said of a text, and where: what is JSON but not read here is not called something else. */
static void reasons(void **state) {
    static const struct {
        const char *text, *reason;
        int column, beyond;
    } cases[] = {
        {"{\"a\":1,}", "a key must stand here", 8, 0},
        {"{\"a\":1,", "a key must stand here", 8, 0},
        {"{", "a key must stand here, or '}'", 2, 0},
        {"{1", "a key must stand here, or '}'", 2, 0},
        {"{\"a\":01}", "no number", 6, 0},
        {"{\"a\":-}", "no number", 6, 0},
        {"{\"a\":12.}", "no digits behind the point", 6, 0},
        {"{\"a\":12.5e+}", "no digits in the exponent", 6, 0},
        {"{\"a\":9223372036854775808}", "a whole number must fit 64 bits", 6, 1},
        {"{\"a\":-9223372036854775809}", "a whole number must fit 64 bits", 6, 1},
        {"{\"a\": 1.5e999}", "a number must be below 1.8e308", 7, 1},
        {"{\"a\":1,\"a\":2}", "a key must stand once: \"a\" is a duplicate key", 8, 1},
        {"{\"a\":\"\\u0000\"}", "a text must not hold \\u0000", 8, 1},
        {"{\"a\":\"\\ud800\"}", "half of a surrogate pair", 8, 1},
        {"{\"a\":\"\\u00\"}", "an escape \\u needs four hex digits", 8, 0},
        {"\n [1]", "it must be an object", 1, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tp__json_error error;
        assert_null(tp__json_read(cases[i].text, strlen(cases[i].text), 8, &error));
        if (strcmp(error.text, cases[i].reason) || error.column != cases[i].column || error.beyond != cases[i].beyond)
            fail_msg("%s: column %d, beyond %d: %s", cases[i].text, error.column, error.beyond, error.text);
    }
}

static void utf8(void **state) {
    (void)state;
    for (unsigned code = 1; code < 0x120000; code += code < 0x10100 ? 1 : 97) { /* as bytes, whatever they mean */
        char bytes[4];
        int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
        for (int i = n - 1, rest = (int)code; i > 0; i--, rest >>= 6) bytes[i] = (char)(0x80 | (rest & 0x3F));
        bytes[0] = (char)(n == 1 ? (int)code : (0xF00 >> n & 0xFF) | (int)(code >> 6 * (n - 1)));
        int legal = (code < 0xD800 || code > 0xDFFF) && code <= 0x10FFFF;
        assert_int_equal(tp__is_utf8(bytes, (size_t)n), legal);
        if (n > 1) assert_false(tp__is_utf8(bytes, (size_t)n - 1));
    }
    assert_false(tp__is_utf8("\xc1\xbf", 2));
    assert_false(tp__is_utf8("\xe0\x9f\xbf", 3));
    assert_false(tp__is_utf8("\xf0\x8f\xbf\xbf", 4));
    assert_false(tp__is_utf8("\x80", 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_texts_are_read),
        cmocka_unit_test(damaged_texts_too),
        cmocka_unit_test(line_and_column),
        cmocka_unit_test(reasons),
        cmocka_unit_test(utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
