/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that the library writes in pieces, kept whole. */
#ifndef TEST_SUPPORT_SINK_H
#define TEST_SUPPORT_SINK_H

#include <stddef.h>

typedef struct sink {
    char text[1 << 20];
    size_t used;
    int pieces, stop_at; /* stop_at: the piece whose answer is "stop"; 0: none */
} sink;

sink *sink_new(void);
int collect(void *cookie, const char *bytes, size_t size); /* a tp_write of a sink */
int lines_of(const char *text);
int times_in(const char *text, const char *part);

#endif
