/* SPDX-License-Identifier: Apache-2.0 */
#include "sized.h"

#include <stdlib.h>
#include <string.h>

#define TEXT(type, field) offsetof(type, field)
static const size_t cell_texts[] = {TEXT(tp_cell, problem), TEXT(tp_cell, purpose),     TEXT(tp_cell, shows),
                                    TEXT(tp_cell, kernel),  TEXT(tp_cell, numerics_id), TEXT(tp_cell, output),
                                    TEXT(tp_cell, reason)};
static const size_t identity_texts[] = {TEXT(tp_identity, version), TEXT(tp_identity, build), TEXT(tp_identity, compiler),
                                        TEXT(tp_identity, isa),     TEXT(tp_identity, cpu),   TEXT(tp_identity, os),
                                        TEXT(tp_identity, libc),    TEXT(tp_identity, declared)};

/* last: of 0.2.0. It never changes; fields behind it came later. */
#define END(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))
#define COUNT(list) (int)(sizeof(list) / sizeof *(list))
#define PLAIN(type, last) {#type, sizeof(type), END(type, last), NULL, 0}
#define TEXTS(type, last, list) {#type, sizeof(type), END(type, last), list, COUNT(list)}
const tp__shape tp__cell_shape = TEXTS(tp_cell, gain_over_math, cell_texts);
const tp__shape tp__identity_shape = TEXTS(tp_identity, declared, identity_texts);
const tp__shape tp__group_shape = PLAIN(tp_layer_group, reserved);
const tp__shape tp__lock_use_shape = PLAIN(tp_lock_use, problem);
const tp__shape tp__use_shape = PLAIN(tp_qualify_use, cell);
const tp__shape tp__options_shape = PLAIN(tp_qualify_options, page_size);
const tp__shape tp__run_shape = PLAIN(tp_qualify_run_options, user);
const tp__shape tp__update_shape = PLAIN(tp_lock_update, reason);

static uint32_t size_of(const void *given) {
    uint32_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

static const char **text_at(const tp__shape *shape, void *record, int i) {
    return (const char **)(void *)((char *)record + shape->texts[i]);
}

tp_status tp__take(const tp__shape *shape, const void *from, void *to, tp_error *error) {
    if (!from) return tp__proof_fail(error, TP_INVALID, "%s is NULL: it must be given", shape->name);
    size_t size = size_of(from), taken = size < shape->size ? size : shape->size;
    if (size < shape->min)
        return tp__proof_fail(error, TP_INVALID, "%s.struct_size is %zu: it must be at least %zu, as its TP_..._INIT sets it",
                              shape->name, size, shape->min);
    for (size_t i = shape->size; i < size; i++)
        if (((const char *)from)[i])
            return tp__proof_fail(error, TP_INVALID,
                                  "%s.struct_size is %zu, and byte %zu is not 0: this library (%s) knows %zu bytes and not "
                                  "what follows",
                                  shape->name, size, i, tp_version(), shape->size);
    memcpy(to, from, taken);
    memset((char *)to + taken, 0, shape->size - taken);
    uint32_t mine = (uint32_t)shape->size;
    memcpy(to, &mine, sizeof mine);
    for (int i = 0; i < shape->text_count; i++)
        if (!*text_at(shape, to, i)) *text_at(shape, to, i) = "";
    return TP_OK;
}

tp_status tp__give(const tp__shape *shape, const void *from, void *to) {
    if (!to || size_of(to) < shape->min) return TP_INVALID;
    uint32_t size = size_of(to);
    size_t given = size < shape->size ? size : shape->size;
    memcpy(to, from, given);
    memset((char *)to + given, 0, size - given);
    memcpy(to, &size, sizeof size);
    return TP_OK;
}

void *tp__pack(const tp__shape *shape, const void *from) {
    size_t bytes = shape->size;
    for (int i = 0; i < shape->text_count; i++) bytes += strlen(*text_at(shape, (void *)(uintptr_t)from, i)) + 1;
    char *block = malloc(bytes), *end = block + shape->size;
    if (!block) return NULL;
    memcpy(block, from, shape->size);
    for (int i = 0; i < shape->text_count; i++) {
        const char **text = text_at(shape, block, i);
        size_t size = strlen(*text) + 1;
        *text = memcpy(end, *text, size);
        end += size;
    }
    return block;
}
