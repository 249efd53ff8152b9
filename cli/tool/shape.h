/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short shape grammar, beside the library's text form:
 *
 *     shape   = segment { "_" segment }            2q2k_32q1s1k
 *     segment = [COUNT] "q" LENGTH [ "s" LENGTH ]  8q1s4k; without s: as many keys as rows
 *     LENGTH  = digits [ "k" | "m" ]               times 1,024 or 1,048,576
 */
#ifndef TILEPROOF_CLI_TOOL_SHAPE_H
#define TILEPROOF_CLI_TOOL_SHAPE_H

#include <stddef.h>

/* Copies words to text; when the first is a shape, writes b/q/k or seqs= in its place and adds
   h1/1, d128 and f32 where not given; packed to several segments, with paged= packed-q. 0, or nonzero with the reason. */
int shape_expand(const char *words, char *text, size_t size, char *reason, size_t reason_size);

#endif
