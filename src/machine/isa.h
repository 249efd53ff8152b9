/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TP_MACHINE_ISA_H
#define TP_MACHINE_ISA_H

#include <stddef.h>
#include <stdint.h>

/* The names of ISA bits, from isa_bits.inc; tp_isa_print is the other direction. */
uint32_t tp__isa_named(const char *name, size_t length); /* 0: no such name */
uint32_t tp__isa_all(void);                              /* every bit that has a name */

#endif
