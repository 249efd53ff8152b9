/* SPDX-License-Identifier: Apache-2.0 */
#include "support/sink.h"

#include <stdlib.h>
#include <string.h>

int collect(void *cookie, const char *bytes, size_t size) {
    sink *s = cookie;
    if (s->used + size >= sizeof s->text) return 1;
    memcpy(s->text + s->used, bytes, size);
    s->used += size;
    s->text[s->used] = '\0';
    return ++s->pieces == s->stop_at;
}

sink *sink_new(void) { return calloc(1, sizeof(sink)); }

int lines_of(const char *text) {
    int n = 0;
    for (; *text != '\0'; text++) n += *text == '\n';
    return n;
}

int times_in(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part)) n++;
    return n;
}
