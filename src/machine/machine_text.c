/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "x86-64 isa=avx2,avx512 threads=2 l1d=49152 l2=2097152 l3=0 name=Some CPU (R) @ 2.1GHz"
 *
 * Always these words in this order, one blank between them; name takes the rest of the line. No
 * instruction set is written isa=none.
 */
#include <stdio.h>
#include <string.h>

#include "base/structs.h"
#include "machine/isa.h"
#include "tileproof.h"

/* A field's text must end within it, hold printable ASCII alone, and blanks only where allowed. */
static int good_text(const char *text, size_t size, int blanks) {
    size_t length = strnlen(text, size);
    if (length == 0 || length == size) return 0;
    for (size_t i = 0; i < length; i++)
        if (text[i] < ' ' || text[i] > '~' || (text[i] == ' ' && !blanks)) return 0;
    return text[0] != ' ' && text[length - 1] != ' ';
}

static int printable(const tp_machine *m) {
    return (m->isa & ~tp__isa_all()) == 0 && m->threads >= 1 && m->l1d_bytes >= 0 &&
           m->l2_bytes >= 0 && m->l3_bytes >= 0 && good_text(m->arch, sizeof m->arch, 0) &&
           good_text(m->name, sizeof m->name, 1);
}

tp_status tp_machine_print(const tp_machine *machine, char *text, size_t size) {
    TP_STRUCT_IN(tp_machine, machine, NULL);
    char isa[64], line[288];
    if (text == NULL || size == 0) return TP_INVALID;
    text[0] = 0;
    if (!printable(machine)) return TP_INVALID;
    tp_isa_print(machine->isa, isa, sizeof isa);
    int length =
        snprintf(line, sizeof line, "%s isa=%s threads=%d l1d=%lld l2=%lld l3=%lld name=%s",
                 machine->arch, isa, machine->threads, (long long)machine->l1d_bytes,
                 (long long)machine->l2_bytes, (long long)machine->l3_bytes, machine->name);
    if (length < 0 || (size_t)length >= size) return TP_INVALID;
    memcpy(text, line, (size_t)length + 1);
    return TP_OK;
}

typedef struct reader {
    const char *at;
    tp_error *error;
} reader;

/* Moves to the value of "key=" and gives its length. */
static tp_status find_value(reader *r, const char *key, size_t *length) {
    size_t size = strlen(key), word = strcspn(r->at, " ");
    TP_REQUIRE(strncmp(r->at, key, size) == 0 && r->at[size] == '=', r->error, TP_INVALID,
               "machine text has '%.*s' where '%s=' must stand (the order is arch isa= threads= "
               "l1d= l2= l3= name=)",
               word < 80 ? (int)word : 80, r->at, key);
    r->at += size + 1;
    *length = strcspn(r->at, " ");
    return TP_OK;
}

/* Moves over the word and the one blank behind it. */
static void next_word(reader *r, size_t length) {
    r->at += length;
    if (*r->at == ' ') r->at++;
}

static tp_status read_number(reader *r, const char *key, int64_t min, int64_t max,
                             int64_t *number) {
    size_t length;
    int64_t sum = 0;
    TP_TRY(find_value(r, key, &length));
    int good = length > 0;
    for (size_t i = 0; good && i < length; i++)
        good = r->at[i] >= '0' && r->at[i] <= '9' && !__builtin_mul_overflow(sum, 10, &sum) &&
               !__builtin_add_overflow(sum, r->at[i] - '0', &sum);
    TP_REQUIRE(good && sum >= min && sum <= max, r->error, TP_INVALID,
               "machine word '%s=%.*s': it takes one whole number in %lld..%lld", key,
               length < 80 ? (int)length : 80, r->at, (long long)min, (long long)max);
    *number = sum;
    next_word(r, length);
    return TP_OK;
}

static tp_status read_isa(reader *r, uint32_t *isa) {
    char known[64];
    size_t length, name;
    TP_TRY(find_value(r, "isa", &length));
    tp_isa_print(tp__isa_all(), known, sizeof known);
    if (length == 4 && memcmp(r->at, "none", 4) == 0) {
        next_word(r, length);
        return TP_OK;
    }
    for (size_t i = 0; i <= length; i += name + 1) {
        name = strcspn(r->at + i, ", ");
        uint32_t bit = tp__isa_named(r->at + i, name);
        TP_REQUIRE(bit != 0 && (*isa & bit) == 0, r->error, TP_INVALID,
                   "machine word 'isa=%.*s': it takes none, or some of %s, once each with a comma between",
                   length < 80 ? (int)length : 80, r->at, known);
        *isa |= bit;
    }
    next_word(r, length);
    return TP_OK;
}

static tp_status read_text(reader *r, const char *key, size_t length, int blanks, char *field,
                           size_t size) {
    size_t copied = length < size ? length : size - 1;
    memcpy(field, r->at, copied);
    TP_REQUIRE(
        length < size && good_text(field, size, blanks), r->error, TP_INVALID,
        "machine %s is '%.*s': it must be 1..%zu printable ASCII characters, no blank at its "
        "ends",
        key, length < 80 ? (int)length : 80, r->at, size - 1);
    return TP_OK;
}

tp_status tp_machine_parse_sized(const char *text, tp_machine *machine, size_t size, tp_error *error) {
    TP_REQUIRE(text != NULL, error, TP_INVALID, "text is NULL: it must be a machine's text form");
    TP_REQUIRE(machine != NULL, error, TP_INVALID, "tp_machine is NULL");
    TP_REQUIRE_SIZE(tp_machine, size, error);
    reader r = {text, error};
    tp_machine m;
    int64_t threads;
    size_t length = strcspn(text, " ");
    memset(&m, 0, sizeof m);
    TP_TRY(read_text(&r, "arch", length, 0, m.arch, sizeof m.arch));
    next_word(&r, length);
    TP_TRY(read_isa(&r, &m.isa));
    TP_TRY(read_number(&r, "threads", 1, INT32_MAX, &threads));
    m.threads = (int32_t)threads;
    TP_TRY(read_number(&r, "l1d", 0, INT64_MAX, &m.l1d_bytes));
    TP_TRY(read_number(&r, "l2", 0, INT64_MAX, &m.l2_bytes));
    TP_TRY(read_number(&r, "l3", 0, INT64_MAX, &m.l3_bytes));
    TP_TRY(find_value(&r, "name", &length));
    TP_TRY(read_text(&r, "name", strlen(r.at), 1, m.name, sizeof m.name));
    tp__struct_out(machine, size, &m, sizeof m);
    return TP_OK;
}
