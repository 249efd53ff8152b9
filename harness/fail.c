/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

tp_status harness_fail(tp_error *error, tp_status status, const char *format, ...) {
    va_list arguments;
    if (!error) return status;
    va_start(arguments, format);
    error->status = (int32_t)status;
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return status;
}

double harness_max_bytes(void) {
    return 0.75 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
}
