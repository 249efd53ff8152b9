/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TILEPROOF_HARNESS_FAIL_H
#define TILEPROOF_HARNESS_FAIL_H

#include "tileproof.h"

/* Writes status and text to the error, unless it is NULL, and returns the status. */
tp_status harness_fail(tp_error *error, tp_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Bytes that a test may allocate at once: 3/4 of this host's memory. */
double harness_max_bytes(void);

#endif
