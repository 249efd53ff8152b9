/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in texts that one host prints and another parses: the caller's locale has no say. */
#ifndef TP_PROBLEM_NUMBER_TEXT_H
#define TP_PROBLEM_NUMBER_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* Reads an optional minus and digits at *at and moves it behind them; 0 when there are none or the
   number does not fit, and then *at has not moved. */
int tp__read_integer(const char **at, const char *end, int64_t *value);

/* The same for a decimal fraction such as -1.5e-3; nan, inf and hexadecimal are no numbers here. */
int tp__read_float(const char **at, const char *end, float *value);

enum { TP__FLOAT_TEXT = 32 };
/* %.9g, which gives every float back exactly. */
void tp__write_float(float value, char text[TP__FLOAT_TEXT]);

#endif
