/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs and libraries of different versions. These tests are compiled twice: as they are, against a library whose structs
 * have each one field more at their end (scripts/grow_header.py); and with those structs, against the library as it is. The
 * program is then the newer one. Every struct that it gives lies directly in front of memory that may not be touched.
 */
#ifndef TP_TESTS_GROWTH_H
#define TP_TESTS_GROWTH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tileproof.h"

#ifdef TILEPROOF_GROWN
#define NEWER 1
#define SET_GROWN(pointer, value) ((pointer)->grown = (value))
#define GROWN(pointer) ((pointer)->grown)
#define HAS_GROWN(pointer) TP_HAS(pointer, grown)
#else
#define NEWER 0
#define SET_GROWN(pointer, value) ((void)(pointer))
#define GROWN(pointer) 0
#define HAS_GROWN(pointer) ((pointer)->struct_size > sizeof *(pointer))
#endif

/* Memory for one struct, full of 0xa5, that ends where a page without access begins; freed at the end of the test.
   The name is noted as one that the tests know. */
void *growth_place(size_t size, const char *type);
#define PLACE(type) ((type *)growth_place(sizeof(type), #type))
/* With the value, which is one of the INIT macros. */
#define PLACE_INIT(type, ...) \
    ((type *)memcpy(PLACE(type), &(const type)__VA_ARGS__, sizeof(type)))
/* The library's own struct: it begins with a size, which may be less than the program's. */
void growth_given(const void *given, const char *type, int has_grown);
#define GIVEN(pointer, type) growth_given((pointer), #type, HAS_GROWN(pointer))
void growth_free(void);
int growth_knows(const char *type);

/* Fails the test unless the call went well. */
#define GOOD(call)                                                       \
    do {                                                                 \
        tp_status status_ = (call);                                      \
        if (status_ != TP_OK) fail_msg("%s: %s", #call, error->text);    \
    } while (0)

/* Where a newer program sets a field that the library does not know, the call is refused and names the struct. An
   older program has none to set. */
#define REFUSES(pointer, type, call)                                                              \
    do {                                                                                          \
        SET_GROWN(pointer, 0x700000000);                                                          \
        if (NEWER) {                                                                              \
            assert_int_equal((call), TP_INVALID);                                                 \
            if (strstr(error->text, #type ": byte ") == NULL) fail_msg("%s: %s", #call, error->text); \
        }                                                                                         \
        SET_GROWN(pointer, 0);                                                                    \
    } while (0)

/* A size that no version had is refused with both named. */
#define REFUSES_SIZE(pointer, type, call)                                                         \
    do {                                                                                          \
        uint32_t size_ = (pointer)->struct_size;                                                  \
        (pointer)->struct_size = 8;                                                               \
        assert_int_equal((call), TP_INVALID);                                                     \
        if (strstr(error->text, #type ".struct_size is 8: it must be in ") == NULL)               \
            fail_msg("%s: %s", #call, error->text);                                               \
        (pointer)->struct_size = size_;                                                           \
    } while (0)

/* A call of two sequences, whose tensors hold numbers that are all different. */
enum { SEQS = 2, ROWS = 5, KEYS = 9, HEADS = 4, KV_HEADS = 2, DIM = 8 };
typedef struct growth_call {
    tp_problem *problem;
    tp_tensors *tensors;
    float q[SEQS * ROWS * HEADS * DIM], k[SEQS * KEYS * KV_HEADS * DIM], v[SEQS * KEYS * KV_HEADS * DIM];
    float o[SEQS * ROWS * HEADS * DIM], lse[SEQS * ROWS * HEADS];
} growth_call;
/* Causal. The tensors' and the problem's memory are places of their own. */
void growth_call_new(growth_call *call);
/* o and lse against the reference's; then they are cleared. */
void growth_check(growth_call *call);

tp_context *growth_context(const tp_context_options *options);

#endif
