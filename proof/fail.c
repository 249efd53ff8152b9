/* SPDX-License-Identifier: Apache-2.0 */
#include "fail.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

tp_status tp__proof_fail(tp_error *error, tp_status status, const char *format, ...) {
    if (error != NULL && error->struct_size >= offsetof(tp_error, text) + sizeof error->text) {
        va_list arguments;
        error->status = status;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return status;
}
