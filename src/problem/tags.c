/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/error.h"
#include "problem/sequence.h"

#define TAG_MAX 63

/* Printable ASCII, so that it is whole in JSON, in a label and in a log. */
tp_status tp__tag_check(const char *what, const char *text, tp_error *error) {
    size_t size = 0;
    if (text == NULL) return TP_OK;
    while (size <= TAG_MAX && text[size] >= ' ' && text[size] <= '~') size++;
    TP_REQUIRE(size > 0 && size <= TAG_MAX && text[size] == '\0', error, TP_INVALID,
               "%s is '%.*s'...: it must be 1..%d printable ASCII characters", what, (int)size, text,
               TAG_MAX);
    return TP_OK;
}

tp_status tp__tags_check(const tp_tags *tags, tp_error *error) {
    if (tags == NULL) return TP_OK;
    TP_REQUIRE(tags->layer >= -1, error, TP_INVALID, "tags.layer is %d: it must be >= 0, or -1 for none",
               tags->layer);
    TP_TRY(tp__tag_check("tags.model", tags->model, error));
    return tp__tag_check("tags.request", tags->request, error);
}
