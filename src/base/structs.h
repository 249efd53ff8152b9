/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs of callers that were compiled with another version of tileproof.h: shorter than this library's, or longer.
 * Section 0 of the header has the rule (Sizes). An entry point takes each struct in by TP_STRUCT_IN before it reads any
 * field, and fills one by tp__struct_out. Behind the entry points every struct is a whole one of this library's.
 */
#ifndef TP_BASE_STRUCTS_H
#define TP_BASE_STRUCTS_H

#include <stddef.h>

#include "base/error.h"
#include "tileproof_backend.h"
#include "tileproof_cache.h"
#include "tileproof_rope.h"

/* Structs that callers make: type, its last field in 0.2.0, or in the version that brought it, and its bytes then where pointers
   have 64 bits. A row never changes: what is added later stands behind that field. */
#define TP__STRUCTS(X)                      \
    X(tp_error, text, 520)                  \
    X(tp_context_options, allocator, 104)   \
    X(tp_machine, name, 120)                \
    X(tp_problem, reserved2, 544)           \
    X(tp_gradients, d_sinks, 232)           \
    X(tp_tags, request, 24)                 \
    X(tp_tensors, tags, 520)                \
    X(tp_choice, reserved, 40)              \
    X(tp_exec, done_user, 80)               \
    X(tp_allocator, user, 32)               \
    X(tp_backend, release_event, 120)       \
    X(tp_outcome, device_ns, 104)           \
    X(tp_lengths, seq, 400)                 \
    X(tp_receipt, function_calls, 1296)     \
    X(tp_counters, refusals, 48)            \
    X(tp_count, device, 96)                 \
    X(tp_kernel_info, ops, 48)              \
    X(tp_lock_state, canary_success, 24)    \
    X(tp_reference_gradients, d_sinks_bound, 104) \
    X(tp_quantised, scales_stride, 80)      \
    X(tp_rope_options, reserved, 200)       \
    X(tp_rope_rows, norm_one_plus, 144)     \
    X(tp_cache_options, allocator, 80)      \
    X(tp_cache_capacity, bytes, 56)         \
    X(tp_cache_rows, norm_one_plus, 200)    \
    X(tp_cache_stats, refusals, 104)

/* Structs without a size: they lie in arrays or inside others, and stay as they are for ever. */
#define TP__FROZEN(X)     \
    X(tp_tensor, 32)      \
    X(tp_mask_node, 24)   \
    X(tp_row, 24)         \
    X(tp_permit, 16)      \
    X(tp_cache_layer, 56)

/* TP__FIRST_tp_problem and so on: bytes in 0.2.0, the fewest that are accepted. */
enum {
#define TP__ROW(type, last, bytes) TP__FIRST_##type = offsetof(type, last) + sizeof(((type *)0)->last),
    TP__STRUCTS(TP__ROW)
#undef TP__ROW
    TP__SIZE_MAX = 65536 /* more is no size, but memory that nobody has set */
};

/* The caller's struct as this library knows it: itself where its size is the library's; otherwise *here, a copy of
   what both know with zeros behind. NULL, with the error filled in (TP_INVALID): it is NULL, its size is not one, or
   something is set that this library does not know. */
#define TP_IN(type, given, here, error)                             \
    (__builtin_expect((given) != NULL && (given)->struct_size == sizeof(type), 1) \
         ? (given)                                                  \
         : (const type *)tp__struct_in(#type, (given), (here), TP__FIRST_##type, sizeof(type), (error)))
const void *tp__struct_in(const char *type, const void *given, void *here, size_t first, size_t now, tp_error *error);

/* The same for a parameter of an entry point, which is left with TP_INVALID where that is NULL. */
#define TP_STRUCT_IN(type, pointer, error)                          \
    type pointer##_here;                                            \
    (pointer) = TP_IN(type, (pointer), &pointer##_here, (error));   \
    if ((pointer) == NULL) return TP_INVALID

/* The same where NULL is an answer. */
#define TP_STRUCT_IN_OR_NULL(type, pointer, error)                  \
    type pointer##_here;                                            \
    if ((pointer) != NULL) {                                        \
        (pointer) = TP_IN(type, (pointer), &pointer##_here, (error)); \
        if ((pointer) == NULL) return TP_INVALID;                   \
    }

/* Is this a size that a struct of the caller's can have? */
#define TP_REQUIRE_SIZE(type, size, error) TP_TRY(tp__size_check(#type, (size), TP__FIRST_##type, (error)))
tp_status tp__size_check(const char *type, size_t size, size_t first, tp_error *error);

/* Fills a struct of `size` bytes of the caller's from *value, `now` bytes of this library's: what both know, zeros
   beyond; struct_size becomes size. */
void tp__struct_out(void *out, size_t size, const void *value, size_t now);

/* The same for functions without a status. A size that is none is only noted in struct_size, so that every function
   refuses the struct. */
#define TP_STRUCT_INIT(type, out, size, value) tp__struct_init((out), (size), (value), TP__FIRST_##type, sizeof(type))
void tp__struct_init(void *out, size_t size, const void *value, size_t first, size_t now);

#endif
