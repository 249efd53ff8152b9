/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/control.h"
#include "base/structs.h"

tp_status tp__fail(tp_error *error, tp_status status, const char *format, ...) {
    if (error != NULL && error->struct_size >= TP__FIRST_tp_error) {
        va_list arguments;
        error->status = status;
        va_start(arguments, format);
        fenv_t saved = tp__fenv_take(); /* numbers are printed by the rounding mode */
        vsnprintf(error->text, sizeof error->text, format, arguments);
        tp__fenv_restore(saved);
        va_end(arguments);
    }
    return status;
}

const char *tp_status_name(tp_status status) {
    static const char *const names[] = {
        [TP_OK] = "TP_OK",
        [TP_INVALID] = "TP_INVALID",
        [TP_UNSUPPORTED] = "TP_UNSUPPORTED",
        [TP_FALLBACK_REFUSED] = "TP_FALLBACK_REFUSED",
        [TP_NO_MEMORY] = "TP_NO_MEMORY",
        [TP_WORKSPACE] = "TP_WORKSPACE",
        [TP_MACHINE] = "TP_MACHINE",
        [TP_BUSY] = "TP_BUSY",
        [TP_FORKED] = "TP_FORKED",
        [TP_NOT_LOCKED] = "TP_NOT_LOCKED",
        [TP_DEVICE_FAILED] = "TP_DEVICE_FAILED",
        [TP_PENDING] = "TP_PENDING",
        [TP_CACHE_FULL] = "TP_CACHE_FULL",
    };
    unsigned n = (unsigned)status;
    return n < sizeof names / sizeof names[0] ? names[n] : "TP_?";
}
