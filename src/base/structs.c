/* SPDX-License-Identifier: Apache-2.0 */
#include "base/structs.h"

#include <string.h>

/* A new field never lies in what was padding: nobody has set that in structs of older callers. */
#define ROW(type, last, bytes)                                                                             \
    _Static_assert(offsetof(type, struct_size) == 0, #type ": struct_size comes first");                   \
    _Static_assert(sizeof(void *) != 8 || TP__FIRST_##type == (bytes), #type " has changed since 0.2.0");  \
    _Static_assert(sizeof(void *) != 8 || TP__FIRST_##type % _Alignof(type) == 0, #type " ended in padding in 0.2.0");
TP__STRUCTS(ROW)
#undef ROW
#define ROW(type, bytes) _Static_assert(sizeof(void *) != 8 || sizeof(type) == (bytes), #type " stays as it is for ever");
TP__FROZEN(ROW)
#undef ROW

tp_status tp__size_check(const char *type, size_t size, size_t first, tp_error *error) {
    TP_REQUIRE(size >= first && size <= TP__SIZE_MAX, error, TP_INVALID,
               "%s.struct_size is %zu: it must be in %zu..%d, sizeof(%s) of the caller (use its init function or macro)",
               type, size, first, TP__SIZE_MAX, type);
    return TP_OK;
}

const void *tp__struct_in(const char *type, const void *given, void *here, size_t first, size_t now, tp_error *error) {
    uint32_t size;
    if (given == NULL) {
        tp__fail(error, TP_INVALID, "%s is NULL", type);
        return NULL;
    }
    memcpy(&size, given, sizeof size);
    if (tp__size_check(type, size, first, error) != TP_OK) return NULL;
    for (size_t i = now; i < size; i++) {
        if (((const unsigned char *)given)[i] == 0) continue;
        tp__fail(error, TP_INVALID,
                 "%s: byte %zu of %u is %u, but tileproof %s knows the first %zu only: what a newer version has must stay "
                 "0 here",
                 type, i, (unsigned)size, ((const unsigned char *)given)[i], tp_version(), now);
        return NULL;
    }
    size_t both = size < now ? size : now;
    memcpy(here, given, both);
    memset((char *)here + both, 0, now - both);
    size = (uint32_t)now; /* so that copies of the copy are what they say */
    memcpy(here, &size, sizeof size);
    return here;
}

void tp__struct_out(void *out, size_t size, const void *value, size_t now) {
    uint32_t kept = (uint32_t)size;
    memcpy(out, value, size < now ? size : now);
    if (size > now) memset((char *)out + now, 0, size - now);
    memcpy(out, &kept, sizeof kept);
}

void tp__struct_init(void *out, size_t size, const void *value, size_t first, size_t now) {
    uint32_t noted = size < TP__SIZE_MAX ? (uint32_t)size : UINT32_MAX;
    if (out == NULL || size < sizeof noted) return;
    if (size >= first && size <= TP__SIZE_MAX)
        tp__struct_out(out, size, value, now);
    else
        memcpy(out, &noted, sizeof noted);
}
