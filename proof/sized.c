/* SPDX-License-Identifier: Apache-2.0 */
#include "sized.h"

#include <stdlib.h>
#include <string.h>

#define TEXT(type, field) offsetof(type, field)
static const size_t cell_texts[] = {TEXT(tp_cell, problem),        TEXT(tp_cell, purpose),     TEXT(tp_cell, shows),
                                    TEXT(tp_cell, kernel),         TEXT(tp_cell, numerics_id), TEXT(tp_cell, output),
                                    TEXT(tp_cell, reason),         TEXT(tp_cell, rule),        TEXT(tp_cell, observed),
                                    TEXT(tp_cell, engine_reasons), TEXT(tp_cell, doubt)};
static const size_t identity_texts[] = {TEXT(tp_identity, version),  TEXT(tp_identity, build),    TEXT(tp_identity, compiler),
                                        TEXT(tp_identity, isa),      TEXT(tp_identity, cpu),      TEXT(tp_identity, os),
                                        TEXT(tp_identity, libc),     TEXT(tp_identity, declared), TEXT(tp_identity, engine),
                                        TEXT(tp_identity, mode),     TEXT(tp_identity, device),   TEXT(tp_identity, cache),
                                        TEXT(tp_identity, versions), TEXT(tp_identity, host)};
static const size_t answer_texts[] = {TEXT(tp_engine_answer, kernel), TEXT(tp_engine_answer, observed),
                                      TEXT(tp_engine_answer, reasons)};

/* The last field of 0.2.0 and the bytes then, where pointers have 64 bits. A row never changes: what is added later stands
   behind that field, and never in what was padding. */
#define END(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))
#define COUNT(list)     (int)(sizeof(list) / sizeof *(list))
#define SHAPE(shape, type, last, bytes, list, count)                                                                             \
    _Static_assert(offsetof(type, struct_size) == 0, #type ": struct_size comes first");                                         \
    _Static_assert(sizeof(void *) != 8 || END(type, last) == (bytes), #type " has changed since 0.2.0");                         \
    _Static_assert(sizeof(void *) != 8 || (bytes) % _Alignof(type) == 0, #type " ended in padding");                             \
    const tp__shape shape = {#type, sizeof(type), END(type, last), list, count}
SHAPE(tp__cell_shape, tp_cell, gain_over_math, 152, cell_texts, COUNT(cell_texts));
SHAPE(tp__identity_shape, tp_identity, declared, 72, identity_texts, COUNT(identity_texts));
SHAPE(tp__group_shape, tp_layer_group, reserved, 264, NULL, 0);
SHAPE(tp__lock_use_shape, tp_lock_use, problem, 48, NULL, 0);
SHAPE(tp__use_shape, tp_qualify_use, cell, 24, NULL, 0);
SHAPE(tp__options_shape, tp_qualify_options, page_size, 24, NULL, 0);
SHAPE(tp__run_shape, tp_qualify_run_options, user, 32, NULL, 0);
SHAPE(tp__model_options_shape, tp_model_options, assume, 16, NULL, 0);
SHAPE(tp__engine_shape, tp_engine, user, 24, NULL, 0);
SHAPE(tp__answer_shape, tp_engine_answer, temporary, 48, answer_texts, COUNT(answer_texts));
SHAPE(tp__update_shape, tp_lock_update, reason, 24, NULL, 0);
SHAPE(tp__lock_revision_shape, tp_lock_revision, cache, 80, NULL, 0);
SHAPE(tp__lock_history_shape, tp_lock_history, reason, 80, NULL, 0);
SHAPE(tp__capacity_options_shape, tp_capacity_options, read_gbps, 64, NULL, 0);
SHAPE(tp__capacity_cache_shape, tp_capacity_cache, concurrency_max, 80, NULL, 0);
SHAPE(tp__rope_shape, tp_rope_options, reserved, 200, NULL, 0);
SHAPE(tp__capacity_work_shape, tp_capacity_work, problem, 72, NULL, 0);
SHAPE(tp__preflight_shape, tp_preflight_options, cache, 24, NULL, 0);
SHAPE(tp__cache_options_shape, tp_cache_options, allocator, 80, NULL, 0);

enum { MAX_SIZE = 65536 }; /* more is no size, but memory that nobody has set */

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
    size_t size = size_of(from), both = size < shape->size ? size : shape->size;
    if (size < shape->min || size > MAX_SIZE)
        return tp__proof_fail(error, TP_INVALID,
                              "%s.struct_size is %zu: it must be in %zu..%d, sizeof(%s) of the caller (use its INIT macro)",
                              shape->name, size, shape->min, MAX_SIZE, shape->name);
    for (size_t i = shape->size; i < size; i++)
        if (((const unsigned char *)from)[i])
            return tp__proof_fail(error, TP_INVALID,
                                  "%s: byte %zu of %zu is %u, but tileproof %s knows the first %zu only: what a newer version "
                                  "has must stay 0 here",
                                  shape->name, i, size, ((const unsigned char *)from)[i], tp_version(), shape->size);
    memcpy(to, from, both);
    memset((char *)to + both, 0, shape->size - both);
    uint32_t mine = (uint32_t)shape->size;
    memcpy(to, &mine, sizeof mine);
    for (int i = 0; i < shape->text_count; i++)
        if (!*text_at(shape, to, i)) *text_at(shape, to, i) = "";
    return TP_OK;
}

tp_status tp__give(const tp__shape *shape, const void *from, void *to) {
    if (!to || size_of(to) < shape->min || size_of(to) > MAX_SIZE) return TP_INVALID;
    uint32_t size = size_of(to);
    size_t both = size < shape->size ? size : shape->size;
    memcpy(to, from, both);
    memset((char *)to + both, 0, size - both);
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
