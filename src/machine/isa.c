/* SPDX-License-Identifier: Apache-2.0 */
#include "machine/isa.h"

#include <stdio.h>
#include <string.h>

#include "tileproof.h"

static const struct {
    const char *name;
    uint32_t bit;
} bits[] = {
#define TP_ISA_BIT(name, bit, besides, test) {#name, bit},
#include "machine/isa_bits.inc"
#undef TP_ISA_BIT
};
enum { BITS = sizeof bits / sizeof bits[0] };

uint32_t tp__isa_named(const char *name, size_t length) {
    for (int i = 0; i < BITS; i++)
        if (strlen(bits[i].name) == length && memcmp(bits[i].name, name, length) == 0) return bits[i].bit;
    return 0;
}

uint32_t tp__isa_all(void) {
    uint32_t all = 0;
    for (int i = 0; i < BITS; i++) all |= bits[i].bit;
    return all;
}

tp_status tp_isa_print(uint32_t isa, char *text, size_t size) {
    if (text == NULL || size == 0) return TP_INVALID;
    text[0] = '\0';
    if ((isa & ~tp__isa_all()) != 0) return TP_INVALID;
    int length = isa == 0 ? snprintf(text, size, "none") : 0;
    for (int i = 0; i < BITS && (size_t)length < size; i++)
        if (isa & bits[i].bit)
            length += snprintf(text + length, size - (size_t)length, "%s%s", length > 0 ? "," : "", bits[i].name);
    if ((size_t)length < size) return TP_OK;
    text[0] = '\0';
    return TP_INVALID;
}
