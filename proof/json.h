/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON in and out where memory may end at any byte.
 *
 * jansson's own reader does not look whether its buffer of a token could grow: out of memory it can give a shorter
 * string or number and call that a success; its writer can leave out a key. So texts are read here, into jansson's
 * values, and written through a page that remembers whether anything was lost. What is read is what
 * RFC 8259 allows, without duplicate keys, without U+0000, in valid UTF-8, whole numbers that fit 64 bits, and reals
 * that do not overflow.
 */
#ifndef TP_PROOF_JSON_H
#define TP_PROOF_JSON_H

#include <jansson.h>

#include "fail.h"

/* Why a text was not read, or TP_NO_MEMORY. */
typedef struct tp__json_error {
    tp_status status;
    int line, column; /* from 1; of bytes */
    int beyond;       /* it is JSON, but more than is read here */
    char text[96];
} tp__json_error;

/* The value, an object; NULL with the reason. Deeper than `max` levels of brackets is refused. */
json_t *tp__json_read(const char *text, size_t size, int max, tp__json_error *error);
/* The same with an error text: "NAME:LINE: not JSON at column C: ...", or "column C is beyond what is read here: ..." where
   it is JSON, and TP_MODEL_MAX_DEPTH. before: lines before
   the text's first. */
json_t *tp__json_load(const char *text, size_t size, const char *name, int before, tp_error *error,
                      tp_status *status);

/* The bytes are UTF-8: no surrogates, no long forms, nothing beyond U+10FFFF. */
int tp__is_utf8(const char *text, size_t size);

/* A copy of the object, one level deep, in which the key has this value; the value is taken over in any case. NULL: out
   of memory, or one of the two is NULL. */
json_t *tp__json_with(json_t *object, const char *key, json_t *value);

/* A copy of all of it, with the numbers as a file has them. By its text: jansson's own deep copy may leave entries out when
   memory ends. NULL: out of memory, or the value is NULL. */
json_t *tp__json_copy(const json_t *value);

/* Text that is put together first and handed out in one piece, so that a reader never gets a part of it. */
typedef struct tp__page {
    char *text;
    size_t used, capacity;
    int failed;
} tp__page;
void tp__page_put(tp__page *page, const char *text);
/* As json_dumps writes it, which out of memory may leave out keys and say nothing. NULL counts as out of memory. */
void tp__page_json(tp__page *page, const json_t *value, size_t flags);
/* What there is, "" when memory ran out; tp__page_close frees it. */
const char *tp__page_text(const tp__page *page);
void tp__page_close(tp__page *page);
/* Writes it and frees it: TP_NO_MEMORY, or TP_INVALID when the writer stopped. */
tp_status tp__page_give(tp__page *page, tp_write write, void *cookie);

#endif
